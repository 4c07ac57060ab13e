"""The effect protocol: intent before sending, one key, the same bytes again, outcomes as they are and late ones too."""

import threading
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from sandbox_process import wait_until
from stage import LEASE_IS_PAST, Killed, Party, Stage, freeze_clock, fresh, one_stretch

from runs import engine, sweep
from runs.errors import Refused, Retryable
from runs.models import AuditEvent, Call, Checkpoint, Run
from runs.testing import drain, move_clock
from runs.tools import tool


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture
def pays(stage):
    """Begins a run of a step that pays by a tool that needs no approval, and one after it; takes the tool's options."""

    def begin(**options):
        stage.calls_then_goes_on(stage.tool(**options))
        return stage.begin()

    return begin


def call(key="run-1:step1"):
    return Call.objects.get(key=key)


# Outcomes


def test_a_confirmed_effect_is_recorded_with_its_key_its_bytes_and_its_answer(stage, pays):
    stage.receiver.script = [{"payment": "p-77", "replayed": True}]
    run = pays()
    made = call()
    assert (run.status, made.state, made.answer, made.replayed, made.sends) == (
        "completed",
        "confirmed",
        {"payment": "p-77", "replayed": True},
        True,
        1,
    )
    assert made.request == (
        '{"arguments":{"amount_minor":184000,"claim":"0042","currency":"USD","payee":"p-1"},"tool":"test.pay"}'
    )
    assert run.checkpoints.get(position=1).output == {"payment": made.answer}


def test_the_intent_is_committed_before_anything_is_sent(stage, pays, database):
    """Seen from another connection, at the moment of sending."""
    seen = []
    stage.receiver.script = [lambda key: seen.append(database.query("SELECT key, state, sends FROM runs_call")) or {}]
    pays()
    assert seen == [[("run-1:step1", "sent", 1)]]


def test_a_refusal_is_final_and_names_the_reason(stage, pays):
    stage.receiver.script = [Refused("the account is closed.")]
    run = pays()
    stage.later(times=3)
    assert (fresh(run).status, call().state, len(stage.receiver.received)) == ("dead", "refused", 1)
    assert "test.pay refused run-1:step1: the account is closed." in run.reason


def test_a_retryable_error_sends_the_same_bytes_under_the_same_key_again(stage, pays):
    stage.receiver.script = [Retryable("busy"), Retryable("still busy")]
    run = pays()
    assert (run.status, call().state, call().error) == ("sleeping", "prepared", "busy")
    stage.later(times=2)
    assert (fresh(run).status, call().state, call().sends, call().error) == ("completed", "confirmed", 3, "")
    assert stage.receiver.received == [stage.receiver.received[0]] * 3


def test_what_happened_never_is_not_unknown_after_a_second_retryable_error(stage, pays):
    """Each time the receiver said that nothing happened: it is still surely unsent."""
    stage.receiver.script = [Retryable("busy"), Retryable("still busy")]
    pays()
    stage.later()
    assert (len(stage.receiver.received), call().state) == (2, "prepared")


def test_a_refusal_after_a_retryable_error_is_a_refusal(stage, pays):
    """Nothing happened the first time, and nothing will: definite, so its position is closed."""
    stage.receiver.script = [Retryable("busy"), Refused("the account is closed.")]
    run = pays()
    stage.later(times=3)
    assert (fresh(run).status, call().state, len(stage.receiver.received)) == ("dead", "refused", 2)


def test_a_refusal_after_an_unknown_outcome_says_nothing_about_the_first_send(stage, pays):
    """C24: the first may have moved the money."""
    stage.receiver.script = [TimeoutError("no answer"), Refused("not again.")]
    pays()
    assert call().state == "unknown"
    stage.later()
    assert (len(stage.receiver.received), call().state) == (2, "unknown")
    stage.later()
    assert call().state == "confirmed"


def test_an_error_that_the_tool_did_not_class_is_unknown_and_the_same_key_settles_it(stage, pays):
    """C24"""
    stage.receiver.script = [TimeoutError("no answer"), KeyError("garbage")]
    run = pays()
    assert (run.status, call().state) == ("sleeping", "unknown")
    assert "not known whether run-1:step1 happened" in run.wait_name
    stage.later()
    assert call().state == "unknown"
    stage.later()
    assert (fresh(run).status, call().state, call().error) == ("completed", "confirmed", "")
    assert stage.receiver.received == [stage.receiver.received[0]] * 3


def test_an_outcome_that_stays_unknown_ends_in_the_dead_letters_and_stays_unknown(stage, pays):
    stage.receiver.script = [TimeoutError("no answer")] * 9
    run = pays()
    stage.later(times=5)
    assert (fresh(run).status, call().state, len(stage.receiver.received)) == ("dead", "unknown", 3)
    assert Call.objects.unknown().get() == call()


@pytest.mark.parametrize(
    "answered", [float("nan"), {"rate": float("inf")}, {"note": "\x00"}, None, ["paid"], "paid", {1: 2}]
)
def test_an_answer_that_cannot_be_kept_leaves_the_effect_unknown_and_says_so(stage, pays, answered):
    """C15, C16, C24: it may have happened; asking again would bring the same answer."""
    stage.receiver.script = [answered] * 9
    run = pays()
    stage.later(times=3)
    run = fresh(run)
    assert (run.status, call().state, len(stage.receiver.received)) == ("dead", "unknown", 1)
    assert "test.pay" in run.reason
    assert not run.checkpoints.exists()


def test_a_model_or_a_read_may_be_asked_with_floats_and_its_answer_stands(stage):
    asked = []

    @tool("test.ask", model=True)
    def ask_model(*, temperature: float) -> dict:
        asked.append(temperature)
        return {"p": 0.25}

    @stage.flow.step
    def think(ctx):
        said = ctx.call(ask_model, temperature=0.7)
        if ctx.attempt == 1:
            raise OSError("after the answer")
        return said

    run = stage.begin()
    stage.later()
    assert (fresh(run).status, asked, run.checkpoints.get().output) == ("completed", [0.7], {"p": 0.25})
    assert call("run-1:step1/test.ask/1").request == '{"arguments":{"temperature":0.7},"tool":"test.ask"}'


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_asked_of_nobody(stage, number):
    """C15"""
    ask_model = tool("test.ask", model=True)(float_taker)

    @stage.flow.step
    def think(ctx):
        return ctx.call(ask_model, temperature=number)

    run = stage.begin()
    assert (run.status, run.calls.count()) == ("dead", 0)
    assert "temperature" in run.reason


def float_taker(*, temperature: float) -> dict:
    raise AssertionError("it was asked")


def test_an_effect_that_would_take_a_float_is_refused_when_it_is_registered(stage):
    with pytest.raises(ImproperlyConfigured, match="amount is a float, and no effect takes one"):

        @tool("test.send", effect=True)
        def send(*, idempotency_key: str, amount: float) -> dict:
            return {}


@pytest.mark.parametrize("words", ["closed account", "closed account."])
def test_what_a_receiver_says_ends_before_what_we_say(stage, pays, words):
    stage.receiver.script = [Refused(words)]
    assert "closed account. Nothing happened;" in pays().reason


# The same key, the same bytes


def test_a_step_that_asks_for_something_else_when_it_is_tried_again_is_stopped_with_an_alarm(stage):
    """C14: a payload built from something volatile."""
    pay = stage.tool()

    @stage.flow.step
    def settle(ctx):
        ctx.call(pay, amount_minor=100 * ctx.attempt)
        raise OSError("after the effect")

    run = stage.begin()
    stage.later(times=3)
    assert (fresh(run).status, stage.receiver.received[0][1]["amount_minor"], len(stage.receiver.received)) == (
        "dead",
        100,
        1,
    )
    assert "idempotency key run-1:step1 already stands for another request" in fresh(run).reason
    alarm = AuditEvent.objects.get(kind="key-reused")
    assert (alarm.run, alarm.position) == (run, 1)
    assert call().state == "confirmed"


def test_a_second_effect_of_a_step_needs_a_name_of_its_own(stage):
    pay = stage.tool()

    @stage.flow.step
    def settle(ctx):
        return {"one": ctx.call(pay, amount_minor=1), "two": ctx.call(pay, "second", amount_minor=2)}

    @stage.flow.step
    def again(ctx):
        return {"one": ctx.call(pay, amount_minor=1), "two": ctx.call(pay, amount_minor=2)}

    run = stage.begin()
    assert stage.receiver.keys == ["run-1:step1", "run-1:step1:second", "run-1:step2"]
    assert (run.status, run.position) == ("dead", 1)
    assert AuditEvent.objects.filter(kind="key-reused").count() == 1


def test_a_finished_effect_is_not_sent_again_when_its_step_is_tried_again(stage):
    """C05, C14"""
    pay = stage.tool()

    @stage.flow.step
    def settle(ctx):
        answer = ctx.call(pay, amount_minor=1)
        if ctx.attempt == 1:
            raise OSError("after the effect")
        return answer

    run = stage.begin()
    stage.later()
    assert fresh(run).checkpoints.get().output == {"paid": True}
    assert len(stage.receiver.received) == 1


# At most once


@pytest.mark.parametrize("error", [TimeoutError("no answer"), OSError("reset")])
def test_an_at_most_once_effect_is_left_unknown_and_the_run_goes_on(stage, pays, error):
    stage.receiver.script = [error]
    run = pays(delivery="at-most-once")
    assert (run.status, run.position, call().state) == ("completed", 2, "unknown")
    assert run.checkpoints.get(position=1).output == {"payment": {"outcome": "unknown"}}
    assert len(stage.receiver.received) == 1


def test_an_at_most_once_effect_whose_worker_died_under_way_is_not_sent_again(stage, pays):
    stage.receiver.script = [Killed()]
    with pytest.raises(Killed):
        pays(delivery="at-most-once")
    assert call().state == "sent"
    stage.later(LEASE_IS_PAST)
    assert (Run.objects.get().status, call().state, len(stage.receiver.received)) == ("completed", "unknown", 1)


def test_a_keyed_effect_whose_worker_died_under_way_is_sent_again_under_its_key(stage, pays):
    stage.receiver.script = [Killed(), {"replayed": True}]
    with pytest.raises(Killed):
        pays()
    stage.later(LEASE_IS_PAST)
    assert (Run.objects.get().status, call().state, call().replayed) == ("completed", "confirmed", True)
    assert stage.receiver.received == [stage.receiver.received[0]] * 2


# A key's life


def old_and_unknown(stage, age, found=None, lookup=True):
    """A run whose first send brought no answer, and that is tried again `age` later; the keys that were looked up."""
    asked, pay = [], stage.tool(key_life=timedelta(hours=10))
    if lookup:
        pay.lookup(lambda *, idempotency_key: asked.append(idempotency_key) or found)

    @stage.flow.step
    def settle(ctx):
        return {"payment": ctx.call(pay, amount_minor=184_000)}

    stage.receiver.script = [TimeoutError("no answer")]
    run = stage.begin()
    freeze_clock(call().sent_at + age)
    drain()
    return fresh(run), asked


@pytest.mark.parametrize(
    ("age", "is_sent"),
    [(timedelta(hours=8, microseconds=-1), True), (timedelta(hours=8), False), (timedelta(hours=30), False)],
)
def test_a_key_is_trusted_for_four_fifths_of_its_life_and_looked_up_after(stage, age, is_sent):
    run, asked = old_and_unknown(stage, age, found={"payment": "p-1"})
    assert (len(stage.receiver.received), asked) == ((2, []) if is_sent else (1, ["run-1:step1"]))
    assert (run.status, call().state) == ("completed", "confirmed")


def test_an_old_key_whose_effect_is_found_is_confirmed_with_what_was_found(stage):
    run, _ = old_and_unknown(stage, timedelta(hours=9), found={"payment": "p-1", "replayed": True})
    assert run.checkpoints.get().output == {"payment": {"payment": "p-1", "replayed": True}}
    assert call().answer == {"payment": "p-1", "replayed": True}


def test_an_old_key_whose_effect_surely_never_happened_is_sent(stage):
    run, asked = old_and_unknown(stage, timedelta(hours=9), found=None)
    assert (asked, len(stage.receiver.received), run.status) == (["run-1:step1"], 2, "completed")


def test_an_old_key_that_cannot_be_looked_up_waits_for_a_person_with_a_sentence(stage):
    run, _ = old_and_unknown(stage, timedelta(hours=9), lookup=False)
    assert (run.status, call().state, len(stage.receiver.received)) == ("dead", "unknown", 1)
    assert "not known whether test.pay (run-1:step1) happened, its key is too old to be sent again" in run.reason


# Late outcomes


def test_an_outcome_that_comes_after_a_cancel_is_still_recorded(stage, pays):
    """C20: cancelled during the call, from inside it."""
    stage.receiver.script = [lambda key: engine.cancel("run-1", why="withdrawn") and {"payment": "p-1"}]
    run = pays()
    assert (run.status, run.position, run.checkpoints.count()) == ("cancelled", 0, 0)
    assert (call().state, call().answer) == ("confirmed", {"payment": "p-1"})
    assert AuditEvent.objects.filter(kind="late-write").count() == 1
    assert drain() == 0


@pytest.mark.parametrize(
    ("error", "state"), [(TimeoutError("x"), "unknown"), (Refused("x"), "refused"), (Retryable("x"), "prepared")]
)
def test_a_failure_that_comes_after_a_cancel_is_recorded_and_the_run_stays_cancelled(stage, pays, error, state):
    """C20"""

    def cancelled_then(key):
        engine.cancel("run-1", why="withdrawn")
        raise error

    stage.receiver.script = [cancelled_then]
    run = pays()
    assert (run.status, run.reason, call().state) == ("cancelled", "withdrawn", state)
    assert AuditEvent.objects.filter(kind="late-write").count() == 1


def test_a_cancel_before_the_send_means_nothing_is_sent(stage):
    """C20: cancelled between the claim and the effect."""
    pay = stage.tool()

    @stage.flow.step
    def settle(ctx):
        engine.cancel("run-1", why="withdrawn")
        return ctx.call(pay, amount_minor=1)

    run = stage.begin()
    assert (run.status, stage.receiver.received, Call.objects.count()) == ("cancelled", [], 0)


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_worker_that_lost_its_lease_in_a_call_changes_neither_run_nor_checkpoints_and_its_outcome_is_kept(
    stage, taken_over
):
    """The lease runs out while the tool is at work; `taken_over`: another worker has the run by then."""
    seen = []

    def slow(key):
        move_clock(LEASE_IS_PAST)
        assert sweep.reclaim_abandoned() == 1
        if taken_over:
            one_stretch()
        seen.append(Run.objects.values().get())
        return {"payment": "of the late one"}

    stage.receiver.script = [slow, {"payment": "of the second"}]
    stage.calls_then_goes_on(stage.tool())

    engine.start(stage.flow, key="run-1", input={}, team=stage.people.team)
    one_stretch()
    assert Run.objects.values().get() == seen[0]
    assert Checkpoint.objects.count() == 2 * taken_over
    [event] = AuditEvent.objects.all()
    assert (event.kind, event.position) == ("late-write", 1)
    drain()
    assert Run.objects.get().status == "completed"
    expected = {"payment": "of the second" if taken_over else "of the late one"}
    assert call().answer == expected
    assert Checkpoint.objects.get(position=1).output == {"payment": expected}
    assert len(stage.receiver.received) == 1 + taken_over


@pytest.mark.parametrize("late", [Refused("too busy."), Retryable("too busy.")])
@pytest.mark.parametrize("second_ends", ["confirmed", "killed"])
def test_a_late_no_of_the_first_send_does_not_speak_for_a_resend_under_way(stage, late, second_ends):
    """The first worker hears that nothing happened after it lost its lease, while the second's send is under way: the
    money may move, so nothing may say that it did not."""
    second_is_sending, first_is_done = threading.Event(), threading.Event()

    def late_no(key):
        assert second_is_sending.wait(20)
        raise late

    def second_send(key):
        second_is_sending.set()
        assert first_is_done.wait(20)
        if second_ends == "killed":
            raise Killed
        return {"payment": "p-1"}

    stage.receiver.script = [late_no, second_send]
    stage.calls_then_goes_on(stage.tool(once_per="claim"))
    engine.start(stage.flow, key="run-1", input={}, team=stage.people.team)
    first = Party(one_stretch)
    wait_until(lambda: len(stage.receiver.received) == 1)
    move_clock(LEASE_IS_PAST)
    assert sweep.reclaim_abandoned() == 1
    second = Party(one_stretch)
    first.outcome()
    first_is_done.set()
    if second_ends == "killed":
        with pytest.raises(Killed):
            second.outcome()
        assert call().state in ("sent", "unknown")
    else:
        second.outcome()
        assert (call().state, call().answer) == ("confirmed", {"payment": "p-1"})
