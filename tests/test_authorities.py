"""Who may decide how much: limits of one approval and of one payee, and a password given just now."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from browsing import browser, form, text
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from stage import Party, Stage, change, freeze_clock, holding_ledger, press, shown, wait_until_blocked

from approvals import authority, ledger
from approvals.models import Approval, Authority, Decision, LedgerEntry, PasswordFailure
from approvals.refusals import NotAnApprover, PasswordNeeded
from runs.testing import drain, move_clock

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        stage.asks_then_pays()
        yield stage


def only(**columns):
    """Adjusters hold this authority and no other."""
    Authority.objects.update(**{"currency": "USD", "valid_from": LONG_AGO} | columns)
    return Authority.objects.get()


# To have one


def test_without_an_authority_nobody_decides_and_is_told_who_grants_one(stage):
    approval = stage.asked()
    only(group=None, user=stage.people.second_adjuster)
    for verdict in ("approve", "reject"):
        with pytest.raises(
            NotAnApprover, match=r"You hold no authority to decide this now\. An admin grants one"
        ) as no:
            press(approval, stage.people.adjuster, verdict, "because")
        assert no.value.status == 403
    assert "You hold no authority" in text(browser(stage.people.adjuster).get(f"/approvals/{approval.pk}/"))
    press(approval, stage.people.second_adjuster)


@pytest.mark.parametrize(
    ("columns", "counts"),
    [
        ({"workflow": "under-test"}, True),
        ({"workflow": "another"}, False),
        ({"team": "claims"}, True),
        ({"team": "other-claims"}, False),
        ({"currency": "EUR"}, False),
        ({"currency": ""}, True),
    ],
)
def test_an_authority_counts_only_for_its_workflow_team_and_currency(stage, columns, counts):
    approval = stage.asked()
    team = {"team": Group.objects.get(name=columns["team"])} if "team" in columns else {}
    only(**columns | team)
    if counts:
        assert press(approval, stage.people.adjuster).verdict == "approve"
    else:
        with pytest.raises(NotAnApprover, match="no authority"):
            press(approval, stage.people.adjuster)


@pytest.mark.parametrize(
    ("begins", "ends", "counts"),
    [
        (timedelta(), None, True),
        (timedelta(microseconds=1), None, False),
        (-DAY, timedelta(microseconds=1), True),
        (-DAY, timedelta(), False),
    ],
)
def test_an_authority_counts_from_its_first_to_before_its_last_instant(stage, begins, ends, counts):
    approval = stage.asked()
    now = approval.asked_at + timedelta(minutes=1)
    only(valid_from=now + begins, valid_to=None if ends is None else now + ends)
    freeze_clock(now)
    if counts:
        press(approval, stage.people.adjuster)
    else:
        with pytest.raises(NotAnApprover, match="no authority"):
            press(approval, stage.people.adjuster)


def test_an_authority_ended_between_page_and_press_is_worth_nothing(stage):
    approval = stage.asked()
    page = shown(approval)
    authority.end(only().pk, by=stage.people.superuser)
    with pytest.raises(NotAnApprover, match="no authority"):
        press(approval, stage.people.adjuster, page=page)
    assert not Decision.objects.exists()


def test_whoever_ends_an_authority_waits_for_the_decision_that_rests_on_it(stage, database):
    """FOR SHARE: the decider holds it and waits for the ledger; the end comes after it."""
    approval, held = stage.asked(), only()
    with holding_ledger(database):
        decider = Party(lambda: press(approval, stage.people.adjuster))
        wait_until_blocked(database)
        ender = Party(lambda: authority.end(held.pk, by=None))
        wait_until_blocked(database, 2)
    assert decider.outcome().verdict == "approve"
    ender.outcome()
    assert [entry.kind for entry in LedgerEntry.objects.order_by("sequence")] == ["decision", "authority"]


def test_a_decision_that_waited_for_the_end_of_its_authority_is_refused(stage, database):
    """The other order."""
    approval, held = stage.asked(), only()
    with holding_ledger(database):
        ender = Party(lambda: authority.end(held.pk, by=None))
        wait_until_blocked(database)
        decider = Party(lambda: press(approval, stage.people.adjuster))
        wait_until_blocked(database, 2)
    ender.outcome()
    with pytest.raises(NotAnApprover, match="no authority"):
        decider.outcome()


# Limits


@pytest.mark.parametrize(("limit", "enough"), [(183_999, False), (184_000, True), (184_001, True), (None, True)])
def test_the_limit_of_one_approval(stage, limit, enough):
    approval = stage.asked()
    only(limit_minor=limit)
    if enough:
        decision = press(approval, stage.people.adjuster)
        assert f'"authority":{Authority.objects.get().pk}' in decision.entry.record
        assert f'"authority_limit_minor":{"null" if limit is None else limit}' in decision.entry.record
        return
    with pytest.raises(NotAnApprover, match=r"Your authority ends at 1,839.99 USD for one approval; this is 1,840.00"):
        press(approval, stage.people.adjuster)
    page = text(browser(stage.people.adjuster).get(f"/approvals/{approval.pk}/"))
    assert "Your authority ends at 1,839.99 USD" in page
    assert "Sign and approve" not in page
    assert press(approval, stage.people.adjuster, "reject", "too much").verdict == "reject"


@pytest.mark.parametrize(("limit", "enough"), [(367_999, False), (368_000, True), (368_001, True)])
def test_the_limit_to_one_payee_in_24_hours_counts_what_anybody_approved(stage, limit, enough):
    first, second, other = stage.asked("run-1"), stage.asked("run-2"), stage.asked("run-3", payee="p-2")
    only(payee_limit_minor=limit)
    press(first, stage.people.second_adjuster)
    press(other, stage.people.adjuster)
    if enough:
        press(second, stage.people.adjuster)
    else:
        with pytest.raises(NotAnApprover, match=r"1,840\.00 USD were approved for this payee already"):
            press(second, stage.people.adjuster)


@pytest.mark.parametrize(("late", "enough"), [(timedelta(microseconds=-1), False), (timedelta(), True)])
def test_what_was_approved_24_hours_ago_counts_no_more(stage, late, enough):
    first, second = stage.asked("run-1"), stage.asked("run-2")
    only(payee_limit_minor=184_000)
    given = press(first, stage.people.adjuster).decided_at
    freeze_clock(given + DAY + late)
    if enough:
        press(second, stage.people.adjuster)
    else:
        with pytest.raises(NotAnApprover, match="for one payee in 24 hours"):
            press(second, stage.people.adjuster)


def test_of_two_decisions_for_one_payee_at_once_only_one_fits_the_limit(stage, database):
    """In two runs, so no row is common: the payee's advisory lock makes the second see the first."""
    first, second = stage.asked("run-1"), stage.asked("run-2")
    only(payee_limit_minor=200_000)
    with holding_ledger(database):
        one = Party(lambda: press(first, stage.people.adjuster))
        wait_until_blocked(database)
        other = Party(lambda: press(second, stage.people.second_adjuster))
        wait_until_blocked(database, 2)
    assert one.outcome().verdict == "approve"
    with pytest.raises(NotAnApprover, match="for one payee in 24 hours"):
        other.outcome()
    assert Approval.objects.filter(status="approved").count() == 1


def test_the_narrowest_authority_that_suffices_is_the_one_used(stage):
    wide = only(limit_minor=None)
    narrow = Authority.objects.create(
        user=stage.people.adjuster, currency="USD", limit_minor=200_000, valid_from=LONG_AGO
    )
    assert f'"authority":{narrow.pk},' in press(stage.asked("run-1"), stage.people.adjuster).entry.record
    large = stage.asked("run-2", amount_minor=200_001)
    assert f'"authority":{wide.pk},' in press(large, stage.people.adjuster).entry.record


# A password given just now


@pytest.mark.parametrize(("age", "enough"), [(299, True), (300, True), (301, False), (None, False)])
def test_above_an_amount_the_password_must_have_been_given_in_the_last_five_minutes(stage, age, enough):
    from approvals.decisions import decide

    approval = stage.asked()
    only(password_above_minor=183_999)
    sent = {"user": stage.people.adjuster, "verdict": "approve", "comment": "", "auth_age": age} | shown(approval)
    if enough:
        assert decide(approval.pk, **sent).verdict == "approve"
    else:
        with pytest.raises(PasswordNeeded, match="Confirm your password") as needed:
            decide(approval.pk, **sent)
        assert needed.value.status == 403


@pytest.mark.parametrize("above", [184_000, 184_001, None])
def test_up_to_that_amount_no_password_is_asked_for(stage, above):
    only(password_above_minor=above)
    assert press(stage.asked(), stage.people.adjuster).verdict == "approve"


def test_the_page_asks_for_the_password_and_decides_with_it(stage):
    approval, people = stage.asked(), stage.people
    only(password_above_minor=0)
    client, address = browser(people.adjuster), f"/approvals/{approval.pk}/decide/"
    assert 'type="password"' in client.get(f"/approvals/{approval.pk}/").content.decode()
    sent = form(approval, reader=people.adjuster)
    without = client.post(address, sent)
    assert (without.status_code, Decision.objects.count()) == (403, 0)
    assert "Your password is needed" in text(without)
    wrong = client.post(address, sent | {"password": "guessed"})
    assert (wrong.status_code, Decision.objects.count()) == (422, 0)
    assert "That is not your password" in text(wrong)
    assert "guessed" not in wrong.content.decode()
    right = client.post(address, sent | {"password": people.password})
    assert right.status_code == 303
    assert '"auth_age":0' in Decision.objects.get().entry.record


@pytest.mark.parametrize(("failures", "status"), [(4, 303), (5, 429)])
def test_after_five_wrong_passwords_not_even_the_right_one_is_tried_for_a_while(stage, failures, status):
    approval, people = stage.asked(), stage.people
    only(password_above_minor=0)
    client, address = browser(people.adjuster), f"/approvals/{approval.pk}/decide/"
    sent = form(approval, reader=people.adjuster)
    for _ in range(failures):
        assert client.post(address, sent | {"password": "guessed"}).status_code == 422
    assert client.post(address, sent | {"password": people.password}).status_code == status
    if status == 429:
        move_clock(timedelta(minutes=15, seconds=1))
        assert client.post(address, sent | {"password": people.password}).status_code == 303
    assert PasswordFailure.objects.count() == failures


# Granted on the record


def test_each_grant_change_and_end_is_an_entry_of_the_ledger(stage):
    made = authority.grant(by=stage.people.superuser, user=stage.people.adjuster, currency="USD", limit_minor=500)
    authority.change(made.pk, by=stage.people.superuser, limit_minor=900)
    authority.end(made.pk, by=None)
    records = [entry.record for entry in LedgerEntry.objects.filter(kind="authority").order_by("sequence")]
    assert [('"act":"granted"' in records[0], '"limit_minor":500' in records[0])] == [(True, True)]
    assert '"act":"changed"' in records[1]
    assert '"limit_minor":900' in records[1]
    assert '"act":"ended"' in records[2]
    assert ledger.verify().problems == []


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"currency": "USD", "limit_minor": -1},
        {"limit_minor": 1},
        {"valid_to": LONG_AGO},
        {"group": "adjusters"},
    ],
)
def test_an_authority_that_cannot_be_is_refused_and_nothing_is_entered(stage, columns):
    holder = {} if not columns else {"user": stage.people.adjuster}
    group = {"group": Group.objects.get(name="adjusters")} if "group" in columns else {}
    with pytest.raises(ValidationError):
        authority.grant(by=None, **holder | columns | group)
    assert Authority.objects.count() == 1
    assert not LedgerEntry.objects.exists()


# In the database itself


def refused(database, statement, *values):
    with psycopg.connect(database.url, autocommit=True) as other, pytest.raises(psycopg.errors.Error) as error:
        other.execute(statement, values)
    return str(error.value)


def test_the_database_refuses_to_spend_an_approval_with_too_few_signatures(stage, database):
    approval = stage.asked()
    change(database, "UPDATE approvals_approval SET status = 'approved', closed_at = now() WHERE id = %s", approval.pk)
    spend = "UPDATE approvals_approval SET spent_at = now(), spent_key = 'x' WHERE id = %s"
    assert "too few valid signatures" in refused(database, spend, approval.pk)


def test_the_database_refuses_a_second_vote_of_the_same_person(stage, database):
    approval = stage.asked()
    press(approval, stage.people.adjuster)
    entry = authority.grant(by=None, user=stage.people.ops) and LedgerEntry.objects.last()
    insert = (
        "INSERT INTO approvals_decision (approval_id, user_id, verdict, comment, decided_at, entry_id) "
        "VALUES (%s, %s, 'approve', '', now(), %s)"
    )
    assert "decision_one_vote" in refused(database, insert, approval.pk, stage.people.adjuster.pk, entry.sequence)


@pytest.mark.parametrize("statement", ["DELETE FROM approvals_authority", "TRUNCATE approvals_authority"])
def test_the_database_keeps_authorities(stage, database, statement):
    assert "append-only" in refused(database, statement)


def test_what_a_decision_rests_on_is_paid(stage):
    press(stage.asked(), stage.people.adjuster)
    drain()
    assert stage.receiver.keys == ["run-1:step2"]


def test_a_superuser_with_an_authority_decides_nothing(stage):
    approval, root = stage.asked(), stage.people.superuser
    root.groups.set(stage.people.adjuster.groups.all())
    authority.grant(by=root, user=root)
    with pytest.raises(NotAnApprover, match="superuser"):
        press(approval, User.objects.get(pk=root.pk))


def test_an_admin_grants_and_changes_authorities_in_the_admin_and_each_is_entered(people):
    boss = User.objects.create(username="anna", is_staff=True)
    boss.groups.set([Group.objects.get(name="admins")])
    client, address = browser(boss), "/admin/approvals/authority/"
    sent = {"user": people.ops.pk, "currency": "USD", "limit_minor": 700} | {
        "valid_from_0": "2026-01-01",
        "valid_from_1": "00:00:00",
    }
    assert client.post(f"{address}add/", sent).status_code == 302
    made = Authority.objects.get(user=people.ops)
    assert client.post(f"{address}{made.pk}/change/", sent | {"limit_minor": 900}).status_code == 302
    assert client.post(f"{address}{made.pk}/delete/", {"post": "yes"}).status_code == 403
    made.refresh_from_db()
    acts = [entry.record for entry in LedgerEntry.objects.order_by("sequence")]
    assert (made.limit_minor, len(acts)) == (900, 2)
    assert all(f'"by":{boss.pk},' in record for record in acts)


def test_an_adjuster_cannot_grant_herself_anything(people):
    User.objects.filter(pk=people.adjuster.pk).update(is_staff=True)
    ada = User.objects.get(pk=people.adjuster.pk)
    assert browser(ada).post("/admin/approvals/authority/add/", {"user": ada.pk}).status_code == 403


def test_the_command_grants_lists_and_ends_and_tells_when_there_is_none(people, capsys):
    from django.core.management import CommandError, call_command

    call_command("authorities", "grant", "--to-user", "olga", "--currency", "USD", "--limit-minor", "700")
    made = Authority.objects.get(user=people.ops)
    call_command("authorities", "list")
    assert "700 USD" in capsys.readouterr().out
    call_command("authorities", "end", str(made.pk), "--as", "root")
    made.refresh_from_db()
    assert made.valid_to is not None
    assert LedgerEntry.objects.filter(kind="authority").count() == 2
    for wrong, code in ((["grant"], 2), (["grant", "--to-user", "olga", "--as", "ada"], 1), (["end", "99"], 3)):
        with pytest.raises(CommandError) as error:
            call_command("authorities", *wrong)
        assert error.value.returncode == code
