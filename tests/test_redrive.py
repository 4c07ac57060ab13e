"""Redrive and discard: a dead run goes on where it stopped, or ends, and nothing that happened happens again."""

from contextlib import suppress
from datetime import timedelta

import pytest
from stage import Stage, fresh, question

from approvals.decisions import AlreadyDecided
from approvals.gate import ask, facts
from approvals.models import Approval
from approvals.testing import answer
from runs import repair
from runs.errors import BadRequest, EffectRefused, OutcomeUnknown, PermanentError, Refused, Retryable
from runs.models import AuditEvent, Call, Run
from runs.states import Status
from runs.testing import drain
from runs.workflows import Caps, Retry

AN_HOUR = timedelta(hours=1)


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


def test_a_redrive_begins_the_unfinished_step_alone_with_its_attempts_counted_anew(stage):
    entered = []

    @stage.flow.step
    def first(ctx):
        entered.append("first")
        return {"n": 1}

    @stage.flow.step
    def shaky(ctx):
        entered.append(f"shaky {ctx.attempt}")
        if len(entered) < 6:
            raise OSError("the moon is down")
        return {}

    run = stage.begin()
    stage.later(times=2)
    assert fresh(run).status == "dead"
    repair.redrive("run-1", why="the moon is up")
    stage.later(times=2)
    assert (fresh(run).status, fresh(run).reason) == ("completed", "")
    assert entered == ["first", "shaky 1", "shaky 2", "shaky 3", "shaky 1", "shaky 2"]
    assert list(run.checkpoints.values_list("position", "step")) == [(1, "first"), (2, "shaky")]


def test_a_redrive_after_a_refusal_asks_anew_and_pays_under_a_new_key(stage):
    stage.asks_then_pays()
    stage.receiver.script = [Refused("the account is closed")]
    first = stage.asked()
    answer(first, stage.people.adjuster)
    drain()
    assert fresh(first.run).status == "dead"
    repair.redrive("run-1", why="the account is open again", by=stage.people.ops)
    drain()
    closed = first.run.checkpoints.get(position=2)
    assert (closed.step, closed.closed_as, closed.output) == ("settle", "refused", {})
    second = question(first.run)
    assert (second.position, second.payload) == (3, first.payload)
    assert stage.receiver.keys == ["run-1:step2"]
    answer(second, stage.people.adjuster)
    drain()
    assert (fresh(first.run).status, stage.receiver.keys) == ("completed", ["run-1:step2", "run-1:step4"])
    states = Call.objects.order_by("position").values_list("key", "state")
    assert list(states) == [("run-1:step2", "refused"), ("run-1:step4", "confirmed")]
    first.refresh_from_db()
    assert first.spent_key == "run-1:step2"


def test_a_redrive_after_a_refusal_that_nobody_asked_for_enters_the_same_step_at_a_new_position(stage):
    stage.calls_then_goes_on(stage.tool())
    stage.receiver.script = [Refused("the account is closed")]
    run = stage.begin()
    repair.redrive("run-1", why="open again")
    drain()
    assert (fresh(run).status, stage.receiver.keys) == ("completed", ["run-1:step1", "run-1:step2"])
    told = run.checkpoints.values_list("position", "step", "closed_as")
    assert list(told) == [(1, "settle", "refused"), (2, "settle", ""), (3, "after", "")]


def pays_twice(stage) -> Run:
    """A step with two effects: the first happens, the second is refused, and the run is dead."""
    pay = stage.tool()

    @stage.flow.step
    def settle(ctx):
        return {"first": ctx.call(pay, amount_minor=1), "second": ctx.call(pay, "second", amount_minor=2)}

    stage.receiver.script = [{"paid": True}, Refused("the account is closed")]
    return stage.begin()


def test_no_redrive_makes_an_effect_again_that_happened_beside_the_refused_one(stage):
    run = pays_twice(stage)
    with pytest.raises(BadRequest, match=r"would make run-1:step1 again\. Fork run-1 at step 1"):
        repair.redrive("run-1", why="open again")
    assert (fresh(run).status, run.checkpoints.count()) == ("dead", 0)
    repair.fork("run-1", "run-2", repeating=["run-1:step1"], why="decided so")
    drain()
    assert fresh(run).status == "dead"
    assert stage.receiver.keys == ["run-1:step1", "run-1:step1:second", "run-2:step1", "run-2:step1:second"]


def a_source_that_goes_away() -> tuple:
    """A source of facts, and the list that has to hold something for it to answer."""
    there = [True]

    @facts("test.away")
    def away(arguments):
        if not there:
            raise OSError("the register is away")
        return {}

    return away, there


def test_a_redrive_of_an_answered_wait_whose_facts_could_not_be_read_asks_nobody_again(stage):
    source, there = a_source_that_goes_away()
    stage.asks_then_pays(facts=source)
    approval = stage.asked()
    answer(approval, stage.people.adjuster)
    there.clear()
    stage.later(times=3)
    run = fresh(approval.run)
    assert (run.status, run.position, run.asked) == ("dead", 0, "approval")
    assert run.reason == "Step approve, attempt 3 of 3: the register is away"
    there.append(True)
    repair.redrive("run-1", why="the register is back")
    drain()
    assert (fresh(run).status, stage.receiver.keys, Approval.objects.count()) == ("completed", ["run-1:step2"], 1)


def test_a_refusal_that_its_step_swallowed_before_it_asked_does_not_make_a_redrive_ask_again(stage):
    source, there = a_source_that_goes_away()
    fee, pay = stage.tool("test.fee"), stage.tool(requires_approval=True)
    stage.receiver.script = [Refused("no fee today")]

    @stage.flow.step
    def approve(ctx):
        with suppress(EffectRefused):
            ctx.call(fee, amount_minor=1)
        return ask(pay.proposed(amount_minor=1), groups=["adjusters"], expires_in=AN_HOUR, facts=source)

    approval = stage.asked()
    answer(approval, stage.people.adjuster)
    there.clear()
    stage.later(times=3)
    assert fresh(approval.run).status == "dead"
    there.append(True)
    repair.redrive("run-1", why="the register is back")
    drain()
    assert (fresh(approval.run).status, fresh(approval.run).position) == ("completed", 1)


def test_a_redrive_after_a_reused_key_sends_what_is_stored_once_the_step_asks_for_it_again(stage):
    pay, asked_for = stage.tool(), [184_000, 184_001, 184_000]

    @stage.flow.step
    def settle(ctx):
        return {"payment": ctx.call(pay, amount_minor=asked_for.pop(0))}

    stage.receiver.script = [TimeoutError("no answer")]
    run = stage.begin()
    stage.later()
    assert fresh(run).status == "dead"
    assert "already stands for another request" in fresh(run).reason
    assert AuditEvent.objects.filter(kind="key-reused").count() == 1
    repair.redrive("run-1", why="the step is mended")
    drain()
    assert fresh(run).status == "completed"
    sent = [("run-1:step1", 184_000)] * 2
    assert [(key, arguments["amount_minor"]) for key, arguments in stage.receiver.received] == sent


def test_a_redrive_of_an_unknown_effect_sends_it_again_under_its_own_key(stage):
    stage.calls_then_goes_on(stage.tool())
    stage.receiver.script = [TimeoutError("no answer")] * 3
    run = stage.begin()
    stage.later(times=2)
    assert (fresh(run).status, Call.objects.get().state) == ("dead", "unknown")
    repair.redrive("run-1", why="the provider is back")
    drain()
    assert (fresh(run).status, fresh(run).position) == ("completed", 2)
    assert stage.receiver.keys == ["run-1:step1"] * 4
    assert (Call.objects.get().state, Call.objects.get().sends) == ("confirmed", 4)


def test_a_redrive_of_a_run_that_nobody_mended_in_time_goes_on_with_what_it_had(stage):
    stage.flow.caps = Caps(steps=1)
    stage.calls_then_goes_on(stage.tool())
    run = stage.begin()
    stage.later(timedelta(days=8))
    assert fresh(run).status == "dead"
    repair.raise_cap("run-1", steps=2, why="granted")
    repair.redrive("run-1", why="granted")
    drain()
    assert (fresh(run).status, stage.receiver.keys) == ("completed", ["run-1:step1"])


def test_a_discarded_run_ends_as_cancelled_and_what_it_had_been_granted_is_never_paid(stage):
    source, there = a_source_that_goes_away()
    stage.asks_then_pays(facts=source)
    approval = stage.asked()
    answer(approval, stage.people.adjuster)
    there.clear()
    stage.later(times=3)
    assert fresh(approval.run).status == "dead"
    gone = repair.discard("run-1", why="paid by another office", by=stage.people.ops)
    assert (gone.status, gone.outcome, gone.reason) == ("cancelled", "discarded", "paid by another office")
    there.append(True)
    stage.later()
    assert (fresh(approval.run).status, stage.receiver.keys) == ("cancelled", [])


def test_a_discard_closes_a_question_that_is_still_open(stage):
    stage.asks_then_pays()
    approval = stage.asked()
    # No way of ours leads there; a console does.
    approval.run.move(Status.DEAD, why="by hand", actor="test", reason="by hand")
    repair.discard("run-1", why="given up")
    approval.refresh_from_db()
    assert approval.status == "withdrawn"
    with pytest.raises(AlreadyDecided, match="cancelled with its run"):
        answer(approval, stage.people.adjuster)


# Whatever it says, it is kept


@pytest.mark.parametrize("error", [ValueError, PermanentError])
@pytest.mark.parametrize(("said", "kept"), [("a\0b", r"a\0b"), ("half \ud83d", r"half \ud83d"), ("", "{error}")])
def test_a_failure_whose_words_cannot_be_kept_is_a_failure_all_the_same(stage, error, said, kept):
    stage.flow.retry = Retry(attempts=1)

    @stage.flow.step
    def fails(ctx):
        raise error(said)

    run = stage.begin()
    assert (run.status, run.worker) == ("dead", "")
    assert run.reason.endswith(f": {kept.format(error=error.__name__)}")


@pytest.mark.parametrize(
    ("error", "state"), [(Refused, "refused"), (OutcomeUnknown, "unknown"), (Retryable, "prepared")]
)
def test_an_outcome_whose_words_cannot_be_kept_is_recorded_all_the_same(stage, error, state):
    stage.calls_then_goes_on(stage.tool())
    stage.flow.retry = Retry(attempts=1)
    stage.receiver.script = [error("a\0b \ud83d")]
    assert (stage.begin().status, stage.receiver.keys) == ("dead", ["run-1:step1"])
    assert (Call.objects.get().state, Call.objects.get().error) == (state, r"a\0b \ud83d")


# Whatever was done to it, nothing happens twice


def test_no_verb_makes_a_finished_step_be_entered_again(stage):
    """C05: counter, mail, approval, payment; paused, tried again, redriven and resumed between any two of them."""
    count, mail, pay = (stage.tool(name) for name in ("test.count", "test.mail", "test.pay"))
    troubles = [OSError("the disk is full"), PermanentError("the papers are missing")]

    @stage.flow.step
    def counted(ctx):
        return ctx.call(count, amount_minor=1)

    @stage.flow.step
    def told(ctx):
        ctx.call(mail, amount_minor=1)
        if troubles:
            raise troubles.pop(0)
        return {}

    @stage.flow.step
    def approve(ctx):
        return ask(pay.proposed(amount_minor=1), groups=["adjusters"], expires_in=AN_HOUR)

    @stage.flow.step
    def settle(ctx):
        return ctx.perform(approve)

    stage.flow.retry = Retry(attempts=3, base=3600, cap=3600)
    run = stage.begin()
    repair.pause("run-1", why="wait")
    repair.resume("run-1", why="go on")
    repair.retry_now("run-1", why="there is room")
    drain()
    assert fresh(run).status == "dead"
    repair.redrive("run-1", why="the papers came")
    drain()
    repair.pause("run-1", why="wait")
    answer(question(run), stage.people.adjuster)
    repair.resume("run-1", why="go on")
    repair.pause("run-1", why="wait")
    repair.resume("run-1", why="go on")
    drain()
    assert fresh(run).status == "completed"
    assert stage.receiver.keys == ["run-1:step1", "run-1:step2", "run-1:step4"]


def test_another_proposal_after_a_rejection_is_asked_anew_and_paid_under_a_key_of_its_own(stage):
    """C14: nothing is inherited from the proposal that was rejected."""
    pay, amounts = stage.tool(requires_approval=True), [184_000, 150_000]

    @stage.flow.step
    def approve(ctx):
        action = pay.proposed(amount_minor=amounts.pop(0))
        return ask(action, groups=["adjusters"], expires_in=AN_HOUR, on_reject="approve")

    @stage.flow.step
    def settle(ctx):
        return ctx.perform(approve)

    first = stage.asked()
    answer(first, stage.people.adjuster, "reject", "too much")
    drain()
    second = question(first.run)
    assert (second.position, second.amount_minor, first.payload != second.payload) == (2, 150_000, True)
    answer(second, stage.people.adjuster)
    drain()
    ((key, sent),) = stage.receiver.received
    assert (key, sent["amount_minor"]) == ("run-1:step3", 150_000)
    first.refresh_from_db()
    assert (first.status, first.spent_at) == ("rejected", None)
