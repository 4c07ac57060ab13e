"""Receivers that honour no keys: what is sent again, what is looked up first, and what stays unknown."""

from datetime import timedelta

import pytest
from sandbox_process import SandboxProcess
from stage import Stage

from durable_site.claims.tools import open_ticket, transfer
from runs.errors import KeyConflict, OutcomeUnknown, Refused
from runs.models import AuditEvent, Call
from runs.states import EffectState
from runs.workflows import Retry


@pytest.fixture
def stage(people):
    with Stage(people) as made:
        yield made


@pytest.fixture
def sandbox(tmp_path, settings):
    with SandboxProcess(tmp_path / "sandbox", ticket_delay=3) as process:
        settings.SANDBOX_URL = process.url
        yield process


def opened_by_a_step(stage: Stage):
    @stage.flow.step
    def tell(ctx):
        return {"ticket": ctx.call(open_ticket, claim="0042", subject="Water line", text="Please measure")}

    return stage.begin()


def test_a_ticket_whose_answer_was_lost_is_looked_up_once_it_can_be_found_and_not_opened_again(stage, sandbox):
    sandbox.script("lost_answer", match={"path": "/tickets", "method": "POST"}, times=1)
    stage.flow.retry = Retry(attempts=5, base=1, cap=1)
    run = opened_by_a_step(stage)
    call = Call.objects.get(run=run)
    assert call.state == EffectState.UNKNOWN
    # Tried again before it can be found: neither looked up nor sent.
    stage.later(timedelta(seconds=2))
    run.refresh_from_db()
    assert "is looked up once" in run.wait_name
    assert len(sandbox.tickets()) == 1
    sandbox.advance(10)
    stage.later(timedelta(seconds=30), times=3)
    run.refresh_from_db()
    call.refresh_from_db()
    assert (run.status, call.state, call.replayed, call.sends) == ("completed", EffectState.CONFIRMED, True, 1)
    assert [ticket["reference"] for ticket in sandbox.tickets()] == ["run-1:step1"]


def test_a_ticket_that_was_never_opened_is_found_missing_and_opened(stage, sandbox):
    sandbox.script("500", match={"path": "/tickets", "method": "POST"}, times=1)
    run = opened_by_a_step(stage)
    stage.later(timedelta(seconds=30), times=3)
    run.refresh_from_db()
    assert run.status == "completed"
    assert len(sandbox.tickets()) == 1
    assert Call.objects.get(run=run).sends == 2


def test_a_ticket_that_stands_there_already_is_not_opened_a_second_time(stage, sandbox):
    """Its worker died after the ticket system had opened it and before the intent was even marked as sent."""
    import httpx

    httpx.post(f"{sandbox.url}/tickets", json={"reference": "run-1:step1", "subject": "s", "text": "t"})
    sandbox.advance(10)
    run = opened_by_a_step(stage)
    run.refresh_from_db()
    assert run.status == "completed"
    assert len(sandbox.tickets()) == 1


def test_what_may_happen_twice_is_sent_again(stage):
    letter = stage.tool("test.letter", delivery="at-least-once")
    stage.receiver.script = [OutcomeUnknown("no answer")]

    @stage.flow.step
    def write(ctx):
        return {"letter": ctx.call(letter, amount_minor=184_000)}

    run = stage.begin()
    stage.later()
    run.refresh_from_db()
    assert run.status == "completed"
    assert Call.objects.get(run=run).sends == 2


def test_a_key_that_stands_for_another_request_there_is_an_alarm_and_a_dead_letter(stage):
    pay = stage.tool()
    stage.receiver.script = [KeyConflict("used with another body")]

    @stage.flow.step
    def pay_it(ctx):
        return ctx.call(pay, amount_minor=184_000)

    run = stage.begin()
    run.refresh_from_db()
    call = Call.objects.get(run=run)
    assert run.status == "dead"
    assert "settle it by hand" in run.reason
    assert (call.state, call.sends) == (EffectState.UNKNOWN, 1)
    assert AuditEvent.objects.get(run=run).kind == AuditEvent.Kind.KEY_REUSED


@pytest.mark.parametrize(("stored", "state"), [(True, EffectState.REFUSED), (False, EffectState.UNKNOWN)])
def test_a_refusal_after_an_unknown_send_counts_only_when_it_is_the_first_answer_repeated(stage, stored, state):
    pay = stage.tool()
    stage.receiver.script = [OutcomeUnknown("no answer"), Refused("no funds", stored=stored)]

    @stage.flow.step
    def pay_it(ctx):
        return ctx.call(pay, amount_minor=184_000)

    run = stage.begin()
    stage.later()
    assert Call.objects.get(run=run).state == state


def test_a_provider_that_knows_the_key_with_another_payment_is_no_refusal(sandbox):
    order = {"currency": "USD", "payee": "p", "claim": "c"}
    transfer.function(idempotency_key="k", amount_minor=100, **order)
    with pytest.raises(KeyConflict):
        transfer.function(idempotency_key="k", amount_minor=200, **order)
