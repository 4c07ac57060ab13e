"""Forks: a run is done again as another one, which inherits no approval and repeats no effect that nobody named."""

from datetime import timedelta

import pytest
from stage import Stage, fresh, question

from approvals.decisions import NotAnApprover
from approvals.models import Approval
from approvals.testing import answer
from runs import engine, repair, workflows
from runs.errors import AlreadyStarted, BadRequest, NotAllowed, PermanentError
from runs.models import Call, Delivery, Run
from runs.testing import drain
from runs.waits import event

DECIDED = {"why": "the amount was wrong"}


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture
def three(stage):
    """Three steps, each of which pays what the input says and appends to what the run has seen."""
    stage.flow.appends = frozenset({"seen"})
    pay = stage.tool()

    def pays(name):
        def step(ctx):
            ctx.call(pay, amount_minor=ctx.input.get("amount", 1))
            if ctx.input.get("breaks_at") == name:
                raise PermanentError("it broke")
            return {"seen": [f"{ctx.run_key} {name}"], "all": ctx.state.get("seen", [])}

        step.__name__ = name
        stage.flow.step(step)

    for name in ("one", "two", "three"):
        pays(name)
    return stage


KEYS = ["run-1:step1", "run-1:step2", "run-1:step3"]


def outputs(run) -> list:
    return [(row.position, row.step, row.output["seen"]) for row in run.checkpoints.all()]


def test_a_fork_from_the_middle_copies_what_came_before_and_does_the_rest_anew(three):
    run = three.begin()
    made = repair.fork("run-1", "run-2", position=2, repeating=KEYS[1:], by=three.people.ops, **DECIDED)
    assert (made.status, made.position, made.next_step, made.forked_from) == ("ready", 1, "two", run)
    assert outputs(made) == [(1, "one", ["run-1 one"])]
    assert (made.team, made.version, made.input, made.requested_by) == (run.team, 1, run.input, three.people.ops)
    drain()
    assert outputs(made) == [(1, "one", ["run-1 one"]), (2, "two", ["run-2 two"]), (3, "three", ["run-2 three"])]
    assert made.checkpoints.last().output["all"] == ["run-1 one", "run-2 two"]
    assert three.receiver.keys == [*KEYS, "run-2:step2", "run-2:step3"]
    assert (fresh(made).status, fresh(run).status) == ("completed", "completed")
    assert outputs(run)[1] == (2, "two", ["run-1 two"])


def test_a_fork_may_have_another_input_and_says_in_its_history_where_it_comes_from(three):
    three.begin(amount=1)
    made = repair.fork(
        "run-1", "run-2", input={"amount": 2}, repeating=KEYS, by=three.people.ops, actor="page", **DECIDED
    )
    drain()
    assert (fresh(made).input, made.forked_from.input) == ({"amount": 2}, {"amount": 1})
    assert [arguments["amount_minor"] for _, arguments in three.receiver.received] == [1, 1, 1, 2, 2, 2]
    first = made.transitions.first()
    assert (first.from_status, first.to_status, first.position) == ("", "ready", 1)
    assert (first.why, first.user) == ("forked from run-1 at step 1: the amount was wrong", three.people.ops)
    assert list(Run.objects.get(key="run-1").forks.all()) == [made]


def test_a_dead_run_is_forked_where_it_stopped_and_stays_dead(three):
    run = three.begin(breaks_at="two")
    assert run.status == "dead"
    repair.fork("run-1", "run-2", position=2, input={}, repeating=[KEYS[1]], **DECIDED)
    drain()
    assert (fresh(run).status, Run.objects.get(key="run-2").status) == ("dead", "completed")
    assert three.receiver.keys == [*KEYS[:2], "run-2:step2", "run-2:step3"]


@pytest.mark.parametrize("named", [[], KEYS[:1], KEYS[:2], ["run-1:step9"]])
def test_every_effect_that_happens_again_has_to_be_named(three, named):
    run = three.begin()
    assert [call.key for call in repair.repeated_by_fork(run, 1)] == KEYS
    missing = ", ".join(key for key in KEYS if key not in named)
    with pytest.raises(BadRequest, match=f"A fork from step 1 makes these effects again: {missing}. Name each"):
        repair.fork("run-1", "run-2", repeating=named, **DECIDED)
    assert not Run.objects.filter(key="run-2").exists()


def test_effects_before_the_fork_need_no_name_and_naming_more_does_no_harm(three):
    run = three.begin()
    assert [call.key for call in repair.repeated_by_fork(run, 3)] == KEYS[2:]
    repair.fork("run-1", "run-2", position=3, repeating=[*KEYS, "another"], **DECIDED)


@pytest.mark.parametrize("state", ["unknown", "sent"])
def test_an_effect_of_unknown_outcome_blocks_the_fork_even_when_it_is_named(stage, state, database):
    stage.calls_then_goes_on(stage.tool())
    stage.receiver.script = [TimeoutError("no answer")]
    stage.begin()
    engine.cancel("run-1", why="withdrawn")
    Call.objects.update(state=state)
    with pytest.raises(BadRequest, match="It is not known whether run-1:step1 happened; settle that before forking"):
        repair.fork("run-1", "run-2", repeating=["run-1:step1"], **DECIDED)
    Call.objects.update(state="refused")
    assert repair.fork("run-1", "run-2", **DECIDED).status == "ready"


def test_a_fork_inherits_no_approval_and_asks_again(stage):
    stage.asks_then_pays()
    first = stage.asked()
    answer(first, stage.people.adjuster)
    drain()
    assert fresh(first.run).status == "completed"
    made = repair.fork("run-1", "run-2", position=2, repeating=["run-1:step2"], **DECIDED)
    drain()
    second = question(made)
    assert (second.position, second.payload) == (3, first.payload)
    closed = made.checkpoints.get(position=2)
    assert (closed.step, closed.closed_as) == ("settle", "unapproved")
    assert stage.receiver.keys == ["run-1:step2"]
    answer(second, stage.people.adjuster)
    drain()
    assert (fresh(made).status, stage.receiver.keys) == ("completed", ["run-1:step2", "run-2:step4"])
    assert list(Approval.objects.values_list("run__key", "spent_key")) == [
        ("run-1", "run-1:step2"),
        ("run-2", "run-2:step4"),
    ]


def test_a_fork_of_what_may_happen_once_lets_no_second_payment_through(stage):
    stage.calls_then_goes_on(stage.tool(once_per="claim"))
    stage.begin()
    made = repair.fork("run-1", "run-2", repeating=["run-1:step1"], **DECIDED)
    drain()
    assert (fresh(made).status, stage.receiver.keys) == ("dead", ["run-1:step1"])
    assert "may happen once per claim=0042, and run-1:step1 stands for it already" in fresh(made).reason


def test_a_fork_waits_anew_for_an_event_that_its_origin_got(stage):
    @stage.flow.step
    def hear(ctx):
        return event("papers", expires_in=timedelta(days=1))

    stage.begin()
    engine.deliver("run-1", "papers", {"pages": 3})
    drain()
    made = repair.fork("run-1", "run-2", **DECIDED)
    drain()
    assert (fresh(made).status, fresh(made).wait_name) == ("waiting", "papers")
    assert not Delivery.objects.filter(run=made).exists()


def test_what_the_origin_of_a_fork_did_counts_when_the_fork_is_forked(three):
    """Its copied checkpoints stand for effects of the first run: those would happen again too."""
    three.begin()
    second = repair.fork("run-1", "run-2", position=3, repeating=KEYS[2:], **DECIDED)
    drain()
    assert fresh(second).status == "completed"
    with pytest.raises(BadRequest, match="again: run-1:step2, run-2:step3"):
        repair.fork("run-2", "run-3", position=2, **DECIDED)
    assert [call.key for call in repair.repeated_by_fork(fresh(second), 1)] == [*KEYS[:2], "run-2:step3"]
    assert [call.key for call in repair.repeated_by_fork(fresh(second), 3)] == ["run-2:step3"]
    repair.fork("run-2", "run-3", position=2, repeating=["run-1:step2", "run-2:step3"], **DECIDED)
    drain()
    third = Run.objects.get(key="run-3")
    assert [call.key for call in repair.repeated_by_fork(third, 1)] == [KEYS[0], "run-3:step2", "run-3:step3"]


@pytest.mark.parametrize("position", [-1, 0, 4, 5])
def test_a_position_that_the_run_was_never_at_is_refused(three, position):
    """A completed run has none behind its last: there it would do its last step once more, and pay unnamed."""
    run = three.begin()
    with pytest.raises(BadRequest, match=f"has been at steps 1 to 3; it cannot be forked at {position}"):
        repair.fork("run-1", "run-2", position=position, **DECIDED)
    with pytest.raises(BadRequest, match="has been at steps 1 to 3"):
        repair.repeated_by_fork(run, position)
    assert not Run.objects.filter(key="run-2").exists()


def test_a_run_that_was_cancelled_while_it_waited_is_forked_at_that_step(stage):
    stage.asks_then_pays()
    stage.asked()
    engine.cancel("run-1", why="withdrawn")
    with pytest.raises(BadRequest, match="has been at steps 1 to 1"):
        repair.fork("run-1", "run-2", position=2, **DECIDED)
    made = repair.fork("run-1", "run-2", position=1, **DECIDED)
    drain()
    assert question(made).position == 1


def test_a_key_that_is_taken_or_cannot_be_is_refused_and_nothing_is_left(three):
    three.begin()
    before = three.begin("run-2", amount=7)
    with pytest.raises(AlreadyStarted, match="Run run-2 was started before"):
        repair.fork("run-1", "run-2", repeating=KEYS, **DECIDED)
    assert (fresh(before).input, fresh(before).forked_from) == ({"amount": 7}, None)
    with pytest.raises(AlreadyStarted):
        repair.fork("run-1", "run-1", repeating=KEYS, **DECIDED)
    for key in ("", "UPPER", "a\0b", "x" * 49):
        with pytest.raises(BadRequest, match="cannot be a run key"):
            repair.fork("run-1", key, repeating=KEYS, **DECIDED)
    assert Run.objects.count() == 2


@pytest.mark.parametrize("input", [[1], "text", {"a": float("nan")}, {"a": "\0"}, {"a": (1,)}, {1: 2}])
def test_an_input_that_is_no_json_object_is_refused_in_words(three, input):
    three.begin()
    with pytest.raises(BadRequest, match="input"):
        repair.fork("run-1", "run-2", input=input, repeating=KEYS, **DECIDED)
    assert Run.objects.count() == 1


def test_a_step_that_this_code_does_not_have_is_refused(three):
    three.begin()
    del three.flow.steps["two"]
    with pytest.raises(BadRequest, match="Workflow under-test version 1 has no step two in this code"):
        repair.fork("run-1", "run-2", position=2, repeating=KEYS, **DECIDED)


def test_a_fork_of_a_workflow_that_only_other_workers_know_waits_for_one_of_those(three):
    three.begin()
    del workflows._registry["under-test", 1]
    made = repair.fork("run-1", "run-2", repeating=KEYS, **DECIDED)
    drain()
    assert (fresh(made).status, fresh(made).wait_kind) == ("waiting", "migration")


def test_the_person_who_forked_it_may_not_approve_what_it_proposes(stage):
    stage.asks_then_pays()
    answer(stage.asked(), stage.people.adjuster, "reject", "wrong payee")
    drain()
    # Read anew: a person's rights are remembered once they were asked for.
    both = type(stage.people.adjuster).objects.get(pk=stage.people.adjuster.pk)
    both.groups.add(*stage.people.ops.groups.all())
    made = repair.fork("run-1", "run-2", by=both, **DECIDED)
    drain()
    with pytest.raises(NotAnApprover, match="four eyes"):
        answer(question(made), both)
    with pytest.raises(NotAllowed):
        repair.fork("run-1", "run-3", by=stage.people.second_adjuster, **DECIDED)
