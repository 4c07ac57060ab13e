"""The sweep: the regular look for runs that have something to do and nobody doing it. Runs outside the queue, each
second, on every host; two sweeps at once do no harm (SKIP LOCKED).

May import recurring, upkeep, waits, doorbell, models, states.
"""

import logging
from collections.abc import Callable

from django.db import connection, transaction

from . import recurring, upkeep, waits, workflows
from .doorbell import NOTIFY, RING
from .engine import wake
from .failpoints import reach
from .identity import host, lives
from .models import Run, database_clock
from .states import Status, WaitKind

logger = logging.getLogger(__name__)

BATCH = 500
RING_AFTER = 5
"""Seconds a run may be ready without a worker before the sweep rings for it."""
SILENT_AFTER = 30
"""Seconds without a beat of its runner after which a host's leases end."""
FIT_AFTER = 2
"""Seconds a run that no worker knew rests before it is tried again: in a mixed deploy another may claim it first."""
RING_AGAIN = 10
"""Seconds between two rings of the sweep for the same run: no storm of bells."""

_MADE_READY = f"""
), moved AS (
  UPDATE runs_run SET status = 'ready', worker = '', lease_until = NULL,
         wait_kind = '', wait_name = '', wait_since = NULL, due_at = NULL
    FROM found WHERE runs_run.id = found.id
  RETURNING runs_run.id, runs_run.position + 1 AS position, runs_run.next_step, found.was, found.why
), logged AS (
  INSERT INTO runs_transition (run_id, at, from_status, to_status, position, step, why, actor)
  SELECT id, runs_clock(), was, 'ready', position, next_step, why, 'sweep' FROM moved
), rung AS ({RING.format(source="moved", when="true")})
SELECT count(*), ({NOTIFY} FROM rung LIMIT 1) FROM moved
"""

_WAKE = f"""
WITH found AS (
  SELECT id, status AS was, CASE WHEN wait_kind = 'retry' THEN 'time to try again' ELSE 'the timer is over' END AS why
    FROM runs_run WHERE status = 'sleeping' AND due_at <= runs_now()
   ORDER BY due_at LIMIT {BATCH} FOR NO KEY UPDATE SKIP LOCKED
{_MADE_READY}"""

_RECLAIM = f"""
WITH found AS (
  SELECT id, status AS was, 'worker ' || worker || ' was lost: ' ||
         CASE WHEN worker = ANY(%(gone)s) THEN 'its process ended' ELSE 'its lease ran out' END AS why
    FROM runs_run WHERE status = 'running' AND (lease_until <= runs_now() OR worker = ANY(%(gone)s))
   LIMIT {BATCH} FOR NO KEY UPDATE SKIP LOCKED
{_MADE_READY}"""

_RECLAIM_SILENT = f"""
WITH found AS (
  SELECT id, status AS was, 'worker ' || worker || ' was lost: its host fell silent' AS why
    FROM runs_run
   WHERE status = 'running' AND split_part(worker, ':', 1) IN
         (SELECT host FROM runs_beat WHERE beat_at <= runs_now() - make_interval(secs => {SILENT_AFTER}))
   LIMIT {BATCH} FOR NO KEY UPDATE SKIP LOCKED
{_MADE_READY}"""

_FIT = f"""
WITH found AS (
  SELECT id, status AS was, 'a worker that knows it is here' AS why
    FROM runs_run
   WHERE status = 'waiting' AND wait_kind = 'migration'
     AND wait_since <= runs_now() - make_interval(secs => {FIT_AFTER})
     AND (workflow, version, next_step) IN
         (SELECT * FROM unnest(%(names)s::text[], %(versions)s::int[], %(steps)s::text[]))
   ORDER BY id LIMIT {BATCH} FOR NO KEY UPDATE SKIP LOCKED
{_MADE_READY}"""

_RING_AGAIN = f"""
WITH found AS (
  SELECT id FROM runs_run
   WHERE status = 'ready' AND (rung_at IS NULL OR rung_at <= runs_now() - make_interval(secs => {RING_AGAIN}))
     AND (SELECT max(at) FROM runs_transition WHERE run_id = runs_run.id)
         <= runs_now() - make_interval(secs => {RING_AFTER})
   ORDER BY id LIMIT {BATCH} FOR NO KEY UPDATE SKIP LOCKED
), marked AS (
  UPDATE runs_run SET rung_at = runs_now() FROM found WHERE runs_run.id = found.id RETURNING runs_run.id
), rung AS ({RING.format(source="marked", when="true")})
SELECT count(*), ({NOTIFY} FROM rung LIMIT 1) FROM marked
"""


_others: dict[str, Callable[[], int]] = {}


def also(what: str, look: Callable[[], int]) -> None:
    """Let another app look for what is due of its own, before overdue waits are closed; how much it found."""
    _others[what] = look


def sweep() -> dict[str, int]:
    """Look once for everything that is due, and say how many runs each look moved or rang for."""
    looks = {
        "woken": wake_sleepers,
        "fit again": wake_migrated,
        "reclaimed": reclaim_abandoned,
        **_others,
        "fell due": close_overdue_waits,
        "rung again": ring_forgotten,
        "started": recurring.start_due,
        "kept up": upkeep.do_due,
    }
    return {what: _look(what, look) for what, look in looks.items()}


def wake_sleepers() -> int:
    """Timers and back-offs whose time has come."""
    return _count(_WAKE)


def reclaim_abandoned() -> int:
    """Running, but its worker is gone: a process of this host that no longer lives, or a lease that is past."""
    return _count(_RECLAIM, {"gone": _dead_workers()}) + _count(_RECLAIM_SILENT)


def wake_migrated() -> int:
    """Runs that waited for code that knows them, and this code does."""
    known = [(flow.name, flow.version, step) for flow in workflows.registered() for step in flow.steps]
    if not known or not Run.objects.filter(status=Status.WAITING, wait_kind=WaitKind.MIGRATION).exists():
        return 0
    names, versions, steps = (list(column) for column in zip(*known, strict=True))
    return _count(_FIT, {"names": names, "versions": versions, "steps": steps})


def close_overdue_waits() -> int:
    """Waits that nobody answered in time: each in a transaction of its own, so that one failure holds up no other."""
    due = Run.objects.due().filter(status=Status.WAITING).order_by("due_at").values_list("pk", flat=True)[:BATCH]
    return sum(_isolated(_close_overdue, run_id) for run_id in list(due))


def ring_forgotten() -> int:
    """Ready, and nobody came: its bell was lost."""
    return _count(_RING_AGAIN)


def _close_overdue(run_id: int) -> int:
    with transaction.atomic():
        run = (
            Run.objects.select_for_update(no_key=True, skip_locked=True)
            .filter(pk=run_id, status=Status.WAITING)
            .first()
        )
        now = database_clock()
        if run is None or run.due_at is None or run.due_at > now:
            return 0
        if run.wait_kind not in waits.kinds:
            sentence = f"Nobody mended it in time: {run.wait_name}"
            run.move(Status.DEAD, why=sentence, actor="sweep", reason=sentence)
        elif waits.kinds[run.wait_kind].fall_due(run, now) == Status.EXPIRED:
            sentence = f"Nobody answered in time: {run.wait_name}"
            run.move(Status.EXPIRED, why=sentence, actor="sweep", reason=sentence, outcome="expired")
        else:
            wake(run, why=f"nobody answered in time: {run.wait_name}", actor="sweep")
    return 1


def _look(what: str, look: Callable[[], int]) -> int:
    if found := look():
        reach("sweep", 0, what.replace(" ", "-"))
    return found


def _isolated(verb: Callable[[int], int], run_id: int) -> int:
    try:
        return verb(run_id)
    except Exception:
        logger.exception("The sweep could not close the overdue wait of run %s; it will try again.", run_id)
        return 0


def _dead_workers() -> list[str]:
    """Holders of leases that were processes of this host and live no longer."""
    workers = Run.objects.filter(status=Status.RUNNING, worker__startswith=f"{host()}:").values_list(
        "worker", flat=True
    )
    return [worker for worker in set(workers) if not lives(worker)]


def _count(statement: str, values: dict | None = None) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchone()[0]
