"""A worker frozen past its lease at each write point, while another finishes its run, and then continued: what it still
wants to write is refused and leaves one row, what it learned of an effect is kept, and nothing is paid twice."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sandbox_process import wait_until
from worker_process import WorkerProcess

from runs import engine
from runs.models import AuditEvent, Call, Run, Transition
from runs.states import FINAL, EffectState
from tests.flows.tools import lines
from tests.flows.workflows import everything, plain

pytestmark = pytest.mark.faults

WANTS_TO_WRITE = [
    "step1:claimed",
    "step1:entered",
    "step1:returned",
    "step1:committed",
    "step6:leaving",
    "step6:held",
    "step7:returned",
    "step8:flows.pay-intended",
    "step8:flows.pay-sending",
    "step8:flows.pay-answered",
    "step8:flows.pay-recorded",
    "step9:flows.write-recorded",
    "step10:returned",
]
HAS_WRITTEN_ALL = ["step4:committed", "step6:left", "step10:committed"]
REFUSED = "freeze-frozen-step{}-refused"
HOLDS_THE_ROW = ["step4:committing", "step7:committing", "step8:flows.pay-intending"]
"""In a transaction that has locked the run: nobody else can take it, so the lease is not lost."""


@pytest.fixture(autouse=True)
def short_leases(settings):
    """A third of a second, and much shorter than a step's time limit: the guards must do without the alarm."""
    settings.STEP_TIMEOUT, settings.LEASE_SLACK = 5, -4.7


def begin(people) -> Run:
    run = engine.start(everything, key="frozen", input={}, team=people.team)
    engine.deliver("frozen", "papers", {"pages": 3})
    return run


@contextmanager
def frozen_at(point: str, folder: Path, then: str = "") -> Iterator[WorkerProcess]:
    """A worker that has frozen there, and freezes again at `then`."""
    folder.mkdir()
    (folder / "freeze").write_text(f"frozen:{point} frozen:{then}")
    with WorkerProcess(folder) as worker:
        wait_until(lambda: worker.is_frozen)
        yield worker


def finish(run: Run) -> None:
    """By another worker, which is gone afterwards."""
    with WorkerProcess():
        wait_until(lambda: run.refresh_from_db() or run.status in FINAL)


def works_again(worker: WorkerProcess, people) -> bool:
    """Continued, it takes up the next run as if nothing had been, and so is done with the old one."""
    worker.signal(signal.SIGCONT)
    following = engine.start(plain, key="following", input={}, team=people.team)
    wait_until(lambda: following.refresh_from_db() or following.status in FINAL)
    return identity(worker) in set(Transition.objects.filter(run=following).values_list("actor", flat=True))


def identity(worker: WorkerProcess) -> str:
    from runs.identity import host

    return f"{host()}:{worker.pid}:{worker.start}"


def written(run: Run, database) -> list[list[tuple]]:
    """All rows of the run but its calls and audit events."""
    queries = [
        "SELECT * FROM runs_run WHERE id = %s",
        "SELECT * FROM runs_checkpoint WHERE run_id = %s ORDER BY id",
        "SELECT * FROM runs_transition WHERE run_id = %s ORDER BY id",
        "SELECT * FROM runs_delivery WHERE run_id = %s ORDER BY id",
    ]
    return [database.query(query, run.pk) for query in queries]


def refusals(worker: WorkerProcess) -> list[str]:
    """What this worker was refused."""
    return list(AuditEvent.objects.filter(actor=identity(worker)).values_list("kind", flat=True))


def assert_done_once(run: Run, world: Path, database) -> None:
    run.refresh_from_db()
    assert (run.status, run.position) == ("completed", 10), run.reason
    assert list(run.checkpoints.values_list("position", flat=True)) == list(range(1, 11))
    paid = [line["key"] for line in lines(world, "payments") if line["claim"] == "frozen"]
    assert paid == ["frozen:step8", "frozen:step9:fee"]
    assert len(lines(world, "letters")) == 1
    assert database.query("SELECT position FROM flows_entry") == [(7,)]
    effects = Call.objects.filter(run=run).values_list("state", flat=True)
    assert list(effects) == [EffectState.CONFIRMED] * 3


@pytest.mark.parametrize("point", WANTS_TO_WRITE + HAS_WRITTEN_ALL)
def test_a_worker_frozen_past_its_lease_changes_nothing_when_it_is_continued(people, database, flows_world, point):
    run = begin(people)
    with frozen_at(point, flows_world / "failpoints") as worker:
        finish(run)
        before = written(run, database)
        assert works_again(worker, people)
        assert written(run, database) == before
        assert refusals(worker) == ["late-write"] * (point in WANTS_TO_WRITE)
    assert_done_once(run, flows_world, database)


@pytest.mark.parametrize(
    ("point", "position"),
    [
        ("step1:returned", 1),
        ("step4:entered", 4),
        ("step6:leaving", 6),
        ("step8:entered", 8),
        ("step8:flows.pay-intended", 8),
    ],
)
def test_it_is_refused_also_while_the_other_is_at_the_very_same_step(people, database, flows_world, point, position):
    """Same status, same position: only the fence tells the two apart."""
    run = begin(people)
    with frozen_at(point, flows_world / "failpoints", then=f"step{position}:refused") as worker:
        with frozen_at(f"step{position}:entered", flows_world / "other") as other:
            before = written(run, database)
            worker.signal(signal.SIGCONT)
            wait_until(lambda: worker.is_frozen and (flows_world / "failpoints" / REFUSED.format(position)).exists())
            assert refusals(worker) == ["late-write"]
            assert written(run, database) == before
            assert lines(flows_world, "requests") == []
            other.signal(signal.SIGCONT)
            wait_until(lambda: run.refresh_from_db() or run.status in FINAL)
    assert_done_once(run, flows_world, database)


@pytest.mark.parametrize("alarm", [True, False])
def test_the_outcome_of_an_effect_it_had_sent_is_kept_though_its_run_is_over(
    people, database, flows_world, settings, alarm
):
    """Nobody else may send this letter again or look it up: only the frozen worker knows that it was sent."""
    if alarm:
        # As in real life: the step's time is over when the worker wakes.
        settings.STEP_TIMEOUT, settings.LEASE_SLACK = 0.5, 0
    run = begin(people)
    with frozen_at("step9:flows.write-answered", flows_world / "failpoints") as worker:
        finish(run)
        letter = Call.objects.get(run=run, tool="flows.write")
        assert letter.state == EffectState.UNKNOWN
        before = written(run, database)
        assert works_again(worker, people)
        letter.refresh_from_db()
        assert (letter.state, letter.answer) == (EffectState.CONFIRMED, {"sent": "the claimant"})
        assert written(run, database) == before
        assert refusals(worker) == ["late-write"]
    assert_done_once(run, flows_world, database)


@pytest.mark.parametrize("point", HOLDS_THE_ROW)
def test_a_worker_frozen_while_it_holds_the_row_is_waited_for_and_goes_on(people, database, flows_world, point):
    run = begin(people)
    with frozen_at(point, flows_world / "failpoints") as worker:
        with WorkerProcess():
            other = engine.start(plain, key="other", input={}, team=people.team)
            wait_until(lambda: other.refresh_from_db() or other.status in FINAL)
        wait_until(lambda: Run.objects.abandoned().filter(pk=run.pk).exists())
        worker.signal(signal.SIGCONT)
        wait_until(lambda: run.refresh_from_db() or run.status in FINAL)
        # With its lease in the past it may send nothing more before it has claimed the run anew.
        assert refusals(worker) == ["late-write"] * (point != "step4:committing")
    assert_done_once(run, flows_world, database)
