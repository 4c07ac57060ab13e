"""Who may decide, in which words and on what: by somebody who may, on what was shown; all else changes nothing."""

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import transaction
from stage import Party, Stage, fresh, holding_run, press, question, shown, tamper, wait_until_blocked

from approvals import ledger
from approvals.decisions import (
    LONGEST_COMMENT,
    Changed,
    FactsUnreadable,
    Invalid,
    NotAnApprover,
    Stranger,
    decide,
    may_decide,
)
from approvals.models import Approval, Decision, LedgerEntry
from runs.models import AuditEvent
from runs.testing import drain


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


def refusals():
    return list(AuditEvent.objects.filter(kind="decision-refused").values_list("user__username", "detail"))


# By somebody who may


def take_away_the_role(user):
    user.groups.remove(Group.objects.get(name="adjusters"))


def switch_off(user):
    User.objects.filter(pk=user.pk).update(is_active=False)


@pytest.mark.parametrize(("loss", "rule"), [(take_away_the_role, "Only adjusters may"), (switch_off, "switched off")])
def test_who_lost_the_right_after_the_page_was_opened_is_refused_and_it_stays_open_for_others(stage, loss, rule):
    """C03"""
    stage.asks_then_pays()
    approval = stage.asked()
    page = shown(approval)
    loss(stage.people.adjuster)
    with pytest.raises(NotAnApprover, match=rule) as refused:
        press(approval, stage.people.adjuster, page=page)
    assert refused.value.status == 403
    assert_nothing_was_decided(approval)
    [(name, detail)] = refusals()
    assert (name, " 403 Only adjusters" in detail or " 403 This account" in detail) == ("ada", True)
    press(approval, stage.people.second_adjuster, page=page)


@pytest.mark.parametrize("loss", [take_away_the_role, switch_off])
def test_who_lost_the_right_while_waiting_for_the_lock_is_refused(stage, database, loss):
    """C03: rights are checked when the decision is taken."""
    stage.asks_then_pays()
    approval = stage.asked()
    with holding_run(database, approval.run_id):
        decider = Party(lambda: press(approval, stage.people.adjuster))
        wait_until_blocked(database)
        loss(stage.people.adjuster)
    with pytest.raises(NotAnApprover):
        decider.outcome()
    assert_nothing_was_decided(approval)


def test_a_switched_off_account_sees_nothing(stage):
    """C03: loaded anew, as each request does."""
    stage.asks_then_pays()
    approval = stage.asked()
    switch_off(stage.people.adjuster)
    user = User.objects.get(pk=stage.people.adjuster.pk)
    assert not Approval.objects.visible_to(user).exists()
    with pytest.raises(Stranger):
        press(approval, user)


def test_a_stranger_sees_nothing_and_a_guessed_id_is_as_one_that_does_not_exist(stage):
    """C04: of another team, with the very role that was asked."""
    stage.asks_then_pays()
    approval = stage.asked()
    eve = stage.people.stranger
    assert not Approval.objects.visible_to(eve).exists()
    sentences = set()
    for guessed in (approval.pk, approval.pk + 1000, 0, -1, 10**30):
        with pytest.raises(Stranger) as refused:
            decide(guessed, user=eve, verdict="approve", comment="", **shown(approval))
        assert refused.value.status == 404
        sentences.add(str(refused.value))
    assert sentences == {"There is no such approval."}
    assert_nothing_was_decided(approval)
    assert [name for name, _ in refusals()] == ["eve"] * 5


@pytest.mark.parametrize(
    ("who", "rule"),
    [
        ("superuser", "A superuser sees everything and decides nothing"),
        ("auditor", "Only adjusters may decide this"),
        ("ops", "Only adjusters may decide this"),
        ("requester", "four eyes"),
    ],
)
def test_who_sees_it_but_may_not_decide_is_refused_with_the_rule(stage, who, rule):
    stage.asks_then_pays()
    approval, user = stage.asked(), getattr(stage.people, who)
    assert rule in may_decide(user, approval)
    for verdict in ("approve", "reject"):
        with pytest.raises(NotAnApprover, match=rule):
            press(approval, user, verdict, "because")
    assert_nothing_was_decided(approval)
    assert [name for name, _ in refusals()] == [user.username] * 2


def test_the_right_to_see_all_teams_does_not_make_an_approver_of_another_team(stage):
    stage.asks_then_pays()
    approval = stage.asked()
    stage.people.stranger.user_permissions.add(Permission.objects.get(codename="view_all_teams"))
    eve = User.objects.get(pk=stage.people.stranger.pk)
    with pytest.raises(NotAnApprover, match="Only members of the team claims"):
        press(approval, eve)


def test_a_superuser_who_is_an_adjuster_of_the_team_too_still_decides_nothing(stage):
    stage.asks_then_pays()
    approval = stage.asked()
    stage.people.superuser.groups.set(stage.people.adjuster.groups.all())
    with pytest.raises(NotAnApprover, match="superuser"):
        press(approval, stage.people.superuser)


def test_the_database_itself_refuses_a_signature_of_whoever_asked(stage, database):
    """Four eyes by trigger: even for code that forgets the rule."""
    stage.asks_then_pays()
    approval = stage.asked()
    press(stage.asked("other"), stage.people.adjuster)
    insert = (
        "INSERT INTO approvals_decision (approval_id, user_id, verdict, comment, decided_at, entry_id) "
        "VALUES (%s, %s, 'approve', '', now(), %s)"
    )
    with transaction.atomic():
        entry = ledger.append("note", {}, at=approval.asked_at)
    with pytest.raises(Exception, match="may not be decided by whoever asked for it"):
        database.query(insert, approval.pk, stage.people.requester.pk, entry.sequence)
    assert not approval.decisions.exists()


# In words that can be kept


def test_a_rejection_needs_a_reason_and_ends_the_run_as_rejected(stage):
    stage.asks_then_pays()
    approval = stage.asked()
    for nothing in ("", " ", "\n\t "):
        with pytest.raises(Invalid, match="Say why") as refused:
            press(approval, stage.people.adjuster, "reject", nothing)
        assert (refused.value.status, refused.value.field) == (422, "comment")
    assert_nothing_was_decided(approval)
    assert press(approval, stage.people.adjuster, "reject", " the policy lapsed ").comment == "the policy lapsed"
    drain()
    run = fresh(approval.run)
    assert (run.status, run.outcome) == ("completed", "rejected")
    assert stage.receiver.received == []


def test_a_comment_that_cannot_be_kept_whole_is_refused_before_anything_is_signed(stage):
    """C16: NUL, halves of a character, and one character too many."""
    stage.asks_then_pays()
    approval = stage.asked()
    bad = ["a\x00b", "\x00", "half \ud83d", "\ude00\ud83d", "x" * (LONGEST_COMMENT + 1), "😀" * (LONGEST_COMMENT + 1)]
    for comment in bad:
        for verdict in ("approve", "reject"):
            with pytest.raises(Invalid) as refused:
                press(approval, stage.people.adjuster, verdict, comment)
            assert (refused.value.status, refused.value.field) == (422, "comment")
    assert_nothing_was_decided(approval)
    assert [name for name, _ in refusals()] == ["ada"] * 12


def test_every_other_comment_is_signed_character_for_character(stage):
    """C16, C08: at and below the limit, and text that other layers might touch."""
    stage.asks_then_pays()
    comments = [
        "x" * (LONGEST_COMMENT - 1),
        "x" * LONGEST_COMMENT,
        "😀" * LONGEST_COMMENT,
        "\x01" * LONGEST_COMMENT,
        '<script>{{ x }}</script> \u202e "\\"',
    ]
    for number, comment in enumerate(comments):
        decision = press(stage.asked(f"run-{number}"), stage.people.adjuster, "reject", comment)
        assert Decision.objects.get(pk=decision.pk).comment == comment
        assert ledger.told(decision.entry)["comment"] == comment
    assert ledger.verify().problems == []


def test_a_verdict_that_is_none_is_refused_in_words_and_recorded(stage):
    """C26: whatever a caller sends."""
    stage.asks_then_pays()
    approval = stage.asked()
    strange = ["", "APPROVE", "approve ", "escalate", "app\x00rove", "\ud83d", None, 1]
    for verdict in strange:
        with pytest.raises(Invalid) as refused:
            press(approval, stage.people.adjuster, verdict, "because")
        assert refused.value.field == "verdict"
    assert_nothing_was_decided(approval)
    assert [name for name, _ in refusals()] == ["ada"] * len(strange)


def test_an_action_that_can_be_asked_can_be_signed(stage):
    """C07: whatever is too long to be signed is refused when it is asked, not when somebody decides."""
    stage.asks_then_pays()
    run = stage.begin(payee="x" * 99_000)
    if run.status == "waiting":
        press(question(run), stage.people.adjuster, comment="\x01" * LONGEST_COMMENT)
        assert ledger.verify().problems == []
    else:
        assert (run.status, Approval.objects.count()) == ("dead", 0)


# On what was shown


def test_another_payload_digest_than_that_of_the_row_is_refused(stage):
    """C26"""
    stage.asks_then_pays()
    approval = stage.asked()
    for digest in ("0" * 64, "", "\x00", approval.payload_digest.upper()):
        with pytest.raises(Changed) as refused:
            press(approval, stage.people.adjuster, page=shown(approval) | {"payload_digest": digest})
        assert (refused.value.status, refused.value.what) == (412, "payload")
    assert_nothing_was_decided(approval)


def test_the_database_refuses_to_change_what_was_asked(stage, database):
    """C06, without switching off the trigger."""
    stage.asks_then_pays()
    approval = stage.asked()
    with pytest.raises(Exception, match="is frozen"):
        database.query("UPDATE approvals_approval SET payload = replace(payload, '184000', '984000')")
    approval.refresh_from_db()
    assert "184000" in approval.payload


@pytest.mark.parametrize("digest_too", [False, True])
def test_a_payload_changed_behind_the_trigger_s_back_between_view_and_approve_is_refused(stage, database, digest_too):
    """C06"""
    stage.asks_then_pays()
    approval = stage.asked()
    page = shown(approval)
    change_payload(database, digest_too)
    with pytest.raises(Changed) as refused:
        press(approval, stage.people.adjuster, page=page)
    assert refused.value.what == "payload"
    assert not Decision.objects.exists()


@pytest.mark.parametrize("digest_too", [False, True])
def test_a_payload_changed_behind_the_trigger_s_back_after_the_signature_is_not_executed(stage, database, digest_too):
    """C06, C17: the second look, before the effect. Whoever changes the payload can change the digest beside it: what
    counts is the digest that was signed."""
    stage.asks_then_pays()
    approval = stage.asked()
    press(approval, stage.people.adjuster)
    change_payload(database, digest_too)
    drain()
    run = fresh(approval.run)
    assert stage.receiver.received == []
    assert run.status == "dead"
    assert "was not sent" in run.reason
    approval.refresh_from_db()
    assert approval.spent_at is None


def change_payload(database, digest_too):
    tamper(database, "UPDATE approvals_approval SET payload = replace(payload, '184000', '984000')")
    if digest_too:
        tamper(
            database,
            "UPDATE approvals_approval SET payload_digest = encode(sha256(convert_to(payload, 'UTF8')), 'hex')",
        )


def test_facts_that_changed_between_view_and_approve_are_refused_until_seen(stage):
    """C06: the record the payload refers to."""
    stage.asks_then_pays()
    approval = stage.asked()
    page = shown(approval)
    stage.facts["amount"] = 910_000
    with pytest.raises(Changed) as refused:
        press(approval, stage.people.adjuster, page=page)
    assert (refused.value.status, refused.value.what) == (412, "facts")
    assert_nothing_was_decided(approval)
    press(approval, stage.people.adjuster)
    drain()
    assert stage.receiver.keys == ["run-1:step2"]


def test_nothing_is_decided_while_the_facts_cannot_be_read(stage):
    stage.asks_then_pays()
    approval = stage.asked()
    page = shown(approval)
    stage.facts["amount"] = float("nan")
    with pytest.raises(FactsUnreadable) as refused:
        press(approval, stage.people.adjuster, page=page)
    assert refused.value.status == 503
    assert_nothing_was_decided(approval)


def test_facts_that_changed_after_the_signature_close_the_asking_position_and_ask_again(stage):
    """C06: seen on resume."""
    stage.asks_then_pays()
    first = stage.asked()
    press(first, stage.people.adjuster)
    stage.facts["claim"] = "withdrawn"
    drain()
    run, second = fresh(first.run), question(first.run)
    assert (run.status, second.position) == ("waiting", 2)
    closed = run.checkpoints.get(position=1)
    assert (closed.closed_as, closed.output) == ("changed", {"changed_facts": ["claim"]})
    press(second, stage.people.adjuster)
    drain()
    first.refresh_from_db()
    second.refresh_from_db()
    assert stage.receiver.keys == ["run-1:step3"] == [second.spent_key]
    assert first.spent_at is None
