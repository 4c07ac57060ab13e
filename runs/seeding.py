"""Very many made-up runs, made inside the database: to try the pages among them, and to measure them.

Every constraint and every trigger holds for them. Their workflows and tools begin with `seeded-`, and no code knows
these: a runner parks such a run and calls nobody for it. Rows are made in parts, each in a transaction of its own; what
was stopped goes on where it is. Other apps add what belongs to such runs. May import tallies, upkeep, models.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import connection, transaction

from . import tallies, upkeep
from .models import DatabaseNow, Run, Upkeep

PREFIX = "seeded-"
LONG = "seed-long"
"""The key of the one run with very many steps."""
PART = 25_000


@dataclass(frozen=True)
class Amount:
    """How many runs there are to be, and over how many days they were started, evenly."""

    finished: int
    live: int
    days: float = 60
    teams: int = 20
    long_steps: int = 1000
    part: int = PART

    @property
    def runs(self) -> int:
        return self.finished + self.live

    @property
    def words(self) -> dict[str, Any]:
        stride = timedelta(days=self.days) / self.runs
        return {"live": self.live, "runs": self.runs, "stride": stride, "many": self.teams}


# Live runs are of every age, spread evenly. The dice (0 to 1023) are made of the run's number: always the same ones.
_RUNS = """
INSERT INTO runs_run (key, workflow, version, team_id, input, tags, status, outcome, reason, position, next_step,
       attempt, fence, worker, lease_until, asked, wait_terms, wait_kind, wait_name, wait_since, due_at, created_at,
       finished_at)
SELECT 'seed-' || n, 'seeded-' || flow.name, flow.version,
       (%(teams)s::int[])[CASE WHEN c < 400 THEN 1 ELSE 1 + c %% %(many)s END],
       '{"claim":"FL-' || n || '","amount_minor":' || 100 * (1 + d) || '}',
       '{"claim":"FL-' || n || '","region":"' || CASE WHEN b %% 2 = 0 THEN 'coast' ELSE 'r' || n %% 50 END || '"}',
       status, CASE WHEN is_live THEN '' ELSE status END,
       CASE status WHEN 'dead' THEN (ARRAY[
         'Step settle, attempt 5 of 5: the provider did not answer. No attempt is left.',
         'Step settle failed for good: the bank refused it. Nothing happened; going on means asking anew.',
         'Step settle failed for good: It is not known whether seeded-transfer happened, and its key is too old.',
         'Step settle was begun 5 times and never ended: it killed its worker or outlived its lease.'])[1 + d %% 4]
         WHEN 'expired' THEN 'Nobody answered in time: approval by adjusters'
         WHEN 'cancelled' THEN 'The claim was withdrawn.' ELSE '' END,
       2, 'settle', CASE WHEN status IN ('running', 'dead') THEN 1 ELSE 0 END, 2,
       CASE WHEN status = 'running' THEN 'seeded-host:1:1' ELSE '' END,
       CASE WHEN status = 'running' THEN runs_now() + (d - 100) * interval '1 minute' END,
       CASE WHEN status = 'waiting' THEN wait ELSE '' END, CASE WHEN wait <> '' THEN '{}' END, wait,
       CASE wait WHEN 'approval' THEN 'approval by adjusters' WHEN 'event' THEN 'papers'
         WHEN 'retry' THEN 'Attempt 1 of 5 failed: the provider did not answer' WHEN 'timer' THEN 'timer'
         WHEN 'cap' THEN 'Its cap of 2 steps is reached' WHEN 'migration' THEN 'No worker knows this version'
         ELSE '' END,
       CASE WHEN wait <> '' THEN begun + interval '2 seconds' END,
       CASE WHEN wait <> '' THEN runs_now() + (d - 10) * interval '5 minutes' END, begun,
       CASE WHEN is_live THEN NULL WHEN status = 'completed' THEN begun + interval '3 seconds' + d * interval '0.05 s'
         ELSE least(begun + interval '1 day', runs_now()) END
  FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
 CROSS JOIN LATERAL (
   SELECT n * %(live)s / %(runs)s > (n - 1) * %(live)s / %(runs)s AS is_live,
          runs_now() - interval '2 minutes' - (%(runs)s - n) * %(stride)s AS begun,
          hashint8extended(n, 1) & 1023 AS a, hashint8extended(n, 2) & 1023 AS b,
          hashint8extended(n, 3) & 1023 AS c, hashint8extended(n, 4) & 1023 AS d) AS drawn
 CROSS JOIN LATERAL (
   SELECT CASE WHEN NOT is_live THEN '' WHEN a < 310 THEN 'approval' WHEN a < 600 THEN 'event' WHEN a < 620 THEN 'cap'
            WHEN a < 640 THEN 'migration' WHEN a < 720 THEN 'retry' WHEN a < 790 THEN 'timer' ELSE '' END AS wait,
          CASE WHEN NOT is_live THEN CASE WHEN a < 820 THEN 'completed' WHEN a < 940 THEN 'expired' ELSE 'cancelled' END
            WHEN a < 640 THEN 'waiting' WHEN a < 790 THEN 'sleeping' WHEN a < 890 THEN 'dead' WHEN a < 940 THEN 'paused'
            WHEN a < 1000 THEN 'ready' ELSE 'running' END AS status) AS kind
 CROSS JOIN LATERAL (
   SELECT CASE WHEN n %% 50000 = 7 THEN 'rare' WHEN b < 700 THEN 'payout' WHEN b < 900 THEN 'refund' ELSE 'intake'
          END AS name,
          CASE WHEN n %% 50000 = 7 THEN 1 WHEN b < 700 THEN 1 + 3 * (n - 1) / %(runs)s
            WHEN b < 900 THEN 1 + 2 * (n - 1) / %(runs)s ELSE 1 END AS version) AS flow
"""

_CHECKPOINTS = """
INSERT INTO runs_checkpoint (run_id, position, step, output, wait_kind, closed_as, attempt, started_at, committed_at)
SELECT r.id, c.position, c.step, c.output, '', '', 1, c.started, c.ended
  FROM runs_run AS r
 CROSS JOIN LATERAL (SELECT hashint8extended(r.id, 5) & 1023 AS d) AS drawn
 CROSS JOIN LATERAL (SELECT r.created_at + interval '0.1 s' + d * interval '0.8 ms' AS first) AS at
 CROSS JOIN LATERAL (VALUES
   (1, 'assess', '{"note":"' || repeat('n', d::int) || '"}', r.created_at + interval '10 ms', first),
   (2, 'pay', '{"paid":true}', first,
    CASE r.status WHEN 'completed' THEN r.finished_at ELSE r.created_at + interval '1.5 s' END)
 ) AS c (position, step, output, started, ended)
 WHERE r.id > %(after)s AND r.workflow LIKE 'seeded-%%'
 ORDER BY c.ended, r.id
"""

_MOVES = """
INSERT INTO runs_transition (run_id, at, from_status, to_status, position, step, why, actor)
SELECT r.id, move.at, move.was, move.became, move.position, move.step, move.why, move.actor
  FROM runs_run AS r
 CROSS JOIN LATERAL (SELECT hashint8extended(r.id, 6) & 1023 < 20 AS was_lost, r.status IN
   ('waiting', 'sleeping', 'ready', 'expired', 'cancelled') AS was_parked) AS drawn
 CROSS JOIN LATERAL (VALUES
   (1, true, r.created_at, '', 'ready', 1, 'assess', 'started', 'start'),
   (2, true, r.created_at + interval '10 ms', 'ready', 'running', 1, 'assess', 'claimed', 'seeded-host:1:1'),
   (3, was_lost, r.created_at + interval '50 ms', 'running', 'ready', 1, 'assess',
    'worker seeded-host:1:1 was lost: its process ended', 'sweep'),
   (4, was_lost, r.created_at + interval '60 ms', 'ready', 'running', 1, 'assess', 'claimed', 'seeded-host:1:1'),
   (5, was_parked, r.created_at + interval '2 s', 'running',
    CASE r.status WHEN 'sleeping' THEN 'sleeping' ELSE 'waiting' END, 3, 'settle',
    CASE r.wait_name WHEN '' THEN 'it waits' ELSE r.wait_name END, 'seeded-host:1:1'),
   (6, r.status = 'ready', r.created_at + interval '3 s', 'waiting', 'ready', 3, 'settle', 'event papers was delivered',
    'answer'),
   (7, r.status IN ('completed', 'dead', 'paused', 'expired', 'cancelled'),
    coalesce(r.finished_at, r.created_at + interval '3 s'), CASE WHEN was_parked THEN 'waiting' ELSE 'running' END,
    r.status, 3, 'settle', coalesce(nullif(r.reason, ''), 'it went through'),
    CASE r.status WHEN 'expired' THEN 'sweep' WHEN 'cancelled' THEN 'cancel' WHEN 'paused' THEN 'pause'
      ELSE 'seeded-host:1:1' END)
 ) AS move (number, happened, at, was, became, position, step, why, actor)
 WHERE r.id > %(after)s AND r.workflow LIKE 'seeded-%%' AND happened
 ORDER BY move.at, r.id, move.number
"""

_CALLS = """
INSERT INTO runs_call (run_id, position, step, tool, kind, key, request, digest, state, answer, replayed, error, sends,
       prepared_at, sent_at, last_sent_at, settled_at)
SELECT r.id, at.position, at.step, tool, 'effect', r.key || ':step' || at.position, request,
       encode(sha256(request::bytea), 'hex'), state, CASE state WHEN 'confirmed' THEN '{"ok":true}' END,
       state = 'confirmed' AND d < 20, CASE state WHEN 'confirmed' THEN '' ELSE 'the provider did not answer' END, 1,
       r.created_at, r.created_at, r.created_at, CASE state WHEN 'confirmed' THEN r.finished_at WHEN 'refused'
       THEN r.created_at + interval '3 s' END
  FROM runs_run AS r
 CROSS JOIN LATERAL (
   SELECT hashint8extended(r.id, 7) & 1023 AS d,
          CASE WHEN r.status = 'completed' THEN 'confirmed' WHEN r.reason LIKE '%%not known%%' THEN 'unknown'
            WHEN r.reason LIKE '%%Nothing happened%%' THEN 'refused' END AS state,
          CASE WHEN r.workflow = 'seeded-payout' THEN 'seeded-transfer' ELSE 'seeded-notice' END AS tool,
          '{"claim":"' || r.key || '"}' AS request) AS call
 CROSS JOIN LATERAL (SELECT CASE state WHEN 'confirmed' THEN 2 ELSE 3 END AS position,
          CASE state WHEN 'confirmed' THEN 'pay' ELSE 'settle' END AS step) AS at
 WHERE r.id > %(after)s AND r.workflow LIKE 'seeded-%%' AND state IS NOT NULL
   AND (r.status = 'dead' OR r.workflow <> 'seeded-intake')
 ORDER BY coalesce(r.finished_at, r.created_at)
"""

_REUSED = """
INSERT INTO runs_auditevent (at, kind, run_id, position, call_id, detail, actor)
SELECT c.settled_at, 'key-reused', c.run_id, c.position, c.id,
       'The idempotency key ' || c.key || ' already stands for another request.', 'seeded-host:1:1'
  FROM runs_call AS c JOIN runs_run AS r ON r.id = c.run_id
 WHERE c.run_id > %(after)s AND r.workflow LIKE 'seeded-%%' AND c.settled_at IS NOT NULL
   AND hashint8extended(c.run_id, 8) & 4095 = 0
"""

_LONG_RUN = """
INSERT INTO runs_run (key, workflow, version, team_id, input, tags, status, outcome, reason, position, next_step,
       attempt, fence, worker, asked, wait_terms, wait_kind, wait_name, wait_since, due_at, created_at)
SELECT %(key)s, 'seeded-long', 1, %(team)s, '{"claim":"FL-0"}', '{"claim":"FL-0"}', 'waiting', '', '', %(steps)s,
       'look', 0, 1 + %(steps)s / 50, '', 'event', '{}', 'event', 'papers', runs_now() - interval '1 minute',
       runs_now() + interval '2 days', runs_now() - (%(steps)s + 1) * interval '2 minutes'
ON CONFLICT (key) DO NOTHING RETURNING id, created_at
"""

_LONG_STORY = """
WITH step AS (
  SELECT n, %(begun)s + n * interval '2 minutes' AS at FROM generate_series(1, %(steps)s) AS n
), kept AS (
  INSERT INTO runs_checkpoint (run_id, position, step, output, wait_kind, closed_as, attempt, started_at, committed_at)
  SELECT %(run)s, n, 'look', '{"page":' || n || '}', '', '', 1, at - n %% 90 * interval '1 s', at FROM step ORDER BY n
), asked AS (
  INSERT INTO runs_call (run_id, position, step, tool, kind, key, request, digest, state, answer, replayed, error,
         sends, prepared_at, sent_at, last_sent_at, settled_at)
  SELECT %(run)s, n, 'look', 'seeded-page', 'read', %(key)s || ':step' || n || '/seeded-page/1', '{"page":' || n || '}',
         encode(sha256(n::text::bytea), 'hex'), 'confirmed', '{"words":"so many"}', false, '', 1, at, at, at, at
    FROM step ORDER BY n
)
INSERT INTO runs_transition (run_id, at, from_status, to_status, position, step, why, actor)
SELECT %(run)s, move.at, was, became, n + 1, 'look', why, actor
  FROM (SELECT 0 AS n, %(begun)s AS at UNION ALL SELECT n, at FROM step WHERE n %% 50 = 0 OR n = %(steps)s) AS stop
 CROSS JOIN LATERAL (VALUES
   (1, n > 0, stop.at + interval '1 s', 'running', 'waiting', 'it waits for the event papers', 'seeded-host:1:1'),
   (2, n < %(steps)s, stop.at + interval '20 s', CASE n WHEN 0 THEN '' ELSE 'waiting' END, 'ready',
    CASE n WHEN 0 THEN 'started' ELSE 'event papers was delivered' END, 'start'),
   (3, n < %(steps)s, stop.at + interval '21 s', 'ready', 'running', 'claimed', 'seeded-host:1:1')
 ) AS move (number, happened, at, was, became, why, actor)
 WHERE happened ORDER BY n, move.number
"""

_statements = [_CHECKPOINTS, _MOVES, _CALLS, _REUSED]


def also(statement: str) -> None:
    """Have another app's rows made too: a statement about the seeded runs whose id is above %(after)s."""
    _statements.append(statement)


def is_known_as_test() -> bool:
    """Whether this database says of itself that made-up runs may be in it."""
    return settings.DEBUG or connection.settings_dict["NAME"].startswith("test_")


def holds_real_runs() -> bool:
    return Run.objects.exclude(workflow__startswith=PREFIX).exists()


def seed(amount: Amount, tell: Callable[[int], object]) -> None:
    """Make what is missing of this many runs, and tell after each part how many there are."""
    teams = [Group.objects.get_or_create(name=f"{PREFIX}team-{number + 1}")[0].pk for number in range(amount.teams)]
    for first, last in _parts(_made(), amount):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = off")
            cursor.execute("SELECT coalesce(max(id), 0) FROM runs_run")
            after = {"after": cursor.fetchone()[0]}
            cursor.execute(_RUNS, amount.words | {"teams": teams, "first": first, "last": last})
            for statement in _statements:
                cursor.execute(statement, after)
        tell(last)
    _make_long_run(amount.long_steps, teams[0])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def count_up(tell: Callable[[float], object]) -> None:
    """Count the seeded runs into the tallies, from the beginning, as the sweep would do over many looks; tell after
    each look how much of the time is counted, from 0 to 1."""
    anew = {"state": {}, "due_at": DatabaseNow()}
    Upkeep.objects.update_or_create(
        name="tallies", defaults=anew, create_defaults=anew | {"every": timedelta(minutes=1)}
    )
    begun: Any = None
    for row in _looks():
        at = tallies.counted_until(row.state)
        begun = begun or at
        tell((at - begun) / max(row.done_at - begun, timedelta(seconds=1)))


def _looks() -> Iterator[Any]:
    """The tallies' row after each look, until nothing is left behind."""
    while True:
        upkeep.do("tallies", now=True)
        row: Any = Upkeep.objects.get(name="tallies")
        yield row
        if row.due_at > row.done_at:
            return


def _made() -> int:
    """How many there are already: the number of the last."""
    last = Run.objects.filter(workflow__startswith=PREFIX).exclude(key=LONG).order_by("-pk").values_list("key").first()
    return int(last[0].removeprefix("seed-")) if last else 0


def _parts(made: int, amount: Amount) -> Iterator[tuple[int, int]]:
    for first in range(made + 1, amount.runs + 1, amount.part):
        yield first, min(amount.runs, first + amount.part - 1)


def _make_long_run(steps: int, team: int) -> None:
    values: dict[str, Any] = {"key": LONG, "team": team, "steps": steps}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_LONG_RUN, values)
        if (made := cursor.fetchone()) is not None:
            cursor.execute(_LONG_STORY, values | {"run": made[0], "begun": made[1]})
