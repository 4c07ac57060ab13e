"""Two at once, in an order that the test knows; and a run whose one step plays the part that its input names.

Two that need the same run stand in line behind a third party who holds its row; the sweep, which skips locked rows,
meets a verb that is done and not yet committed.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

from django.db import transaction
from stage import Party, fresh, holding_run, wait_until_blocked

from runs import engine, repair
from runs.errors import PermanentError, RunError
from runs.models import Run
from runs.states import MOVES, Status
from runs.waits import event
from runs.workflows import Caps, Retry

A_DAY = timedelta(days=1)
PATIENCE = 20
"""Seconds until a party that never comes is given up."""


def told(party: Party) -> Any:
    """What the verb returned, or the sentence with which it was refused."""
    try:
        return party.outcome()
    except RunError as refusal:
        return str(refusal)


def in_line(database, run: Run, *verbs: Callable[[], Any]) -> list[Any]:
    """Let each come while the run's row is locked, in this order; then let them go, and hear what each was told."""
    with holding_run(database, run.pk):
        parties = []
        for number, verb in enumerate(verbs, 1):
            parties.append(Party(verb))
            wait_until_blocked(database, number)
    return [told(party) for party in parties]


def at_once(*verbs: Callable[[], Any]) -> list[Any]:
    """Let all go at the same moment, and hear what each was told."""
    barrier = threading.Barrier(len(verbs))

    def when_all_are_here(verb: Callable[[], Any]) -> Any:
        barrier.wait(PATIENCE)
        return verb()

    return [told(party) for party in [Party(partial(when_all_are_here, verb)) for verb in verbs]]


@contextmanager
def uncommitted(verb: Callable[[], Any]) -> Iterator[Party]:
    """Somebody who has done this and commits only when the block is left."""
    done, go = threading.Event(), threading.Event()

    def act() -> Any:
        with transaction.atomic():
            outcome = verb()
            done.set()
            assert go.wait(PATIENCE)
            return outcome

    party = Party(act)
    assert done.wait(PATIENCE), party.outcome()
    try:
        yield party
    finally:
        go.set()
        party.outcome()


def is_whole(run: Run) -> bool:
    """Its moves are an unbroken chain of legal ones that ends where it stands, its checkpoints have no gap, and it
    waits for something only where that can be."""
    run = fresh(run)
    moves = list(run.transitions.order_by("pk").values_list("from_status", "to_status"))
    assert moves[0] == ("", "ready")
    for (_, reached), (left, entered) in pairwise(moves):
        assert left == reached
        assert Status(entered) in MOVES[Status(left)]
    assert run.status == moves[-1][1]
    assert list(run.checkpoints.values_list("position", flat=True)) == list(range(1, run.position + 1))
    parked = run.status in (Status.SLEEPING, Status.WAITING)
    assert bool(run.wait_kind) == bool(run.due_at)
    assert parked <= bool(run.wait_kind) <= (parked or run.status == Status.PAUSED)
    assert not run.is_final or (run.asked, run.wait_terms) == ("", None)
    return True


def parts(stage) -> None:
    stage.flow.retry = Retry(attempts=3, base=3600, cap=3600)
    stage.flow.caps = Caps(steps=1)

    @stage.flow.step
    def play(ctx):
        match ctx.input["part"]:
            case "waiting" | "paused":
                return event("papers", expires_in=A_DAY)
            case "sleeping":
                raise OSError("not yet")
            case "dead":
                raise PermanentError("broken")
        return {}

    @stage.flow.step
    def end(ctx):
        return {}


VERBS = {
    "pause": lambda: repair.pause("run-1", why="a race"),
    "resume": lambda: repair.resume("run-1", why="a race"),
    "retry": lambda: repair.retry_now("run-1", why="a race"),
    "raise a cap": lambda: repair.raise_cap("run-1", steps=9, why="a race"),
    "redrive": lambda: repair.redrive("run-1", why="a race"),
    "discard": lambda: repair.discard("run-1", why="a race"),
    "fork": lambda: repair.fork("run-1", "run-2", why="a race"),
    "cancel": lambda: engine.cancel("run-1", why="a race"),
    "deliver": lambda: engine.deliver("run-1", "papers", {"pages": 3}),
}

DONE = ""
