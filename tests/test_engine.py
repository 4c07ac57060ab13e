"""What the engine promises a run, with real rows and no queue."""

from datetime import timedelta

import pytest

from runs import engine, workflows
from runs.errors import AlreadyStarted, BadRequest, IllegalMove, TooLate
from runs.models import Checkpoint, Run, Transition
from runs.testing import drain, move_clock
from runs.waits import event, timer
from runs.workflows import Retry, Workflow, finish, goto


@pytest.fixture
def flow():
    """A fresh workflow, forgotten again after the test."""
    made = Workflow("under-test", version=1, appends=["seen"], retry=Retry(attempts=3, base=4, cap=4))
    yield made
    del workflows._registry["under-test", 1]


def begin(flow, people, key="run-1", **input):
    return engine.start(flow, key=key, input=input, team=people.team)


def test_steps_are_checkpointed_in_order_and_see_the_fold_of_what_came_before(flow, people):
    @flow.step
    def one(ctx):
        return {"seen": ["one"], "name": "one"}

    @flow.step
    def two(ctx):
        return {"seen": ["two"], "name": "two", "saw": ctx.state["name"]}

    @flow.step
    def three(ctx):
        return {"all": ctx.state["seen"], "last": ctx.state["name"]}

    run = begin(flow, people)
    drain()
    run.refresh_from_db()
    assert (run.status, run.outcome, run.position) == ("completed", "completed", 3)
    outputs = list(Checkpoint.objects.filter(run=run).values_list("position", "step", "output"))
    assert outputs == [
        (1, "one", {"seen": ["one"], "name": "one"}),
        (2, "two", {"seen": ["two"], "name": "two", "saw": "one"}),
        (3, "three", {"all": ["one", "two"], "last": "two"}),
    ]
    moves = list(Transition.objects.filter(run=run).values_list("from_status", "to_status"))
    assert moves == [("", "ready"), ("ready", "running"), ("running", "completed")]


def test_goto_gives_a_loop_new_positions_and_finish_names_the_outcome(flow, people):
    @flow.step
    def count(ctx):
        return {"n": ctx.state.get("n", 0) + 1}

    @flow.step
    def again(ctx):
        return goto(count) if ctx.state["n"] < 3 else finish("counted", {"n": ctx.state["n"]})

    @flow.step
    def never(ctx):
        raise AssertionError("behind the end")

    run = begin(flow, people)
    drain()
    run.refresh_from_db()
    assert (run.status, run.outcome, run.position) == ("completed", "counted", 6)
    assert list(run.checkpoints.values_list("position", flat=True)) == [1, 2, 3, 4, 5, 6]


def test_a_failing_step_is_tried_again_and_a_finished_one_is_never_entered_again(flow, people):
    entered = []

    @flow.step
    def first(ctx):
        entered.append("first")
        return {}

    @flow.step
    def shaky(ctx):
        entered.append(f"shaky {ctx.attempt}")
        if ctx.attempt < 3:
            raise OSError("not yet")
        return {}

    run = begin(flow, people)
    drain()
    move_clock(timedelta(seconds=5))
    drain()
    move_clock(timedelta(seconds=10))
    drain()
    run.refresh_from_db()
    assert run.status == "completed"
    assert entered == ["first", "shaky 1", "shaky 2", "shaky 3"]


def test_a_step_that_always_fails_ends_in_the_dead_letters_with_a_sentence(flow, people):
    @flow.step
    def hopeless(ctx):
        raise OSError("the moon is down")

    run = begin(flow, people)
    for seconds in (0, 5, 10, 15):
        move_clock(timedelta(seconds=seconds))
        drain()
    run.refresh_from_db()
    assert run.status == "dead"
    assert run.reason == "Step hopeless, attempt 3 of 3: the moon is down"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "output.x"),
        (float("inf"), "output.x"),
        ("a\x00b", "output.x"),
        ("\ud83d", "output.x"),
        ({1: 2}, "output.x"),
        ((1,), "output.x"),
    ],
)
def test_a_value_that_is_not_json_fails_its_step_for_good_before_anything_is_written(flow, people, value, path):
    @flow.step
    def bad(ctx):
        return {"x": value}

    run = begin(flow, people)
    drain()
    run.refresh_from_db()
    assert run.status == "dead"
    assert run.reason.startswith("Step bad failed for good: ")
    assert path in run.reason
    assert not run.checkpoints.exists()


def test_an_event_that_comes_before_its_wait_is_kept_and_one_that_comes_after_wakes_the_run(flow, people):
    @flow.step
    def wait_for_papers(ctx):
        return event("papers", expires_in=timedelta(days=1))

    @flow.step
    def wait_for_photos(ctx):
        return event("photos", expires_in=timedelta(days=1))

    @flow.step
    def done(ctx):
        return {"got": ctx.state["event"]}

    run = begin(flow, people)
    engine.deliver("run-1", "papers", {"pages": 3})
    drain()
    run.refresh_from_db()
    assert (run.status, run.position, run.wait_name) == ("waiting", 1, "photos")
    engine.deliver("run-1", "photos", {"count": 7})
    drain()
    run.refresh_from_db()
    assert run.status == "completed"
    assert run.checkpoints.get(position=3).output == {"got": {"count": 7}}
    with pytest.raises(IllegalMove, match="is completed"):
        engine.deliver("run-1", "late", {})


def test_an_event_nobody_delivers_expires_at_its_due_time_or_goes_where_the_author_said(flow, people):
    @flow.step
    def hear(ctx):
        return event("answer", expires_in=timedelta(hours=1), on_expiry="remind" if ctx.input["remind"] else "expire")

    @flow.step
    def after(ctx):
        return {"heard": True}

    @flow.step
    def remind(ctx):
        return finish("reminded")

    silent, told = begin(flow, people, "silent", remind=False), begin(flow, people, "told", remind=True)
    drain()
    move_clock(timedelta(minutes=59))
    drain()
    silent.refresh_from_db()
    assert silent.status == "waiting"
    move_clock(timedelta(minutes=61))
    drain()
    silent.refresh_from_db()
    told.refresh_from_db()
    assert (silent.status, silent.outcome) == ("expired", "expired")
    assert (told.status, told.outcome) == ("completed", "reminded")
    assert told.checkpoints.get(position=1).closed_as == "expired"


def test_a_timer_sleeps_without_a_worker_until_its_time(flow, people):
    @flow.step
    def nap(ctx):
        return timer(after=timedelta(hours=2), output={"slept": True})

    run = begin(flow, people)
    drain()
    run.refresh_from_db()
    assert (run.status, run.worker, run.lease_until) == ("sleeping", "", None)
    move_clock(timedelta(hours=2, seconds=1))
    drain()
    run.refresh_from_db()
    assert run.status == "completed"
    assert run.checkpoints.get().output == {"slept": True}


def test_the_same_key_and_input_starts_one_run_and_another_input_is_refused(flow, people):
    @flow.step
    def only(ctx):
        return {}

    first, second = begin(flow, people, a=1), begin(flow, people, a=1)
    assert first.pk == second.pk
    with pytest.raises(AlreadyStarted, match="another input"):
        begin(flow, people, a=2)
    drain()
    assert begin(flow, people, a=1).status == "completed"
    assert Run.objects.count() == 1


@pytest.mark.parametrize("key", ["", "UPPER", "a b", "-a", "a-", "x" * 49, "ü", "a\n"])
def test_a_key_that_cannot_be_is_refused_in_words(flow, people, key):
    @flow.step
    def only(ctx):
        return {}

    with pytest.raises(BadRequest, match="run key"):
        begin(flow, people, key)


def test_a_rolled_back_start_leaves_no_ghost_run_and_no_bell(flow, people, database):
    from django.db import transaction

    @flow.step
    def only(ctx):
        return {}

    with pytest.raises(RuntimeError), transaction.atomic():
        begin(flow, people)
        raise RuntimeError("the caller changed its mind")
    assert not Run.objects.exists()
    assert database.query("SELECT count(*) FROM django_q_ormq") == [(0,)]


def test_cancel_is_final_and_says_so(flow, people):
    @flow.step
    def hear(ctx):
        return event("answer", expires_in=timedelta(hours=1))

    run = begin(flow, people)
    drain()
    engine.cancel("run-1", by=people.ops, why="withdrawn by the claimant")
    assert engine.cancel("run-1", by=people.ops, why="again").reason == "withdrawn by the claimant"
    run.refresh_from_db()
    assert (run.status, run.outcome) == ("cancelled", "cancelled")
    assert drain() == 0


@pytest.mark.parametrize(("late", "outcome"), [(-1, "waiting"), (0, "refused"), (1, "refused")])
def test_an_event_that_comes_after_its_wait_fell_due_is_refused_even_when_no_sweep_has_come_by(
    flow, people, late, outcome
):
    """Frozen to the instant of the due time, one second before and one after it."""
    from stage import freeze_clock

    @flow.step
    def hear(ctx):
        return event("answer", expires_in=timedelta(hours=1))

    run = begin(flow, people)
    drain()
    run.refresh_from_db()
    freeze_clock(run.due_at + timedelta(seconds=late))
    if outcome == "refused":
        with pytest.raises(TooLate, match="too late, and was not kept"):
            engine.deliver("run-1", "answer", {"yes": True})
        assert not run.deliveries.exists()
    else:
        assert engine.deliver("run-1", "answer", {"yes": True}).position == 1
