"""A worker killed at every commit and call boundary of a run with everything in it: a loop, a timer, an event, a retry,
an atomic step and effects. Each time the same final state, one effect per key, positions without a gap."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox_process import wait_until
from worker_process import WorkerProcess, finish_with_a_kill_at, killed_in

from runs import engine
from runs.models import AuditEvent, Call, Checkpoint, Delivery, Run
from runs.states import EffectState, Status, WaitKind
from tests.flows.tools import lines
from tests.flows.workflows import everything

pytestmark = pytest.mark.faults

PAPERS = {"pages": 3}
OUTPUTS = [
    ("go_round", {"rounds": [1]}),
    ("go_round", {"rounds": [2]}),
    ("go_round", {"rounds": [3]}),
    ("nap", {"slept": True}),
    ("hear", {"event": PAPERS}),
    ("stumble", {"stumbled": True}),
    ("book", {"booked": 7}),
    ("settle", {"payment": "step8"}),
    ("tell", {"fee": "step9:fee"}),
    ("close", {"rounds_made": [1, 2, 3], "heard": PAPERS}),
]
PAYMENTS = [("step8", 184_000), ("step9:fee", 100)]
FEWEST_BOUNDARIES = 50
"""Ten steps, five claims, two parks, a retry, three effects: the walk would be shorter only if it had lost some."""


def begin(people, key: str) -> Run:
    return engine.start(everything, key=key, input={}, team=people.team)


def bring_papers(run: Run) -> None:
    if run.status == Status.WAITING and run.wait_kind == WaitKind.EVENT:
        engine.deliver(run.key, "papers", PAPERS)


def assert_told_rightly(run: Run, folder: Path, world: Path, database) -> None:
    assert (run.status, run.outcome, run.position) == ("completed", "completed", 10), run.reason
    checkpoints = Checkpoint.objects.filter(run=run).values_list("position", "step", "output")
    assert list(checkpoints) == [(number, *told) for number, told in enumerate(OUTPUTS, 1)]
    paid = [line for line in lines(world, "payments") if line["claim"] == run.key]
    assert [(line["key"], line["amount_minor"]) for line in paid] == [(f"{run.key}:{key}", a) for key, a in PAYMENTS]
    letters = [line for line in lines(world, "letters") if line["key"] == f"{run.key}:step9:letter"]
    states = dict(Call.objects.filter(run=run).values_list("key", "state"))
    letter = states.pop(f"{run.key}:step9:letter")
    assert states == {f"{run.key}:{key}": EffectState.CONFIRMED for key, _ in PAYMENTS}
    assert (letter, len(letters)) in {("confirmed", 1), ("unknown", 1), ("unknown", 0)}
    assert database.query("SELECT position FROM flows_entry WHERE run = %s", run.key) == [(7,)]
    assert list(Delivery.objects.filter(run=run).values_list("position", flat=True)) == [5]
    assert not AuditEvent.objects.filter(run=run).exists()
    assert_no_finished_step_was_entered_again(folder)


def assert_no_finished_step_was_entered_again(folder: Path) -> None:
    finished: Counter[str] = Counter()
    for line in (folder / "reached").read_text().splitlines():
        place, boundary = line.split(" ")[1].rsplit(":", 1)
        assert not (boundary == "entered" and finished[place]), f"{place} was entered after its checkpoint"
        finished[place] += boundary == "committed"


@pytest.mark.parametrize("half", [1, 2])
def test_killed_at_every_boundary_the_run_ends_in_the_same_state(database, people, flows_world, tmp_path, half):
    """Each half walks every second boundary, so that two processes share the walk."""
    boundary, walked = half, 0
    while True:
        folder = tmp_path / f"failpoints-{boundary}"
        run = begin(people, f"walk-{boundary}")
        killed = finish_with_a_kill_at(run, f"#{boundary}", folder, bring_papers)
        assert_told_rightly(run, folder, flows_world, database)
        if not killed:
            break
        boundary, walked = boundary + 2, walked + 1
    assert walked >= FEWEST_BOUNDARIES // 2


@pytest.mark.parametrize("parked", [True, False])
@pytest.mark.parametrize("boundary", ["delivering", "delivered"])
def test_whoever_is_killed_while_he_delivers_has_delivered_or_not_and_nothing_between(
    database, people, flows_world, boundary, parked
):
    run, folder = begin(people, "told"), flows_world / "failpoints"
    if parked:
        work_until(run, lambda: run.status == Status.WAITING)
    position = run.position + 1
    assert killed_in(
        lambda: engine.deliver("told", "papers", PAPERS), f"told:step{position}:{boundary}", flows_world / "deliverer"
    )
    run.refresh_from_db()
    assert Delivery.objects.filter(run=run).count() == (boundary == "delivered")
    assert run.status == ("ready" if boundary == "delivered" or not parked else "waiting")
    folder.mkdir()
    work_until(run, lambda: bring_papers(run) or run.is_final, folder)
    assert_told_rightly(run, folder, flows_world, database)


def work_until(run: Run, condition: Callable[[], object], folder: Path | None = None) -> None:
    with WorkerProcess(folder):
        wait_until(lambda: run.refresh_from_db() or condition())
