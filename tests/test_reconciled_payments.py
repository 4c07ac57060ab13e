"""The example's payments, reconciled with a real sandbox: its list, its look-ups, its lost answers, its clock."""

from datetime import timedelta

import httpx
import pytest
from sandbox_process import SandboxProcess, pay

from durable_site.claims import tools as claims_tools
from runs import engine, workflows
from runs.models import Call, Finding, Run, database_clock
from runs.reconciliation import compare, settle_unknown
from runs.testing import drain, move_clock
from runs.workflows import Retry, Workflow

HOUR = timedelta(hours=1)


@pytest.fixture
def sandbox(tmp_path, settings):
    with SandboxProcess(tmp_path / "store") as process:
        settings.SANDBOX_URL = process.url
        yield process


@pytest.fixture
def flow():
    before = dict(workflows._registry)
    flow = Workflow("pays-a-claim", retry=Retry(attempts=1))

    @flow.step
    def settle(ctx):
        order = {"amount_minor": 84_000, "currency": "USD", "payee": "acct-1", "claim": ctx.input["claim"]}
        return {"payment": ctx.call(claims_tools.transfer, **order)}

    yield flow
    workflows._registry.clear()
    workflows._registry.update(before)


@pytest.fixture
def paid(flow, sandbox, people):
    """Runs claim-1, claim-2, … that pay one claim each."""

    def begin(*numbers):
        for n in numbers:
            engine.start(flow, key=f"claim-{n}", input={"claim": f"{n}"}, team=people.team)
        drain()
        return list(Run.objects.order_by("pk"))

    return begin


def around_now():
    now = database_clock()
    return now - 25 * HOUR, now + HOUR


def open_findings():
    return sorted(Finding.objects.open().values_list("kind", "key"))


def test_the_list_is_read_page_by_page_within_its_time(sandbox, database):
    number = claims_tools.PAGE + 1
    with httpx.Client(base_url=sandbox.url) as client:
        for n in range(number):
            pay(client, f"claim-{n}:step1", reference=f"{n}", amount_minor=100 + n)
    now = database_clock()
    records = list(claims_tools.list_transfers(now - HOUR, now + HOUR))
    assert [(record.key, record.reference, record.amount_minor) for record in records] == [
        (f"claim-{n}:step1", f"{n}", 100 + n) for n in range(number)
    ]
    assert sum(request["path"].startswith("/payments?") for request in sandbox.requests()) == 2
    assert list(claims_tools.list_transfers(now - HOUR, now - HOUR / 2)) == []


def test_what_was_paid_and_lost_on_the_way_is_confirmed_and_both_sides_agree(sandbox, paid):
    sandbox.script("lost_answer")
    [lost, answered] = paid(1, 2)
    states = dict(Call.objects.values_list("run__key", "state"))
    assert states == {"claim-1": "unknown", "claim-2": "confirmed"}
    assert settle_unknown().confirmed == 1
    move_clock(HOUR)
    assert (compare("payments.transfer", *around_now()).found, len(sandbox.payments())) == (0, 2)
    assert Call.objects.get(run=lost).answer["payment"] == sandbox.payments()[0]["payment"]
    assert Run.objects.get(pk=answered.pk).status == "completed"


def test_a_payment_made_past_us_and_one_made_twice_are_found(sandbox, paid):
    paid(1, 2)
    with httpx.Client(base_url=sandbox.url) as client:
        pay(client, "by-hand", reference="9", claim="9")
        pay(client, "claim-2:step9", reference="2", claim="2")
    move_clock(HOUR)
    compare("payments.transfer", *around_now())
    assert open_findings() == [("duplicate-reference", "2"), ("missing-here", "by-hand")]


def test_a_provider_whose_clock_is_a_day_ahead_makes_no_payment_look_missing(sandbox, paid):
    sandbox.advance(25 * 3600)
    paid(1)
    move_clock(HOUR / 2)
    assert (compare("payments.transfer", *around_now()).found, len(sandbox.payments())) == (0, 1)


def test_while_the_provider_is_down_nothing_is_sent_and_nothing_guessed_and_afterwards_it_is_looked_up(sandbox, paid):
    sandbox.script("lost_answer")
    paid(1)
    sandbox.kill()
    move_clock(25 * HOUR)
    assert settle_unknown().down == ["payments.transfer"]
    assert compare("payments.transfer", *around_now()).down
    assert open_findings() == [("provider-down", "")]
    assert Call.objects.get().state == "unknown"
    sandbox.start()
    settle_unknown()
    compare("payments.transfer", *around_now())
    assert (Call.objects.get().state, open_findings(), len(sandbox.payments())) == ("confirmed", [], 1)
