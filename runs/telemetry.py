"""Traces for OpenTelemetry, told from committed rows: one trace a run, a span for each step, call and wait.

Nothing is measured while a step runs: moves, checkpoints and calls say when each began and ended, whoever worked it in
whichever process. So a run pays nothing for it, one that waits for days or loses its worker has one trace without a
gap, and what was not committed is never told. Names of spans follow from the run, so each step's parent is known before
that is told. No values, no words, no persons: the run's key, and names of workflow, step and tool.

Registered when the setting TELEMETRY is on. Sending is otlp's. May import models, states, upkeep, otlp.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from django.db import connection, transaction

from . import otlp
from .models import Call, Checkpoint, Transition
from .otlp import Span
from .states import FINAL, CallKind, EffectState, Status
from .upkeep import job

AT_ONCE = 1000
"""Moves of one look."""
PARKED = (Status.WAITING, Status.SLEEPING, Status.PAUSED)

_NOW = """
SELECT pg_snapshot_xmin(now)::text::bigint, pg_snapshot_xmax(now)::text::bigint,
       (SELECT coalesce(max(id), 0) FROM runs_transition)
  FROM pg_current_snapshot() AS now
"""
# Every transaction older than `until` has ended. The row's own transaction is known by its lower 32 bits.
_MOVES = """
SELECT move.id, move.run_id, move.at, move.to_status, move.position, move.step, move.actor,
       before.id, before.at, before.to_status, before.position, before.step, before.actor,
       run.key, run.workflow, run.version, run.created_at, run.outcome, origin.key, origin.created_at
  FROM runs_transition AS move
  JOIN runs_run AS run ON run.id = move.run_id
  LEFT JOIN runs_run AS origin ON origin.id = run.forked_from_id
  LEFT JOIN LATERAL (
       SELECT * FROM runs_transition AS earlier WHERE earlier.run_id = move.run_id AND earlier.id < move.id
        ORDER BY earlier.id DESC LIMIT 1) AS before ON true
 WHERE move.id > %(after)s
   AND ((move.xmin::text::bigint - %(since)s) %% 4294967296 + 4294967296) %% 4294967296 < %(until)s - %(since)s
 ORDER BY move.id LIMIT %(most)s
"""


class Move(NamedTuple):
    """One move of a run, the one before it, and what is told of the run."""

    id: int
    run: int
    at: datetime
    to: str
    position: int
    step: str
    actor: str
    before_id: int | None
    began: datetime | None
    was: str | None
    before_position: int | None
    before_step: str | None
    before_actor: str | None
    key: str
    workflow: str
    version: int
    created_at: datetime
    outcome: str
    origin: str | None
    origin_created_at: datetime | None

    @property
    def trace(self) -> int:
        return trace_of(self.key, self.created_at)


def trace_of(key: str, created_at: datetime) -> int:
    """The trace of a run, in 128 bits: the same for whoever knows the run's key and when it was started."""
    return _bits(f"{key} {created_at.astimezone(UTC).isoformat(timespec='microseconds')}", 16)


def span_of(trace: int, name: str) -> int:
    """A span of that trace, in 64 bits: "run", "step 3", "wait 4711" (the move that parked it), "call 17"."""
    return _bits(f"{trace:032x} {name}", 8)


def _bits(text: str, size: int) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:size]) or 1


@job("telemetry")
def tell_new(state: dict[str, Any]) -> bool:
    """Tell what was committed since the last look, each row once; whether more is left. At the very first look nothing
    is told of what was before."""
    moves = _read_on(state)
    spans = list(_spans(moves))
    if spans:
        # Sent only when it is sure that nobody will send them again.
        transaction.on_commit(partial(otlp.send, spans))
    return state["until"] is not None


# Which rows are new


def _read_on(state: dict[str, Any]) -> list[Move]:
    """The next new moves. A window between two transactions' numbers is read to its end, in the order of ids; ids alone
    would not do, since a row may be committed later than others with greater ids."""
    with connection.cursor() as cursor:
        if state.get("until") is None and not _open_window(cursor, state):
            return []
        cursor.execute(_MOVES, {name: state[name] for name in ("since", "until", "after")} | {"most": AT_ONCE})
        moves = [Move(*row) for row in cursor.fetchall()]
    if len(moves) == AT_ONCE:
        state["after"] = moves[-1].id
    else:
        state |= {"since": state["until"], "until": None}
    return moves


def _open_window(cursor: Any, state: dict[str, Any]) -> bool:
    cursor.execute(_NOW)
    oldest, following, last = cursor.fetchone()
    # A database that was restored elsewhere counts its transactions anew.
    if "since" not in state or oldest < state["since"]:
        state |= {"since": oldest, "until": None, "floor": last, "noted": [following, last]}
        return False
    # Rows of transactions that began after a number was noted have ids behind the last that was there then.
    noted_at, noted_last = state["noted"]
    if noted_at <= state["since"]:
        state |= {"floor": noted_last, "noted": [following, last]}
    state |= {"until": oldest, "after": state["floor"]}
    return True


# What they tell


def _spans(moves: list[Move]) -> Iterator[Span]:
    ended = [move for move in moves if move.was == Status.RUNNING or move.to in FINAL]
    told = _Told(ended) if ended else None
    for move in moves:
        if move.was in PARKED:
            yield _wait(move)
        if told is not None and (move.was == Status.RUNNING or move.to in FINAL):
            yield from told.steps(move)
        if move.to in FINAL:
            yield _run(move)


def _wait(move: Move) -> Span:
    trace = move.trace
    return Span(
        f"{move.was}: {move.before_step}",
        trace,
        span_of(trace, f"wait {move.before_id}"),
        span_of(trace, f"step {move.before_position}"),
        move.began or move.at,
        move.at,
        _named(move) | {"durable.wait": move.was, "durable.step": move.before_step},
    )


def _run(move: Move) -> Span:
    trace, link = move.trace, None
    if move.origin is not None and move.origin_created_at is not None:
        origin = trace_of(move.origin, move.origin_created_at)
        link = (origin, span_of(origin, "run"))
    about = _named(move) | {"durable.outcome": move.outcome, "durable.status": move.to}
    return Span(move.workflow, trace, span_of(trace, "run"), None, move.created_at, move.at, about, link=link)


def _named(move: Move) -> dict[str, Any]:
    return {"durable.run": move.key, "durable.workflow": move.workflow, "durable.version": move.version}


@dataclass(frozen=True)
class _Step:
    """One position that is told: `end` when its checkpoint was committed, or its run ended without one."""

    position: int
    name: str
    start: datetime
    end: datetime
    attempt: int
    outcome: str


_OF_RUNS = """
 WHERE (run_id, position) IN (
   SELECT told.run_id, told.position FROM {table} AS told
     JOIN unnest(%s::bigint[], %s::int[], %s::int[]) AS part (run, low, high)
       ON told.run_id = part.run AND told.position BETWEEN part.low AND part.high)
"""


class _Told:
    """The rows of the positions that some moves ended, read at once."""

    def __init__(self, moves: list[Move]) -> None:
        parts = ([move.run for move in moves], [_low(move) - 1 for move in moves], [move.position for move in moves])
        self.checkpoints: dict[int, dict[int, Checkpoint]] = defaultdict(dict)
        self.moves: dict[tuple[int, int], list[Transition]] = defaultdict(list)
        self.calls: dict[tuple[int, int], list[Call]] = defaultdict(list)
        for checkpoint in _rows(
            Checkpoint, "run_id, position, step, closed_as, wait_kind, attempt, started_at, committed_at", parts
        ):
            self.checkpoints[checkpoint.run_id][checkpoint.position] = checkpoint
        for transition in _rows(Transition, "run_id, position, at, from_status, to_status", parts):
            self.moves[transition.run_id, transition.position].append(transition)
        columns = "run_id, position, tool, kind, state, replayed, sends, prepared_at, sent_at, last_sent_at, settled_at"
        for call in _rows(Call, columns, parts):
            self.calls[call.run_id, call.position].append(call)

    def steps(self, move: Move) -> Iterator[Span]:
        for step in self._ended_by(move):
            trace = move.trace
            parent = span_of(trace, f"step {step.position}")
            about = _named(move) | {
                "durable.step": step.name,
                "durable.position": step.position,
                "durable.attempt": step.attempt,
                "durable.outcome": step.outcome,
            }
            crossed = self.moves[move.run, step.position]
            events = [(f"{each.from_status} to {each.to_status}", each.at) for each in crossed if each.from_status]
            yield Span(step.name, trace, parent, span_of(trace, "run"), step.start, step.end, about, events=events)
            for call in self.calls[move.run, step.position]:
                yield _call(move, call, parent)

    def _ended_by(self, move: Move) -> Iterator[_Step]:
        of_run = self.checkpoints[move.run]
        if move.was == Status.RUNNING:
            for position in range(_low(move), move.position + 1):
                if (made := of_run.get(position)) is not None and _is_of(made, move):
                    start = self._start(move.run, position, made.started_at)
                    outcome = made.closed_as or "done"
                    yield _Step(position, made.step, start, made.committed_at, made.attempt, outcome)
        if move.to in FINAL and move.position not in of_run and (move.run, move.position) in self.moves:
            begun = self._start(move.run, move.position, None)
            if begun is not None:
                yield _Step(move.position, move.step, begun, move.at, 0, move.to)

    def _start(self, run: int, position: int, otherwise: Any) -> Any:
        """When a position was first begun, however often it was lost, tried again or waited for: at a claim, or where
        the position before it ended."""
        moves = self.moves[run, position]
        first = next((each for each in moves if Status.RUNNING in (each.from_status, each.to_status)), None)
        if first is None:
            return otherwise
        before = self.checkpoints[run].get(position - 1)
        return first.at if first.to_status == Status.RUNNING or before is None else before.committed_at


def _low(move: Move) -> int:
    """The first position that the claim before this move worked."""
    return move.before_position if move.was == Status.RUNNING and move.before_position else move.position


def _is_of(checkpoint: Checkpoint, move: Move) -> bool:
    """Whether it was committed before this move, or by the very statement of it: only its own worker's can have been
    the move's last position, and the clock is read twice in that statement."""
    if checkpoint.position < move.position:
        return True
    return move.actor == move.before_actor and (checkpoint.committed_at - move.at).total_seconds() <= 0.001


def _call(move: Move, call: Call, parent: int) -> Span:
    trace, start = move.trace, call.sent_at or call.prepared_at
    about = _named(move) | {
        "durable.tool": call.tool,
        "durable.kind": call.kind,
        "durable.state": call.state,
        "durable.sends": call.sends,
        "durable.replayed": call.replayed,
    }
    is_lost = call.kind == CallKind.EFFECT and call.state in (EffectState.UNKNOWN, EffectState.REFUSED)
    end = max(start, call.settled_at or call.last_sent_at or start)
    own = span_of(trace, f"call {call.pk}")
    return Span(call.tool, trace, own, parent, start, end, about, is_client=True, failed=is_lost)


def _rows(model: Any, columns: str, parts: tuple[list[int], list[int], list[int]]) -> list[Any]:
    table = model._meta.db_table
    statement = f"SELECT id, {columns} FROM {table} {_OF_RUNS.format(table=table)} ORDER BY id"
    return list(model.objects.raw(statement, list(parts)))
