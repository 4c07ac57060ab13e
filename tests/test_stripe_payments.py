"""The tool that pays through Stripe: each thing that can happen to a transfer, told to the engine as what it means."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sandbox_process import PROJECT, SandboxProcess
from stage import Stage

from durable_site.claims import stripe_payments
from runs import tools
from runs.errors import KeyConflict, OutcomeUnknown, Refused, Retryable
from runs.models import Call, Finding, database_clock
from runs.reconciliation import compare, settle_unknown
from runs.testing import move_clock
from runs.workflows import Retry

pytest.importorskip("stripe", reason="the stripe library is not installed (pip install '.[stripe]')")

HOUR = timedelta(hours=1)
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


def printed(program: str, **environment: str) -> str:
    """What this program prints in a process of its own, after Django is set up."""
    environment |= {
        "DEBUG": "1",
        "DATABASE_URL": "postgresql://nowhere/none",
        "DJANGO_SETTINGS_MODULE": "durable_site.settings",
    }
    told = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROJECT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout.strip()


def test_without_the_library_there_is_no_such_tool() -> None:
    program = (
        "import sys, django; sys.modules['stripe'] = None; django.setup(); from runs import tools; "
        "print(tools.get('payments.transfer'), tools.get('payments.transfer_stripe'))"
    )
    assert printed(program) == "<Tool payments.transfer> None"


# Reconciliation with Stripe's list


@pytest.fixture
def listed(tool: tools.Tool) -> Iterator[tools.Tool]:
    """The tool with its list, as it is where Stripe is set up."""
    tool.listing(stripe_payments.list_transfers_by_stripe)
    yield tool
    tool.listing_function = None


def around_now() -> tuple[datetime, datetime]:
    now = database_clock()
    return now - 25 * HOUR, now + HOUR


def test_the_list_is_compared_only_where_stripe_is_set_up() -> None:
    program = "import django; django.setup(); from runs import tools; print([t.name for t in tools.with_listing()])"
    assert "payments.transfer_stripe" not in printed(program, STRIPE_API_KEY="")
    assert "payments.transfer_stripe" in printed(program, STRIPE_API_KEY="sk_test_sandbox")


def test_stripes_list_is_read_page_after_page_with_the_key_and_reference_of_each(
    sandbox: SandboxProcess, listed: tools.Tool, database: Any
) -> None:
    number = stripe_payments.PAGE + 1
    for n in range(number):
        order = ORDER | {"claim": f"{n}", "amount_minor": 100 + n}
        listed.function(idempotency_key=f"claim-{n}:step6", **order)
    assert listed.listing_function is not None
    records = list(listed.listing_function(*around_now()))
    told = sorted((record.amount_minor, record.key, record.reference, record.currency) for record in records)
    assert told == [(100 + n, f"claim-{n}:step6", f"{n}", "USD") for n in range(number)]
    assert sum(request["path"].startswith("/v1/transfers?") for request in sandbox.requests()) == 2


def test_every_transfer_is_in_one_window_of_those_that_touch(
    sandbox: SandboxProcess, listed: tools.Tool, database: Any
) -> None:
    """Stripe tells whole seconds: one that a window's edge cuts through is neither lost nor told twice."""
    transfer(listed)
    assert listed.listing_function is not None
    (made,) = listed.listing_function(*around_now())
    edges = [made.created_at + timedelta(seconds=part) for part in (-1.5, -0.5, 0, 0.5, 1.5)]
    told = [[record.id for record in listed.listing_function(*window)] for window in pairwise(edges)]
    assert told == [[made.id] if since <= made.created_at < until else [] for since, until in pairwise(edges)]
    assert sum(map(len, told)) == 1


def test_what_was_paid_through_stripe_and_what_was_paid_past_us_are_told_apart(
    sandbox: SandboxProcess, listed: tools.Tool, people: Any
) -> None:
    sandbox.script("lost_answer")
    with Stage(people) as stage:
        stage.flow.retry = Retry(attempts=1)

        @stage.flow.step
        def settle(ctx):
            return {"payment": ctx.call(listed, **ORDER)}

        stage.begin()
        by_hand = {"amount": 5, "currency": "usd", "destination": "acct_0043"}
        made = stripe_payments._transfers().create(params=by_hand)
        move_clock(HOUR)
        assert settle_unknown().confirmed == 1
        compare(listed, *around_now())
    assert list(Finding.objects.open().values_list("kind", "key")) == [("missing-here", made.id)]


def test_while_stripe_cannot_be_listed_that_is_the_one_finding(
    sandbox: SandboxProcess, listed: tools.Tool, database: Any
) -> None:
    sandbox.stop()
    assert compare(listed, *around_now()).down
    assert [finding.kind for finding in Finding.objects.open()] == ["provider-down"]
