"""People and a team to try the site with: one of each role. For `make demo` and `make serve` only.

Imports Django's own models, and the verb that grants authorities.
"""

from django.contrib.auth.models import Group, User

TEAM = "claims"
ROLES = {
    "ada": ("adjusters", TEAM),
    "ben": ("adjusters", TEAM),
    "sam": ("senior-adjusters", "adjusters", TEAM),
    "olga": ("ops", TEAM),
    "audrey": ("auditors",),
}
"""Log-in names and the groups they are in; `admin` comes beside them as superuser."""
AUTHORITIES = {
    "adjusters": {"limit_minor": 2_500_000, "payee_limit_minor": 5_000_000, "password_above_minor": 1_000_000},
    "senior-adjusters": {"password_above_minor": 2_500_000},
}
"""What each group may decide, in cents."""


def settle_in(password: str) -> Group:
    """Make the team and the people if they are missing, all with this password; the team."""
    team, _ = Group.objects.get_or_create(name=TEAM)
    for name, groups in ROLES.items():
        user, _ = User.objects.get_or_create(username=name, defaults={"email": f"{name}@example.invalid"})
        user.is_staff = "auditors" in groups
        user.set_password(password)
        user.save()
        user.groups.set(Group.objects.filter(name__in=groups))
    admin, _ = User.objects.get_or_create(username="admin", defaults={"email": "admin@example.invalid"})
    admin.is_staff = admin.is_superuser = True
    admin.set_password(password)
    admin.save()
    _grant()
    return team


def _grant() -> None:
    # Not at import: the people are asked for before Django is set up.
    from approvals import authority
    from approvals.models import Authority

    for name, limits in AUTHORITIES.items():
        group = Group.objects.get(name=name)
        if not Authority.objects.filter(group=group).exists():
            authority.grant(by=None, group=group, currency="USD", **limits)
