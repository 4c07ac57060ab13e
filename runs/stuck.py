"""Stuck: a run that has something to do, and nobody does it. Since when, and why, in one sentence.

The definition is one function of the database, `runs_stuck`, so that lists, counts, one run's page, alarms and metrics
cannot differ. It looks at live runs only, from their indexes. A run is stuck that is

- running, with no checkpoint for more than ten times the p95 of that step of that version, at least 30 s; where nothing
  is known of the step, longer than it may take; in any case GRACE after its lease ended and nobody took it back;
- waiting or sleeping, GRACE after its due time: the sweep should have moved it within a second;
- ready for GRACE, and no runner answers: none beats, or its queue acknowledges nothing although a worker is free.

Imports Django only.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models.expressions import RawSQL

GRACE = 10
"""Seconds that the sweep, which looks each second, and the runners are given."""
LEAST = 30
"""Seconds that a step may always be at work before it is called stuck."""
TIMES_P95 = 10

ANSWERED = """
CREATE FUNCTION runs_answered(within float8) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (
    SELECT FROM runs_beat AS beat
     WHERE beat_at > runs_now() - interval '10 s'
       AND (canary_at > runs_now() - make_interval(secs => within)
            OR (SELECT count(DISTINCT worker) FROM runs_run AS r
                 WHERE r.status = 'running' AND r.lease_until > runs_now() AND starts_with(r.worker, beat.host || ':'))
               >= beat.workers))
$$;
"""
"""Does any runner answer bells? One whose workers are all at work will, though it acknowledges nothing meanwhile."""

STUCK = f"""
CREATE FUNCTION runs_stuck(within float8, slack float8)
RETURNS TABLE (id bigint, kind text, since timestamptz, p95 interval, number bigint, team int) LANGUAGE sql STABLE AS $$
  SELECT r.id, CASE WHEN r.lease_until <= runs_now() THEN 'lease' ELSE 'running' END, began.at, t.p95, t.number,
         r.team_id
    FROM runs_run AS r
    LEFT JOIN runs_steptime AS t ON t.workflow = r.workflow AND t.version = r.version AND t.step = r.next_step
    CROSS JOIN LATERAL (
      SELECT greatest((SELECT committed_at FROM runs_checkpoint WHERE run_id = r.id AND position = r.position),
                      (SELECT max(at) FROM runs_transition WHERE run_id = r.id)) AS at) AS began
   WHERE r.status = 'running'
     AND runs_now() > least(
           CASE WHEN t.p95 IS NULL THEN r.lease_until - make_interval(secs => slack)
                ELSE began.at + greatest({TIMES_P95} * t.p95, interval '{LEAST} s') END,
           r.lease_until + interval '{GRACE} s')
  UNION ALL
  SELECT r.id, r.status::text, r.due_at, NULL::interval, NULL::bigint, r.team_id FROM runs_run AS r
   WHERE r.status IN ('sleeping', 'waiting') AND r.due_at <= runs_now() - interval '{GRACE} s'
  UNION ALL
  SELECT r.id, 'ready', (SELECT max(at) FROM runs_transition WHERE run_id = r.id), NULL::interval, NULL::bigint,
         r.team_id
    FROM runs_run AS r
   WHERE r.status = 'ready' AND (SELECT NOT runs_answered(within))
     AND NOT EXISTS (SELECT FROM runs_transition AS move
                      WHERE move.run_id = r.id AND move.at > runs_now() - interval '{GRACE} s')
$$;
"""
"""`since` is looked up last, and not at all where nobody asks for it: to count the ready ones among very many takes one
look at the moves of the last seconds, not one at each run's. All three parts have the very same types: else the planner
would not take them for one list."""

UNDO = "DROP FUNCTION IF EXISTS runs_stuck(float8, float8); DROP FUNCTION IF EXISTS runs_answered(float8);"


@dataclass(frozen=True)
class Standstill:
    """Why one run is stuck. `kind`: running, lease (it has ended), waiting, sleeping or ready. `p95`, `number`: what is
    known of the time its step takes."""

    kind: str
    since: datetime
    p95: timedelta | None
    number: int | None

    def sentence(self, run: Any) -> str:
        """What stands still since when, and why."""
        step, since = f"step {run.position + 1} ({run.next_step.replace('_', ' ')})", _moment(self.since)
        match self.kind:
            case "running":
                return f"Stuck: a worker has been at {step} since {since} without a checkpoint; {self._usual()}."
            case "lease":
                return f"Stuck: its worker was lost at {step}, begun {since}, and no sweep takes it back. {CHECK}"
            case "waiting":
                name = run.wait_name or run.wait_kind
                return f"Stuck: its wait at {step} for {name} fell due {since}, and no sweep closes it. {CHECK}"
            case "sleeping":
                return f"Stuck: it should have woken for {step} at {since}, and no sweep wakes it. {CHECK}"
        return f"Stuck: ready for {step} since {since}, and no runner answers. {CHECK}"

    def _usual(self) -> str:
        if self.p95 is None:
            return "it may take no longer"
        return f"95 of 100 times it takes {self.p95.total_seconds():.3g} s at most"


KINDS = ("running", "lease", "waiting", "sleeping", "ready")
CHECK = "Is a runner alive, and does its queue answer?"


def arguments() -> list[float]:
    """What the functions of the database need to know of the settings: CANARY_EVERY and LEASE_SLACK, in seconds."""
    return [settings.CANARY_EVERY, settings.LEASE_SLACK]


def ids(teams: list[int] | None = None) -> RawSQL:
    """The ids of all stuck runs, or of those of these teams, as a subquery."""
    if teams is None:
        return RawSQL("SELECT id FROM runs_stuck(%s, %s)", arguments())
    return RawSQL("SELECT id FROM runs_stuck(%s, %s) WHERE team = ANY(%s)", [*arguments(), teams])


def count(teams: list[int] | None, limit: int) -> int:
    """How many runs are stuck, of these teams or of all (None), counted up to the limit."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM (SELECT FROM runs_stuck(%s, %s) WHERE %s OR team = ANY(%s) LIMIT %s) AS found",
            [*arguments(), teams is None, teams or [], limit],
        )
        return cursor.fetchone()[0]


def among(runs: Iterable[Any]) -> dict[int, Standstill]:
    """Those of these runs that are stuck, by their ids: one query for a whole page of a list."""
    live = [run.pk for run in runs if run.status in ("ready", "running", "sleeping", "waiting")]
    if not live:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, kind, since, p95, number FROM runs_stuck(%s, %s) WHERE id = ANY(%s)", [*arguments(), live]
        )
        return {pk: Standstill(*rest) for pk, *rest in cursor.fetchall()}


def counted() -> dict[str, int]:
    """How many runs are stuck, by the kind of standstill; every kind is told."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT kind, count(*) FROM runs_stuck(%s, %s) GROUP BY kind", arguments())
        return dict.fromkeys(KINDS, 0) | dict(cursor.fetchall())


def is_answered() -> bool:
    """Whether any runner answers bells now."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT runs_answered(%s)", [settings.CANARY_EVERY])
        return cursor.fetchone()[0]


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%-d %b %Y, %H:%M:%S} UTC"
