"""Caps: a run that has used up what it may waits for a person, keeps what it did, and goes on when it is given more."""

from datetime import datetime, timedelta

import pytest
from django.conf import settings
from stage import Stage, freeze_clock, fresh

from approvals.models import Approval
from approvals.testing import answer
from runs import engine, repair
from runs.models import Run, database_clock
from runs.testing import drain, move_clock
from runs.waits import event, timer
from runs.workflows import Caps, Retry, goto

A_DAY, A_MINUTE, A_MOMENT = timedelta(days=1), timedelta(minutes=1), timedelta(microseconds=1)
WHY = "granted by the head of claims"


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


def takes_three_steps(stage) -> list[str]:
    """Three steps; the names of those that were entered."""
    entered: list[str] = []

    def add(name):
        def step(ctx):
            entered.append(name)
            return {name: True}

        step.__name__ = name
        stage.flow.step(step)

    for name in ("one", "two", "three"):
        add(name)
    return entered


def cap_of(run: Run) -> tuple[str, str, str]:
    run = fresh(run)
    return run.status, run.wait_kind, run.wait_name


# Steps


@pytest.mark.parametrize(("cap", "made"), [(1, 1), (2, 2), (3, 3), (4, 3)])
def test_a_run_makes_as_many_steps_as_its_cap_and_no_more(stage, cap, made):
    stage.flow.caps = Caps(steps=cap)
    entered = takes_three_steps(stage)
    run = stage.begin()
    assert (run.position, entered) == (made, ["one", "two", "three"][:made])
    steps = f"{cap} step" if cap == 1 else f"{cap} steps"
    capped = ("waiting", "cap", f"It has made its {steps}; raise the cap or cancel it")
    assert cap_of(run) == (("completed", "", "") if made == 3 else capped)


def test_a_loop_without_an_end_is_held_at_its_cap(stage):
    stage.flow.caps = Caps(steps=25)

    @stage.flow.step
    def again(ctx):
        return goto("again", {"n": ctx.state.get("n", 0) + 1})

    run = stage.begin()
    assert (run.status, run.position, run.checkpoints.count()) == ("waiting", 25, 25)
    assert run.checkpoints.last().output == {"n": 25}


# Working time


def works_for(stage, took: timedelta, begins_at: datetime) -> None:
    """A step that works so long by the database's clock, and one behind it."""

    @stage.flow.step
    def work(ctx):
        freeze_clock(begins_at + took)
        return {}

    @stage.flow.step
    def after(ctx):
        return {}


@pytest.mark.parametrize(
    ("took", "is_capped"), [(A_MINUTE - A_MOMENT, False), (A_MINUTE, True), (A_MINUTE + A_MOMENT, True)]
)
def test_working_time_is_used_up_when_it_reaches_the_cap(stage, took, is_capped):
    stage.flow.caps = Caps(working_time=A_MINUTE)
    now = database_clock()
    freeze_clock(now)
    works_for(stage, took, now)
    run = stage.begin()
    capped = ("waiting", "cap", "Its steps have worked for 0:01:00, and 0:01:00 is the cap")
    assert cap_of(run) == (capped if is_capped else ("completed", "", ""))
    assert (run.worked, run.position) == (took, 1 if is_capped else 2)


def test_work_that_failed_is_work_too(stage):
    stage.flow.caps, stage.flow.retry = Caps(working_time=A_MINUTE), Retry(attempts=5, base=1, cap=1)
    now = database_clock()
    freeze_clock(now)

    @stage.flow.step
    def fails(ctx):
        freeze_clock(database_clock() + timedelta(seconds=40))
        raise OSError("not yet")

    run = stage.begin()
    assert (run.status, run.worked) == ("sleeping", timedelta(seconds=40))
    freeze_clock(now + A_MINUTE)
    drain()
    freeze_clock(now + A_MINUTE * 3)
    drain()
    assert cap_of(run)[:2] == ("waiting", "cap")
    assert fresh(run).worked == timedelta(seconds=80)


@pytest.mark.parametrize("waits", ["for an event", "for the clock"])
def test_waiting_is_no_work(stage, waits):
    stage.flow.caps = Caps(working_time=A_MINUTE)

    @stage.flow.step
    def rest(ctx):
        return event("papers", expires_in=A_DAY * 30) if waits == "for an event" else timer(after=A_DAY * 20)

    @stage.flow.step
    def after(ctx):
        return {}

    run = stage.begin()
    move_clock(A_DAY * 21)
    if waits == "for an event":
        engine.deliver("run-1", "papers", {})
    drain()
    run = fresh(run)
    assert (run.status, run.worked < A_MINUTE) == ("completed", True)


def test_a_pause_is_no_work(stage):
    stage.flow.caps = Caps(working_time=A_MINUTE)

    @stage.flow.step
    def hear(ctx):
        return event("papers", expires_in=A_DAY * 30)

    run = stage.begin()
    engine.deliver("run-1", "papers", {})
    repair.pause("run-1", why="wait")
    move_clock(A_DAY)
    repair.resume("run-1", why="go on")
    drain()
    assert (fresh(run).status, fresh(run).worked < A_MINUTE) == ("completed", True)


# Age


@pytest.mark.parametrize(("age", "is_capped"), [(A_DAY - A_MOMENT, False), (A_DAY, True), (A_DAY + A_MOMENT, True)])
def test_age_counts_from_the_start_and_waits_with_it(stage, age, is_capped):
    stage.flow.caps = Caps(age=A_DAY)
    now = database_clock()
    freeze_clock(now)

    @stage.flow.step
    def hear(ctx):
        return event("papers", expires_in=A_DAY * 30)

    run = stage.begin()
    freeze_clock(now + age)
    engine.deliver("run-1", "papers", {"pages": 3})
    drain()
    capped = ("waiting", "cap", "It is 1 day, 0:00:00 old, and 1 day, 0:00:00 is the cap")
    assert cap_of(run) == (capped if is_capped else ("completed", "", ""))
    if is_capped:
        repair.raise_cap("run-1", age=A_DAY * 2, why=WHY)
        drain()
    assert (fresh(run).status, run.checkpoints.get().output) == ("completed", {"event": {"pages": 3}})


# What a capped run keeps, and how it goes on


def test_a_capped_run_keeps_its_checkpoints_holds_no_worker_and_says_why_it_waits(stage):
    stage.flow.caps = Caps(steps=2)
    takes_three_steps(stage)
    run = stage.begin()
    assert (run.worker, run.lease_until, run.attempt, run.next_step) == ("", None, 0, "three")
    assert list(run.checkpoints.values_list("step", "output")) == [("one", {"one": True}), ("two", {"two": True})]
    assert run.due_at - run.wait_since == timedelta(seconds=settings.WAIT_FOR_REPAIR)
    sentence = "It has made its 2 steps; raise the cap or cancel it"
    assert engine.explain(run).startswith(f"{sentence}. Unless that is mended it goes to the dead letters at ")
    move = run.transitions.last()
    assert (move.from_status, move.to_status, move.position, move.why) == ("running", "waiting", 3, sentence)
    assert drain() == 0


def test_a_raised_cap_counts_for_this_run_alone_and_each_raise_keeps_the_others(stage):
    stage.flow.caps = Caps(steps=1, working_time=A_MINUTE, age=A_DAY)
    entered = takes_three_steps(stage)
    raised, other = stage.begin("raised"), stage.begin("other")
    entered.clear()
    repair.raise_cap("raised", steps=2, by=stage.people.ops, why=WHY)
    drain()
    assert (fresh(raised).position, entered) == (2, ["two"])
    assert cap_of(raised)[2] == "It has made its 2 steps; raise the cap or cancel it"
    move_clock(A_DAY)
    repair.raise_cap("raised", steps=3, why=WHY)
    drain()
    assert cap_of(raised)[2].startswith("It is 1 day, 0:00:0")
    repair.raise_cap("raised", age=A_DAY * 2, why=WHY)
    drain()
    assert (fresh(raised).status, entered) == ("completed", ["two", "three"])
    assert fresh(raised).caps == {"steps": 3, "age": 2 * 86_400.0}
    assert (fresh(other).position, cap_of(other)[:2]) == (1, ("waiting", "cap"))


def test_more_working_time_lets_it_go_on(stage):
    stage.flow.caps = Caps(working_time=A_MINUTE)
    now = database_clock()
    freeze_clock(now)
    works_for(stage, A_MINUTE, now)
    run = stage.begin()
    repair.raise_cap("run-1", working_time=A_MINUTE, why=WHY)
    drain()
    assert cap_of(run)[:2] == ("waiting", "cap")
    repair.raise_cap("run-1", working_time=A_MINUTE + A_MOMENT, why=WHY)
    drain()
    assert (fresh(run).status, run.checkpoints.count()) == ("completed", 2)


@pytest.mark.parametrize(("early", "status"), [(A_MOMENT, "waiting"), (timedelta(), "dead")])
def test_a_capped_run_that_nobody_helps_goes_to_the_dead_letters_with_all_it_did(stage, early, status):
    stage.flow.caps = Caps(steps=2)
    entered = takes_three_steps(stage)
    run = stage.begin()
    freeze_clock(run.due_at - early)
    drain()
    assert fresh(run).status == status
    if status == "dead":
        assert fresh(run).reason == "Nobody mended it in time: It has made its 2 steps; raise the cap or cancel it"
        repair.raise_cap("run-1", steps=3, why=WHY)
        repair.redrive("run-1", why=WHY)
        drain()
        assert (fresh(run).status, entered) == ("completed", ["one", "two", "three"])


def test_an_answer_to_a_run_that_reached_its_cap_while_it_waited_is_not_asked_for_again(stage):
    stage.flow.caps = Caps(age=A_DAY)
    stage.asks_then_pays(expires_in=A_DAY * 3, act_within=A_DAY * 3)
    approval = stage.asked()
    move_clock(A_DAY)
    answer(approval, stage.people.adjuster)
    drain()
    assert cap_of(approval.run)[:2] == ("waiting", "cap")
    assert stage.receiver.keys == []
    repair.raise_cap("run-1", age=A_DAY * 9, why=WHY)
    drain()
    assert (fresh(approval.run).status, stage.receiver.keys, Approval.objects.count()) == (
        "completed",
        ["run-1:step2"],
        1,
    )
