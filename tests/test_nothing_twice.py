"""Nothing happens twice, counted in the provider's own journal: after a day's outage, a kill, a redrive, a fork, and by
two runs of one claim."""

import re
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from browsing import browser, text
from sandbox_process import SandboxProcess, wait_until
from stage import Stage, fresh
from worker_process import WorkerProcess, finish_with_a_kill_at

from durable_site.claims.tools import open_ticket, transfer
from runs import engine, figures, repair
from runs.errors import BadRequest, PermanentError
from runs.models import AuditEvent, Call, Finding, Run
from runs.reconciliation import settle_unknown
from runs.testing import drain, move_clock
from runs.tools import Tool
from runs.workflows import Retry

HOUR = timedelta(hours=1)
OUTAGE = 25
"""Hours: longer than the provider knows a key."""
ORDER = {"amount_minor": 84_000, "currency": "USD", "payee": "acct-1", "claim": "0042"}
PAYING = {"path": "/payments", "method": "POST"}


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        stage.flow.retry = Retry(attempts=1)
        yield stage


@pytest.fixture
def sandbox(tmp_path, settings):
    with SandboxProcess(tmp_path / "sandbox") as process:
        settings.SANDBOX_URL = process.url
        yield process


def pays(stage: Stage, tool: Tool = transfer, troubles: list[Exception] | None = None) -> None:
    """A step that pays the claim, and then has these troubles, one each time it is entered."""
    left = troubles or []

    @stage.flow.step
    def settle(ctx):
        payment = ctx.call(tool, **ORDER | ctx.input)
        if left:
            raise left.pop(0)
        return {"payment": payment}


def paid(sandbox: SandboxProcess) -> list[str]:
    """The keys of the provider's journal, one for each payment it ever made."""
    return [line["key"] for line in sandbox.payments()]


def asked(sandbox: SandboxProcess) -> list[str]:
    """The methods of all requests for payments that the provider read, in order."""
    return [request["method"] for request in sandbox.requests() if request["path"].startswith("/payments")]


# The provider is away for longer than it knows a key


@pytest.fixture
def outage(stage, sandbox):
    """Begins a run whose first send goes wrong in this way, and then nobody answers for 25 hours: the run is tried each
    hour. Its clock and ours have moved when the provider is back. Takes the tool."""

    def begin(fault: str, tool: Tool = transfer) -> Run:
        stage.flow.retry = Retry(attempts=100, base=3000, cap=3000)
        pays(stage, tool)
        sandbox.script(fault, match=PAYING)
        run = stage.begin()
        sandbox.kill()
        stage.later(HOUR, times=OUTAGE)
        sandbox.start()
        sandbox.advance(OUTAGE * 3600)
        return fresh(run)

    return begin


def test_what_happened_before_the_outage_is_looked_up_and_confirmed(stage, sandbox, outage):
    run = outage("lost_answer")
    assert (run.status, Call.objects.get().state) == ("sleeping", "unknown")
    stage.later(HOUR)
    call = Call.objects.get()
    assert (fresh(run).status, call.state, call.settled_by) == ("completed", "confirmed", "lookup")
    assert call.answer["payment"] == sandbox.payments()[0]["payment"]
    assert (paid(sandbox), asked(sandbox)) == (["run-1:step1"], ["POST", "GET"])


def test_what_had_not_happened_is_sent_only_after_it_was_looked_up(stage, sandbox, outage):
    run = outage("reset")
    stage.later(HOUR)
    assert (fresh(run).status, Call.objects.get().state) == ("completed", "confirmed")
    assert (paid(sandbox), asked(sandbox)) == (["run-1:step1"], ["POST", "GET", "POST"])


def test_what_cannot_be_looked_up_is_for_a_person_and_nothing_is_sent_again(stage, sandbox, people, outage):
    def blind(*, idempotency_key: str, amount_minor: int, currency: str, payee: str, claim: str) -> dict[str, Any]:
        order = {"amount_minor": amount_minor, "currency": currency, "payee": payee, "claim": claim}
        return transfer.function(idempotency_key=idempotency_key, **order)

    from runs.tools import tool

    run = outage("lost_answer", tool("test.blind", effect=True)(blind))
    stage.later(HOUR)
    assert (fresh(run).status, Call.objects.get().state) == ("dead", "unknown")
    assert "its key is too old to be sent again, and it cannot be looked up. Ask the provider" in fresh(run).reason
    repair.redrive("run-1", why="perhaps now")
    stage.later(HOUR)
    assert fresh(run).status == "dead"
    settle_unknown()
    [finding] = Finding.objects.open()
    assert (finding.kind, finding.key, finding.run) == ("unknown", "run-1:step1", run)
    assert (paid(sandbox), asked(sandbox)) == (["run-1:step1"], ["POST"])


# No keys: look, then act


@pytest.mark.faults
@pytest.mark.parametrize(("point", "sends"), [("intended", 1), ("sending", 2), ("answered", 1), ("recorded", 1)])
def test_a_ticket_whose_worker_is_killed_round_the_call_is_opened_once(
    database, people, settings, tmp_path, *, point, sends
):
    """The ticket system has no keys: killed after the effect and before its record, only looking can tell."""
    options = {"profile": "none", "ticket_delay": 3}
    with SandboxProcess(tmp_path / "sandbox", **options) as sandbox, Stage(people) as stage:
        settings.SANDBOX_URL = sandbox.url

        @stage.flow.step
        def tell(ctx):
            return {"ticket": ctx.call(open_ticket, claim="0042", subject="Water line", text="Please measure")}

        def let_time_pass(run: Run) -> None:
            if run.status == "sleeping":
                sandbox.advance(10)
                move_clock(HOUR)

        run = engine.start(stage.flow, key="run-1", input={}, team=people.team)
        killed = finish_with_a_kill_at(run, f"run-1:step1:tickets.open-{point}", tmp_path / "points", let_time_pass)
        call = Call.objects.get()
        assert (killed, run.status, call.state, call.sends) == (True, "completed", "confirmed", sends)
        [ticket] = sandbox.tickets()
        assert (ticket["reference"], ticket["ticket"]) == ("run-1:step1", call.answer["ticket"])


# Two runs of one claim


def test_of_two_runs_of_one_claim_at_once_one_pays_and_the_other_gets_a_sentence(stage, sandbox):
    pays(stage)
    runs = [engine.start(stage.flow, key=f"run-{n}", input={}, team=stage.people.team) for n in range(6)]
    with WorkerProcess(), WorkerProcess():
        wait_until(lambda: not Run.objects.exclude(status__in=["completed", "dead"]).exists())
    told = sorted(fresh(run).status for run in runs)
    assert told == ["completed"] + ["dead"] * 5
    [key] = paid(sandbox)
    for run in Run.objects.filter(status="dead"):
        assert f"may happen once per claim=0042, and {key} stands for it already. Nothing was sent" in run.reason
        repair.redrive(run.key, why="perhaps now")
    drain()
    assert (paid(sandbox), Call.objects.count()) == ([key], 1)


# Redrive and fork after each outcome


@pytest.fixture
def ended(stage, sandbox):
    """Begins a run of which this fault, or a trouble after it had paid, makes a dead letter."""

    def begin(outcome: str) -> Run:
        pays(stage, troubles=[PermanentError("the papers are missing")] if outcome == "confirmed" else None)
        faults = {"refused": "402_stored", "unknown, paid": "lost_answer", "unknown, not paid": "reset"}
        if outcome in faults:
            sandbox.script(faults[outcome], match=PAYING)
        run = stage.begin()
        assert (run.status, Call.objects.get().state) == ("dead", outcome.partition(",")[0])
        return run

    return begin


@pytest.mark.parametrize(
    ("outcome", "key", "sent"),
    [
        ("confirmed", "run-1:step1", 1),
        ("refused", "run-1:step2", 2),
        ("unknown, paid", "run-1:step1", 2),
        ("unknown, not paid", "run-1:step1", 2),
    ],
)
def test_a_redrive_pays_what_was_not_paid_and_nothing_twice(sandbox, ended, outcome, key, sent):
    run = ended(outcome)
    repair.redrive("run-1", why="go on")
    drain()
    assert fresh(run).status == "completed"
    assert (paid(sandbox), asked(sandbox)) == ([key], ["POST"] * sent)


@pytest.mark.parametrize(
    ("outcome", "refusal", "after"),
    [
        ("confirmed", "makes these effects again: run-1:step1", ["run-1:step1"]),
        ("refused", "", ["run-2:step1"]),
        ("unknown, paid", "It is not known whether run-1:step1 happened", ["run-1:step1"]),
        ("unknown, not paid", "It is not known whether run-1:step1 happened", []),
    ],
)
def test_a_fork_pays_nothing_twice_and_what_is_unknown_blocks_it(sandbox, ended, outcome, refusal, after):
    ended(outcome)
    if refusal:
        with pytest.raises(BadRequest, match=refusal):
            repair.fork("run-1", "run-2", why="again")
    # Even when whoever forks names what would happen again, a claim is paid once.
    with suppress(BadRequest):
        repair.fork("run-1", "run-2", repeating=["run-1:step1"], why="decided so")
    drain()
    assert paid(sandbox) == after
    assert Run.objects.filter(key="run-2").exists() == (outcome in ("confirmed", "refused"))
    assert not AuditEvent.objects.filter(kind="key-reused").exists()


# A payment under way


@pytest.mark.faults
def test_a_cancel_while_a_payment_is_under_way_keeps_what_happened_and_goes_no_further(stage, sandbox, people):
    """C20: cancelled twice while the provider takes its time."""
    pays(stage)

    @stage.flow.step
    def after(ctx):
        return {}

    sandbox.script("delay", match=PAYING, seconds=1)
    run = engine.start(stage.flow, key="run-1", input={}, team=people.team)
    with WorkerProcess():
        wait_until(lambda: bool(paid(sandbox)))
        engine.cancel("run-1", why="withdrawn", by=people.ops)
        engine.cancel("run-1", why="once more", by=people.ops)
        wait_until(AuditEvent.objects.filter(run=run, kind="late-write").exists)
    run = fresh(run)
    assert (run.status, run.reason, run.position, paid(sandbox)) == ("cancelled", "withdrawn", 0, ["run-1:step1"])
    words = text(browser(people.ops).get("/runs/run-1/"))
    assert re.search(r"payments.transfer run-1:step1 Confirmed", words)


def test_a_payment_whose_answer_was_lost_is_shown_as_not_known_and_never_as_failed(stage, sandbox, people):
    """C24"""
    pays(stage)
    sandbox.script("lost_answer", match=PAYING)
    stage.begin()
    words = text(browser(people.ops).get("/runs/run-1/"))
    assert re.search(r"payments.transfer run-1:step1 Unknown: it may have happened", words)
    assert "It is not known whether run-1:step1 happened" in words


def test_a_step_that_fails_after_it_paid_counts_a_replay_at_most_and_no_other_request(stage, sandbox):
    """C14: the first answer was lost, then the step failed after the second; each try asked for the same."""
    stage.flow.retry = Retry(attempts=5, base=1, cap=1)
    pays(stage, troubles=[OSError("the disk is full")])
    sandbox.script("lost_answer", match=PAYING)
    run = stage.begin()
    stage.later(times=2)
    [figure] = [row for row in figures.of_effects() if row["tool"] == "payments.transfer"]
    assert (fresh(run).status, paid(sandbox), asked(sandbox)) == ("completed", ["run-1:step1"], ["POST"] * 2)
    assert (figure["key_replays"], figure["key_reused_with_another_request"]) == (1, 0)
