"""Unknown effects become known by looking or by a person; each difference between us and a provider is found, once,
kept with both evidences, and never answered by paying or by guessing."""

import json
import tracemalloc
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from time import monotonic, sleep

import pytest
from django.apps import apps
from provider import Provider, listed, seed
from stage import LEASE_IS_PAST, Killed, Party, Stage, fresh, one_stretch

from runs import engine, figures, reconciliation, repair, sweep, tools
from runs.errors import (
    BadRequest,
    EffectSettled,
    FindingClosed,
    NoSuchEffect,
    NoSuchFinding,
    NotAllowed,
    OutcomeUnknown,
    Retryable,
)
from runs.models import AuditEvent, Call, Finding, Listed, Recurring, Run, database_clock
from runs.providers import team as ops_team
from runs.reconciliation import compare, settle_unknown
from runs.recurring import start_due
from runs.testing import drain, move_clock

KEY = "run-1:step1"
SETTLED = timedelta(hours=2)
"""Long after any tool's settle time, and after the lease of a worker that died."""


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        # The example's own providers are not there to be asked.
        tools._registry.clear()
        yield stage


@pytest.fixture
def provider():
    return Provider()


@pytest.fixture
def pay(stage, provider):
    """A tool whose provider can be asked, and a workflow of two steps that pays 184000 cents by it."""
    tool = provider.serve(stage.tool())
    stage.calls_then_goes_on(tool)
    return tool


@pytest.fixture
def lost(stage, pay):
    """A run whose payment was sent and never answered, until it had no try left."""
    stage.receiver.script = [TimeoutError("no answer")] * 9
    run = stage.begin()
    stage.later(times=3)
    assert (fresh(run).status, effect().state) == ("dead", "unknown")
    return run


def effect(key=KEY):
    return Call.objects.get(key=key)


def open_findings():
    return sorted(Finding.objects.open().values_list("kind", "key"))


def past(hours=24):
    now = database_clock()
    return now - timedelta(hours=hours), now


# What is unknown


def test_an_unknown_effect_that_the_provider_knows_is_confirmed_and_its_run_can_be_redriven(stage, provider, lost):
    provider.made(KEY, id="pay-77")
    tally = settle_unknown()
    assert (tally.looked_at, tally.confirmed, open_findings()) == (1, 1, [])
    call = effect()
    assert (call.state, call.answer, call.settled_by, call.error) == ("confirmed", {"payment": "pay-77"}, "lookup", "")
    repair.redrive("run-1", why="it was paid")
    drain()
    assert (fresh(lost).status, len(stage.receiver.received)) == ("completed", 3)
    assert lost.checkpoints.get(position=1).output == {"payment": {"payment": "pay-77"}}


def test_one_that_the_provider_does_not_know_waits_for_its_settle_time_and_then_for_a_person(lost):
    assert settle_unknown().found == 0
    move_clock(SETTLED)
    assert settle_unknown().found == 1
    assert (effect().state, open_findings()) == ("unknown", [("unknown", KEY)])
    finding = Finding.objects.get()
    assert (finding.run, finding.team, finding.theirs) == (lost, lost.team, [{"said": "it is not found there"}])
    assert (finding.ours[0]["state"], finding.ours[0]["amount_minor"]) == ("unknown", 184_000)


def test_looking_again_makes_no_second_finding_and_a_late_discovery_closes_the_first(provider, lost):
    move_clock(SETTLED)
    settle_unknown()
    seen = Finding.objects.get().seen_at
    assert (settle_unknown().found, Finding.objects.count()) == (0, 1)
    assert Finding.objects.get().seen_at > seen
    provider.made(KEY)
    settle_unknown()
    finding = Finding.objects.get()
    assert (effect().state, finding.resolution, finding.resolved_by) == ("confirmed", "Its outcome is known now.", None)


def test_an_effect_that_a_worker_is_sending_is_left_to_it(stage, provider, pay):
    seen = []

    def sending(key):
        provider.made(key)
        seen.append((settle_unknown().confirmed, provider.looked_up, effect().state))
        return {"payment": "as answered"}

    stage.receiver.script = [sending]
    stage.begin()
    assert seen == [(0, [], "sent")]
    assert effect().answer == {"payment": "as answered"}


def test_an_effect_whose_worker_died_while_sending_is_looked_up(stage, provider, pay):
    stage.receiver.script = [Killed()]
    engine.start(stage.flow, key="run-1", input={}, team=stage.people.team)
    with pytest.raises(Killed):
        one_stretch()
    assert (settle_unknown().confirmed, effect().state) == (0, "sent")
    move_clock(LEASE_IS_PAST)
    provider.made(KEY)
    assert (settle_unknown().confirmed, effect().state) == (1, "confirmed")
    drain()
    assert (Run.objects.get().status, len(stage.receiver.received)) == ("completed", 1)


@pytest.mark.parametrize("late", [OutcomeUnknown("no answer"), {"payment": "too late"}])
def test_a_late_outcome_does_not_overwrite_what_was_found_and_the_other_way_round(stage, provider, pay, late):
    """The worker froze past its lease while sending; meanwhile the effect was looked up."""

    def frozen(key):
        move_clock(LEASE_IS_PAST)
        provider.made(key, id="as found")
        assert settle_unknown().confirmed == 1
        if isinstance(late, Exception):
            raise late
        return late

    stage.receiver.script = [frozen]
    stage.begin()
    assert (effect().state, effect().answer) == ("confirmed", {"payment": "as found"})


def test_an_effect_that_became_known_while_it_was_looked_up_stays_as_it_is(stage, provider, pay, lost):
    def find(*, idempotency_key):
        Call.objects.filter(key=idempotency_key).update(state="refused", error="closed account")
        return {"payment": "pay-1"}

    pay.lookup(find)
    assert (settle_unknown().confirmed, effect().state) == (0, "refused")


def test_what_is_sent_at_most_once_is_never_looked_up_and_is_a_finding_at_once(stage, provider):
    note = stage.tool("test.note", delivery="at-most-once")
    note.lookup(provider.find)
    stage.calls_then_goes_on(note)
    stage.receiver.script = [TimeoutError("no answer")]
    assert stage.begin().status == "completed"
    settle_unknown()
    assert (open_findings(), provider.looked_up, effect().state) == ([("unknown", KEY)], [], "unknown")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"paid_minor": 1}, "it is found there with another amount"),
        (["paid"], "what is found there cannot be kept"),
        ({"rate": float("nan")}, "what is found there cannot be kept"),
    ],
)
def test_what_is_found_but_is_not_what_was_asked_for_confirms_nothing(pay, lost, found, said):
    pay.lookup(lambda *, idempotency_key: found)
    move_clock(SETTLED)
    settle_unknown()
    assert (effect().state, open_findings()) == ("unknown", [("unknown", KEY)])
    assert Finding.objects.get().theirs[0]["said"].startswith(said)


def many_lost(stage, pay, number):
    for n in range(number):
        engine.start(stage.flow, key=f"run-{n}", input={}, team=stage.people.team)
    stage.receiver.script = [TimeoutError("no answer")] * number * 3
    drain()
    stage.later(times=3)
    assert Call.objects.unknown().count() == number


def test_a_provider_that_is_down_is_one_finding_and_is_not_asked_a_thousand_times(stage, provider, pay):
    many_lost(stage, pay, 6)
    move_clock(SETTLED)
    provider.down = Retryable("The line is dead.")
    for _ in range(2):
        assert settle_unknown().down == ["test.pay"]
    assert (open_findings(), len(provider.looked_up) <= 6) == ([("provider-down", "")], True)
    assert Finding.objects.get().sentence == "The provider of test.pay cannot be asked: The line is dead."
    provider.down = None
    for n in range(6):
        provider.made(f"run-{n}:step1")
    assert (settle_unknown().confirmed, open_findings()) == (6, [])
    assert Finding.objects.get().resolution == "The provider answers again."


def test_a_provider_that_answers_again_closes_its_finding_also_when_nothing_is_unknown_any_more(stage, provider, pay):
    provider.down = Retryable("The line is dead.")
    compare(pay, *past())
    assert open_findings() == [("provider-down", "")]
    settle_unknown()
    assert open_findings() == [("provider-down", "")]
    provider.down = None
    settle_unknown()
    assert open_findings() == []


def test_one_key_that_cannot_be_looked_up_is_for_a_person_while_the_others_are_settled(stage, provider, pay):
    many_lost(stage, pay, 3)
    move_clock(SETTLED)

    def find(*, idempotency_key):
        if idempotency_key == "run-0:step1":
            raise RuntimeError("personal data")
        return {"payment": idempotency_key}

    pay.lookup(find)
    tally = settle_unknown()
    assert (tally.confirmed, tally.down, open_findings()) == (2, [], [("unknown", "run-0:step1")])
    assert Finding.objects.get().theirs == [{"said": "looking it up fails: RuntimeError"}]


def test_a_tool_that_this_code_no_longer_knows_is_for_a_person(stage, pay, lost):
    Call.objects.update(tool="test.gone")
    settle_unknown()
    assert (open_findings(), effect().state) == ([("unknown", KEY)], "unknown")


# Both sides


@pytest.fixture
def agreed(stage, provider, pay, database, people):
    """Nine effects, confirmed half a day ago, and the provider's list of them."""
    seed(database, people.team, pay.name, range(1, 10))
    provider.records = list(listed(range(1, 10)))
    return pay


def change_record(provider, n, **changes):
    provider.records[n - 1] = replace(provider.records[n - 1], **changes)


PLANTED = {
    "missing there": (lambda p: p.records.pop(4), ("missing-there", "claim-5:step1")),
    "missing here": (lambda p: p.made("claim-77:step1"), ("missing-here", "claim-77:step1")),
    "without a key": (lambda p: p.made("", id="pay-by-hand", reference=""), ("missing-here", "pay-by-hand")),
    "amount": (lambda p: change_record(p, 5, amount_minor=500), ("amount-differs", "claim-5:step1")),
    "currency": (lambda p: change_record(p, 5, currency="EUR"), ("amount-differs", "claim-5:step1")),
    "twice for one": (lambda p: p.made("x:step1", reference="claim-5"), ("duplicate-reference", "claim-5")),
    "twice under one key": (
        lambda p: p.records.append(replace(p.records[4], id="again")),
        ("duplicate-reference", "claim-5"),
    ),
}


def test_where_both_sides_agree_nothing_is_found(agreed):
    done = compare(agreed, *past())
    assert (done.listed, done.found, open_findings()) == (9, 0, [])


@pytest.mark.parametrize("planted", PLANTED)
def test_each_planted_difference_is_found_and_nothing_else(agreed, provider, planted):
    plant, expected = PLANTED[planted]
    plant(provider)
    assert compare(agreed, *past()).found == 1
    assert open_findings() == [expected]
    assert Call.objects.filter(state="confirmed").count() == 9


def test_a_finding_holds_what_each_side_says_and_belongs_to_the_runs_team(agreed, provider, people):
    change_record(provider, 5, amount_minor=500)
    compare(agreed, *past())
    finding = Finding.objects.get()
    ours, theirs = finding.ours[0], finding.theirs[0]
    assert (ours["key"], ours["amount_minor"], ours["state"]) == ("claim-5:step1", 5, "confirmed")
    assert (theirs["id"], theirs["amount_minor"], theirs["currency"]) == ("pay-5", 500, "USD")
    assert (finding.run.key, finding.team) == ("claim-5", people.team)


def test_a_record_that_nobody_here_knows_belongs_to_ops_and_one_of_a_known_run_to_its_team(agreed, provider, people):
    provider.made("nobody:step1")
    provider.made("claim-5:step9")
    compare(agreed, *past())
    teams = dict(Finding.objects.values_list("key", "team__name"))
    assert teams == {"nobody:step1": "ops", "claim-5:step9": people.team.name}


@pytest.mark.parametrize(("state", "expected"), [("refused", [("missing-here", "claim-5:step1")]), ("unknown", [])])
def test_a_record_of_an_effect_that_was_refused_here_is_a_difference_and_of_an_unknown_one_is_none(
    agreed, state, expected
):
    Call.objects.filter(key="claim-5:step1").update(state=state)
    compare(agreed, *past())
    assert open_findings() == expected
    assert effect("claim-5:step1").state == state


def test_a_second_payment_for_the_same_is_found_also_when_the_first_was_listed_long_ago(agreed, provider):
    compare(agreed, *past())
    move_clock(timedelta(days=9))
    provider.made("y:step1", reference="claim-5", created_at=database_clock() - timedelta(hours=1))
    compare(agreed, *past())
    assert open_findings() == [("duplicate-reference", "claim-5")]
    assert [record["id"] for record in Finding.objects.get().theirs] == ["pay-5", "made-9"]


def test_comparing_again_finds_nothing_new_and_what_went_away_is_closed_by_itself(agreed, provider):
    records = list(provider.records)
    for plant, _ in PLANTED.values():
        plant(provider)
    first = compare(agreed, *past())
    known = open_findings()
    assert (first.found, len(known)) == (len(known), Finding.objects.count())
    again = compare(agreed, *past())
    assert (again.found, again.gone, open_findings()) == (0, 0, known)
    provider.records = records
    assert (compare(agreed, *past()).gone, open_findings()) == (len(known), [])
    assert set(Finding.objects.values_list("resolution", "resolved_by")) == {
        ("Compared again: the difference is gone.", None)
    }


def test_what_a_person_has_resolved_stays_so_until_the_evidence_changes(agreed, provider, people):
    change_record(provider, 5, amount_minor=500)
    compare(agreed, *past())
    reconciliation.resolve(Finding.objects.get().pk, by=people.superuser, why="paid back by hand")
    assert (compare(agreed, *past()).found, open_findings()) == (0, [])
    change_record(provider, 5, amount_minor=600)
    assert compare(agreed, *past()).found == 1
    assert Finding.objects.open().get().theirs[0]["amount_minor"] == 600


def test_an_effect_is_given_time_to_appear_in_the_list_and_is_looked_up_before_it_is_called_missing(
    stage, provider, pay
):
    """Its clock may be far from ours, or its list slow."""
    stage.begin()
    compare(pay, *past())
    assert (open_findings(), provider.looked_up) == ([], [])
    move_clock(timedelta(minutes=6))
    record = provider.made(KEY, created_at=database_clock() + timedelta(hours=25))
    assert (compare(pay, *past()).found, provider.looked_up) == (0, [KEY])
    provider.records.remove(record)
    assert compare(pay, *past()).found == 1
    assert open_findings() == [("missing-there", KEY)]


def test_a_provider_that_goes_down_in_the_midst_of_its_list_is_one_finding_and_nothing_is_called_missing(
    agreed, provider
):
    whole = list(provider.records)

    def broken(since, until):
        yield from whole[:3]
        raise Retryable("The line is dead.")

    agreed.listing(broken)
    for _ in range(2):
        assert compare(agreed, *past()).down == "The line is dead."
        assert open_findings() == [("provider-down", "")]
    agreed.listing(provider.list)
    compare(agreed, *past())
    assert open_findings() == []


def test_odd_records_do_not_stop_the_comparison(agreed, provider):
    provider.made("x" * 300, id="long\0", reference="\ud800", currency="dollars of the realm")
    compare(agreed, *past())
    assert open_findings() == [("missing-here", "x" * 255)]


def test_a_tool_without_a_list_is_refused_by_name(stage):
    stage.tool("test.mute")
    with pytest.raises(BadRequest, match=r"test\.mute has no list"):
        compare("test.mute", *past())


def test_two_comparisons_at_once_make_one_finding(agreed, provider, database):
    provider.made("claim-77:step1")
    parties = [Party(lambda: compare(agreed, *past())) for _ in range(3)]
    for party in parties:
        party.outcome()
    assert open_findings() == [("missing-here", "claim-77:step1")]
    assert Finding.objects.count() == 1


def test_planted_differences_among_ten_thousand_effects_are_found_in_time_and_in_flat_memory(
    stage, provider, pay, database, people
):
    many = range(1, 10_001)
    seed(database, people.team, pay.name, many)
    made = dict(zip(many, listed(many), strict=True))
    del made[500]
    made[1500] = replace(made[1500], amount_minor=1)
    extra = replace(made[2500], id="again", key="elsewhere:step1")
    stranger = replace(made[3500], id="stranger", key="stranger:step1", reference="stranger")

    def stream(since, until):
        yield from (record for record in (*made.values(), extra, stranger) if since <= record.created_at < until)

    pay.listing(stream)
    began = monotonic()
    done = compare(pay, *past())
    took = monotonic() - began
    assert open_findings() == [
        ("amount-differs", "claim-1500:step1"),
        ("duplicate-reference", "claim-2500"),
        ("missing-here", "stranger:step1"),
        ("missing-there", "claim-500:step1"),
    ]
    assert (done.listed, done.found) == (10_001, 4)
    assert took < 30
    # A batch of each side. All of theirs would take 8 MB, all of ours 40.
    assert peak_of(lambda: compare(pay, *past())) < 6 * 2**20
    assert Finding.objects.count() == 4


def peak_of(work):
    """Bytes of Python's memory that this takes at most."""
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


# People


@pytest.fixture
def finding(provider, lost):
    move_clock(SETTLED)
    settle_unknown()
    return Finding.objects.get()


def test_a_person_resolves_with_a_reason_that_is_kept_and_nothing_else_changes(finding, people, lost):
    before = Call.objects.values().get(), Run.objects.values().get(pk=lost.pk)
    resolved = reconciliation.resolve(finding.pk, by=people.ops, why="the bank was asked")
    assert (resolved.resolution, resolved.resolved_by) == ("the bank was asked", people.ops)
    assert (Call.objects.values().get(), Run.objects.values().get(pk=lost.pk)) == before
    with pytest.raises(FindingClosed):
        reconciliation.resolve(finding.pk, by=people.ops, why="again")
    assert (settle_unknown().found, open_findings()) == (0, [])


def test_strangers_do_not_learn_that_a_finding_exists_and_whoever_may_not_operate_is_refused_and_recorded(
    finding, people
):
    with pytest.raises(NoSuchFinding):
        reconciliation.resolve(finding.pk, by=people.stranger, why="curious")
    with pytest.raises(NotAllowed):
        reconciliation.resolve(finding.pk, by=people.adjuster, why="I say so")
    with pytest.raises(BadRequest):
        reconciliation.resolve(finding.pk, by=people.ops, why="  ")
    assert open_findings() == [("unknown", KEY)]
    event = AuditEvent.objects.get(kind="verb-refused")
    assert (event.user, event.run) == (people.adjuster, finding.run)


def test_a_closed_finding_cannot_be_changed_nor_any_deleted(finding, people, database):
    reconciliation.resolve(finding.pk, by=people.ops, why="done")
    for statement in ("UPDATE runs_finding SET resolution = 'other'", "DELETE FROM runs_finding"):
        with pytest.raises(Exception, match="append-only"):
            database.query(f"{statement} RETURNING id")


def test_a_persons_word_that_it_happened_lets_the_run_go_on_with_the_answer_they_gave(stage, finding, people, lost):
    call = reconciliation.settle_by_hand(
        KEY, outcome="confirmed", by=people.ops, why="the bank says so", answer={"payment": "b-1"}
    )
    assert (call.state, call.settled_by, call.answer) == ("confirmed", "person", {"payment": "b-1"})
    event = AuditEvent.objects.get(kind="effect-settled")
    assert (event.user, event.call, "the bank says so" in event.detail) == (people.ops, call, True)
    finding.refresh_from_db()
    assert (finding.resolved_by, finding.resolution) == (people.ops, "the bank says so")
    repair.redrive("run-1", by=people.ops, why="settled")
    drain()
    assert (fresh(lost).status, len(stage.receiver.received)) == ("completed", 3)
    assert lost.checkpoints.get(position=1).output == {"payment": {"payment": "b-1"}}


def test_a_persons_word_that_it_did_not_happen_closes_its_position_so_that_redriving_uses_a_new_key(
    stage, finding, people, lost
):
    reconciliation.settle_by_hand(KEY, outcome="refused", by=people.ops, why="never arrived")
    assert "never arrived" in effect().error
    stage.receiver.script = []
    repair.redrive("run-1", by=people.ops, why="settled")
    drain()
    assert (fresh(lost).status, stage.receiver.keys[-1], effect("run-1:step2").state) == (
        "completed",
        "run-1:step2",
        "confirmed",
    )


def test_only_what_is_unknown_can_be_settled_by_hand_and_only_by_whoever_may(stage, finding, people):
    hand = {"outcome": "confirmed", "why": "because"}
    with pytest.raises(NoSuchEffect):
        reconciliation.settle_by_hand(KEY, by=people.stranger, **hand)
    with pytest.raises(NotAllowed):
        reconciliation.settle_by_hand(KEY, by=people.adjuster, **hand)
    with pytest.raises(BadRequest):
        reconciliation.settle_by_hand(KEY, by=people.ops, **hand | {"outcome": "prepared"})
    with pytest.raises(BadRequest):
        reconciliation.settle_by_hand(KEY, by=people.ops, **hand | {"why": ""})
    with pytest.raises(NoSuchEffect):
        reconciliation.settle_by_hand("run-1:step7", by=people.ops, **hand)
    assert effect().state == "unknown"
    reconciliation.settle_by_hand(KEY, by=people.ops, **hand)
    with pytest.raises(EffectSettled, match="it is confirmed"):
        reconciliation.settle_by_hand(KEY, by=people.ops, **hand | {"outcome": "refused"})


def test_an_effect_that_a_worker_is_at_cannot_be_settled_by_hand(stage, pay, people):
    refused = []

    def sending(key):
        with pytest.raises(EffectSettled, match="a worker is at it"):
            reconciliation.settle_by_hand(key, outcome="refused", by=people.ops, why="impatient")
        refused.append(key)
        return {"payment": "p-1"}

    stage.receiver.script = [sending]
    stage.begin()
    assert (refused, effect().state) == ([KEY], "confirmed")


# By itself


@pytest.fixture
def recur(people):
    """Rows like those that the migration makes, due now."""

    def make(name, every):
        return Recurring.objects.create(
            name=name, workflow=name, every=every, due_at=database_clock() - timedelta(seconds=1), team=ops_team()
        )

    return make


def test_a_new_database_reconciles_every_five_minutes_and_every_day(people):
    import_module("runs.migrations.0007_recurring").make_recurring(apps, None)
    assert start_due() == 0
    rows = {row.workflow: (row.every, row.team.name) for row in Recurring.objects.all()}
    assert rows == {
        "reconcile-unknown": (timedelta(minutes=5), "ops"),
        "reconcile-provider": (timedelta(days=1), "ops"),
    }
    move_clock(timedelta(days=1, seconds=1))
    assert (start_due(), Run.objects.get().workflow) == (1, "reconcile-provider")


def test_what_is_due_is_started_once_by_two_sweeps(recur, database):
    recur("reconcile-provider", timedelta(days=1))
    parties = [Party(start_due) for _ in range(4)]
    assert sorted(party.outcome() for party in parties) == [0, 0, 0, 1]
    assert Run.objects.get().team.name == "ops"
    assert start_due() == 0


def test_after_an_outage_one_run_makes_up_for_all_that_was_missed_and_the_time_of_day_is_kept(stage, pay, recur):
    row = recur("reconcile-provider", timedelta(days=1))
    was_due = row.due_at
    move_clock(timedelta(days=5, hours=3))
    assert sweep.sweep()["started"] == 1
    assert sweep.sweep()["started"] == 0
    row.refresh_from_db()
    assert row.due_at == was_due + timedelta(days=6)
    drain()
    run = Run.objects.get()
    begun = run.checkpoints.get(step="begin").output
    assert begun["since"] == (was_due - timedelta(days=1, hours=1)).isoformat()
    assert run.status == "completed"


def test_reconciling_the_unknown_starts_no_run_when_there_is_nothing_to_find_out(stage, pay, recur):
    row = recur("reconcile-unknown", timedelta(minutes=5))
    assert (start_due(), Run.objects.count()) == (0, 0)
    row.refresh_from_db()
    assert row.due_at > database_clock()


def test_what_only_people_can_find_out_starts_no_run_again_and_again(stage, recur, people):
    """One run tells people; then it is theirs."""
    stage.calls_then_goes_on(stage.tool("test.note", delivery="at-most-once"))
    stage.receiver.script = [TimeoutError("no answer")]
    stage.begin()
    recur("reconcile-unknown", timedelta(minutes=5))

    def reconciled():
        stage.later(timedelta(minutes=6), times=3)
        return Run.objects.filter(workflow="reconcile-unknown").count(), open_findings()

    assert reconciled() == (1, [("unknown", KEY)])
    assert reconciled() == (1, [("unknown", KEY)])
    reconciliation.settle_by_hand(KEY, by=people.ops, outcome="confirmed", why="The post office says so.")
    assert reconciled() == (1, [])


def test_what_a_person_has_resolved_though_it_is_unknown_starts_no_run(stage, recur, people):
    stage.calls_then_goes_on(stage.tool("test.note", delivery="at-most-once"))
    stage.receiver.script = [TimeoutError("no answer")]
    stage.begin()
    settle_unknown()
    reconciliation.resolve(Finding.objects.get().pk, by=people.ops, why="Nobody will ever know.")
    recur("reconcile-unknown", timedelta(minutes=5))
    stage.later(timedelta(minutes=6), times=3)
    assert (start_due(), Run.objects.filter(workflow="reconcile-unknown").count()) == (0, 0)


def test_the_unknown_is_settled_by_itself(stage, provider, lost, recur):
    recur("reconcile-unknown", timedelta(minutes=5))
    provider.made(KEY)
    drain()
    run = Run.objects.get(workflow="reconcile-unknown")
    assert (effect().state, run.status, run.outcome) == ("confirmed", "completed", "1 confirmed, 0 new findings")
    assert not run.calls.exists()


def test_the_providers_list_is_compared_by_itself_in_parts_and_says_how_far_it_came(agreed, provider, recur):
    for plant, _ in PLANTED.values():
        plant(provider)
    found = compare(agreed, *past()).found
    Finding.objects.open().close("forgotten")
    Listed.objects.all().delete()
    recur("reconcile-provider", timedelta(days=1))
    drain()
    run = Run.objects.get(workflow="reconcile-provider")
    assert (run.status, Finding.objects.open().count()) == ("completed", found)
    assert run.outcome == f"{len(provider.records)} listed, {found} new findings"
    assert run.checkpoints.filter(step="list_theirs").count() > 2
    assert run.checkpoints.filter(step="close_gone").last().output["done"][0]["found"] == found


def test_a_list_that_takes_too_long_for_one_step_is_taken_in_shorter_parts(agreed, provider, recur, settings):
    settings.STEP_TIMEOUT = 3

    def slow(since, until):
        for record in provider.list(since, until):
            sleep(1.2 if until - since > timedelta(hours=5) else 0)
            yield record

    provider.records = [provider.made("extra:step1", created_at=database_clock() - timedelta(hours=3))]
    agreed.listing(slow)
    recur("reconcile-provider", timedelta(hours=6))
    drain()
    run = Run.objects.get(workflow="reconcile-provider")
    widths = [output["slice"] for output in run.checkpoints.values_list("output", flat=True) if "slice" in output]
    assert (run.status, run.outcome, min(widths)) == ("completed", "1 listed, 1 new findings", 10_800)
    assert open_findings() == [("missing-here", "extra:step1")]


def test_while_a_provider_is_down_its_run_rests_and_goes_on_when_it_answers(agreed, provider, recur, stage):
    provider.made("claim-77:step1")
    provider.down = Retryable("The line is dead.")
    recur("reconcile-provider", timedelta(days=1))
    drain()
    run = Run.objects.get(workflow="reconcile-provider")
    assert (run.status, open_findings()) == ("sleeping", [("provider-down", "")])
    stage.later(timedelta(minutes=6))
    assert (fresh(run).status, open_findings()) == ("sleeping", [("provider-down", "")])
    provider.down = None
    stage.later(timedelta(minutes=11))
    assert (fresh(run).status, open_findings()) == ("completed", [("missing-here", "claim-77:step1")])


# Figures


def test_the_figures_tell_per_tool_what_became_of_effects(stage, provider, pay, people):
    many_lost(stage, pay, 4)
    move_clock(SETTLED)
    provider.made("run-0:step1")
    settle_unknown()
    reconciliation.settle_by_hand("run-1:step1", outcome="refused", by=people.ops, why="asked")
    stage.receiver.script = [TimeoutError("no answer"), {"payment": "p", "replayed": True}]
    engine.start(stage.flow, key="run-9", input={}, team=people.team)
    drain()
    move_clock(SETTLED * 2)
    drain()
    [figure] = [row for row in figures.of_effects() if row["tool"] == "test.pay"]
    assert figure.pop("oldest_unknown_seconds") > 7000
    assert figure == {
        "tool": "test.pay",
        "effects": 5,
        "confirmed": 2,
        "refused": 1,
        "unknown_now": 2,
        "key_replays": 1,
        "key_reused_with_another_request": 0,
        "open_findings": 2,
        "resolved": {"by_sending_again": 1, "by_looking_up": 1, "by_a_person": 1},
    }
    json.dumps(figure)


def test_a_key_reused_with_another_request_is_counted_for_its_tool(stage):
    pay, amounts = stage.tool(), iter([1, 2])

    @stage.flow.step
    def settle(ctx):
        return {"payment": ctx.call(pay, amount_minor=next(amounts))}

    stage.receiver.script = [TimeoutError("no answer")]
    stage.begin()
    stage.later(times=2)
    [figure] = [row for row in figures.of_effects() if row["tool"] == "test.pay"]
    assert figure["key_reused_with_another_request"] == 1
