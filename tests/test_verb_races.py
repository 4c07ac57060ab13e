"""Two verbs at once: the first wins, the second is told, and nothing is left half done. Each interleaving is forced."""

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from racing import A_DAY, DONE, PATIENCE, VERBS, in_line, is_whole, parts, told, uncommitted
from stage import Party, Stage, fresh, holding_run, one_stretch, wait_until_blocked

from approvals.gate import ask
from approvals.models import Approval
from runs import engine, repair
from runs.advance import Stretch
from runs.errors import AlreadyStarted
from runs.lease import Lease
from runs.models import AuditEvent, Delivery, Run
from runs.testing import LONG, drain
from runs.waits import event


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


# Two people


@pytest.mark.parametrize(
    "race",
    [
        ("dead", "redrive", "redrive", DONE, "is ready, so it cannot be redriven", "ready"),
        ("dead", "redrive", "discard", DONE, "is ready, so it cannot be discarded", "ready"),
        ("dead", "discard", "redrive", DONE, "is cancelled, so it cannot be redriven", "cancelled"),
        ("dead", "raise a cap", "discard", DONE, DONE, "cancelled"),
        ("dead", "discard", "raise a cap", DONE, "is cancelled, so it cannot be given a higher cap", "cancelled"),
        ("dead", "redrive", "fork", DONE, "is ready, so it cannot be forked; cancel it first", "ready"),
        ("dead", "fork", "cancel", DONE, DONE, "cancelled"),
        ("dead", "fork", "fork", DONE, "Run run-2 was started before", "dead"),
        ("waiting", "fork", "cancel", "is waiting (event), so it cannot be forked", DONE, "cancelled"),
        ("waiting", "cancel", "fork", DONE, DONE, "cancelled"),
        ("waiting", "pause", "deliver", DONE, DONE, "paused"),
        ("waiting", "deliver", "pause", DONE, DONE, "paused"),
        ("waiting", "deliver", "cancel", DONE, DONE, "cancelled"),
        ("waiting", "cancel", "deliver", DONE, "is cancelled, so it cannot be given the event papers", "cancelled"),
        ("paused", "resume", "cancel", DONE, DONE, "cancelled"),
        ("paused", "cancel", "resume", DONE, "is cancelled, so it cannot be resumed", "cancelled"),
        ("paused", "resume", "resume", DONE, "is waiting, so it cannot be resumed", "waiting"),
        ("paused", "deliver", "resume", DONE, DONE, "ready"),
        ("paused", "resume", "deliver", DONE, DONE, "ready"),
        ("sleeping", "retry", "retry", DONE, "is ready, so it cannot be tried again now", "ready"),
        ("sleeping", "pause", "retry", DONE, "is paused (retry), so it cannot be tried again now", "paused"),
        ("capped", "raise a cap", "retry", DONE, "is ready, so it cannot be tried again now", "ready"),
        ("capped", "discard", "raise a cap", "is waiting (cap), so it cannot be discarded", DONE, "ready"),
    ],
    ids=lambda race: " ".join(race[:3]),
)
def test_of_two_verbs_at_once_the_second_finds_what_the_first_left(stage, database, race):
    part, first, second, *expected, status = race
    parts(stage)
    run = stage.begin(part=part)
    if part == "paused":
        repair.pause("run-1", why="made so")
    said = in_line(database, run, VERBS[first], VERBS[second])
    for answer, sentence in zip(said, expected, strict=True):
        assert isinstance(answer, str) == bool(sentence), answer
        assert str(answer).startswith("Run run-") or not sentence
        assert sentence in str(answer)
    assert fresh(run).status == status
    assert is_whole(run)
    assert Run.objects.filter(key="run-2").count() == len(
        {each.key for each in said if isinstance(each, Run)} - {"run-1"}
    )
    moves = run.transitions.filter(why="a race")
    assert moves.values("to_status").distinct().count() == moves.count()


@pytest.mark.parametrize("order", [("pause", "deliver"), ("deliver", "pause")])
def test_an_event_that_raced_a_pause_is_there_when_the_run_is_resumed(stage, database, order):
    parts(stage)
    run = stage.begin(part="waiting")
    in_line(database, run, *(VERBS[name] for name in order))
    assert drain() == 0
    repair.raise_cap("run-1", steps=9, why="room for both steps")
    repair.resume("run-1", why="go on")
    drain()
    assert fresh(run).status == "completed"
    assert run.checkpoints.first().output == {"event": {"pages": 3}}
    assert Delivery.objects.get().position == 1


# A person and a worker


class Doorway:
    """A step that stands in its door: the test knows that it is inside, and says when it may come out."""

    def __init__(self) -> None:
        self.inside, self.may_leave = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.inside.set()
        assert self.may_leave.wait(PATIENCE)


def comes_out_of_a_step(stage, how: str) -> Doorway:
    """The step then commits with another behind it, ends the run, or parks it with a question."""
    door, pay = Doorway(), stage.tool(requires_approval=True)

    @stage.flow.step
    def work(ctx):
        door.pass_through()
        return ask(pay.proposed(amount_minor=1), groups=["adjusters"], expires_in=A_DAY) if how == "parks" else {}

    if how == "commits":

        @stage.flow.step
        def more(ctx):
            return {}

    engine.start(stage.flow, key="run-1", input={}, team=stage.people.team)
    return door


def meet(database, door: Doorway, run: Run, worker_first: bool, verb: Callable[[], Any]) -> Any:
    """The worker wants to write what its step left while somebody wants to move the run."""
    worker = Party(one_stretch)
    assert door.inside.wait(PATIENCE)
    with holding_run(database, run.pk):
        if worker_first:
            door.may_leave.set()
            wait_until_blocked(database, 1)
        person = Party(verb)
        wait_until_blocked(database, 2 if worker_first else 1)
        if not worker_first:
            door.may_leave.set()
            wait_until_blocked(database, 2)
    worker.outcome()
    return told(person)


@pytest.mark.parametrize("verb", ["cancel", "pause"])
@pytest.mark.parametrize("how", ["commits", "ends", "parks"])
def test_a_verb_that_comes_before_the_write_of_a_step_wins_and_the_write_is_refused(stage, database, how, verb):
    door = comes_out_of_a_step(stage, how)
    run = Run.objects.get()
    meet(database, door, run, False, VERBS[verb])
    assert fresh(run).status == {"cancel": "cancelled", "pause": "paused"}[verb]
    assert (fresh(run).position, run.checkpoints.count(), Approval.objects.count()) == (0, 0, 0)
    assert AuditEvent.objects.filter(kind="late-write", run=run).count() == 1
    assert is_whole(run)


@pytest.mark.parametrize(
    "race",
    [
        ("cancel", "commits", "cancelled", 1, None),
        ("pause", "commits", "paused", 1, None),
        ("cancel", "parks", "cancelled", 0, "withdrawn"),
        ("pause", "parks", "paused", 0, "open"),
    ],
    ids=lambda race: " ".join(race[:2]),
)
def test_a_verb_that_comes_behind_the_write_of_a_step_finds_it_done(stage, database, race):
    verb, how, status, position, question = race
    door = comes_out_of_a_step(stage, how)
    run = Run.objects.get()
    meet(database, door, run, True, VERBS[verb])
    assert (fresh(run).status, fresh(run).position, run.checkpoints.count()) == (status, position, position)
    assert list(Approval.objects.values_list("status", flat=True)) == ([question] if question else [])
    assert is_whole(run)


@pytest.mark.parametrize("verb", ["cancel", "pause"])
def test_a_verb_that_comes_behind_the_end_of_a_run_is_told_so(stage, database, verb):
    door = comes_out_of_a_step(stage, "ends")
    run = Run.objects.get()
    assert meet(database, door, run, True, VERBS[verb]).startswith("Run run-1 is completed, so it cannot be")
    assert (fresh(run).status, run.checkpoints.count(), AuditEvent.objects.count()) == ("completed", 1, 0)
    assert is_whole(run)


# Who comes first


@pytest.mark.parametrize("inputs", [["same"] * 20, [str(number) for number in range(20)]], ids=["same", "different"])
def test_of_twenty_starts_at_once_there_is_one_run(stage, inputs):
    """C21: the same input gets the same run, another one is refused and leaves the first untouched."""
    parts(stage)
    together = threading.Barrier(20)

    def begin(word):
        together.wait()
        return engine.start(stage.flow, key="run-1", input={"part": "waiting", "w": word}, team=stage.people.team)

    said = [told(party) for party in [Party(lambda word=word: begin(word)) for word in inputs]]
    run = Run.objects.get()
    assert {each.pk for each in said if isinstance(each, Run)} == {run.pk}
    assert sum(isinstance(each, Run) for each in said) == inputs.count(run.input["w"])
    assert all("another input" in each for each in said if isinstance(each, str))
    assert run.transitions.count() == 1
    drain()
    again = engine.start(stage.flow, key="run-1", input=run.input, team=stage.people.team)
    assert (again.pk, again.status) == (run.pk, "waiting")


def test_of_two_forks_of_different_runs_that_want_one_key_the_second_is_told(stage, database):
    parts(stage)
    for key in ("run-1", "other"):
        stage.begin(key, part="dead")
    with uncommitted(VERBS["fork"]):
        second = Party(lambda: repair.fork("other", "run-2", why="a race"))
        wait_until_blocked(database)
    with pytest.raises(AlreadyStarted, match="Run run-2 was started before"):
        second.outcome()
    made = Run.objects.get(key="run-2")
    assert (made.forked_from.key, made.checkpoints.count()) == ("run-1", 0)
    assert is_whole(made)


RUNS = 400


def test_none_of_400_runs_whose_answer_comes_exactly_while_they_park_sleeps_for_ever(stage):
    """Each step tells the postman to go when it returns its wait: the event and the park meet. No sweep looks after
    them, so whoever misses the other leaves a run that waits for ever."""
    to_deliver: queue.Queue[str | None] = queue.Queue()

    @stage.flow.step
    def hear(ctx):
        to_deliver.put(ctx.run_key)
        return event("answer", expires_in=A_DAY)

    for number in range(RUNS):
        engine.start(stage.flow, key=f"run-{number}", input={}, team=stage.people.team)
    done = threading.Event()

    def work():
        while not done.is_set():
            lease = Lease.take_any()
            if lease is None:
                done.wait(0.01)
            else:
                Stretch(lease, LONG).work()

    def post():
        while (key := to_deliver.get()) is not None:
            engine.deliver(key, "answer", {"for": key})

    workers, postmen = [Party(work) for _ in range(2)], [Party(post) for _ in range(2)]
    try:
        for _ in range(600):
            if not Run.objects.exclude(status__in=["completed", "waiting"]).exists() and to_deliver.empty():
                break
            done.wait(0.1)
    finally:
        for _ in postmen:
            to_deliver.put(None)
        for postman in postmen:
            postman.outcome()
        done.set()
        for worker in workers:
            worker.outcome()
    drain()
    runs = Run.objects.exclude(status="completed")
    assert [(run.key, run.status, run.wait_name) for run in runs] == []
    assert Delivery.objects.filter(position=1).count() == RUNS
