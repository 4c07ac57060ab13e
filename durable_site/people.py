"""People and a team to try the site with: one of each role. For `make demo` and `make serve` only.

Imports Django's own models; nothing of ours.
"""

from django.contrib.auth.models import Group, User

TEAM = "claims"
ROLES = {
    "ada": ("adjusters", TEAM),
    "ben": ("adjusters", TEAM),
    "olga": ("ops", TEAM),
    "audrey": ("auditors",),
}
"""Log-in names and the groups they are in; `admin` comes beside them as superuser."""


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
    return team
