"""Deploys: a run ends with the code that it began with, or waits, visibly, until there is a worker that knows it."""

from collections.abc import Callable, Iterable
from datetime import timedelta

import pytest
from django.conf import settings
from stage import Stage, freeze_clock, fresh, question

from approvals.gate import ask
from approvals.models import Approval
from approvals.testing import answer
from runs import engine, repair, sweep, workflows
from runs.errors import Retryable
from runs.models import Run
from runs.testing import drain
from runs.workflows import Workflow

A_DAY = timedelta(days=1)
FIVE = ("register", "check", "approve", "settle", "close")


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        stage.entered = []
        stage.pay = stage.tool(requires_approval=True)
        yield stage


def define(stage, version: int, steps: Iterable[str]) -> None:
    """The workflow `claim`: approve asks, settle (or its new name) pays, the others only note that they ran."""
    flow = Workflow("claim", version=version)

    def step_called(name: str) -> Callable:
        def step(ctx):
            stage.entered.append(name)
            if name == "approve":
                return ask(stage.pay.proposed(amount_minor=1), groups=["adjusters"], expires_in=A_DAY * 30)
            return ctx.perform(flow.steps["approve"]) if name in ("settle", "disburse") else {}

        step.__name__ = name
        return step

    for name in steps:
        flow.step(step_called(name))


def deploy(stage, versions: dict[int, Iterable[str]]) -> None:
    """From now on the workers know these versions of the workflow, and no others."""
    for known in [key for key in workflows._registry if key[0] == "claim"]:
        del workflows._registry[known]
    for version, steps in versions.items():
        define(stage, version, steps)


def begin(stage, key: str = "run-1") -> Run:
    run = engine.start("claim", key=key, input={}, team=stage.people.team, by=stage.people.requester)
    drain()
    return fresh(run)


def steps_of(run: Run) -> list[tuple[int, str]]:
    return list(run.checkpoints.values_list("position", "step"))


CHANGES = {
    "a step inserted before": ("register", "screen", "check", "approve", "settle", "close"),
    "step 2 removed": ("register", "approve", "settle", "close"),
    "step 4 renamed": ("register", "check", "approve", "disburse", "close"),
}


# C19: a run is parked at step 3 of 5, and there is a deploy


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_keeps_its_version_when_a_new_one_is_deployed_beside_it(stage, change):
    deploy(stage, {1: FIVE})
    run = begin(stage)
    deploy(stage, {1: FIVE, 2: CHANGES[change]})
    newer = begin(stage, "run-2")
    for each in (run, newer):
        answer(question(each), stage.people.adjuster)
    drain()
    assert (fresh(run).status, fresh(run).version, steps_of(run)) == ("completed", 1, list(enumerate(FIVE, 1)))
    assert (fresh(newer).status, fresh(newer).version) == ("completed", 2)
    assert steps_of(newer) == list(enumerate(CHANGES[change], 1))
    paying = 1 + next(n for n, name in enumerate(CHANGES[change]) if name in ("settle", "disburse"))
    assert sorted(stage.receiver.keys) == ["run-1:step4", f"run-2:step{paying}"]
    assert sorted(stage.entered) == sorted([*FIVE, *CHANGES[change]])


@pytest.mark.parametrize("change", [*CHANGES, "the workflow removed"])
def test_a_run_whose_version_is_gone_waits_before_it_does_anything_and_goes_on_by_itself_when_it_is_back(stage, change):
    deploy(stage, {1: FIVE})
    run = begin(stage)
    deploy(stage, {2: CHANGES[change]} if change in CHANGES else {})
    approval = question(run)
    answer(approval, stage.people.adjuster)
    drain()
    parked = fresh(run)
    assert (parked.status, parked.wait_kind, parked.position) == ("waiting", "migration", 2)
    sentence = "No worker here knows workflow claim version 1"
    assert engine.explain(parked).startswith(f"{sentence}. Unless that is mended it goes to the dead letters at ")
    stage.later(times=2)
    assert (steps_of(run), stage.receiver.keys) == ([(1, "register"), (2, "check")], [])
    deploy(stage, {1: FIVE})
    stage.later()
    assert (fresh(run).status, steps_of(run)) == ("completed", list(enumerate(FIVE, 1)))
    assert (stage.receiver.keys, stage.entered) == (["run-1:step4"], list(FIVE))
    assert Approval.objects.count() == 1


@pytest.mark.parametrize("change", CHANGES)
def test_a_version_that_was_changed_in_place_does_no_step_twice_and_skips_none_that_is_ahead(stage, change):
    """An author who forgot to raise the version: what is behind the run stays behind it, and its key its own."""
    deploy(stage, {1: FIVE})
    run = begin(stage)
    deploy(stage, {1: CHANGES[change]})
    answer(question(run), stage.people.adjuster)
    drain()
    pays = "disburse" if change == "step 4 renamed" else "settle"
    told = ["register", "check", "approve", pays, "close"]
    assert (fresh(run).status, steps_of(run)) == ("completed", list(enumerate(told, 1)))
    assert (stage.receiver.keys, stage.entered) == (["run-1:step4"], told)


def test_a_run_at_a_step_that_was_renamed_in_place_waits_for_the_step_and_keeps_its_key(stage):
    deploy(stage, {1: FIVE})
    run = begin(stage)
    stage.receiver.script = [Retryable("not now")]
    answer(question(run), stage.people.adjuster)
    drain()
    assert (fresh(run).status, fresh(run).next_step) == ("sleeping", "settle")
    deploy(stage, {1: CHANGES["step 4 renamed"]})
    stage.later()
    parked = fresh(run)
    assert (parked.status, parked.wait_kind) == ("waiting", "migration")
    assert parked.wait_name == "Workflow claim version 1 has no step settle in this code"
    deploy(stage, {1: FIVE})
    stage.later()
    assert (fresh(run).status, stage.receiver.keys) == ("completed", ["run-1:step4"] * 2)


# What is not known waits


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        ({}, "No worker here knows workflow claim version 3"),
        ({1: FIVE, 2: FIVE}, "No worker here knows workflow claim version 3"),
        ({3: FIVE[1:]}, "Workflow claim version 3 has no step register in this code"),
    ],
    ids=["workflow", "version", "step"],
)
def test_what_is_not_known_here_waits_without_counting_attempts_until_it_is(stage, known, sentence):
    deploy(stage, {3: FIVE})
    run = engine.start("claim", key="run-1", input={}, team=stage.people.team)
    deploy(stage, known)
    drain()
    for _ in range(6):
        parked = fresh(run)
        assert (parked.status, parked.wait_kind, parked.wait_name) == ("waiting", "migration", sentence)
        assert (parked.attempt, parked.worker) == (0, "")
        if not run.transitions.filter(why="perhaps").exists():
            repair.retry_now("run-1", why="perhaps")
        stage.later()
    assert stage.entered == []
    deploy(stage, {3: FIVE})
    assert sweep.wake_migrated() == 1
    move = run.transitions.last()
    assert (move.to_status, move.why, move.actor) == ("ready", "a worker that knows it is here", "sweep")
    drain()
    assert (fresh(run).status, stage.entered) == ("waiting", list(FIVE[:3]))


def test_a_sweep_of_workers_that_do_not_know_a_run_leaves_it_to_those_that_do(stage):
    """Two code versions on one database: the old workers and the new ones each find their own."""
    deploy(stage, {2: FIVE})
    run = engine.start("claim", key="run-1", input={}, team=stage.people.team)
    deploy(stage, {1: FIVE})
    other = engine.start("claim", key="run-2", input={}, team=stage.people.team)
    drain()
    assert (fresh(run).wait_kind, fresh(other).wait_kind) == ("migration", "approval")
    moves = run.transitions.count()
    stage.later(times=3)
    assert run.transitions.count() == moves
    deploy(stage, {2: FIVE})
    stage.later()
    assert (fresh(run).wait_kind, fresh(run).version) == ("approval", 2)


def test_a_run_that_no_worker_ever_knows_goes_to_the_dead_letters_and_is_redriven_when_one_does(stage):
    deploy(stage, {1: FIVE})
    run = engine.start("claim", key="run-1", input={}, team=stage.people.team)
    deploy(stage, {})
    drain()
    parked = fresh(run)
    assert (parked.due_at - parked.wait_since).total_seconds() == settings.WAIT_FOR_REPAIR
    freeze_clock(parked.due_at)
    drain()
    assert (fresh(run).status, fresh(run).reason) == ("dead", f"Nobody mended it in time: {parked.wait_name}")
    deploy(stage, {1: FIVE})
    repair.redrive("run-1", why="the old code is deployed again")
    drain()
    assert (fresh(run).status, stage.entered) == ("waiting", list(FIVE[:3]))


@pytest.mark.parametrize(("away", "asked_again"), [(timedelta(hours=23), False), (timedelta(hours=25), True)])
def test_an_answer_that_no_worker_could_act_on_is_not_lost_but_is_not_older_than_it_may_be(stage, away, asked_again):
    deploy(stage, {1: FIVE})
    run = begin(stage)
    approval = question(run)
    deploy(stage, {})
    answer(approval, stage.people.adjuster)
    stage.later(away)
    assert (fresh(run).wait_kind, stage.receiver.keys) == ("migration", [])
    deploy(stage, {1: FIVE})
    stage.later()
    approval.refresh_from_db()
    status = "superseded" if asked_again else "approved"
    assert (approval.status, approval.spent_at is None) == (status, asked_again)
    if asked_again:
        assert [row.closed_as for row in run.checkpoints.all()] == ["", "", "", "lapsed"]
        assert (fresh(run).status, question(run).position, stage.receiver.keys) == ("waiting", 5, [])
    else:
        assert (fresh(run).status, stage.receiver.keys) == ("completed", ["run-1:step4"])


def test_a_question_expires_in_time_although_no_worker_knows_its_workflow(stage):
    deploy(stage, {1: FIVE})
    run = begin(stage)
    approval = question(run)
    deploy(stage, {})
    stage.later(A_DAY * 31)
    approval.refresh_from_db()
    assert (fresh(run).status, approval.status) == ("expired", "expired")


# Several versions side by side


def test_a_name_starts_the_newest_version_and_an_older_one_can_still_be_started_by_itself(stage):
    deploy(stage, {2: FIVE, 10: CHANGES["step 2 removed"], 9: FIVE})
    assert begin(stage, "newest").version == 10
    older = engine.start(workflows.get("claim", 2), key="older", input={}, team=stage.people.team)
    drain()
    assert (older.version, steps_of(older)) == (2, [(1, "register"), (2, "check")])


def test_the_same_start_after_a_deploy_is_the_same_run_of_the_version_it_began_with(stage):
    deploy(stage, {1: FIVE})
    run = begin(stage)
    deploy(stage, {1: FIVE, 2: FIVE})
    again = begin(stage)
    assert (again.pk, again.version) == (run.pk, 1)
