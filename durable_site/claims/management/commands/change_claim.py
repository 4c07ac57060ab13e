"""`manage.py change_claim REFERENCE …`: changes facts of a claim, as a colleague in another department might.

Imports of ours: the app's own modules.
"""

from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from durable_site.claims.models import Claim, ClaimStatus
from durable_site.claims.money import BadAmount, cents


class Command(BaseCommand):
    help = (
        "Changes the amount, payee or status of a claim. Exit code 0: it is as asked; 1: there is no such claim, or "
        "the user may not change it; 2: a value or an option is wrong."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("reference", metavar="REFERENCE")
        parser.add_argument("--amount", metavar="1840.00", help="what is to be paid, in the claim's currency")
        parser.add_argument("--payee", metavar="NAME")
        parser.add_argument("--status", choices=ClaimStatus.values)
        parser.add_argument("--as", dest="user", metavar="USER", help="who changes it; kept in the admin's history")

    def handle(self, *args: Any, **options: Any) -> None:
        wanted = _wanted(options)
        user = _user(options["user"])
        with transaction.atomic():
            claim = _locked(options["reference"])
            changed = {name: value for name, value in wanted.items() if getattr(claim, name) != value}
            _write(claim, changed, user)
        said = ", ".join(f"{name} is now {value}" for name, value in changed.items()) or "unchanged"
        self.stdout.write(f"claim {claim.reference}: {said}")


def _wanted(options: dict[str, Any]) -> dict[str, Any]:
    wanted = {"payee": options["payee"], "status": options["status"]}
    if options["amount"] is not None:
        try:
            wanted["amount_minor"] = cents(options["amount"])
        except BadAmount as problem:
            raise CommandError(f"--amount {problem}.", returncode=2) from problem
    given = {name: value for name, value in wanted.items() if value is not None}
    if not given:
        raise CommandError("Say what to change: --amount, --payee or --status.", returncode=2)
    return given


def _user(name: str | None) -> User | None:
    if name is None:
        return None
    user = get_user_model().objects.filter(username=name, is_active=True).first()
    if user is None:
        raise CommandError(f"There is no active user {name}.", returncode=2)
    if not user.has_perm("claims.change_claim"):
        raise CommandError(f"{name} may not change claims: the permission claims.change_claim is missing.")
    return user


def _locked(reference: str) -> Claim:
    claim = Claim.objects.select_for_update().filter(reference=reference.lower()).first()
    if claim is None:
        raise CommandError(f"There is no claim {reference}.")
    return claim


def _write(claim: Claim, changed: dict[str, Any], user: User | None) -> None:
    for name, value in changed.items():
        setattr(claim, name, value)
    try:
        claim.clean_fields(exclude={field.name for field in claim._meta.fields} - set(changed))
    except ValidationError as problem:
        raise CommandError(
            "; ".join(f"{name}: {said[0]}" for name, said in problem.message_dict.items()), returncode=2
        ) from problem
    if changed:
        claim.save(update_fields=list(changed))
    if changed and user:
        LogEntry.objects.log_actions(
            user.pk, [claim], CHANGE, [{"changed": {"fields": sorted(changed)}}], single_object=True
        )
