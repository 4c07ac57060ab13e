"""The runs console: which runs a list shows, from where on, how many there are, and the same as CSV. Questions only.

Pages are cut by key in both directions, so nothing is skipped or shown twice while runs come and go. Every choice is in
the address: a link is a saved view. May import engine, timeline, workflows, models, states, fragments.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q
from django.http import QueryDict

from . import engine, timeline, workflows
from .fragments import ROWS, count
from .models import AuditEvent, Call, DatabaseNow, Run, RunQuerySet, Tag
from .states import Status, WaitKind

COUNT_LIMIT = 10_000
"""Counts are taken no further, and then read "10,000+"."""
MOST_PARTS = 100
"""Teams times statuses up to which each is looked through by itself."""
CHUNK = 2000
"""Rows that an export holds at a time."""


class Tab(NamedTuple):
    name: str
    title: str
    statuses: tuple[Status, ...] = ()
    is_bad: bool = False


TABS = (
    Tab("all", "All"),
    Tab("working", "At work", (Status.READY, Status.RUNNING)),
    Tab("waiting", "Waiting", (Status.WAITING,)),
    Tab("sleeping", "Sleeping", (Status.SLEEPING,)),
    Tab("stuck", "Stuck", is_bad=True),
    Tab("overdue", "Overdue", is_bad=True),
    Tab("dead", "Dead letter", (Status.DEAD,), is_bad=True),
    Tab("paused", "Paused", (Status.PAUSED,)),
    Tab("completed", "Completed", (Status.COMPLETED,)),
    Tab("expired", "Expired", (Status.EXPIRED,)),
    Tab("cancelled", "Cancelled", (Status.CANCELLED,)),
)
AGES = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
AGE_TITLES = {"1h": "1 hour", "1d": "1 day", "7d": "7 days", "30d": "30 days"}

_NEWEST_BEFORE = """
WITH RECURSIVE halves(low, high) AS (
  SELECT 0::bigint, coalesce(max(id), 0) FROM runs_run
  UNION ALL
  SELECT CASE WHEN is_before THEN middle ELSE low END, CASE WHEN is_before THEN high ELSE middle - 1 END
    FROM (SELECT low, high, (low + high + 1) / 2 AS middle FROM halves WHERE low < high) AS half,
         LATERAL (SELECT coalesce((SELECT created_at <= runs_now() - make_interval(secs => %s)
                                     FROM runs_run WHERE id <= middle ORDER BY id DESC LIMIT 1), true)) AS at(is_before)
) SELECT max(low) FROM halves
"""
"""Ids grow with time, so the newest run of that age is found by halving: no list and no index of times is needed."""
SLACK = timedelta(minutes=1)
"""By how much the order of ids and that of starting times may differ."""


@dataclass(frozen=True)
class Choice:
    """What the address asks for; anything it should not ask for is taken as the default."""

    status: str = "all"
    search: str = ""
    workflow: str = ""
    version: str = ""
    team: str = ""
    tag: str = ""
    age: str = ""
    wait: str = ""
    after: int | None = None
    before: int | None = None

    @classmethod
    def of(cls, query: QueryDict) -> "Choice":
        words = {name: query.get(asked, "").strip().replace("\0", "")[:310] for name, asked in ASKED.items()}
        words["status"] = words["status"] if words["status"] in {tab.name for tab in TABS} else "all"
        words["age"] = words["age"] if words["age"] in AGES else ""
        words["wait"] = words["wait"] if words["wait"] in WaitKind.values else ""
        words["version"] = words["version"] if _number(words["version"], 5) is not None else ""
        return cls(**words, after=_number(query.get("after", "")), before=_number(query.get("before", "")))

    @property
    def tab(self) -> Tab:
        return next(tab for tab in TABS if tab.name == self.status)

    @property
    def filters(self) -> dict[str, str]:
        """What narrows the tab, by the names that the address has for it."""
        given = {ASKED[item.name]: getattr(self, item.name) for item in fields(self) if item.name in ASKED}
        return {name: value for name, value in given.items() if value and name != "status"}

    @property
    def hidden(self) -> dict[str, str]:
        """What a form has to carry so that it speaks of the same runs."""
        return {"status": self.status} | self.filters

    @property
    def cut(self) -> dict[str, int | None]:
        return {"after": self.after, "before": self.before}

    def whole(self) -> "Choice":
        return replace(self, after=None, before=None)

    def address(self, **changes: Any) -> str:
        """The query string of this choice with some changes; a change of anything starts at the first page again."""
        query = QueryDict(mutable=True)
        query.update({name: str(value) for name, value in (self.hidden | changes).items() if value})
        return f"?{query.urlencode()}"


ASKED = {
    "status": "status",
    "search": "q",
    "workflow": "workflow",
    "version": "version",
    "team": "team",
    "tag": "tag",
    "age": "age",
    "wait": "wait",
}
"""The members of a choice by the names that an address has for them."""


@dataclass(frozen=True)
class Row:
    """One line of the list."""

    run: Run
    number: int
    total: int
    title: str
    why: str
    until: datetime

    @property
    def age(self) -> Any:
        return self.until - self.run.created_at

    @property
    def is_counted_down(self) -> bool:
        return self.run.status in (Status.WAITING, Status.SLEEPING) and self.run.wait_since is not None


@dataclass(frozen=True)
class Page:
    """One page of the list. `older`, `newer`: where the neighbouring pages are cut; 0 where there is none."""

    rows: list[Row]
    older: int
    newer: int


# Which runs


def chosen(user: Any, choice: Choice) -> RunQuerySet:
    """All runs of the choice that the person may see, whatever page is looked at."""
    return _sought(in_tab(Run.objects.visible_to(user), choice.tab), choice)


def _sought(runs: RunQuerySet, choice: Choice) -> RunQuerySet:
    runs = _narrowed(runs, choice)
    return _found(runs, choice.search) if choice.search else runs


def in_tab(runs: RunQuerySet, tab: Tab) -> RunQuerySet:
    if tab.name == "stuck":
        return runs.stuck()
    if tab.name == "overdue":
        return runs.overdue()
    return runs.filter(status__in=tab.statuses) if tab.statuses else runs


def _narrowed(runs: RunQuerySet, choice: Choice) -> RunQuerySet:
    wanted = {"workflow": choice.workflow, "version": choice.version, "wait_kind": choice.wait}
    runs = runs.filter(**{column: value for column, value in wanted.items() if value})
    if choice.team:
        # By its number, so that the planner knows how many that are.
        runs = runs.filter(team_id=_team(choice.team))
    if choice.tag:
        runs = runs.filter(_tagged(choice.tag))
    if choice.age:
        age = AGES[choice.age]
        runs = runs.filter(created_at__lte=DatabaseNow() - age, pk__lte=_newest_of(age))
    return runs


def _found(runs: RunQuerySet, search: str) -> RunQuerySet:
    """By an idempotency key or its beginning, by the beginning of a run's key, or by the value of a tag."""
    run_key, colon, _ = search.partition(":")
    if colon:
        calls = Call.objects.filter(run=OuterRef("pk"), key__startswith=search)
        return runs.filter(Exists(calls), key=run_key.lower())
    tagged = Tag.objects.filter(value=search).values("run_id")
    if not search.isascii():
        return runs.filter(pk__in=tagged)
    matching = Run.objects.filter(key__startswith=search.lower()).order_by().values("pk")
    return runs.filter(pk__in=matching.union(tagged, all=True))


def _tagged(tag: str) -> Exists:
    name, equals, value = tag.partition("=")
    wanted = {"name": name.strip(), "value": value.strip()} if equals else {"value": tag}
    return Exists(Tag.objects.filter(run=OuterRef("pk"), **wanted))


def _team(name: str) -> int:
    return Group.objects.filter(name=name).values_list("pk", flat=True).first() or 0


def _newest_of(age: timedelta) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_NEWEST_BEFORE, [(age - SLACK).total_seconds()])
        return cursor.fetchone()[0]


def _number(word: str, digits: int = 18) -> int | None:
    return int(word) if word.isascii() and word.isdecimal() and len(word) <= digits else None


# Pages and counts


def page(user: Any, choice: Choice) -> Page:
    """The page of the choice, the newest run first."""
    if choice.before is not None:
        found = _first(user, choice, Q(pk__gt=choice.before), "pk")
        more_newer, more_older = len(found) > ROWS, True
        found = found[:ROWS][::-1]
    else:
        found = _first(user, choice, Q() if choice.after is None else Q(pk__lt=choice.after), "-pk")
        more_newer, more_older = choice.after is not None, len(found) > ROWS
        found = found[:ROWS]
    older, newer = (found[-1].pk, found[0].pk) if found else (0, 0)
    return Page(list(_rows(found)), older if more_older else 0, newer if more_newer else 0)


def _first(user: Any, choice: Choice, cut: Q, order: str) -> list[Run]:
    """One page's rows and one more, in that order."""
    found = [part.filter(cut).order_by(order).values("pk")[: ROWS + 1] for part in _parts(user, choice)]
    ids = found[0].union(*found[1:], all=True) if len(found) > 1 else found[0]
    rows = Run.objects.filter(pk__in=ids).select_related("team").annotate(now=DatabaseNow()).order_by(order)
    return list(rows.defer("input", "tags", "wait_terms", "caps")[: ROWS + 1])


def _parts(user: Any, choice: Choice) -> list[RunQuerySet]:
    """What makes up the choice. Under a status a member's runs are looked for team by team: each part is then read from
    its index in order, where all of them together would be read whole and sorted."""
    if user.is_active and choice.tab.statuses and not choice.search and not user.has_perm("runs.view_all_teams"):
        teams = user.groups.values_list("pk", flat=True)
        each = [Run.objects.filter(team_id=team, status=status) for team in teams for status in choice.tab.statuses]
        if 0 < len(each) <= MOST_PARTS:
            return [_sought(part, choice) for part in each]
    return [chosen(user, choice)]


def tabs(user: Any) -> list[tuple[Tab, int]]:
    """Each tab and how many runs of the person's teams are in it, whatever is searched for."""
    visible = Run.objects.visible_to(user)
    return [(tab, count(in_tab(visible, tab), COUNT_LIMIT)) for tab in TABS]


def _rows(runs: list[Any]) -> Iterator[Row]:
    why = engine.explained(runs)
    for run in runs:
        number, total, title = timeline.place(run, workflows.get(run.workflow, run.version))
        yield Row(run, number, total, title, why[run.pk], run.finished_at or run.now)


# CSV

HEADINGS = (
    "run",
    "workflow",
    "version",
    "team",
    "status",
    "outcome",
    "steps done",
    "at step",
    "attempt",
    "wait",
    "waits for",
    "due (UTC)",
    "why",
    "started (UTC)",
    "ended (UTC)",
    "tags",
)


class _Line:
    """What csv writes to: it hands back the line, so that each can be sent by itself."""

    def write(self, line: str) -> str:
        return line


def export(user: Any, choice: Choice) -> Iterator[str]:
    """The runs of the choice as CSV, line by line, over a cursor in the server; the export is recorded at its start."""
    AuditEvent.objects.create(
        kind=AuditEvent.Kind.EXPORTED, detail=f"runs as CSV: {choice.whole().address()}", user=user, actor="web"
    )
    return _lines(chosen(user, choice).select_related("team").defer("input", "caps").order_by("-pk"))


def _lines(runs: RunQuerySet) -> Iterator[str]:
    writer = csv.writer(_Line())
    yield writer.writerow(HEADINGS)
    # In one transaction, or the server would first write all of the result down.
    with transaction.atomic():
        found = runs.iterator(chunk_size=CHUNK)
        while chunk := list(islice(found, CHUNK)):
            why = engine.explained(chunk)
            for run in chunk:
                yield writer.writerow([harmless(cell) for cell in _cells(run, why[run.pk])])


def _cells(run: Run, why: str) -> Iterator[Any]:
    yield from (run.key, run.workflow, run.version, run.team.name, run.status, run.outcome)
    yield from (run.position, run.next_step, run.attempt, run.wait_kind, run.wait_name, _moment(run.due_at))
    yield from (why, _moment(run.created_at), _moment(run.finished_at))
    yield "; ".join(f"{name}={value}" for name, value in run.tags.items())


def harmless(cell: Any) -> Any:
    """No spreadsheet takes it for a formula: an apostrophe stands before whatever it would begin one with."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in {"=", "+", "-", "@", "\t", "\r", "\n"} else cell


def _moment(at: datetime | None) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" if at else ""


def selected(user: Any, keys: list[str]) -> RunQuerySet:
    """Those runs among the ones the person may see."""
    return Run.objects.visible_to(user).filter(key__in=[key for key in keys if key.isascii() and "\0" not in key])
