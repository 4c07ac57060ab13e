"""Retention: what is said in the values of old final runs is taken out; that they ran, and what was decided, stays.

Lives here: how long runs are kept, which are due, what they hold, and taking it out, batch by batch. Files of artefacts
and other old rows are in pruning; what other apps keep of a run they say with `also`. May import engine and models.

A batch is one short transaction that waits for nobody's run: rows that are locked are skipped and met again next time.
A process that dies leaves its batch undone, and two at once share the runs between them.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate, takewhile
from typing import Any

from django.conf import settings
from django.db import OperationalError, connection, transaction
from django.db.models import (
    BigIntegerField,
    Case,
    Count,
    DurationField,
    Exists,
    F,
    Func,
    OuterRef,
    Q,
    QuerySet,
    Sum,
    Value,
)
from django.db.models import When as Whenever
from django.db.models.functions import Coalesce
from psycopg import errors

from . import engine
from .errors import BadRequest
from .failpoints import reach
from .models import (
    Artefact,
    AuditEvent,
    Call,
    Checkpoint,
    DatabaseNow,
    Delivery,
    Finding,
    Hold,
    Run,
    RunQuerySet,
    Transition,
    Withholding,
    database_clock,
)
from .states import FINAL, Status

logger = logging.getLogger(__name__)

WITHHELD = "Withheld by retention"
"""What stands where words stood."""
IN_ONE_BATCH = 100
"""Runs of one transaction, and fewer when they are long:"""
POSITIONS_IN_ONE_BATCH = 5_000
LOCK_TIMEOUT, STATEMENT_TIMEOUT = "2s", "60s"
"""Whoever decides or pays never waits for this for long: it gives up, and goes on with the next batch."""


TIMES_OUT = (errors.LockNotAvailable, errors.QueryCanceled, errors.DeadlockDetected)


class Octets(Func):
    """Bytes of a text."""

    function = "octet_length"
    output_field = BigIntegerField()


@dataclass(frozen=True)
class Rule:
    """How many days a run is kept after it ended: its team's word, else its workflow's, else `days`. 0: for ever."""

    days: int = 0
    by_workflow: dict[str, int] = field(default_factory=dict)
    by_team: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        named = [f"{name} {_spelled(days)}" for name, days in sorted((self.by_team | self.by_workflow).items())]
        return "; ".join([f"kept {_spelled(self.days)} after their end", *named])

    @property
    def shortest(self) -> int:
        """Of all the times, in days; 0 when nothing ever goes."""
        return min(
            (days for days in (self.days, *self.by_workflow.values(), *self.by_team.values()) if days), default=0
        )

    @property
    def kept(self) -> Case:
        """How long one run is kept; null for ever."""
        teams = [Whenever(team__name=name, then=_span(days)) for name, days in self.by_team.items()]
        flows = [Whenever(workflow=name, then=_span(days)) for name, days in self.by_workflow.items()]
        return Case(*teams, *flows, default=_span(self.days), output_field=DurationField())


def configured(days: int | None = None) -> Rule:
    """The settings' rule; with `days`, those for every run that no setting names."""
    default = settings.RETENTION_DAYS if days is None else days
    return Rule(default, settings.RETENTION_DAYS_BY_WORKFLOW, settings.RETENTION_DAYS_BY_TEAM)


def due(rule: Rule) -> RunQuerySet:
    """Runs whose values go: final for longer than they are kept, and nothing is open about them."""
    if not rule.shortest:
        return Run.objects.none()
    # The first bound is the index's; the second is each run's own.
    old = Run.objects.filter(
        withholding=None, status__in=FINAL, finished_at__lte=DatabaseNow() - timedelta(days=rule.shortest)
    )
    old = old.annotate(kept=rule.kept).filter(finished_at__lte=DatabaseNow() - F("kept"))
    keep_it_whole = (
        Call.objects.unresolved().filter(run=OuterRef("pk")),
        Finding.objects.filter(run=OuterRef("pk"), resolved_at=None),
        Hold.objects.filter(run=OuterRef("pk")),
        Run.objects.live().filter(forked_from=OuterRef("pk")),
    )
    return old.filter(*[~Exists(rows) for rows in keep_it_whole])


# What runs hold


@dataclass(frozen=True)
class Kind:
    """One kind of value. `held`: rows of these runs that hold some, with `bytes`; `run`: the path from such a row to
    its run, empty for runs. `empty` takes them out and is given the runs, in the transaction that withholds them."""

    name: str
    held: Callable[[QuerySet[Run]], QuerySet[Any]]
    empty: Callable[[list[int]], object]
    run: str = "run"


@dataclass(frozen=True)
class Held:
    """How much the runs of one team and workflow hold of one kind."""

    team: str
    workflow: str
    kind: str
    rows: int
    bytes: int


def _inputs(runs: QuerySet[Run]) -> QuerySet[Any]:
    return Run.objects.filter(pk__in=runs.values("pk")).exclude(input={}).annotate(bytes=Octets("input"))


def _outputs(runs: QuerySet[Run]) -> QuerySet[Any]:
    rows = Checkpoint.objects.filter(run__in=runs.values("pk")).exclude(output={})
    return rows.annotate(bytes=Octets("output"))


def _calls(runs: QuerySet[Run]) -> QuerySet[Any]:
    rows = Call.objects.filter(run__in=runs.values("pk")).exclude(request="", answer=None, error="")
    size = Octets("request") + Coalesce(Octets("answer"), 0) + Octets("error")
    return rows.annotate(bytes=size)


def _events(runs: QuerySet[Run]) -> QuerySet[Any]:
    rows = Delivery.objects.filter(run__in=runs.values("pk")).exclude(body={})
    return rows.annotate(bytes=Octets("body"))


def _refused(runs: QuerySet[Run]) -> QuerySet[Any]:
    rows = AuditEvent.objects.filter(run__in=runs.values("pk")).exclude(request="")
    return rows.annotate(bytes=Octets("request"))


def _words(runs: QuerySet[Run]) -> QuerySet[Any]:
    return _quoting(Transition.objects.filter(run__in=runs.values("pk"))).annotate(bytes=Octets("why"))


def _quoting(moves: QuerySet[Transition]) -> QuerySet[Transition]:
    """Moves whose words nobody wrote and which may quote values: what was asked, and how a step or a wait failed."""
    quotes = Q(to_status__in=[Status.WAITING, Status.SLEEPING, Status.DEAD, Status.EXPIRED])
    return moves.filter(quotes | Q(why__startswith="nobody answered in time"), user=None).exclude(why=WITHHELD)


def _files(runs: QuerySet[Run]) -> QuerySet[Any]:
    rows = Artefact.objects.filter(run__in=runs.values("pk"), removed_at=None)
    return rows.annotate(bytes=F("size"))


_kinds: dict[str, Kind] = {}


def also(kind: Kind) -> None:
    """Let another app take its own values of a run out, after ours; the last may sign that it was done."""
    _kinds[kind.name] = kind


def _empty_outputs(runs: list[int]) -> None:
    Checkpoint.objects.filter(run__in=runs).exclude(output={}).update(output={})


def _empty_calls(runs: list[int]) -> None:
    Call.objects.filter(run__in=runs).update(request="", answer=None, error="")


def _empty_events(runs: list[int]) -> None:
    Delivery.objects.filter(run__in=runs).update(body={})


def _empty_refused(runs: list[int]) -> None:
    AuditEvent.objects.filter(run__in=runs).exclude(request="").update(request="")


def _empty_words(runs: list[int]) -> None:
    _quoting(Transition.objects.filter(run__in=runs)).update(why=WITHHELD)


def _nothing(runs: list[int]) -> None:
    """Inputs go with the statement that withholds the runs, files later, when no other run keeps them."""


for _kind in (
    Kind("inputs", _inputs, _nothing, run=""),
    Kind("outputs", _outputs, _empty_outputs),
    Kind("calls", _calls, _empty_calls),
    Kind("events", _events, _empty_events),
    Kind("refused requests", _refused, _empty_refused),
    Kind("words", _words, _empty_words),
    Kind("artefacts", _files, _nothing),
):
    also(_kind)


def held(runs: QuerySet[Run]) -> Iterator[Held]:
    """How much these runs hold, by team, workflow and kind."""
    for kind in _kinds.values():
        path = f"{kind.run}__" if kind.run else ""
        by = [f"{path}team__name", f"{path}workflow"]
        rows = kind.held(runs).order_by().values(*by).annotate(rows=Count("pk"), size=Sum("bytes")).order_by(*by)
        yield from (Held(row[by[0]], row[by[1]], kind.name, row["rows"], row["size"] or 0) for row in rows)


# Taking it out


@dataclass
class Done:
    """What was taken out. `left`: batches that could not be done, since somebody held a lock for too long."""

    runs: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    left: int = 0
    after: tuple[datetime, int] | None = None

    def add(self, runs: int, parts: list[Held]) -> None:
        self.runs += runs
        for part in parts:
            self.rows[part.kind] += part.rows
            self.bytes[part.kind] += part.bytes


def withhold(rule: Rule, done: Done, *, actor: str, by: Any = None, size: int = IN_ONE_BATCH) -> bool:
    """Take out the values of the next batch of due runs; whether there may be more. What became of it is added to
    `done`, which also says where the next batch begins."""
    before = done.after
    try:
        with transaction.atomic():
            _set_limits()
            found = _take(rule, done.after, size)
            if not found:
                return False
            done.after = found[-1][1:]
            # Looked at once more under the lock: a fork, a hold or a finding may have come between.
            runs = list(due(rule).filter(pk__in=[run for run, *_ in found]).order_by("pk").values_list("pk", flat=True))
            parts = list(held(Run.objects.filter(pk__in=runs)))
            if runs:
                _empty(runs, rule, actor, by)
            reach("retention", 0, "emptied")
    except OperationalError as error:
        if not isinstance(error.__cause__, TIMES_OUT):
            raise
        logger.warning("Retention left a batch for the next time: %s", error)
        done.left += 1
        return done.after != before
    done.add(len(runs), parts)
    reach("retention", 0, "withheld")
    return True


def _set_limits() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true)",
            [LOCK_TIMEOUT, STATEMENT_TIMEOUT],
        )


def _take(rule: Rule, after: tuple[datetime, int] | None, size: int) -> list[tuple[int, datetime, int]]:
    """Lock the next due runs that nobody holds: each with the place behind it. Long runs make a short batch."""
    runs = due(rule)
    if after is not None:
        at, pk = after
        runs = runs.filter(Q(finished_at__gt=at) | Q(finished_at=at, pk__gt=pk))
    locked = runs.select_for_update(skip_locked=True, no_key=True, of=("self",)).order_by("finished_at", "pk")
    rows: list[tuple[int, Any, int]] = list(locked.values_list("pk", "finished_at", "position")[:size])
    before = accumulate((position for _, _, position in rows), initial=0)
    short = takewhile(lambda row: row[1] < POSITIONS_IN_ONE_BATCH, zip(rows, before, strict=False))
    return [(pk, at, pk) for (pk, at, _), _ in short]


def _empty(runs: list[int], rule: Rule, actor: str, by: Any) -> None:
    withholding = Withholding.objects.create(at=database_clock(), rule=str(rule), actor=actor, user=by)
    old = Run.objects.filter(pk__in=runs)
    old.filter(status=Status.EXPIRED).update(reason=WITHHELD)
    old.update(withholding=withholding, input={}, wait_terms=None)
    told = f"its values were taken out: {rule}"
    AuditEvent.objects.bulk_create(
        AuditEvent(kind=AuditEvent.Kind.WITHHELD, run_id=run, detail=told, actor=actor, user=by) for run in runs
    )
    for kind in _kinds.values():
        kind.empty(runs)
    for sign in _signers:
        sign(withholding, runs)


_signers: list[Callable[[Withholding, list[int]], object]] = []


def signed_by(sign: Callable[[Withholding, list[int]], object]) -> None:
    """Let another app record each batch, last of all in its transaction."""
    _signers.append(sign)


def _span(days: int) -> Value:
    return Value(timedelta(days=days) if days else None, output_field=DurationField())


def _spelled(days: int) -> str:
    return f"{days} day{'' if days == 1 else 's'}" if days else "for ever"


# Holding a run from it


def hold(key: str, *, by: Any = None, why: str, actor: str = "") -> Hold:
    """Keep a run whole whatever its age, until it is released. Raises BadRequest, NoSuchRun, NotAllowed."""
    _check(key, by, why, "hold")
    with transaction.atomic():
        run = engine.locked(key, by)
        if run.withholding is not None:
            raise BadRequest(f"Run {key} was withheld on {run.withholding.at:%-d %b %Y}: nothing is left to hold.")
        kept, is_new = Hold.objects.get_or_create(run=run, defaults={"why": why, "user": by})
        if is_new:
            _tell(AuditEvent.Kind.HELD, run, why, by, actor)
    return kept


def release(key: str, *, by: Any = None, why: str, actor: str = "") -> None:
    """Keep a run no longer than any other. Raises BadRequest, NoSuchRun, NotAllowed."""
    _check(key, by, why, "release")
    with transaction.atomic():
        run = engine.locked(key, by)
        if Hold.objects.filter(run=run).delete()[0]:
            _tell(AuditEvent.Kind.RELEASED, run, why, by, actor)


def _check(key: str, by: Any, why: str, verb: str) -> None:
    if not why.strip():
        raise BadRequest(f"Say why you {verb} the run: the reason stays in its history.")
    engine.check_words(why, "reason")
    engine.may_operate(key, by, verb)


def _tell(kind: AuditEvent.Kind, run: Run, why: str, by: Any, actor: str) -> None:
    AuditEvent.objects.create(kind=kind, run=run, detail=why, actor=actor, user=by)
