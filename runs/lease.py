"""The lease: who may work on a run until when, and every write that it guards.

Lives here: claim, step commit, and the moves that end a stretch, each one statement that names run, position and
fence. "0 rows" means that the lease was lost: another worker, a person or the clock took the run. May import models,
states, errors, waits and doorbell. The SQL is fixed text below the ORM, so that it is prepared once per connection.
"""

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from .doorbell import NOTIFY, RING
from .errors import LeaseLost
from .identity import identity
from .models import AuditEvent, Run
from .states import FINAL, Status

_COLUMNS = (
    "id, key, workflow, version, team_id, requested_by_id, input, status, position, next_step, attempt, fence, worker, "
    "asked, wait_terms, caps, worked, created_at"
)

_NAMES = _COLUMNS.split(", ")
_JSON = {"input", "wait_terms", "caps"}

_CLAIM = f"""
WITH claimed AS (
  UPDATE runs_run SET status = 'running', fence = fence + 1, attempt = attempt + 1, worker = %(worker)s,
         lease_until = runs_clock() + make_interval(secs => %(lease)s),
         wait_kind = '', wait_name = '', wait_since = NULL, due_at = NULL, rung_at = NULL
   WHERE id = {{which}} AND status = 'ready' RETURNING {_COLUMNS}
), moved AS (
  INSERT INTO runs_transition (run_id, at, from_status, to_status, position, step, why, actor)
  SELECT id, runs_clock(), 'ready', 'running', position + 1, next_step, 'claimed', worker FROM claimed
) SELECT {_COLUMNS}, runs_clock() FROM claimed
"""
_CLAIM_ONE = _CLAIM.format(which="%(run)s")
_CLAIM_ANY = _CLAIM.format(
    which="(SELECT id FROM runs_run WHERE status = 'ready' ORDER BY id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)"
)

_EXTEND = """
UPDATE runs_run SET lease_until = runs_clock() + make_interval(secs => %(lease)s)
 WHERE id = %(run)s AND fence = %(fence)s AND status = 'running'
"""

_COMMIT = """
WITH moved AS (
  UPDATE runs_run SET position = %(position)s, next_step = %(next)s, attempt = 1,
         lease_until = runs_clock() + make_interval(secs => %(lease)s), worked = worked + (runs_clock() - %(started)s),
         asked = '', wait_terms = NULL
   WHERE id = %(run)s AND position = %(position)s - 1 AND fence = %(fence)s AND status = 'running' RETURNING id
)
INSERT INTO runs_checkpoint
       (run_id, position, step, output, wait_kind, closed_as, attempt, started_at, committed_at)
SELECT id, %(position)s, %(step)s::text, %(output)s, %(kind)s, %(closed_as)s, %(attempt)s, %(started)s,
       runs_clock() FROM moved
RETURNING committed_at
"""

_COMMIT_AND_LEAVE = f"""
WITH moved AS (
  UPDATE runs_run SET position = %(position)s, next_step = %(next)s, attempt = 0, status = %(status)s::text,
         outcome = %(outcome)s, worker = '', lease_until = NULL, worked = worked + (runs_clock() - %(started)s),
         finished_at = CASE WHEN %(final)s THEN runs_clock() END,
         asked = '', wait_terms = NULL
   WHERE id = %(run)s AND position = %(position)s - 1 AND fence = %(fence)s AND status = 'running' RETURNING id
), kept AS (
  INSERT INTO runs_checkpoint
         (run_id, position, step, output, wait_kind, closed_as, attempt, started_at, committed_at)
  SELECT id, %(position)s, %(step)s::text, %(output)s, %(kind)s, %(closed_as)s, %(attempt)s, %(started)s,
       runs_clock() FROM moved
), logged AS (
  INSERT INTO runs_transition (run_id, at, from_status, to_status, position, step, why, actor)
  SELECT id, runs_clock(), 'running', %(status)s::text, %(position)s, %(step)s::text, %(why)s, %(worker)s FROM moved
), rung AS ({RING.format(source="moved", when="%(status)s::text = 'ready'")})
SELECT runs_clock(), ({NOTIFY} FROM rung) FROM moved
"""

_LEAVE = f"""
WITH moved AS (
  UPDATE runs_run SET status = %(status)s::text, reason = %(reason)s, worker = '', lease_until = NULL,
         worked = worked + (runs_clock() - %(started)s),
         attempt = CASE WHEN %(counted)s THEN attempt ELSE attempt - 1 END,
         wait_kind = %(kind)s, wait_name = %(name)s, wait_since = now, due_at = now + make_interval(secs => %(due)s)
    FROM (SELECT runs_clock() AS now) AS clock
   WHERE id = %(run)s AND fence = %(fence)s AND status = 'running' RETURNING id
), logged AS (
  INSERT INTO runs_transition (run_id, at, from_status, to_status, position, step, why, actor)
  SELECT id, runs_clock(), 'running', %(status)s::text, %(position)s, %(step)s::text, %(why)s, %(worker)s FROM moved
), rung AS ({RING.format(source="moved", when="%(status)s::text = 'ready'")})
SELECT runs_clock(), ({NOTIFY} FROM rung) FROM moved
"""


@dataclass
class Lease:
    """One claim of one run. `run` mirrors the row as this worker left it; `position` is the one being worked."""

    run: Run
    worker: str
    began: datetime
    fence: int = field(init=False)

    def __post_init__(self) -> None:
        self.fence = self.run.fence

    @classmethod
    def take(cls, run_id: int) -> "Lease | None":
        """Claim this run if it is ready: counts the attempt, raises the fence. None: somebody has it, or nobody may."""
        return cls._claim(_CLAIM_ONE, run_id)

    @classmethod
    def take_any(cls) -> "Lease | None":
        """Claim the ready run that has waited longest and that nobody is claiming now."""
        return cls._claim(_CLAIM_ANY, None)

    @classmethod
    def _claim(cls, statement: str, run_id: int | None) -> "Lease | None":
        row = execute(
            statement, {"run": run_id, "worker": identity(), "lease": seconds(settings.STEP_TIMEOUT)}
        ).fetchone()
        if row is None:
            return None
        *columns, now = row
        columns = [
            json.loads(value) if name in _JSON and value else value for name, value in zip(_NAMES, columns, strict=True)
        ]
        return cls(Run.from_db("default", _NAMES, columns), identity(), now)

    @property
    def position(self) -> int:
        return self.run.position + 1

    def extend(self, timeout: float) -> None:
        """Hold the run for a step that may take `timeout` seconds."""
        if self._guarded(_EXTEND, {"lease": seconds(timeout)}).rowcount == 0:
            raise LeaseLost

    def commit(self, output: str, *, next_step: str, timeout: float, kind: str = "", closed_as: str = "") -> None:
        """Write the checkpoint and hold the run for `next_step`, which may take `timeout` seconds. Raises LeaseLost."""
        row = self._guarded(
            _COMMIT, self._checkpoint(output, kind, closed_as) | {"next": next_step, "lease": seconds(timeout)}
        ).fetchone()
        if row is None:
            raise LeaseLost
        self.run.worked += row[0] - self.began
        self.began = row[0]
        self.run.position, self.run.next_step, self.run.attempt = self.position, next_step, 1
        self.run.asked, self.run.wait_terms = "", None

    def commit_and_leave(
        self,
        output: str,
        *,
        status: Status,
        next_step: str,
        why: str,
        outcome: str = "",
        kind: str = "",
        closed_as: str = "",
    ) -> None:
        """Write the checkpoint and give the run up: ready for another stretch, or ended. Raises LeaseLost."""
        ending = {"next": next_step, "status": status, "outcome": outcome, "final": status in FINAL, "why": why}
        if self._guarded(_COMMIT_AND_LEAVE, self._checkpoint(output, kind, closed_as) | ending).fetchone() is None:
            raise LeaseLost

    def leave(
        self,
        status: Status,
        *,
        why: str,
        reason: str = "",
        kind: str = "",
        name: str = "",
        due: float | None = None,
        counted: bool = True,
    ) -> None:
        """Give the run up without a checkpoint: to retry in `due` seconds, to wait for repair, to the dead letters or
        to the next worker. `counted`: the step was begun, so the attempt counts. Raises LeaseLost."""
        leaving = {"status": status, "reason": reason, "kind": kind, "name": name[:200], "due": due, "why": why}
        where = {"position": self.position, "step": self.run.next_step, "worker": self.worker}
        where |= {"started": self.began, "counted": counted}
        if self._guarded(_LEAVE, leaving | where).fetchone() is None:
            raise LeaseLost

    def locked(self) -> Run:
        """The run's row, locked until the transaction ends, as long as this lease holds it. Raises LeaseLost."""
        held = {"pk": self.run.pk, "fence": self.fence, "position": self.run.position, "status": Status.RUNNING}
        run = Run.objects.select_for_update(no_key=True).filter(**held).first()
        if run is None:
            raise LeaseLost
        return run

    def record_loss(self, what: str) -> None:
        """One audit row: this worker wanted to write after it had lost the run, and was refused."""
        AuditEvent.objects.create(
            kind=AuditEvent.Kind.LATE_WRITE,
            run_id=self.run.pk,
            position=self.position,
            detail=f"{what} was refused: fence {self.fence} no longer holds the run",
            actor=self.worker,
        )

    def _checkpoint(self, output: str, kind: str, closed_as: str) -> dict[str, Any]:
        return {
            "position": self.position,
            "step": self.run.next_step,
            "output": output,
            "kind": kind,
            "closed_as": closed_as,
            "attempt": self.run.attempt,
            "started": self.began,
            "worker": self.worker,
        }

    def _guarded(self, statement: str, values: dict[str, Any]) -> psycopg.Cursor:
        return execute(statement, values | {"run": self.run.pk, "fence": self.fence})


def execute(statement: str, values: dict[str, Any]) -> psycopg.Cursor:
    """Run fixed SQL on Django's own connection, below its cursor wrapper: half the cost, and prepared."""
    # The wrapper itself: `connection` finds it anew at each use of a name.
    default = connections[DEFAULT_DB_ALIAS]
    # As Django's own cursor() does: a connection that broke while this worker was idle is replaced unnoticed.
    default.close_if_health_check_failed()
    default.ensure_connection()
    with default.wrap_database_errors:
        return psycopg.Cursor(default.connection).execute(statement, values)


def seconds(timeout: float) -> float:
    """How long a lease for a step of that timeout lasts."""
    return timeout + settings.LEASE_SLACK
