"""Authorities: who may decide how much. Granted, changed and ended here, each with a ledger entry; read by decisions.

Rights are read when the decision is taken: the rows are locked FOR SHARE, so that whoever ends one waits for a decision
that rests on it, or the decision sees that it ended. May import ledger, models, refusals and runs' models and engine.
"""

from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet, Sum

from runs.models import database_clock
from runs.money import amount

from . import ledger
from .models import Approval, ApprovalStatus, Authority, Decision
from .refusals import NotAnApprover, PasswordNeeded

FRESH = 300
"""Seconds for which a password counts as just given."""
PAYEE_WINDOW = timedelta(hours=24)

NO_AUTHORITY = (
    "You hold no authority to decide this now. An admin grants one, to you or to a group of yours: under Authorities "
    "in the admin, or with `manage.py authorities grant`."
)

COLUMNS = (
    "user",
    "group",
    "workflow",
    "team",
    "currency",
    "limit_minor",
    "payee_limit_minor",
    "password_above_minor",
    "valid_from",
    "valid_to",
)


# Granting


def grant(*, by: Any, **columns: Any) -> Authority:
    """Make an authority, with its ledger entry. `by`: who grants it; None for the system. Raises ValidationError."""
    with transaction.atomic():
        now = database_clock()
        made = Authority(**{"valid_from": now} | columns)
        _checked(made).save()
        _enter(made, "granted", by, now)
    return made


def change(authority_id: int, *, by: Any, **columns: Any) -> Authority:
    """Change an authority, with its ledger entry. Raises ValidationError, Authority.DoesNotExist."""
    with transaction.atomic():
        authority = Authority.objects.select_for_update().get(pk=authority_id)
        for name, value in columns.items():
            setattr(authority, name, value)
        _checked(authority).save()
        _enter(authority, "changed", by, database_clock())
    return authority


def end(authority_id: int, *, by: Any) -> Authority:
    """Let an authority be worth nothing from now on; it stays to be read. Raises Authority.DoesNotExist."""
    with transaction.atomic():
        authority = Authority.objects.select_for_update().get(pk=authority_id)
        now = database_clock()
        if authority.valid_to is None or authority.valid_to > now:
            authority.valid_to = now
            authority.save(update_fields=["valid_to"])
            _enter(authority, "ended", by, now)
    return authority


def _checked(authority: Authority) -> Authority:
    authority.full_clean()
    return authority


def _enter(authority: Authority, act: str, by: Any, now: datetime) -> None:
    """Ids only: no name of a person goes into a record that is never withheld."""
    moments = {
        name: ledger.instant(value) if (value := getattr(authority, name)) else None
        for name in ("valid_from", "valid_to")
    }
    plain = ("workflow", "currency", "limit_minor", "payee_limit_minor", "password_above_minor")
    holder = {name: getattr(authority, f"{name}_id") for name in ("user", "group", "team")}
    said = {name: getattr(authority, name) for name in plain} | holder | moments
    ledger.append("authority", said | {"authority": authority.pk, "act": act, "by": by.pk if by else None}, at=now)


# Reading


def matching(user: Any, approval: Approval, now: datetime) -> QuerySet[Authority]:
    """The authorities of this person or their groups that are about this approval and valid at `now`."""
    held = Q(user=user) | Q(group__in=user.groups.all())
    about = Q(workflow__in=["", approval.run.workflow]) & (Q(team=None) | Q(team=approval.team_id))
    valid = Q(valid_from__lte=now) & (Q(valid_to=None) | Q(valid_to__gt=now))
    of_currency = Q(currency__in=["", approval.currency]) if approval.amount_minor is not None else Q()
    return Authority.objects.filter(held, about, valid, of_currency)


def held(user: Any, approval: Approval, now: datetime) -> list[Authority]:
    """Those that match, locked until the deciding transaction ends: nobody ends or changes one meanwhile. Raises
    NotAnApprover when there is none."""
    keys = list(matching(user, approval, now).order_by("pk").values_list("pk", flat=True))
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM approvals_authority WHERE id = ANY(%s) ORDER BY id FOR SHARE", [keys])
    # Read again: whoever held a lock before us may have ended one.
    found = list(matching(user, approval, now).filter(pk__in=keys))
    if not found:
        raise NotAnApprover(NO_AUTHORITY)
    return sorted(found, key=_breadth)


def ordered(user: Any, approval: Approval, now: datetime) -> list[Authority]:
    """Those that match, the narrowest first, for a page: nothing is locked."""
    return sorted(matching(user, approval, now), key=_breadth)


def to_approve(found: list[Authority], approval: Approval, now: datetime, *, lock: bool = True) -> Authority:
    """The narrowest of these authorities that suffices to approve. Takes the payee's lock where a limit adds up what
    one payee gets. Raises NotAnApprover with the rule."""
    if not found:
        raise NotAnApprover(NO_AUTHORITY)
    if approval.amount_minor is None:
        return found[0]
    enough = [each for each in found if _covers(each.limit_minor, approval.amount_minor)]
    if not enough:
        most = max(each.limit_minor or 0 for each in found)
        raise NotAnApprover(
            f"Your authority ends at {_money(most, approval)} for one approval; this is "
            f"{_money(approval.amount_minor, approval)}."
        )
    if enough[0].payee_limit_minor is None or not approval.payee:
        return enough[0]
    if lock:
        _lock_payee(approval)
    return _within_payee_limit(enough, approval, now)


def check_fresh(authority: Authority, approval: Approval, auth_age: int | None) -> None:
    """Raises PasswordNeeded when this amount asks for a password that was given just now."""
    if needs_password(authority, approval) and (auth_age is None or auth_age > FRESH):
        raise PasswordNeeded(FRESH)


def needs_password(authority: Authority, approval: Approval) -> bool:
    above = authority.password_above_minor
    return above is not None and approval.amount_minor is not None and approval.amount_minor > above


def given_to_payee(approval: Approval, now: datetime) -> int:
    """Minor units that somebody approved for this payee in the last 24 hours, this approval not counted."""
    signed = Decision.objects.filter(
        approval=OuterRef("pk"), verdict=Decision.Verdict.APPROVE, decided_at__gt=now - PAYEE_WINDOW
    )
    others = Approval.objects.filter(payee=approval.payee, currency=approval.currency).exclude(pk=approval.pk)
    counted = others.filter(Exists(signed), status__in=[ApprovalStatus.OPEN, ApprovalStatus.APPROVED])
    return counted.aggregate(total=Sum("amount_minor"))["total"] or 0


def _within_payee_limit(enough: list[Authority], approval: Approval, now: datetime) -> Authority:
    before, wanted = given_to_payee(approval, now), approval.amount_minor or 0
    for each in enough:
        if _covers(each.payee_limit_minor, before + wanted):
            return each
    most = max(each.payee_limit_minor or 0 for each in enough)
    raise NotAnApprover(
        f"Your authority ends at {_money(most, approval)} for one payee in 24 hours. "
        f"{_money(before, approval)} were approved for this payee already; this is "
        f"{_money(wanted, approval)} more."
    )


def _lock_payee(approval: Approval) -> None:
    """Two decisions for one payee are taken one after the other, whatever runs they are in."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"payee {approval.currency} {approval.payee}"]
        )


def _money(minor: int, approval: Approval) -> str:
    return f"{amount(minor, approval.currency)} {approval.currency}".strip()


def _covers(limit: int | None, minor: int) -> bool:
    return limit is None or minor <= limit


def _breadth(authority: Authority) -> tuple[bool, int, int]:
    return authority.limit_minor is None, authority.limit_minor or 0, authority.pk
