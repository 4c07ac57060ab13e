"""Which runs a list shows: all of a choice, and those of one page of it, found along an index whatever was asked for.

A filter is looked for in the index that begins with its columns. Each combination that the index holds of the columns
before the id (they are few) is looked along by itself, newest first, and the newest of all are taken: a filter that
nothing matches takes no longer than one that everything matches. Tags and beginnings of keys that very many runs have
are looked through for LOOKED runs at a time, and the page says so. May import choice, models, states.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Group
from django.db import connection
from django.db.models import BooleanField, Exists, OuterRef, Q
from django.db.models.expressions import RawSQL

from . import stuck
from .choice import AGES, Choice, Tab
from .models import Call, DatabaseNow, Run, RunQuerySet, Tag
from .states import Status

LOOKED = 5_000
"""Runs with a tag, or with keys that begin alike, that one page looks through."""
SLACK = timedelta(minutes=1)
"""By how much the order of ids and that of starting times may differ."""
KEEP_A_WAIT = (Status.SLEEPING, Status.WAITING, Status.PAUSED)

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

_PLACES = """
WITH RECURSIVE place AS (
  (SELECT workflow, version, team_id FROM runs_run WHERE workflow >= %(from)s
    ORDER BY workflow, version, team_id LIMIT 1)
  UNION ALL
  SELECT following.* FROM place CROSS JOIN LATERAL (
    SELECT workflow, version, team_id FROM runs_run AS r
     WHERE (r.workflow, r.version, r.team_id) > (place.workflow, place.version, place.team_id)
     ORDER BY workflow, version, team_id LIMIT 1) AS following
   WHERE %(only)s = '' OR place.workflow = %(only)s
) SELECT workflow, version, team_id FROM place WHERE %(only)s = '' OR workflow = %(only)s
"""
"""Which workflows, versions and teams come together, by stepping from one to the next in the index."""

_NAMES = """
WITH RECURSIVE tag AS (
  (SELECT name FROM runs_tag WHERE value = %(value)s ORDER BY name LIMIT 1)
  UNION ALL
  SELECT following.name FROM tag CROSS JOIN LATERAL (
    SELECT name FROM runs_tag AS t WHERE t.value = %(value)s AND t.name > tag.name ORDER BY name LIMIT 1) AS following
) SELECT name FROM tag
"""

_TAGGED = """
SELECT run_id FROM unnest(%(names)s::text[]) AS tag (name) CROSS JOIN LATERAL (
  SELECT run_id FROM runs_tag AS t
   WHERE t.value = %(value)s AND t.name = tag.name AND t.run_id > %(above)s AND t.run_id < %(below)s
   ORDER BY run_id {order} LIMIT %(most)s) AS found
 ORDER BY run_id {order} LIMIT %(most)s
"""

_KEYS = "SELECT id FROM runs_run WHERE key >= %(first)s AND key < %(last)s ORDER BY key DESC LIMIT %(most)s"

_EACH = "SELECT id FROM {tables} CROSS JOIN LATERAL ({part}) AS found ORDER BY id {order} LIMIT {most}"


@dataclass(frozen=True)
class Span:
    """What a page is cut from: ids between the two, exclusive, the newest first or the oldest first."""

    above: int = 0
    below: int = 2**63 - 1
    is_upward: bool = False

    @property
    def order(self) -> str:
        return "pk" if self.is_upward else "-pk"

    @property
    def cut(self) -> Q:
        # Each bound only where there is one: the planner is told nothing that it need not weigh.
        return (Q(pk__gt=self.above) if self.above else Q()) & (Q(pk__lt=self.below) if self.below < 2**63 - 1 else Q())


@dataclass(frozen=True)
class Found:
    """The ids of one page's runs in the span's order. `looked_to`: the run at which the look ended, where it ended
    before the last run that might fit. `is_part`: the search has more matches than were looked at."""

    ids: list[int]
    looked_to: int | None = None
    is_part: bool = False


# All of a choice


def chosen(user: Any, choice: Choice) -> RunQuerySet:
    """All runs of the choice that the person may see, whatever page is looked at."""
    runs = _in_tab_of(user, choice)
    if choice.tag:
        runs = runs.filter(_tagged(choice.tag))
    return _found(runs, choice.search) if choice.search else runs


def teams_of(user: Any) -> list[int] | None:
    """The teams whose runs the person may see, as Run.objects.visible_to has it; None: all of them."""
    if not user.is_active:
        return []
    return None if user.has_perm("runs.view_all_teams") else list(user.groups.values_list("pk", flat=True))


def of_teams(teams: list[int] | None) -> RunQuerySet:
    """With the teams named, the planner knows how many runs they have."""
    return Run.objects.all() if teams is None else Run.objects.filter(team_id__in=teams)


def in_tab(runs: RunQuerySet, tab: Tab) -> RunQuerySet:
    if tab.name == "stuck":
        return runs.stuck()
    if tab.name == "overdue":
        return runs.overdue()
    return runs.filter(status__in=tab.statuses) if tab.statuses else runs


def _in_tab_of(user: Any, choice: Choice) -> RunQuerySet:
    """The tab's runs that the person may see, narrowed by everything but tag and search."""
    teams = teams_of(user)
    if choice.tab.name == "stuck":
        return _narrowed(Run.objects.filter(pk__in=stuck.ids(teams)), choice)
    return _narrowed(in_tab(of_teams(teams), choice.tab), choice)


def _narrowed(runs: RunQuerySet, choice: Choice) -> RunQuerySet:
    wanted = {"workflow": choice.workflow, "version": choice.version, "wait_kind": choice.wait}
    runs = runs.filter(**{column: value for column, value in wanted.items() if value})
    if choice.team:
        runs = runs.filter(team_id=_team(choice.team))
    return _older(runs, choice)


def _older(runs: RunQuerySet, choice: Choice) -> RunQuerySet:
    if not choice.age:
        return runs
    age = AGES[choice.age]
    return runs.filter(created_at__lte=DatabaseNow() - age, pk__lte=_newest_of(age))


def _found(runs: RunQuerySet, search: str) -> RunQuerySet:
    """By an idempotency key or its beginning, by the beginning of a run's key, or by the value of a tag."""
    if ":" in search:
        return _with_call(runs, search)
    tagged = Tag.objects.filter(value=search).values("run_id")
    if not search.isascii():
        return runs.filter(pk__in=tagged)
    matching = Run.objects.filter(key__startswith=search.lower()).order_by().values("pk")
    return runs.filter(pk__in=matching.union(tagged, all=True))


def _with_call(runs: RunQuerySet, search: str) -> RunQuerySet:
    calls = Call.objects.filter(run=OuterRef("pk"), key__startswith=search)
    return runs.filter(Exists(calls), key=search.partition(":")[0].lower())


def _tagged(tag: str) -> Exists:
    name, value = _tag(tag)
    return Exists(Tag.objects.filter(run=OuterRef("pk"), value=value, **({"name": name} if name is not None else {})))


# One page of it


def found(user: Any, choice: Choice, span: Span, most: int) -> Found:
    """The first `most` runs of the choice in this span."""
    if choice.search:
        return _of_search(user, choice, span, most)
    if choice.tag:
        return _of_tag(user, choice, span, most)
    parts = {} if choice.tab.name in ("stuck", "overdue") else _parts(user, choice)
    if not parts:
        return Found(_first(chosen(user, choice), span, most))
    return Found(_each(parts, _older(_left_to_the_rows(choice), choice), span, most))


def _first(runs: RunQuerySet, span: Span, most: int) -> list[int]:
    return list(runs.filter(span.cut).order_by(span.order).values_list("pk", flat=True)[:most])


def _of_search(user: Any, choice: Choice, span: Span, most: int) -> Found:
    runs = _in_tab_of(user, choice)
    runs = runs.filter(_tagged(choice.tag)) if choice.tag else runs
    if ":" in choice.search:
        return Found(_first(_with_call(runs, choice.search), span, most))
    ids = _ids_tagged(None, choice.search, Span())
    keys = _ids_of_keys(choice.search.lower()) if choice.search.isascii() else []
    found = _first(_among(runs, {*ids, *keys}), span, most)
    return Found(found, is_part=LOOKED in (len(ids), len(keys)))


def _of_tag(user: Any, choice: Choice, span: Span, most: int) -> Found:
    runs = _in_tab_of(user, choice)
    ids = _ids_tagged(*_tag(choice.tag), span)
    found = _first(_among(runs, ids), span, most)
    return Found(found, looked_to=ids[-1] if len(ids) == LOOKED and len(found) < most else None)


def _among(runs: RunQuerySet, ids: Iterable[int]) -> RunQuerySet:
    return runs.filter(RawSQL("runs_run.id = ANY(%s)", [list(ids)], output_field=BooleanField()))


def _ids_of_keys(beginning: str) -> list[int]:
    # Compared by bytes, and "~" is behind whatever a key may hold.
    return _rows(_KEYS, {"first": beginning, "last": f"{beginning}~", "most": LOOKED})


def _ids_tagged(name: str | None, value: str, span: Span) -> list[int]:
    names = _rows(_NAMES, {"value": value}) if name is None else [name]
    bounds = {"above": span.above, "below": span.below, "most": LOOKED}
    statement = _TAGGED.format(order="ASC" if span.is_upward else "DESC")
    return _rows(statement, {"names": names, "value": value} | bounds)


# The combinations of what an index begins with

Parts = dict[tuple[str, ...], list[tuple[Any, ...]]]
"""Columns, and the values that they may have together."""


def _parts(user: Any, choice: Choice) -> Parts:
    """What to look along one by one; nothing where the order of ids alone will do."""
    teams, statuses = _teams(user, choice), choice.tab.statuses
    if choice.wait:
        kept = [(status,) for status in KEEP_A_WAIT if status in (statuses or KEEP_A_WAIT)]
        return {("wait_kind",): [(choice.wait,)], ("team_id",): _single(_all_teams(teams)), ("status",): kept}
    if choice.workflow or choice.version:
        places = [place for place in _places(choice) if teams is None or place[2] in teams]
        return {("workflow", "version", "team_id"): places, ("status",): _single(statuses or Status)}
    if teams is not None:
        return {("team_id",): _single(teams), ("status",): _single(statuses or Status)}
    return {("status",): _single(statuses)} if statuses else {}


def _left_to_the_rows(choice: Choice) -> RunQuerySet:
    """What the parts leave to be looked at in the rows: of a wait, the workflow and its version."""
    if not choice.wait:
        return Run.objects.all()
    wanted = {"workflow": choice.workflow, "version": choice.version}
    # The index of waits holds runs with a wait only; it is used by a query that says so itself.
    return Run.objects.exclude(wait_kind="").filter(**{name: value for name, value in wanted.items() if value})


def _each(parts: Parts, runs: RunQuerySet, span: Span, most: int) -> list[int]:
    tables, values = [], []
    for number, (columns, together) in enumerate(parts.items()):
        arrays = [f"unnest(%s::{_TYPES[column]}[])" for column in columns]
        tables.append(f"ROWS FROM ({', '.join(arrays)}) AS part_{number} ({', '.join(columns)})")
        values += [[values[at] for values in together] for at in range(len(columns))]
        runs = runs.filter(**{column: RawSQL(f"part_{number}.{column}", []) for column in columns})  # noqa: S611
    inner, more = runs.filter(span.cut).order_by(span.order).values("id")[:most].query.sql_with_params()
    order = "ASC" if span.is_upward else "DESC"
    return _rows(_EACH.format(tables=" CROSS JOIN ".join(tables), part=inner, order=order, most=most), [*values, *more])


_TYPES = {"workflow": "text", "version": "int2", "team_id": "int4", "status": "text", "wait_kind": "text"}


def _places(choice: Choice) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(_PLACES, {"from": choice.workflow, "only": choice.workflow})
        places = cursor.fetchall()
    return [place for place in places if not choice.version or place[1] == int(choice.version)]


def _single(values: Iterable[Any]) -> list[tuple[Any, ...]]:
    return [(value,) for value in values]


def _teams(user: Any, choice: Choice) -> list[int] | None:
    """Whose runs are asked for; None: everybody's."""
    teams = teams_of(user)
    if choice.team:
        asked = _team(choice.team)
        return [asked] if teams is None or asked in teams else []
    return teams


def _all_teams(teams: list[int] | None) -> list[int]:
    return list(Group.objects.values_list("pk", flat=True)) if teams is None else teams


def _team(name: str) -> int:
    return Group.objects.filter(name=name).values_list("pk", flat=True).first() or 0


def _tag(words: str) -> tuple[str | None, str]:
    name, equals, value = words.partition("=")
    return (name.strip(), value.strip()) if equals else (None, words)


def _newest_of(age: timedelta) -> int:
    return _rows(_NEWEST_BEFORE, [(age - SLACK).total_seconds()])[0]


def _rows(statement: str, values: Any) -> list[Any]:
    """The first column of every row."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return [row[0] for row in cursor.fetchall()]
