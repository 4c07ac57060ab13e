"""What a person or a group stands for: teams and roles, rights, being active. Kept in the ledger whenever the admin
changes it, since who may see and decide what rests on it. May import ledger.
"""

from typing import Any

from django.contrib.auth.models import Group, User

from runs.models import database_clock

from . import ledger


def of(holder: User | Group) -> dict[str, Any]:
    """By numbers, and names of groups and rights: no name of a person goes into a record that is never withheld."""
    rights = holder.permissions if isinstance(holder, Group) else holder.user_permissions
    codes = sorted(f"{app}.{code}" for app, code in rights.values_list("content_type__app_label", "codename"))
    if isinstance(holder, Group):
        return {"group": holder.pk, "name": holder.name, "rights": codes}
    groups = sorted(holder.groups.values_list("name", flat=True))
    plain = {"active": holder.is_active, "staff": holder.is_staff, "superuser": holder.is_superuser}
    return {"user": holder.pk, "groups": groups, "rights": codes} | plain


def before(holder: User | Group) -> dict[str, Any]:
    """As it stands in the database, whatever a form has put into `holder` meanwhile; empty for one that is new."""
    kept = type(holder).objects.filter(pk=holder.pk).first() if holder.pk else None
    return of(kept) if kept else {}


def enter(holder: User | Group, was: dict[str, Any], *, by: Any) -> None:
    """Enter what it stands for from now on, in the caller's transaction; nothing where that is as it was."""
    kept = type(holder).objects.get(pk=holder.pk)
    if (now := of(kept)) != was:
        ledger.append("standing", now | {"by": by.pk, "act": "changed" if was else "made"}, at=database_clock())


def password_set(person: User, *, by: Any) -> None:
    """Enter that somebody set another's password: whoever knows it can act as that person."""
    ledger.append("standing", {"user": person.pk, "by": by.pk, "act": "password set"}, at=database_clock())
