"""An atomic step's own rows and its checkpoint are one commit, and it sends nothing."""

import pytest
from stage import LEASE_IS_PAST, Party, Stage, fresh, one_stretch

from approvals.testing import answer
from durable_site.claims.models import Claim, ReserveEntry
from runs import engine, sweep
from runs.models import AuditEvent, Call, Checkpoint, Run
from runs.testing import drain, move_clock
from runs.tools import tool


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.mark.parametrize("kind", ["effect", "read"])
def test_an_atomic_step_may_use_no_tool(stage, kind):
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

    @stage.flow.step(atomic=True)
    def book(ctx):
        ReserveEntry.objects.create(claim_id=999_999, amount_minor=-1, currency="USD", payment="p")
        return {}

    @stage.flow.step
    def after(ctx):
        raise AssertionError("the step before it was never committed")

    run = stage.begin()
    stage.later(times=3)
    run = fresh(run)
    assert (run.status, run.position, run.next_step, run.checkpoints.count()) == ("dead", 0, "book", 0)
    assert ReserveEntry.objects.count() == 0
    assert {(move.position, move.step) for move in run.transitions.all()} == {(1, "book")}
    assert "Step book, attempt 3 of 3" in run.reason
