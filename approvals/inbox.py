"""Which approvals an inbox lists, in what order, from where on. Questions only; may import models and runs.fragments.

Pages are cut by key, not by number: the next page begins behind the last row that was shown, the one before ends ahead
of the first, so nothing is skipped or shown twice while rows come and go.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import F, Q, QuerySet, Value
from django.db.models.functions import Coalesce
from django.http import QueryDict
from django.utils.dateparse import parse_datetime

from runs.fragments import ROWS, count
from runs.models import DatabaseNow

from .models import LEAST, Absence, Approval, ApprovalQuerySet

SCOPES = {"mine": "Mine", "groups": "My groups", "all": "All", "overdue": "Overdue"}
SORTS = {"time": "Time left", "amount": "Amount, high first"}


@dataclass(frozen=True)
class Tab:
    scope: str
    title: str
    count: int


@dataclass(frozen=True)
class Choice:
    """What the address asks for; anything it should not ask for is taken as the default."""

    scope: str = "groups"
    sort: str = "time"
    search: str = ""
    after: str = ""
    before: str = ""

    @classmethod
    def of(cls, query: QueryDict) -> "Choice":
        scope, sort = query.get("scope", ""), query.get("sort", "")
        return cls(
            scope if scope in SCOPES else "groups",
            sort if sort in SORTS else "time",
            query.get("q", "").strip().replace("\0", "")[:100],
            query.get("after", ""),
            query.get("before", ""),
        )

    @property
    def title(self) -> str:
        return SCOPES[self.scope]

    @property
    def here(self) -> str:
        """The query string of this very page."""
        return self.address(after=self.after, before=self.before)

    def address(self, **changes: str) -> str:
        """The query string of this choice with some changes; a change of anything starts at the first page again."""
        chosen = {"scope": self.scope, "sort": self.sort, "q": self.search} | changes
        query = QueryDict(mutable=True)
        query.update({name: value for name, value in chosen.items() if value})
        return f"?{query.urlencode()}"


@dataclass(frozen=True)
class Listed:
    """One page of rows, each with `now` (the database's clock), and the keys of the pages before and behind it."""

    rows: list[Approval]
    before: str
    after: str


@dataclass(frozen=True)
class Order:
    """One way of sorting: by an expression, downwards or upwards, then by id."""

    by: Any
    downwards: bool
    key: Callable[[Approval], str]
    parse: Callable[[str], Any]

    def apply(self, rows: QuerySet[Approval]) -> QuerySet[Approval]:
        rows = rows.annotate(rank=self.by)
        return rows.order_by(F("rank").desc() if self.downwards else F("rank").asc(), "pk")

    def behind(self, rows: QuerySet[Approval], key: str) -> QuerySet[Approval]:
        """Those that come after this key; all when the key makes no sense."""
        return self._beyond(rows, key, ("lt", "lte") if self.downwards else ("gt", "gte"), "gt")

    def ahead(self, rows: QuerySet[Approval], key: str) -> QuerySet[Approval]:
        """Those that come before this key; all when the key makes no sense."""
        return self._beyond(rows, key, ("gt", "gte") if self.downwards else ("lt", "lte"), "lt")

    def _beyond(self, rows: QuerySet[Approval], key: str, than: tuple[str, str], pk_than: str) -> QuerySet[Approval]:
        rank, _, pk = key.rpartition(",")
        at, number = self.parse(rank), _integer(pk)
        if at is None or number is None:
            return rows
        # Said twice so that the index is entered at this very row.
        further = Q(**{f"rank__{than[0]}": at}) | Q(**{f"pk__{pk_than}": number})
        return rows.filter(further, **{f"rank__{than[1]}": at})


def in_scope(user: Any, scope: str) -> ApprovalQuerySet:
    waiting = Approval.objects.visible_to(user).waiting()
    match scope:
        case "mine":
            return held_for(user, waiting)
        case "groups":
            return waiting.asked_of(user)
        case "overdue":
            return waiting.overdue()
    return waiting


def held_for(user: Any, waiting: ApprovalQuerySet) -> ApprovalQuerySet:
    """Those that the user holds, and those of colleagues whose deputy the user is now, where one of the user's groups
    was asked."""
    away = represented(user)
    mine = Q(inbox_entry__holder=user)
    if away:
        mine |= Q(inbox_entry__holder__in=away, pk__in=waiting.asked_of(user).values("pk"))
    return waiting.filter(mine)


def represented(user: Any) -> list[int]:
    """The keys of those whose deputy the user is now."""
    return list(Absence.objects.current().filter(deputy=user).values_list("person", flat=True).distinct())


def tabs(user: Any) -> list[Tab]:
    return [Tab(scope, title, count(in_scope(user, scope))) for scope, title in SCOPES.items()]


def listed(user: Any, choice: Choice) -> Listed:
    order = ORDERS[choice.sort]
    found = in_scope(user, choice.scope)
    if choice.search:
        found = found.filter(inbox_entry__words__sought=choice.search)
    rows = order.apply(_with_what_is_shown(found))
    if choice.before:
        ahead = list(order.ahead(rows, choice.before).reverse()[: ROWS + 1])
        if len(ahead) > ROWS:
            page = ahead[:ROWS][::-1]
            return Listed(page, order.key(page[0]), order.key(page[-1]))
        # No whole page lies ahead: it is the beginning, and shown as such.
        return _cut(order, rows, "")
    return _cut(order, rows, choice.after)


def neighbours(user: Any, approval: Approval) -> tuple[Approval | None, Approval | None]:
    """The waiting approvals before and behind this one in the order of time left."""
    order = ORDERS["time"]
    waiting = order.apply(Approval.objects.visible_to(user).waiting().only("pk"))
    key = order.key(approval)
    return order.ahead(waiting, key).reverse().first(), order.behind(waiting, key).first()


def _cut(order: Order, rows: QuerySet[Approval], after: str) -> Listed:
    found = list(order.behind(rows, after)[: ROWS + 1])
    page = found[:ROWS]
    before = order.key(page[0]) if after and page else ""
    return Listed(page, before, order.key(page[-1]) if len(found) > ROWS else "")


def _with_what_is_shown(rows: QuerySet[Approval]) -> QuerySet[Approval]:
    rows = rows.select_related("run", "team", "requested_by", "inbox_entry__holder").prefetch_related("groups")
    long = ["payload", "facts", "signed_facts", "terms", "run__input", "run__tags", "run__wait_terms"]
    return rows.annotate(now=DatabaseNow()).defer(*long, "inbox_entry__words")


def _instant(text: str) -> datetime | None:
    try:
        found = parse_datetime(text.replace(" ", "+"))
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None


def _integer(text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        return None
    return number if abs(number) < 2**63 else None


def _amount(text: str) -> int | None:
    return LEAST if text == "" else _integer(text)


ORDERS = {
    "time": Order(F("due_at"), False, lambda row: f"{row.due_at.isoformat()},{row.pk}", _instant),
    "amount": Order(
        Coalesce("amount_minor", Value(LEAST)),
        True,
        lambda row: f"{'' if row.amount_minor is None else row.amount_minor},{row.pk}",
        _amount,
    ),
}
