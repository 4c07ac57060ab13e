"""The tool that pays through Stripe: each thing that can happen to a transfer, told to the engine as what it means."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandbox_process import PROJECT, SandboxProcess
from stage import Stage

from runs import tools
from runs.errors import KeyConflict, OutcomeUnknown, Refused, Retryable
from runs.models import Call

pytest.importorskip("stripe", reason="the stripe library is not installed (pip install '.[stripe]')")

KEY = "claim-0042:step6"
ORDER = {"amount_minor": 84_000, "currency": "USD", "payee": "acct_0042", "claim": "0042"}


@pytest.fixture
def sandbox(tmp_path: Path, settings: Any) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path / "store", profile="stripe") as process:
        settings.STRIPE_API_BASE, settings.STRIPE_API_KEY = process.url, "sk_test_sandbox"
        yield process


@pytest.fixture
def tool(sandbox: SandboxProcess) -> tools.Tool:
    registered = tools.get("payments.transfer_stripe")
    assert registered is not None
    return registered


def transfer(tool: tools.Tool, **changed: Any) -> dict[str, Any]:
    return tool.function(idempotency_key=KEY, **ORDER | changed)


def looked_up(tool: tools.Tool, key: str = KEY) -> dict[str, Any] | None:
    assert tool.lookup_function is not None
    return tool.lookup_function(idempotency_key=key)


def test_a_transfer_is_paid_once_however_often_it_is_sent(sandbox: SandboxProcess, tool: tools.Tool) -> None:
    first, again = transfer(tool), transfer(tool)
    assert first == {"payment": first["payment"], "paid_minor": 84_000, "replayed": False}
    assert again == first | {"replayed": True}
    (line,) = sandbox.payments()
    assert (line["payment"], line["key"], line["reference"]) == (first["payment"], KEY, "0042")
    assert (line["amount_minor"], line["currency"], line["payee"]) == (84_000, "USD", "acct_0042")


def test_it_is_looked_up_by_its_key_also_when_stripe_has_forgotten_the_key(
    sandbox: SandboxProcess, tool: tools.Tool
) -> None:
    assert looked_up(tool) is None
    made = transfer(tool)
    sandbox.advance(25 * 3600)
    assert looked_up(tool) == made | {"replayed": True}
    assert looked_up(tool, "claim-0042:step") is None


def test_a_group_that_somebody_else_used_is_no_evidence(sandbox: SandboxProcess, tool: tools.Tool) -> None:
    import stripe

    client = stripe.StripeClient("sk_test_other", base_addresses={"api": sandbox.url})
    foreign = {"amount": 1, "currency": "usd", "destination": "acct", "transfer_group": KEY}
    foreign |= {"metadata": {"idempotency_key": "of somebody else"}}
    getattr(client, "v1", client).transfers.create(params=foreign)
    assert looked_up(tool) is None


MEANINGS: list[tuple[dict[str, Any], type[Exception], bool]] = [
    ({"fault": "402_stored"}, Refused, False),
    ({"fault": "409"}, Retryable, False),
    ({"fault": "429"}, Retryable, False),
    ({"fault": "500"}, OutcomeUnknown, False),
    ({"fault": "500", "effect": True}, OutcomeUnknown, True),
    ({"fault": "500_stored"}, OutcomeUnknown, False),
    ({"fault": "lost_answer"}, OutcomeUnknown, True),
    ({"fault": "garbage"}, OutcomeUnknown, True),
    ({"fault": "other_amount"}, OutcomeUnknown, True),
    ({"fault": "reset"}, OutcomeUnknown, False),
    ({"fault": "down"}, OutcomeUnknown, False),
]


@pytest.mark.parametrize(("rule", "meaning", "pays"), MEANINGS, ids=[str(rule) for rule, _, _ in MEANINGS])
def test_each_fault_is_told_as_what_it_means_and_sent_once_only(
    sandbox: SandboxProcess, tool: tools.Tool, rule: dict[str, Any], meaning: type[Exception], pays: bool
) -> None:
    sandbox.script(**rule)
    with pytest.raises(meaning):
        transfer(tool)
    assert len(sandbox.payments()) == pays
    assert len(sandbox.requests()) == 1
    assert (looked_up(tool) is not None) == pays


def test_an_answer_that_comes_too_late_is_unknown(sandbox: SandboxProcess, tool: tools.Tool, settings: Any) -> None:
    settings.STRIPE_TIMEOUT = 0.3
    sandbox.script("delay", seconds=30)
    with pytest.raises(OutcomeUnknown, match="ReadTimeout"):
        transfer(tool)
    assert len(sandbox.payments()) == 1


def test_another_transfer_under_the_key_is_neither_refused_nor_sent(sandbox: SandboxProcess, tool: tools.Tool) -> None:
    transfer(tool)
    with pytest.raises(KeyConflict, match="another transfer"):
        transfer(tool, amount_minor=1)
    assert len(sandbox.payments()) == 1


def test_when_to_come_back_is_passed_on(sandbox: SandboxProcess, tool: tools.Tool) -> None:
    sandbox.script("429", seconds=7)
    with pytest.raises(Retryable) as busy:
        transfer(tool)
    assert busy.value.retry_after == 7


@pytest.mark.parametrize("changed", [{"amount_minor": 0}, {"currency": "US"}], ids=str)
def test_what_stripe_finds_invalid_is_refused_in_its_words(
    sandbox: SandboxProcess, tool: tools.Tool, changed: dict[str, Any]
) -> None:
    with pytest.raises(Refused, match=r"Stripe answers 400: .*(amount|currency)"):
        transfer(tool, **changed)


def test_without_a_connection_or_a_secret_nothing_was_sent(
    sandbox: SandboxProcess, tool: tools.Tool, settings: Any
) -> None:
    sandbox.stop()
    with pytest.raises(Retryable, match="nothing was sent"):
        transfer(tool)
    with pytest.raises(Retryable, match="cannot be listed"):
        looked_up(tool)
    settings.STRIPE_API_KEY = ""
    with pytest.raises(Retryable, match="STRIPE_API_KEY is not set"):
        transfer(tool)


def test_a_secret_that_stripe_does_not_know_is_a_refusal(
    sandbox: SandboxProcess, tool: tools.Tool, settings: Any
) -> None:
    settings.STRIPE_API_KEY = "sk_live_not_here"
    with pytest.raises(Refused, match="401"):
        transfer(tool)


def test_more_than_the_limit_is_asked_for(tool: tools.Tool) -> None:
    assert [tool.needs_approval(ORDER | {"amount_minor": amount}) for amount in (100_000, 100_001)] == [False, True]
    assert tool.in_words(ORDER) == "Pay 840.00 USD to acct_0042 through Stripe for flood claim 0042"


def test_in_a_run_a_lost_answer_is_settled_by_sending_the_same_key_again(
    sandbox: SandboxProcess, tool: tools.Tool, people: Any
) -> None:
    sandbox.script("lost_answer")
    with Stage(people) as stage:

        @stage.flow.step
        def settle(ctx):
            return {"payment": ctx.call(tool, **ORDER)}

        run = stage.begin()
        stage.later()
        (call,) = Call.objects.filter(run=run)
        assert (call.state, call.sends, call.replayed) == ("confirmed", 2, True)
    assert [line["payment"] for line in sandbox.payments()] == [call.answer["payment"]]


def test_without_the_library_there_is_no_such_tool() -> None:
    program = (
        "import sys, django; sys.modules['stripe'] = None; django.setup(); from runs import tools; "
        "print(tools.get('payments.transfer'), tools.get('payments.transfer_stripe'))"
    )
    environment = os.environ | {
        "DEBUG": "1",
        "DATABASE_URL": "postgresql://nowhere/none",
        "DJANGO_SETTINGS_MODULE": "durable_site.settings",
    }
    told = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "<Tool payments.transfer> None"
