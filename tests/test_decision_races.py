"""One answer, in time, whatever comes at once: twenty presses, the deadline, a cancel, a second approver."""

import threading
from contextlib import suppress
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from racing import uncommitted
from sandbox_process import SandboxProcess
from stage import (
    Party,
    Stage,
    freeze_clock,
    fresh,
    holding_ledger,
    holding_run,
    one_stretch,
    press,
    question,
    shown,
    wait_until_blocked,
)

from approvals import ledger
from approvals.decisions import AlreadyDecided, Changed, NotAnApprover, TooLate
from approvals.models import Approval, Decision, LedgerEntry
from durable_site.claims.workflows import claim_payout
from runs import engine, sweep
from runs.models import AuditEvent, Transition
from runs.testing import drain, move_clock


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


def assert_nothing_was_decided(approval):
    before = (approval.status, approval.closed_at, approval.signed_facts)
    approval.refresh_from_db()
    assert (approval.status, approval.closed_at, approval.signed_facts) == before
    assert not approval.decisions.exists()
    assert not LedgerEntry.objects.filter(kind="decision").exists()


# Once


@pytest.fixture
def claim(database, people, settings, tmp_path):
    """A real claim of 1,840.00 that waits for its adjuster, and the sandbox that would be paid from."""
    from durable_site.claims.testing import made_up_claim

    with SandboxProcess(tmp_path / "sandbox") as sandbox:
        settings.SANDBOX_URL = sandbox.url
        claim = made_up_claim("0042", amount_minor=184_000)
        run = engine.start(claim_payout, key=claim.run_key, input={"claim": "0042"}, team=people.team)
        drain()
        yield question(run), sandbox


def test_twenty_presses_at_once_are_one_decision_one_entry_one_continuation_and_one_payment(claim, people, database):
    """C01: the same person, the same page, twenty connections, all let go from the run's lock at the same moment."""
    approval, sandbox = claim
    page = shown(approval)
    bells = database.query("SELECT count(*) FROM django_q_ormq")[0][0]
    with holding_run(database, approval.run_id):
        presses = [Party(lambda: press(approval, people.adjuster, page=page).pk) for _ in range(20)]
        wait_until_blocked(database, 20)
    assert len({party.outcome() for party in presses}) == 1
    assert Decision.objects.count() == LedgerEntry.objects.count() == 1
    assert Transition.objects.filter(run=approval.run, from_status="waiting", to_status="ready").count() == 1
    assert database.query("SELECT count(*) FROM django_q_ormq") == [(bells + 1,)]
    workers = [Party(drain), Party(drain)]
    assert sum(party.outcome() for party in workers) >= 1
    assert fresh(approval.run).status == "completed"
    assert [line["key"] for line in sandbox.payments()] == ["claim-0042:step6"]


def test_of_many_approvers_at_once_one_decides_and_the_others_hear_who_was_first(stage, database):
    """C01, many people."""
    stage.asks_then_pays()
    approval = stage.asked()
    many = [User.objects.create(username=f"adjuster-{number}") for number in range(8)]
    for user in many:
        user.groups.set(stage.people.adjuster.groups.all())
    page = shown(approval)
    with holding_run(database, approval.run_id):
        presses = [Party(lambda user=user: press(approval, user, page=page)) for user in many]
        wait_until_blocked(database, 8)
    refused = []
    for party in presses:
        try:
            party.outcome()
        except AlreadyDecided as refusal:
            refused.append(refusal)
    first = Decision.objects.get()
    assert len(refused) == 7
    for refusal in refused:
        assert refusal.status == 409
        assert refusal.decision == first
        assert f"already approved by {first.user.username} at " in str(refusal)
    drain()
    assert stage.receiver.keys == ["run-1:step2"]


def test_a_second_press_while_the_first_continuation_is_inside_a_slow_step_changes_nothing(stage):
    """C01, slow step."""
    stage.asks_then_pays()
    approval = stage.asked()
    page, entered, go_on = shown(approval), threading.Event(), threading.Event()
    stage.receiver.script = [lambda key: entered.set() or (go_on.wait(20) and {"paid": True})]
    first = press(approval, stage.people.adjuster, page=page)
    worker = Party(one_stretch)
    assert entered.wait(20)
    try:
        assert press(approval, stage.people.adjuster, page=page) == first
        with pytest.raises(AlreadyDecided, match="already approved by ada at"):
            press(approval, stage.people.second_adjuster, page=page)
    finally:
        go_on.set()
    worker.outcome()
    drain()
    assert fresh(approval.run).status == "completed"
    assert stage.receiver.keys == ["run-1:step2"]
    assert Decision.objects.count() == 1


def test_the_same_answer_again_is_the_first_decision_and_another_answer_is_refused(stage):
    stage.asks_then_pays()
    approval = stage.asked()
    page = shown(approval)
    first = press(approval, stage.people.adjuster, page=page)
    assert press(approval, stage.people.adjuster, comment="once more", page=page) == first
    with pytest.raises(AlreadyDecided, match="already approved by ada at") as refused:
        press(approval, stage.people.adjuster, "reject", "changed my mind", page)
    assert refused.value.decision == first
    drain()
    assert press(approval, stage.people.adjuster, page=page) == first
    assert Decision.objects.count() == LedgerEntry.objects.count() == 1


# In time


def test_after_the_deadline_it_is_refused_though_no_sweep_has_run_and_the_sweep_then_expires_it(stage):
    """C02"""
    stage.asks_then_pays(expires_in=timedelta(seconds=60))
    approval = stage.asked()
    page = shown(approval)
    move_clock(timedelta(seconds=61))
    assert not Approval.objects.decidable().exists()
    assert Approval.objects.overdue().get() == approval
    for verdict in ("approve", "reject"):
        with pytest.raises(TooLate, match=r"expired at .* UTC") as refused:
            press(approval, stage.people.adjuster, verdict, "late", page)
        assert (refused.value.status, refused.value.due_at) == (410, approval.due_at)
    assert_nothing_was_decided(approval)
    assert fresh(approval.run).status == "waiting"
    drain()
    run = fresh(approval.run)
    assert (run.status, run.outcome, approval.run.transitions.last().actor) == ("expired", "expired", "sweep")
    assert LedgerEntry.objects.get().kind == "expiry"
    with pytest.raises(TooLate):
        press(approval, stage.people.adjuster, page=page)
    assert stage.receiver.received == []


@pytest.mark.parametrize(
    ("offset", "in_time"),
    [
        (timedelta(milliseconds=-1), True),
        (timedelta(microseconds=-1), True),
        (timedelta(), False),
        (timedelta(milliseconds=1), False),
    ],
)
def test_the_last_moment_is_before_the_deadline_and_the_deadline_itself_is_too_late(stage, offset, in_time):
    """C02, at the limit, by the database's clock."""
    stage.asks_then_pays(expires_in=timedelta(seconds=60))
    approval = stage.asked()
    freeze_clock(approval.due_at + offset)
    if in_time:
        assert press(approval, stage.people.adjuster).decided_at == approval.due_at + offset
        assert sweep.close_overdue_waits() == 0
    else:
        with pytest.raises(TooLate):
            press(approval, stage.people.adjuster)
        assert sweep.close_overdue_waits() == 1
    assert Approval.objects.get().status == ("approved" if in_time else "expired")


def test_the_wall_clock_of_the_web_process_does_not_matter(stage):
    """C02: an hour early and an hour late by the database; this process's own clock is the same both times."""
    stage.asks_then_pays(expires_in=timedelta(hours=2))
    early, late = stage.asked("early"), stage.asked("late")
    move_clock(timedelta(hours=1, minutes=59))
    press(early, stage.people.adjuster)
    move_clock(timedelta(hours=2, minutes=1))
    with pytest.raises(TooLate):
        press(late, stage.people.adjuster)


def test_whoever_waited_for_the_run_s_lock_past_the_deadline_is_refused(stage, database):
    """C02: the press came in time; its turn did not."""
    stage.asks_then_pays(expires_in=timedelta(seconds=60))
    approval = stage.asked()
    with holding_run(database, approval.run_id):
        decider = Party(lambda: press(approval, stage.people.adjuster))
        wait_until_blocked(database)
        move_clock(timedelta(seconds=61))
    with pytest.raises(TooLate):
        decider.outcome()
    assert_nothing_was_decided(approval)


def test_an_approval_that_read_the_clock_in_time_wins_over_the_expiry(stage, database):
    """The decider holds the run and waits for the ledger when the sweep comes: the sweep steps aside."""
    stage.asks_then_pays(expires_in=timedelta(seconds=60))
    approval = stage.asked()
    with holding_ledger(database):
        decider = Party(lambda: press(approval, stage.people.adjuster))
        wait_until_blocked(database)
        move_clock(timedelta(seconds=61))
        assert sweep.close_overdue_waits() == 0
    decider.outcome()
    assert sweep.close_overdue_waits() == 0
    drain()
    assert fresh(approval.run).status == "completed"
    assert list(LedgerEntry.objects.values_list("kind", flat=True)) == ["decision"]


def test_an_approval_that_comes_while_the_sweep_expires_it_is_refused(stage, database):
    """The other order: the sweep holds the run and waits for the ledger when the decider comes."""
    stage.asks_then_pays(expires_in=timedelta(seconds=60))
    approval = stage.asked()
    page = shown(approval)
    move_clock(timedelta(seconds=61))
    with holding_ledger(database):
        sweeper = Party(sweep.close_overdue_waits)
        wait_until_blocked(database)
        decider = Party(lambda: press(approval, stage.people.adjuster, page=page))
        wait_until_blocked(database, 2)
    assert sweeper.outcome() == 1
    with pytest.raises(TooLate):
        decider.outcome()
    assert list(LedgerEntry.objects.values_list("kind", flat=True)) == ["expiry"]
    assert fresh(approval.run).status == "expired"


# Against a cancel


def test_an_approval_after_a_cancel_says_cancelled(stage):
    """C20: from a page opened before."""
    stage.asks_then_pays()
    approval = stage.asked()
    page = shown(approval)
    engine.cancel("run-1", by=stage.people.ops, why="withdrawn by the claimant")
    with pytest.raises(AlreadyDecided, match="cancelled") as refused:
        press(approval, stage.people.adjuster, page=page)
    assert (refused.value.status, refused.value.decision) == (409, None)
    assert not Decision.objects.exists()
    assert drain() == 0
    assert stage.receiver.received == []


@pytest.mark.parametrize("first", ["approve", "cancel"])
def test_of_an_approval_and_a_cancel_at_once_the_first_wins_and_nothing_is_paid_after_the_cancel(
    stage, database, first
):
    """C20: both wait for the run's lock, in this order; PostgreSQL serves them in it."""
    stage.asks_then_pays()
    approval = stage.asked()
    verbs = {
        "approve": lambda: press(approval, stage.people.adjuster),
        "cancel": lambda: engine.cancel("run-1", by=stage.people.ops, why="withdrawn"),
    }
    parties = {}
    with holding_run(database, approval.run_id):
        for count, name in enumerate([first, *(set(verbs) - {first})], start=1):
            parties[name] = Party(verbs[name])
            wait_until_blocked(database, count)
    assert parties["cancel"].outcome().status == "cancelled"
    if first == "approve":
        assert parties["approve"].outcome().verdict == "approve"
    else:
        with pytest.raises(AlreadyDecided, match="cancelled"):
            parties["approve"].outcome()
    drain()
    approval.refresh_from_db()
    assert approval.status == ("approved" if first == "approve" else "withdrawn")
    assert (fresh(approval.run).status, approval.spent_at) == ("cancelled", None)
    assert stage.receiver.received == []
    assert ledger.verify().problems == []


# By several


def test_with_two_required_the_first_approval_keeps_it_open_and_the_second_lets_it_go_on(stage):
    stage.asks_then_pays(required=2)
    approval = stage.asked()
    first = press(approval, stage.people.adjuster)
    assert press(approval, stage.people.adjuster) == first
    drain()
    approval.refresh_from_db()
    assert (approval.status, fresh(approval.run).status, stage.receiver.received) == ("open", "waiting", [])
    press(approval, stage.people.second_adjuster)
    drain()
    assert stage.receiver.keys == ["run-1:step2"]
    assert Decision.objects.count() == LedgerEntry.objects.count() == 2
    assert Transition.objects.filter(run=approval.run, from_status="waiting").count() == 1
    assert ledger.verify().problems == []


def test_two_approvers_at_once_both_count_and_the_run_goes_on_once(stage, database):
    stage.asks_then_pays(required=2)
    approval = stage.asked()
    with holding_run(database, approval.run_id):
        parties = [
            Party(lambda user=user: press(approval, user))
            for user in (stage.people.adjuster, stage.people.second_adjuster)
        ]
        wait_until_blocked(database, 2)
    assert {party.outcome().user_id for party in parties} == {stage.people.adjuster.pk, stage.people.second_adjuster.pk}
    drain()
    assert stage.receiver.keys == ["run-1:step2"]
    assert Transition.objects.filter(run=approval.run, from_status="waiting").count() == 1


def test_with_two_required_one_rejection_ends_it(stage):
    stage.asks_then_pays(required=2)
    approval = stage.asked()
    press(approval, stage.people.adjuster)
    press(approval, stage.people.second_adjuster, "reject", "the payee is unknown")
    drain()
    run = fresh(approval.run)
    assert (run.status, run.outcome, stage.receiver.received) == ("completed", "rejected", [])
    assert ledger.verify().problems == []


def test_with_two_required_nobody_takes_back_an_answer_of_their_own(stage):
    """One vote each, also while it is still open."""
    stage.asks_then_pays(required=2)
    approval = stage.asked()
    first = press(approval, stage.people.adjuster)
    with pytest.raises(AlreadyDecided) as refused:
        press(approval, stage.people.adjuster, "reject", "changed my mind")
    assert refused.value.decision == first
    approval.refresh_from_db()
    assert (approval.status, Decision.objects.count()) == ("open", 1)
    assert AuditEvent.objects.get(kind="decision-refused").user == stage.people.adjuster


def test_with_two_required_nothing_is_paid_on_facts_that_only_the_last_approver_signed(stage):
    """Facts are compared with the signed ones: of everybody who signed."""
    stage.asks_then_pays(required=2)
    approval = stage.asked()
    press(approval, stage.people.adjuster)
    stage.facts["claim"] = "under investigation"
    with suppress(Changed):
        press(approval, stage.people.second_adjuster)
    drain()
    assert stage.receiver.received == []


def test_the_deadline_of_the_second_approver_is_the_same(stage):
    stage.asks_then_pays(required=2, expires_in=timedelta(seconds=60))
    approval = stage.asked()
    press(approval, stage.people.adjuster)
    move_clock(timedelta(seconds=61))
    with pytest.raises(TooLate):
        press(approval, stage.people.second_adjuster)
    drain()
    run = fresh(approval.run)
    assert (run.status, stage.receiver.received) == ("expired", [])
    assert ledger.verify().problems == []


# Against the loss of a role


def test_whoever_takes_a_role_away_waits_for_the_decision_that_rests_on_it(stage, database):
    """C03: by an ordinary statement, which locks nothing but the membership itself."""
    stage.asks_then_pays()
    approval, ada = stage.asked(), stage.people.adjuster
    with holding_ledger(database):
        decider = Party(lambda: press(approval, ada))
        wait_until_blocked(database)
        admin = Party(lambda: ada.groups.remove(*ada.groups.filter(name="adjusters")))
        wait_until_blocked(database, 2)
    assert decider.outcome().verdict == "approve"
    admin.outcome()
    assert not ada.groups.filter(name="adjusters").exists()


def test_a_decision_that_waited_for_the_loss_of_its_role_is_refused(stage, database):
    """C03: the other order. The question stays open for the others."""
    stage.asks_then_pays()
    approval, ada = stage.asked(), stage.people.adjuster
    with uncommitted(lambda: ada.groups.remove(*ada.groups.filter(name="adjusters"))):
        decider = Party(lambda: press(approval, ada))
        wait_until_blocked(database)
    with pytest.raises(NotAnApprover, match="Only adjusters may decide this"):
        decider.outcome()
    assert_nothing_was_decided(approval)
    assert press(approval, stage.people.second_adjuster).verdict == "approve"
