"""The runs console: the page of a list with its rows and sentences, how many runs are in each tab, and the list as CSV.
Questions only.

Pages are cut by key in both directions, so nothing is skipped or shown twice while runs come and go. May import choice,
narrowing, engine, timeline, workflows, models, states, fragments.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from django.db import transaction

from . import engine, narrowing, stuck, timeline, workflows
from .choice import AGE_TITLES, TABS, Choice, Tab  # noqa: F401 (what its pages speak of)
from .fragments import ROWS, count
from .models import AuditEvent, DatabaseNow, Run, RunQuerySet
from .narrowing import Found, Span, chosen  # noqa: F401
from .states import Status

COUNT_LIMIT = 10_000
"""Counts are taken no further, and then read "10,000+"."""
CHUNK = 2000
"""Rows that an export holds at a time."""


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
    found: Found


# Pages and counts


def page(user: Any, choice: Choice) -> Page:
    """The page of the choice, the newest run first."""
    upward = choice.before is not None
    if upward:
        span = Span(above=choice.before or 0, is_upward=True)
    else:
        span = Span() if choice.after is None else Span(below=choice.after)
    found = narrowing.found(user, choice, span, ROWS + 1)
    runs = Run.objects.filter(pk__in=found.ids[:ROWS]).select_related("team").annotate(now=DatabaseNow())
    rows = list(_rows(list(runs.defer("input", "tags", "wait_terms", "caps").order_by("-pk"))))
    return _cut(rows, found, upward=upward, is_first=choice.after is None)


def _cut(rows: list[Row], found: Found, *, upward: bool, is_first: bool) -> Page:
    """Where the neighbouring pages begin: at the outermost rows, or where the look ended."""
    oldest, newest = (rows[-1].run.pk, rows[0].run.pk) if rows else (0, 0)
    goes_on = len(found.ids) > ROWS or found.looked_to is not None
    if upward:
        newest = found.looked_to or newest
        return Page(rows, oldest, newest if goes_on else 0, found)
    oldest = found.looked_to or oldest
    return Page(rows, oldest if goes_on else 0, 0 if is_first else newest, found)


def tabs(user: Any) -> list[tuple[Tab, int]]:
    """Each tab and how many runs of the person's teams are in it, whatever is searched for."""
    teams = narrowing.teams_of(user)
    return [(tab, _counted(tab, teams)) for tab in TABS]


def _counted(tab: Tab, teams: list[int] | None) -> int:
    if tab.name == "stuck":
        return stuck.count(teams, COUNT_LIMIT)
    return count(narrowing.in_tab(narrowing.of_teams(teams), tab), COUNT_LIMIT)


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
    return _lines(narrowing.chosen(user, choice).select_related("team").defer("input", "caps").order_by("-pk"))


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
