"""Which approvals an inbox lists, in what order, from where on. Questions only; may import models and runs.fragments.

Pages are cut by key, not by number: the next page begins behind the last row that was shown, the one before ends ahead
of the first, so nothing is skipped or shown twice while rows come and go.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, QueryDict
from django.utils.dateparse import parse_datetime

from runs.fragments import COUNT_LIMIT, ROWS
from runs.models import DatabaseNow

from .models import Absence, Approval, InboxEntry

SCOPES = {"mine": "Mine", "groups": "My groups", "all": "All", "overdue": "Overdue"}
SAMPLE, FEW = 200, 500
"""A search looks at so many first rows to learn whether what it seeks is everywhere; if not, at up to so many finds."""
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
    """One page of approvals, each with `now` (the database's clock), and the keys of the pages before and behind."""

    rows: list[Approval]
    before: str
    after: str


@dataclass(frozen=True)
class Order:
    """One way of sorting: by a column, downwards or upwards, then by id."""

    column: str
    downwards: bool
    key: Callable[[InboxEntry], str]
    parse: Callable[[str], Any]

    def apply(self, rows: QuerySet[InboxEntry]) -> QuerySet[InboxEntry]:
        return rows.order_by(f"-{self.column}" if self.downwards else self.column, "pk")

    def behind(self, rows: QuerySet[InboxEntry], key: str) -> QuerySet[InboxEntry]:
        """Those that come after this key; all when the key makes no sense."""
        return self._beyond(rows, key, "lt" if self.downwards else "gt", "gt")

    def ahead(self, rows: QuerySet[InboxEntry], key: str) -> QuerySet[InboxEntry]:
        """Those that come before this key; all when the key makes no sense."""
        return self._beyond(rows, key, "gt" if self.downwards else "lt", "lt")

    def _beyond(self, rows: QuerySet[InboxEntry], key: str, than: str, pk_than: str) -> QuerySet[InboxEntry]:
        text, _, pk = key.rpartition(",")
        at, number = self.parse(text), _integer(pk)
        if at is None or number is None:
            return rows
        # Said twice so that the index is entered at this very row.
        further = Q(**{f"{self.column}__{than}": at}) | Q(**{f"pk__{pk_than}": number})
        return rows.filter(further, **{f"{self.column}__{than}e": at})


class Inbox:
    """What one person sees waiting. Her groups are asked for once, and stand as numbers in every query: the planner
    then knows how many rows they have."""

    def __init__(self, user: Any) -> None:
        self.user = user
        self._counts: dict[str, int] = {}

    @classmethod
    def of(cls, request: HttpRequest) -> "Inbox":
        """That of whoever asks, one for the whole request: tabs and top bar count the same, so it is counted once."""
        found: Inbox = vars(request).setdefault("inbox", cls(request.user))
        return found

    @cached_property
    def groups(self) -> list[int]:
        return list(self.user.groups.values_list("pk", flat=True))

    @cached_property
    def represented(self) -> list[int]:
        """The keys of those whose deputy this person is now."""
        current = Absence.objects.current().filter(deputy=self.user)
        return list(current.values_list("person", flat=True).distinct())

    @property
    def visible(self) -> QuerySet[InboxEntry]:
        """As Approval.objects.visible_to."""
        if not self.user.is_active:
            return InboxEntry.objects.none()
        everything = InboxEntry.objects.all()
        return everything if self.user.has_perm("runs.view_all_teams") else everything.filter(team__in=self.groups)

    def scope(self, name: str) -> QuerySet[InboxEntry]:
        match name:
            case "mine":
                return self.visible.filter(self._mine())
            case "groups":
                return self.visible.filter(asked__overlap=self.groups)
            case "overdue":
                return self.visible.filter(due_at__lte=DatabaseNow())
        return self.visible

    def count(self, scope: str) -> int:
        """How many, up to COUNT_LIMIT. In order of time, so that an index is followed and left in time."""
        if scope not in self._counts:
            self._counts[scope] = ORDERS["time"].apply(self.scope(scope)).values("pk")[:COUNT_LIMIT].count()
        return self._counts[scope]

    def tabs(self) -> list[Tab]:
        return [Tab(scope, title, self.count(scope)) for scope, title in SCOPES.items()]

    def listed(self, choice: Choice) -> Listed:
        order = ORDERS[choice.sort]
        rows = order.apply(_found(self.scope(choice.scope), choice.search))
        if choice.before:
            ahead = list(order.ahead(rows, choice.before).reverse()[: ROWS + 1])
            if len(ahead) > ROWS:
                page = ahead[:ROWS][::-1]
                return Listed(_shown(page), order.key(page[0]), order.key(page[-1]))
            # No whole page lies ahead: it is the beginning, and shown as such.
            return _cut(order, rows, "")
        return _cut(order, rows, choice.after)

    def _mine(self) -> Q:
        """What she holds, and what those hold whose deputy she is, where one of her groups was asked and four eyes let
        her approve it."""
        held = Q(holder=self.user)
        if not self.represented:
            return held
        of_others = Q(holder__in=self.represented, asked__overlap=self.groups)
        versions = Approval.objects.filter(run=OuterRef("approval__run"), position=OuterRef("approval__position"))
        changed = Q(Exists(versions.filter(edited_by=self.user)))
        return held | of_others & ~Q(approval__requested_by=self.user) & ~changed


def neighbours(user: Any, approval: Approval) -> tuple[InboxEntry | None, InboxEntry | None]:
    """The waiting approvals before and behind this one in the order of time left."""
    order = ORDERS["time"]
    waiting = order.apply(Inbox(user).visible.only("pk"))
    key = f"{approval.due_at.isoformat()},{approval.pk}"
    return order.ahead(waiting, key).reverse().first(), order.behind(waiting, key).first()


def _found(rows: QuerySet[InboxEntry], search: str) -> QuerySet[InboxEntry]:
    if not search:
        return rows
    # The planner cannot know how many have a word that begins so. The first rows tell of a word that is everywhere:
    # then they are looked through in order; else the index is asked, and what it finds is few.
    beginning = ORDERS["time"].apply(rows).values("pk")[:SAMPLE]
    if InboxEntry.objects.filter(pk__in=beginning, words__saying=search).count() > SAMPLE // 10:
        return rows.filter(words__saying=search)
    few = list(ORDERS["time"].apply(InboxEntry.objects.filter(words__sought=search)).values_list("pk", flat=True)[:FEW])
    return rows.filter(pk__in=few) if len(few) < FEW else rows.filter(words__saying=search)


def _cut(order: Order, rows: QuerySet[InboxEntry], after: str) -> Listed:
    found = list(order.behind(rows, after).defer("words", "asked")[: ROWS + 1])
    page = found[:ROWS]
    before = order.key(page[0]) if after and page else ""
    return Listed(_shown(page), before, order.key(page[-1]) if len(found) > ROWS else "")


def _shown(page: list[InboxEntry]) -> list[Approval]:
    """The approvals of a page, in its order, with all that is shown of each."""
    rows = Approval.objects.select_related("run", "team", "requested_by", "inbox_entry__holder")
    long = ["payload", "facts", "signed_facts", "terms", "run__input", "run__tags", "run__wait_terms"]
    rows = rows.prefetch_related("groups").annotate(now=DatabaseNow()).defer(*long, "inbox_entry__words")
    found = rows.in_bulk([entry.pk for entry in page])
    return [found[entry.pk] for entry in page if entry.pk in found]


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
    return InboxEntry.LEAST if text == "" else _integer(text)


ORDERS = {
    "time": Order("due_at", False, lambda row: f"{row.due_at.isoformat()},{row.pk}", _instant),
    "amount": Order("rank", True, lambda row: f"{'' if row.rank == InboxEntry.LEAST else row.rank},{row.pk}", _amount),
}
