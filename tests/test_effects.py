"""The effect protocol: intent before sending, one key, the stored bytes again, outcomes as they are, approvals spent once."""

import json
import threading
from datetime import timedelta

import psycopg
import pytest
from stage import Killed, Party, Stage, freeze_clock, fresh, one_stretch, question

from approvals.gate import ask
from approvals.models import Approval, LedgerEntry
from approvals.testing import answer
from durable_site.claims.models import Claim
from runs import engine, sweep
from runs.errors import Refused, Retryable
from runs.models import AuditEvent, Call, Checkpoint, Run
from runs.testing import drain, move_clock
from runs.tools import over
from runs.workflows import finish, goto

DAY = timedelta(days=1)
LEASE_IS_PAST = timedelta(seconds=60)


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture
def pays(stage):
    """A run of one step that pays 1,840.00 by a tool that needs no approval; called with the tool's options."""

    def begin(**options):
        pay = stage.tool(**options)

        @stage.flow.step
        def settle(ctx):
            return {"payment": ctx.call(pay, amount_minor=184_000)}

        @stage.flow.step
        def after(ctx):
            return {"went on": True}

        return stage.begin()

    return begin


def come_back_later(times=1):
    """Let back-offs pass, `times` times."""
    for _ in range(times):
        later(timedelta(seconds=5))


_moved = timedelta()


def later(by):
    """Move the clock on from wherever it was moved to, and work what is due."""
    global _moved
    _moved += by
    move_clock(_moved)
    drain()


@pytest.fixture(autouse=True)
def clock():
    global _moved
    _moved = timedelta()


def call(key="run-1:step1"):
    return Call.objects.get(key=key)


def change(database, statement, *values):
    """An ordinary statement of somebody with a console."""
    with psycopg.connect(database.url, autocommit=True) as other:
        assert other.execute(statement, values).rowcount == 1


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
    come_back_later(3)
    assert (fresh(run).status, call().state, len(stage.receiver.received)) == ("dead", "refused", 1)
    assert "test.pay refused run-1:step1: the account is closed." in run.reason


def test_a_retryable_error_sends_the_same_bytes_under_the_same_key_again(stage, pays):
    stage.receiver.script = [Retryable("busy"), Retryable("still busy")]
    run = pays()
    assert (run.status, call().state, call().error) == ("sleeping", "prepared", "busy")
    come_back_later(2)
    assert (fresh(run).status, call().state, call().sends, call().error) == ("completed", "confirmed", 3, "")
    assert stage.receiver.received == [stage.receiver.received[0]] * 3


def test_what_happened_never_is_not_unknown_after_a_second_retryable_error(stage, pays):
    """Each time the receiver said that nothing happened: it is still surely unsent."""
    stage.receiver.script = [Retryable("busy"), Retryable("still busy")]
    pays()
    come_back_later()
    assert (len(stage.receiver.received), call().state) == (2, "prepared")


def test_a_refusal_after_a_retryable_error_is_a_refusal(stage, pays):
    """Nothing happened the first time, and nothing will: definite, so its position is closed."""
    stage.receiver.script = [Retryable("busy"), Refused("the account is closed.")]
    run = pays()
    come_back_later(3)
    assert (fresh(run).status, call().state, len(stage.receiver.received)) == ("dead", "refused", 2)


def test_a_refusal_after_an_unknown_outcome_says_nothing_about_the_first_send(stage, pays):
    """C24: the first may have moved the money."""
    stage.receiver.script = [TimeoutError("no answer"), Refused("not again.")]
    pays()
    assert call().state == "unknown"
    come_back_later()
    assert (len(stage.receiver.received), call().state) == (2, "unknown")
    come_back_later()
    assert call().state == "confirmed"


@pytest.mark.parametrize(
    "error", [TimeoutError("no answer"), ConnectionResetError("reset"), ValueError("garbage"), KeyError("x")]
)
def test_an_error_that_the_tool_did_not_class_is_unknown_and_the_same_key_settles_it(stage, pays, error):
    """C24"""
    stage.receiver.script = [error]
    run = pays()
    assert (run.status, call().state) == ("sleeping", "unknown")
    assert "not known whether run-1:step1 happened" in run.wait_name
    come_back_later()
    assert (fresh(run).status, call().state) == ("completed", "confirmed")
    assert stage.receiver.received == [stage.receiver.received[0]] * 2


def test_an_outcome_that_stays_unknown_ends_in_the_dead_letters_and_stays_unknown(stage, pays):
    stage.receiver.script = [TimeoutError("no answer")] * 9
    run = pays()
    come_back_later(5)
    assert (fresh(run).status, call().state, len(stage.receiver.received)) == ("dead", "unknown", 3)
    assert Call.objects.unknown().get() == call()


@pytest.mark.parametrize(
    "answered", [float("nan"), {"rate": float("inf")}, {"note": "\x00"}, None, ["paid"], "paid", {1: 2}]
)
def test_an_answer_that_cannot_be_kept_leaves_the_effect_unknown_and_says_so(stage, pays, answered):
    """C15, C16, C24: it may have happened; asking again would bring the same answer."""
    stage.receiver.script = [answered] * 9
    run = pays()
    come_back_later(3)
    run = fresh(run)
    assert (run.status, call().state, len(stage.receiver.received)) == ("dead", "unknown", 1)
    assert "test.pay" in run.reason
    assert not run.checkpoints.exists()


# The same key, the same bytes


def test_a_step_that_asks_for_something_else_when_it_is_tried_again_is_stopped_with_an_alarm(stage):
    """C14: a payload built from something volatile."""
    pay = stage.tool()

    @stage.flow.step
    def settle(ctx):
        ctx.call(pay, amount_minor=100 * ctx.attempt)
        raise OSError("after the effect")

    run = stage.begin()
    come_back_later(3)
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
    come_back_later()
    assert fresh(run).checkpoints.get().output == {"paid": True}
    assert len(stage.receiver.received) == 1


@pytest.mark.parametrize("digest_too", [False, True])
def test_a_stored_request_that_somebody_changed_is_not_sent(stage, database, digest_too):
    """Approved bytes are executed bytes, also at the second try."""
    stage.asks_then_pays()
    approval = stage.asked()
    stage.receiver.script = [Retryable("busy")]
    answer(approval, stage.people.adjuster)
    drain()
    change(database, "UPDATE runs_call SET request = replace(request, '184000', '984000')")
    if digest_too:
        change(database, "UPDATE runs_call SET digest = encode(sha256(convert_to(request, 'UTF8')), 'hex')")
    come_back_later()
    assert [sent["amount_minor"] for _, sent in stage.receiver.received] == [184_000]
    assert fresh(approval.run).status == "dead"


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
    later(LEASE_IS_PAST)
    assert (Run.objects.get().status, call().state, len(stage.receiver.received)) == ("completed", "unknown", 1)


def test_a_keyed_effect_whose_worker_died_under_way_is_sent_again_under_its_key(stage, pays):
    stage.receiver.script = [Killed(), {"replayed": True}]
    with pytest.raises(Killed):
        pays()
    later(LEASE_IS_PAST)
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
    stage, pays, taken_over
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
    pay = stage.tool()

    @stage.flow.step
    def settle(ctx):
        return {"payment": ctx.call(pay, amount_minor=184_000)}

    engine.start(stage.flow, key="run-1", input={}, team=stage.people.team)
    one_stretch()
    assert Run.objects.values().get() == seen[0]
    assert Checkpoint.objects.count() == taken_over
    [event] = AuditEvent.objects.all()
    assert (event.kind, event.position) == ("late-write", 1)
    drain()
    assert Run.objects.get().status == "completed"
    expected = {"payment": "of the second" if taken_over else "of the late one"}
    assert call().answer == expected
    assert Checkpoint.objects.get().output == {"payment": expected}
    assert len(stage.receiver.received) == 1 + taken_over


def test_a_late_refusal_does_not_hide_that_a_resend_was_confirmed(stage, pays):
    """The first worker's send is refused after its lease was lost, while the second's is under way and succeeds: the
    money moved, so nothing may say that it did not."""
    second_is_sending, first_is_done = threading.Event(), threading.Event()

    def refused_late(key):
        assert second_is_sending.wait(20)
        raise Refused("too busy to pay.")

    def confirmed(key):
        second_is_sending.set()
        assert first_is_done.wait(20)
        return {"payment": "p-1"}

    stage.receiver.script = [refused_late, confirmed]
    pay = stage.tool(once_per="claim")

    @stage.flow.step
    def settle(ctx):
        return {"payment": ctx.call(pay, amount_minor=184_000)}

    engine.start(stage.flow, key="run-1", input={}, team=stage.people.team)
    first = Party(one_stretch)
    wait_for_a_send(stage)
    move_clock(LEASE_IS_PAST)
    assert sweep.reclaim_abandoned() == 1
    second = Party(one_stretch)
    first.outcome()
    first_is_done.set()
    second.outcome()
    assert (Run.objects.get().status, call().state, call().answer) == ("completed", "confirmed", {"payment": "p-1"})


def wait_for_a_send(stage):
    from sandbox_process import wait_until

    wait_until(lambda: bool(stage.receiver.received))


# Once per subject, and only with leave


def test_an_effect_that_may_happen_once_per_subject_is_refused_to_a_second_run(stage):
    stage.asks_then_pays(stage.tool(requires_approval=True, once_per="claim"))
    first, second = stage.asked("run-1"), stage.asked("run-2")
    answer(first, stage.people.adjuster)
    answer(second, stage.people.adjuster)
    drain()
    assert stage.receiver.keys == ["run-1:step2"]
    assert fresh(second.run).status == "dead"
    assert "may happen once per claim=0042, and run-1:step2 stands for it already" in fresh(second.run).reason
    second.refresh_from_db()
    assert second.spent_at is None


def test_a_refused_effect_leaves_its_subject_free(stage):
    pay = stage.tool(once_per="claim")

    @stage.flow.step
    def settle(ctx):
        return ctx.call(pay, amount_minor=1)

    stage.receiver.script = [Refused("closed.")]
    assert stage.begin("run-1").status == "dead"
    assert stage.begin("run-2").status == "completed"


def test_an_unknown_effect_keeps_its_subject(stage):
    pay = stage.tool(once_per="claim")

    @stage.flow.step
    def settle(ctx):
        return ctx.call(pay, amount_minor=1)

    stage.receiver.script = [TimeoutError("no answer")]
    stage.begin("run-1")
    assert stage.begin("run-2").status == "dead"
    assert len(stage.receiver.received) == 1


def test_a_tool_that_requires_approval_cannot_simply_be_called(stage, pays):
    run = pays(requires_approval=over(100_000))
    assert (run.status, stage.receiver.received, Call.objects.count()) == ("dead", [], 0)
    assert "needs an approval" in run.reason


def test_performing_what_was_never_asked_is_refused(stage):
    pay = stage.tool(requires_approval=True)

    @stage.flow.step
    def skip(ctx):
        return goto("settle")

    @stage.flow.step
    def approve(ctx):
        return ask(pay.proposed(amount_minor=1), groups=["adjusters"], expires_in=DAY)

    @stage.flow.step
    def settle(ctx):
        return ctx.perform(approve)

    run = stage.begin()
    assert (run.status, stage.receiver.received) == ("dead", [])
    assert "has asked for nothing yet" in run.reason


def test_what_needs_an_approval_is_not_made_where_nobody_was_asked(stage):
    """`when` says no and the tool says yes."""
    stage.asks_then_pays(when=False)
    run = stage.begin()
    assert (run.status, stage.receiver.received) == ("dead", [])
    assert "requires an approval for this, and nobody was asked" in run.reason
    assert Approval.objects.get().spent_at is None


def test_what_needs_no_approval_is_frozen_and_spent_all_the_same(stage):
    stage.asks_then_pays(stage.tool(requires_approval=over(100_000)), when=over(100_000))
    assert stage.begin(amount_minor=100_000).status == "completed"
    frozen = Approval.objects.get()
    assert (frozen.status, frozen.spent_key) == ("not-required", "run-1:step2")
    assert stage.begin("run-2", amount_minor=100_001).status == "waiting"


def test_an_approval_is_spent_once(stage):
    """Two steps perform the same question: the second is refused."""
    stage.asks_then_pays()

    @stage.flow.step
    def settle_again(ctx):
        return ctx.perform(stage.flow.steps["approve"])

    approval = stage.asked()
    answer(approval, stage.people.adjuster)
    drain()
    run = fresh(approval.run)
    assert (run.status, stage.receiver.keys) == ("dead", ["run-1:step2"])
    assert f"approval {approval.pk} was spent already, on run-1:step2" in run.reason


def test_a_loop_does_not_inherit_the_approval(stage):
    stage.asks_then_pays()

    @stage.flow.step
    def again(ctx):
        return goto("settle")

    approval = stage.asked()
    answer(approval, stage.people.adjuster)
    drain()
    assert (fresh(approval.run).status, stage.receiver.keys) == ("dead", ["run-1:step2"])


def test_an_earlier_approval_is_worth_nothing_once_a_later_question_was_rejected(stage):
    """The first was given and not spent; the amount was raised, asked again, and refused."""
    pay = stage.tool(requires_approval=True)

    @stage.flow.step
    def approve(ctx):
        amount = ctx.state.get("amount", 100)
        return ask(pay.proposed(amount_minor=amount), groups=["adjusters"], expires_in=DAY, on_reject="settle")

    @stage.flow.step
    def raise_it(ctx):
        return goto("approve", {"amount": 900})

    @stage.flow.step
    def settle(ctx):
        return finish("settled", {"payment": ctx.perform(approve)})

    run = stage.begin()
    answer(question(run), stage.people.adjuster)
    drain()
    answer(question(run), stage.people.adjuster, "reject", "too much")
    drain()
    assert stage.receiver.received == []
    assert fresh(run).status == "dead"


@pytest.mark.parametrize(
    ("late", "in_time"), [(timedelta(microseconds=-1), True), (timedelta(), True), (timedelta(microseconds=1), False)]
)
def test_an_approval_older_than_act_within_is_asked_again(stage, late, in_time):
    stage.asks_then_pays(act_within=timedelta(hours=2))
    first = stage.asked()
    answer(first, stage.people.adjuster)
    first.refresh_from_db()
    freeze_clock(first.closed_at + timedelta(hours=2) + late)
    drain()
    first.refresh_from_db()
    if in_time:
        assert (stage.receiver.keys, first.spent_key) == (["run-1:step2"], "run-1:step2")
        return
    second = question(first.run)
    assert (stage.receiver.received, first.spent_at, second.position) == ([], None, 3)
    assert fresh(first.run).checkpoints.get(position=2).closed_as == "lapsed"
    answer(second, stage.people.adjuster)
    drain()
    assert stage.receiver.keys == ["run-1:step4"]


def test_facts_that_changed_after_the_run_went_on_close_the_paying_position_and_ask_again(stage):
    """C06: changed between approve and pay, after the look on resume."""
    pay = stage.tool(requires_approval=True)

    @stage.flow.step
    def approve(ctx):
        return ask(pay.proposed(amount_minor=1), groups=["adjusters"], expires_in=DAY, facts=stage.source)

    @stage.flow.step
    def meanwhile(ctx):
        stage.facts["claim"] = "reopened"
        return {}

    @stage.flow.step
    def settle(ctx):
        return {"payment": ctx.perform(approve)}

    first = question(stage.begin())
    answer(first, stage.people.adjuster)
    drain()
    second = question(first.run)
    first.refresh_from_db()
    closed = fresh(first.run).checkpoints.get(position=3)
    assert (stage.receiver.received, first.spent_at, second.position) == ([], None, 4)
    assert (closed.closed_as, closed.output) == ("changed", {"changed_facts": ["claim"]})
    answer(second, stage.people.adjuster)
    drain()
    second.refresh_from_db()
    assert stage.receiver.keys == ["run-1:step6"] == [second.spent_key]


def test_facts_are_not_read_again_once_the_intent_stands(stage):
    """A retry is the same effect: nothing is asked, read or spent again."""
    stage.asks_then_pays()
    approval = stage.asked()
    stage.receiver.script = [TimeoutError("no answer")]
    answer(approval, stage.people.adjuster)
    drain()
    stage.facts["claim"] = "reopened"
    come_back_later()
    assert fresh(approval.run).status == "completed"
    assert stage.receiver.keys == ["run-1:step2"] * 2


def test_performing_under_a_key_that_stands_for_something_else_is_stopped_with_an_alarm(stage):
    """The step's bare key went to a notice first: the approved payment must not pass for made."""
    notice = stage.tool("test.notice")
    stage.asks_then_pays()
    del stage.flow.steps["settle"]

    @stage.flow.step
    def settle(ctx):
        ctx.call(notice, amount_minor=1)
        return {"payment": ctx.perform(stage.flow.steps["approve"])}

    approval = stage.asked()
    answer(approval, stage.people.adjuster)
    drain()
    assert [sent["amount_minor"] for _, sent in stage.receiver.received] == [1]
    assert fresh(approval.run).status == "dead"
    assert AuditEvent.objects.filter(kind="key-reused").count() == 1


def test_a_change_that_leads_to_no_step_ends_in_the_dead_letters_with_a_sentence(stage):
    stage.asks_then_pays(act_within=timedelta(hours=2), on_change="nowhere")
    approval = stage.asked()
    answer(approval, stage.people.adjuster)
    freeze_clock(approval.asked_at + timedelta(hours=9))
    drain()
    run = fresh(approval.run)
    assert (run.status, stage.receiver.received) == ("dead", [])
    assert "nowhere" in run.reason


# Without a signature


def forge_status(database, approval, more=""):
    change(
        database,
        f"UPDATE approvals_approval SET status = 'approved', closed_at = now(){more} WHERE id = %s",
        approval.pk,
    )
    change(
        database,
        "UPDATE runs_run SET status = 'ready', wait_kind = '', wait_name = '', wait_since = NULL, due_at = NULL WHERE id = %s",
        approval.run_id,
    )


def test_a_status_of_approved_without_a_signature_pays_nothing(stage, database):
    stage.asks_then_pays()
    approval = stage.asked()
    forge_status(database, approval)
    drain()
    assert (fresh(approval.run).status, stage.receiver.received) == ("dead", [])
    assert "fewer signatures than it requires" in fresh(approval.run).reason


def test_a_decision_row_without_a_signature_of_its_own_pays_nothing(stage, database):
    """Ordinary statements only: a decision that leans on the ledger entry of another run's expiry."""
    stage.asks_then_pays(expires_in=timedelta(hours=1))
    stage.asked("expired")
    move_clock(timedelta(hours=2))
    drain()
    approval, entry = stage.asked("run-1"), LedgerEntry.objects.get(kind="expiry")
    change(
        database,
        "INSERT INTO approvals_decision (approval_id, user_id, verdict, comment, decided_at, entry_id) "
        "VALUES (%s, %s, 'approve', '', now(), %s)",
        approval.pk,
        stage.people.adjuster.pk,
        entry.sequence,
    )
    forge_status(database, approval)
    drain()
    assert stage.receiver.received == []


def test_the_tool_that_runs_is_the_one_in_the_approved_bytes(stage, database):
    """The column beside the payload is no authority, and an ordinary statement may not change it."""
    stage.tool("test.burn")
    stage.asks_then_pays()
    approval = stage.asked()
    answer(approval, stage.people.adjuster)
    with psycopg.connect(database.url, autocommit=True) as other:
        try:
            other.execute("UPDATE approvals_approval SET tool = 'test.burn'")
        except psycopg.errors.IntegrityError:
            return
    drain()
    assert [(made.tool, json.loads(made.request)["tool"]) for made in Call.objects.all()] in (
        [],
        [("test.pay", "test.pay")],
    )


# Atomic steps


@pytest.mark.parametrize("kind", ["effect", "read"])
def test_an_atomic_step_may_use_no_tool(stage, kind):
    from runs.tools import tool

    effect = stage.tool()

    @tool("test.look")
    def look(*, amount_minor: int) -> dict:
        stage.receiver("read", {})
        return {}

    @stage.flow.step(atomic=True)
    def book(ctx):
        return ctx.call(effect if kind == "effect" else look, amount_minor=1)

    run = stage.begin()
    assert (run.status, stage.receiver.received, Call.objects.count()) == ("dead", [], 0)
    assert "atomic, so it may use no tools" in run.reason


def test_an_atomic_step_may_not_perform_either(stage, database):
    """Else money would move inside a transaction that can still roll back, its intent with it."""
    stage.asks_then_pays()
    del stage.flow.steps["settle"]

    @stage.flow.step(atomic=True)
    def settle(ctx):
        return {"payment": ctx.perform(stage.flow.steps["approve"])}

    approval = stage.asked()
    answer(approval, stage.people.adjuster)
    drain()
    assert (fresh(approval.run).status, stage.receiver.received, Call.objects.count()) == ("dead", [], 0)
    approval.refresh_from_db()
    assert approval.spent_at is None


def booked():
    return Claim.objects.create(reference="booked", policy_number="p", payee="p", row={})


def test_an_atomic_step_takes_its_rows_back_when_its_lease_was_lost(stage):
    @stage.flow.step(atomic=True)
    def book(ctx):
        booked()
        if ctx.attempt == 1:
            # From outside, as the sweep would: this step's transaction has not touched the run's row.
            Party(lose_the_lease).outcome()
        return {}

    engine.start(stage.flow, key="run-1", input={}, team=stage.people.team)
    one_stretch()
    run = Run.objects.get()
    assert (run.status, run.position, Claim.objects.count(), Checkpoint.objects.count()) == ("ready", 0, 0, 0)
    assert AuditEvent.objects.filter(kind="late-write").count() == 1
    drain()
    assert (fresh(run).status, Claim.objects.count(), Checkpoint.objects.count()) == ("completed", 1, 1)


def lose_the_lease():
    move_clock(LEASE_IS_PAST)
    assert sweep.reclaim_abandoned() == 1


def test_an_atomic_step_takes_its_rows_back_when_it_fails_or_was_cancelled(stage):
    @stage.flow.step(atomic=True)
    def book(ctx):
        booked()
        if ctx.input["how"] == "fails":
            raise ValueError("after booking")
        Party(lambda: engine.cancel("cancelled", why="withdrawn")).outcome()
        return {}

    failing, cancelled = stage.begin("failing", how="fails"), stage.begin("cancelled", how="cancelled")
    assert (failing.status, cancelled.status) == ("sleeping", "cancelled")
    assert (Claim.objects.count(), Checkpoint.objects.count()) == (0, 0)


def test_an_atomic_step_whose_commit_the_database_refuses_is_tried_again_where_it_was(stage):
    """A foreign key is checked at commit: by then the step's own checkpoint was written, and is taken back with it."""
    from durable_site.claims.models import ReserveEntry

    @stage.flow.step(atomic=True)
    def book(ctx):
        ReserveEntry.objects.create(claim_id=999_999, amount_minor=-1, currency="USD", payment="p")
        return {}

    @stage.flow.step
    def after(ctx):
        raise AssertionError("the step before it was never committed")

    run = stage.begin()
    come_back_later(3)
    run = fresh(run)
    assert (run.status, run.position, run.next_step, run.checkpoints.count()) == ("dead", 0, "book", 0)
    assert ReserveEntry.objects.count() == 0
    assert {(move.position, move.step) for move in run.transitions.all()} == {(1, "book")}
    assert "Step book, attempt 3 of 3" in run.reason
