"""Which approvals an inbox lists, in what order, from where on. Questions only; may import models and runs.fragments.

Pages are cut by key, not by number: the next page begins behind the last row that was shown, so nothing is skipped or
shown twice while rows come and go.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import F, Q, QuerySet
from django.http import QueryDict
from django.utils.dateparse import parse_datetime

from runs.fragments import count, first_rows
from runs.models import DatabaseNow

from .models import Approval

SCOPES = {"mine": "Mine", "team": "My team", "overdue": "Overdue"}
SORTS = {"time": "Time left", "amount": "Amount, high first"}


@dataclass(frozen=True)
class Tab:
    scope: str
    title: str
    count: int


@dataclass(frozen=True)
class Choice:
    """What the address asks for; anything it should not ask for is taken as the default."""

    scope: str = "mine"
    sort: str = "time"
    search: str = ""
    after: str = ""

    @classmethod
    def of(cls, query: QueryDict) -> "Choice":
        scope, sort = query.get("scope", ""), query.get("sort", "")
        return cls(
            scope if scope in SCOPES else "mine",
            sort if sort in SORTS else "time",
            query.get("q", "").strip().replace("\0", "")[:100],
            query.get("after", ""),
        )

    def address(self, **changes: str) -> str:
        """The query string of this choice with some changes; a change of anything starts at the first page again."""
        chosen = {"scope": self.scope, "sort": self.sort, "q": self.search} | changes
        query = QueryDict(mutable=True)
        query.update({name: value for name, value in chosen.items() if value})
        return f"?{query.urlencode()}"


def in_scope(user: Any, scope: str) -> QuerySet[Approval]:
    waiting = Approval.objects.visible_to(user).waiting()
    if scope == "mine":
        return waiting.asked_of(user)
    return waiting.overdue() if scope == "overdue" else waiting


def tabs(user: Any) -> list[Tab]:
    return [Tab(scope, title, count(in_scope(user, scope))) for scope, title in SCOPES.items()]


def listed(user: Any, choice: Choice) -> tuple[list[Approval], str]:
    """One page of rows, each with `now` (the database's clock), and the key where the next page begins."""
    rows = in_scope(user, choice.scope)
    if choice.search:
        rows = rows.filter(Q(run__key__startswith=choice.search.lower()) | Q(statement__icontains=choice.search))
    rows = _by_amount(rows, choice.after) if choice.sort == "amount" else _by_time(rows, choice.after)
    rows = rows.select_related("run", "team", "requested_by").prefetch_related("groups").annotate(now=DatabaseNow())
    rows = rows.defer("payload", "facts", "signed_facts", "terms", "run__input", "run__tags", "run__wait_terms")
    return first_rows(rows, _amount_key if choice.sort == "amount" else _time_key)


def neighbours(user: Any, approval: Approval) -> tuple[Approval | None, Approval | None]:
    """The waiting approvals before and behind this one in the order of time left."""
    waiting = Approval.objects.visible_to(user).waiting().only("pk")
    earlier = waiting.filter(Q(due_at__lt=approval.due_at) | Q(pk__lt=approval.pk), due_at__lte=approval.due_at)
    return earlier.order_by("-due_at", "-pk").first(), _by_time(waiting, _time_key(approval)).first()


def _by_time(rows: QuerySet[Approval], after: str) -> QuerySet[Approval]:
    due, pk = _split(after)
    due_at = _instant(due)
    if due_at is not None and pk is not None:
        # Said so that the index on (due_at, id) is entered at this very row.
        rows = rows.filter(Q(due_at__gt=due_at) | Q(pk__gt=pk), due_at__gte=due_at)
    return rows.order_by("due_at", "pk")


def _by_amount(rows: QuerySet[Approval], after: str) -> QuerySet[Approval]:
    amount, pk = _split(after)
    if pk is not None:
        rows = rows.filter(_less_than(_integer(amount), pk))
    return rows.order_by(F("amount_minor").desc(nulls_last=True), "pk")


def _less_than(amount: int | None, pk: int) -> Q:
    """Behind this amount and key; approvals without an amount come last."""
    if amount is None:
        return Q(amount_minor__isnull=True, pk__gt=pk)
    return Q(amount_minor__lt=amount) | Q(amount_minor=amount, pk__gt=pk) | Q(amount_minor__isnull=True)


def _time_key(approval: Approval) -> str:
    return f"{approval.due_at.isoformat()},{approval.pk}"


def _amount_key(approval: Approval) -> str:
    return f"{'' if approval.amount_minor is None else approval.amount_minor},{approval.pk}"


def _split(after: str) -> tuple[str, int | None]:
    first, _, pk = after.rpartition(",")
    return first, _integer(pk)


def _integer(text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        return None
    return number if abs(number) < 2**63 else None


def _instant(text: str) -> datetime | None:
    try:
        found = parse_datetime(text.replace(" ", "+"))
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None
