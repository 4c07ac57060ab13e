"""Only with leave: an approval is spent once, in time, on unchanged facts, by the bytes that were signed."""

from datetime import timedelta

import pytest
from stage import Stage, change, freeze_clock, fresh, question, tamper

from approvals.gate import ask
from approvals.models import Approval, LedgerEntry
from approvals.testing import answer
from runs.errors import Refused, Retryable
from runs.models import AuditEvent, Call
from runs.testing import drain, move_clock
from runs.tools import over
from runs.workflows import finish, goto

DAY = timedelta(days=1)


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


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
    assert set(stage.receiver.keys) == {"run-1:step1"}


def test_a_tool_that_requires_approval_cannot_simply_be_called(stage):
    stage.calls_then_goes_on(stage.tool(requires_approval=over(100_000)))
    run = stage.begin()
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
    stage.later()
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
    stage.later()
    assert [sent["amount_minor"] for _, sent in stage.receiver.received] == [184_000]
    assert fresh(approval.run).status == "dead"


# Without a signature


def forge_status(database, approval, more=""):
    change(
        database,
        f"UPDATE approvals_approval SET status = 'approved', closed_at = now(){more} WHERE id = %s",
        approval.pk,
    )
    change(
        database,
        "UPDATE runs_run SET status = 'ready', wait_kind = '', wait_name = '', due_at = NULL WHERE id = %s",
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
    """The column beside the payload is no authority."""
    stage.tool("test.burn")
    stage.asks_then_pays()
    answer(stage.asked(), stage.people.adjuster)
    tamper(database, "UPDATE approvals_approval SET tool = 'test.burn'")
    drain()
    assert not Call.objects.filter(tool="test.burn").exists()
