"""Who holds an approval: one at a time, told in a log, by those who may; and it never changes who may decide."""

import json
import re
from datetime import UTC, date, datetime, timedelta

import pytest
from browsing import HTMX, browser, text
from django.contrib.auth.models import Group, Permission, User
from django.db import IntegrityError, connection
from stage import Party, Stage, freeze_clock, holding_run, question, shown, wait_until_blocked

from approvals import assignment, proposals
from approvals.assignment import Expired, HeldByAnother, Invalid, NotAllowed, NotOpen, Stranger
from approvals.models import Absence, Approval, AssignmentEvent, InboxEntry
from approvals.testing import answer
from runs import engine
from runs.models import AuditEvent, database_clock
from runs.testing import drain, move_clock

TODAY = datetime.now(UTC).date()


def day(number: int) -> date:
    return TODAY + timedelta(days=number)


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        stage.asks_then_pays()
        yield stage


@pytest.fixture
def approval(stage):
    return stage.asked("claim-0042")


@pytest.fixture
def ada(people):
    return people.adjuster


@pytest.fixture
def ben(people):
    return people.second_adjuster


def holder(approval):
    return InboxEntry.objects.get(approval=approval).holder


def log():
    events = AssignmentEvent.objects.order_by("pk")
    return [
        tuple(str(each) if each else None for each in (event.kind, event.by, event.before, event.to))
        for event in events
    ]


# Claim, release, assign


def test_what_is_claimed_released_and_assigned_is_held_by_one_and_logged_with_who_when_and_to_whom(approval, ada, ben):
    at = database_clock()
    assignment.claim(approval.pk, by=ada)
    assert holder(approval) == ada
    assignment.release(approval.pk, by=ada)
    assert holder(approval) is None
    assignment.assign(approval.pk, to=ben, seen=None, by=ada)
    assert holder(approval) == ben
    assert log() == [
        ("claimed", "ada", None, "ada"),
        ("released", "ada", "ada", None),
        ("assigned", "ada", None, "ben"),
    ]
    assert all(at <= event.at <= database_clock() for event in AssignmentEvent.objects.all())


def test_doing_it_again_changes_nothing_and_logs_nothing(approval, ada, ben):
    for _ in range(2):
        assignment.claim(approval.pk, by=ada)
    for _ in range(2):
        assignment.assign(approval.pk, to=ben, seen=ada.pk, by=ada)
    for _ in range(2):
        assignment.release(approval.pk, by=ben)
    assert [kind for kind, *_ in log()] == ["claimed", "assigned", "released"]


def test_holding_changes_nothing_about_who_may_decide(approval, ada, ben):
    assignment.claim(approval.pk, by=ada)
    assert "Decision locked" not in text(browser(ben).get(f"/approvals/{approval.pk}/"))
    assert answer(approval, ben).user == ben
    assert not InboxEntry.objects.exists()


def test_a_stranger_gets_no_such_approval_and_everybody_else_the_rule(approval, people, ada):
    with pytest.raises(Stranger):
        assignment.claim(approval.pk, by=people.stranger)
    with pytest.raises(NotAllowed, match="rick asked for this and may not approve it: four eyes"):
        assignment.claim(approval.pk, by=people.requester)
    for person in (people.ops, people.superuser, people.auditor):
        with pytest.raises(NotAllowed, match="Only members of adjusters in the team claims"):
            assignment.claim(approval.pk, by=person)
    with pytest.raises(NotAllowed):
        assignment.assign(approval.pk, to=ada, seen=None, by=people.auditor)
    assignment.claim(approval.pk, by=ada)
    with pytest.raises(NotAllowed, match="Only ada"):
        assignment.release(approval.pk, by=people.second_adjuster)
    refused = AuditEvent.objects.filter(kind="verb-refused").values_list("user__username", "detail")
    assert [name for name, _ in refused] == ["eve", "rick", "olga", "root", "aud", "aud", "ben"]
    assert refused[0][1].startswith("claimed: 404")
    assert refused[1][1].startswith("claimed: 403")
    assert len(log()) == 1


def test_the_right_to_assign_suffices_to_assign_and_to_release_for_others(approval, people, ada):
    assignment.assign(approval.pk, to=ada, seen=None, by=people.ops)
    assignment.release(approval.pk, by=people.ops)
    assert [kind for kind, *_ in log()] == ["assigned", "released"]


@pytest.mark.parametrize("who", ["requester", "ops", "superuser", "stranger", "auditor", "nobody"])
def test_only_who_could_be_asked_can_be_given_an_approval(approval, people, ada, who):
    with pytest.raises(Invalid) as refusal:
        assignment.assign(approval.pk, to=getattr(people, who, None), seen=None, by=ada)
    assert refusal.value.field == "to"
    assert holder(approval) is None


def edited(approval, person, amount_minor=150_000):
    """Another version, which this person proposed."""
    arguments = json.dumps(json.loads(approval.payload)["arguments"] | {"amount_minor": amount_minor})
    proposals.edit(approval.pk, user=person, arguments=arguments, comment="less", **shown(approval))
    return question(approval.run)


def test_whoever_changed_it_can_hold_no_later_version_and_is_told_why(approval, ada, ben, people):
    assignment.claim(approval.pk, by=ada)
    second = edited(approval, ada)
    assert holder(second) is None
    with pytest.raises(NotAllowed, match="ada changed what is asked and may not approve it: four eyes"):
        assignment.claim(second.pk, by=ada)
    third = edited(second, ben, 140_000)
    cara = User.objects.create(username="cara")
    cara.groups.set(ada.groups.all())
    for person in (ada, ben, people.requester):
        with pytest.raises(Invalid, match=f"{person} .* may not approve it") as refusal:
            assignment.assign(third.pk, to=person, seen=None, by=cara)
        assert refusal.value.field == "to"
        page = browser(person).get(f"/approvals/{third.pk}/")
        assert "Somebody else has to hold it" in text(page)
        assert 'value="claim"' not in page.content.decode()
    offered = browser(cara).get(f"/approvals/{third.pk}/").content.decode()
    assert [name for name in ("ada", "ben", "rick", "cara (you)") if f">{name}</option>" in offered] == ["cara (you)"]
    told = bulk(cara, [third], ada)
    assert told.status_code == 409
    assert "ada changed what is asked and may not approve it" in text(told)
    assignment.claim(third.pk, by=cara)
    assert holder(third) == cara


def test_the_bar_of_the_inbox_offers_only_those_who_can_hold_one_of_its_rows(stage, ada, ben, people):
    first = stage.asked("first")
    assert assignment_offers(ben) == {"ada", "ben (you)"}
    edited(first, ada)
    assert assignment_offers(ben) == {"ben (you)"}
    stage.asked("second")
    assert assignment_offers(ben) == {"ada", "ben (you)"}
    assert assignment_offers(people.requester) == set()


def assignment_offers(person):
    return set(re.findall(r"<option value=\"\d+\">([^<]+)</option>", browser(person).get("/inbox/").content.decode()))


def test_a_deputy_is_not_shown_what_four_eyes_forbid_her_to_approve(stage, ada, ben, people):
    ordinary, changed_by_ben = stage.asked("ordinary"), edited(stage.asked("changed"), ben)
    engine.start(stage.flow, key="asked-by-ben", input={}, team=people.team, by=ben)
    drain()
    asked_by_ben = Approval.objects.get(run__key="asked-by-ben")
    cara = User.objects.create(username="cara")
    cara.groups.set(ada.groups.all())
    for approval in (ordinary, changed_by_ben, asked_by_ben):
        assignment.claim(approval.pk, by=cara)
    assignment.delegate(to=ben, first=day(0), last=day(1), by=cara)
    listed = browser(ben).get("/inbox/?scope=mine").context["listed"].rows
    assert [row.run.key for row in listed] == ["ordinary"]
    for approval in (changed_by_ben, asked_by_ben):
        with pytest.raises(NotAllowed, match=r"ben .* may not approve it"):
            assignment.claim(approval.pk, by=ben)


def test_somebody_switched_off_can_hold_nothing(approval, ada, ben):
    User.objects.filter(pk=ben.pk).update(is_active=False)
    with pytest.raises(Invalid):
        assignment.assign(approval.pk, to=ben, seen=None, by=ada)


def test_nothing_is_assigned_on_what_another_than_the_shown_holder_has_by_now(approval, ada, ben, people):
    assignment.claim(approval.pk, by=ben)
    with pytest.raises(HeldByAnother, match="ben holds it since") as refusal:
        assignment.assign(approval.pk, to=ada, seen=None, by=ada)
    assert refusal.value.holder == ben
    assignment.assign(approval.pk, to=ada, seen=ben.pk, by=ada)
    assert holder(approval) == ada


def test_what_is_decided_cancelled_or_expired_has_no_holder(stage, people, ada):
    decided, cancelled, expired = (stage.asked(key) for key in ("decided", "cancelled", "expired"))
    for approval in (decided, cancelled, expired):
        assignment.claim(approval.pk, by=ada)
    answer(decided, ada)
    engine.cancel("cancelled", by=None, why="a test")
    for approval in (decided, cancelled):
        with pytest.raises(NotOpen, match="nothing left to hold"):
            assignment.release(approval.pk, by=ada)
    assert list(InboxEntry.objects.values_list("approval", flat=True)) == [expired.pk]
    for early, refused in ((timedelta(microseconds=1), False), (timedelta(), True)):
        freeze_clock(expired.due_at - early)
        if refused:
            with pytest.raises(Expired):
                assignment.release(expired.pk, by=ada)
        else:
            assignment.claim(expired.pk, by=ada)


def test_two_claim_at_once_and_one_is_told_that_the_other_has_it(approval, ada, ben, database):
    with holding_run(database, approval.run_id):
        first = Party(lambda: assignment.claim(approval.pk, by=ada))
        wait_until_blocked(database, 1)
        second = Party(lambda: assignment.claim(approval.pk, by=ben))
        wait_until_blocked(database, 2)
    assert first.outcome().holder == ada
    with pytest.raises(HeldByAnother, match="ada holds it"):
        second.outcome()
    assert log() == [("claimed", "ada", None, "ada")]


def test_a_claim_that_waited_for_the_deciding_one_finds_nothing_left_to_hold(approval, ada, ben, database):
    with holding_run(database, approval.run_id):
        deciding = Party(lambda: answer(approval, ada))
        wait_until_blocked(database, 1)
        claiming = Party(lambda: assignment.claim(approval.pk, by=ben))
        wait_until_blocked(database, 2)
    assert deciding.outcome().user == ada
    with pytest.raises(NotOpen):
        claiming.outcome()


def test_a_role_taken_away_while_the_claim_waits_counts(approval, ada, database):
    with holding_run(database, approval.run_id):
        claiming = Party(lambda: assignment.claim(approval.pk, by=ada))
        wait_until_blocked(database, 1)
        ada.groups.remove(Group.objects.get(name="adjusters"))
    with pytest.raises(NotAllowed):
        claiming.outcome()


def test_of_many_each_is_assigned_by_itself_and_each_refusal_is_told(stage, ada, ben):
    free, held, gone = (stage.asked(key) for key in ("free", "held", "gone"))
    assignment.claim(held.pk, by=ben)
    answer(gone, ben)
    outcome = assignment.assign_many([(each.pk, None) for each in (free, held, gone)], to=ada, by=ada)
    assert outcome.done == [free.pk]
    assert "ben holds it" in outcome.refused[0]
    assert "approved already" in outcome.refused[1]
    assert (holder(free), holder(held)) == (ada, ben)


@pytest.mark.parametrize("statement", ["UPDATE {} SET actor = 'x'", "DELETE FROM {}", "TRUNCATE {} CASCADE"])
def test_the_database_refuses_to_change_the_log(approval, ada, statement):
    assignment.claim(approval.pk, by=ada)
    with pytest.raises(IntegrityError, match="append-only"), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(statement.format("approvals_assignmentevent"))


# While away


def test_what_somebody_away_holds_is_in_her_deputys_inbox_from_the_first_day_to_the_last(approval, ada, ben):
    assignment.claim(approval.pk, by=ada)
    absence = assignment.delegate(to=ben, first=day(1), last=day(2), by=ada)
    limits = [
        (absence.starts_at - timedelta(microseconds=1), False),
        (absence.starts_at, True),
        (absence.ends_at - timedelta(microseconds=1), True),
        (absence.ends_at, False),
    ]
    for at, is_shown in limits:
        freeze_clock(at)
        page = text(browser(ben).get("/inbox/?scope=mine"))
        assert ("claim-0042" in page) == ("You for ada" in page) == is_shown, at
        assert "claim-0042" in text(browser(ada).get("/inbox/?scope=mine"))


def test_a_deputy_sees_only_what_her_own_groups_were_asked(approval, ada, ben):
    assignment.claim(approval.pk, by=ada)
    assignment.delegate(to=ben, first=day(0), last=day(2), by=ada)
    approval.groups.set([Group.objects.create(name="seniors")])
    assert "claim-0042" not in text(browser(ben).get("/inbox/?scope=mine"))


def test_a_deputy_may_claim_what_the_one_away_holds_and_only_then(approval, ada, ben):
    assignment.claim(approval.pk, by=ada)
    with pytest.raises(HeldByAnother):
        assignment.claim(approval.pk, by=ben)
    absence = assignment.delegate(to=ben, first=day(0), last=day(0), by=ada)
    assignment.claim(approval.pk, by=ben)
    assert log()[1:] == [("delegated", "ada", "ada", "ben"), ("claimed", "ben", "ada", "ben")]
    assert absence.ends_at - absence.starts_at == timedelta(days=1)


def test_an_absence_that_is_ended_or_called_off_delegates_nothing_any_more(approval, ada, ben):
    assignment.claim(approval.pk, by=ada)
    now = assignment.delegate(to=ben, first=day(0), last=day(5), by=ada)
    later = assignment.delegate(to=ben, first=day(6), last=day(9), by=ada)
    for absence in (now, later):
        assignment.end_absence(absence.pk, by=ada)
    assert "claim-0042" not in text(browser(ben).get("/inbox/?scope=mine"))
    move_clock(timedelta(days=7))
    assert not Absence.objects.current().exists()
    assert [kind for kind, *_ in log()] == ["claimed", "delegated", "delegated", "returned", "returned"]


def test_a_deputy_shares_a_team_and_a_group_and_is_there(ada, ben, people):
    for to in (people.stranger, people.ops, people.superuser, people.auditor, ada, None):
        with pytest.raises(Invalid, match="shares a team and a group"):
            assignment.delegate(to=to, first=day(0), last=day(0), by=ada)
    assignment.delegate(to=people.requester, first=day(2), last=day(3), by=ben)
    assignment.delegate(to=ben, first=day(0), last=day(1), by=ada)
    assignment.delegate(to=ben, first=day(4), last=day(5), by=ada)
    for first, last in ((1, 2), (3, 4), (0, 9)):
        with pytest.raises(Invalid, match="ben is away too"):
            assignment.delegate(to=ben, first=day(first), last=day(last), by=ada)


@pytest.mark.parametrize(("first", "last", "ok"), [(0, 365, True), (0, 366, False), (1, 0, False), (-3, -1, False)])
def test_an_absence_is_a_span_of_days_not_over_and_at_most_a_year(ada, ben, first, last, ok):
    if ok:
        assert assignment.delegate(to=ben, first=day(first), last=day(last), by=ada).pk
    else:
        with pytest.raises(Invalid) as refusal:
            assignment.delegate(to=ben, first=day(first), last=day(last), by=ada)
        assert refusal.value.field == "last"


def test_for_somebody_else_only_the_right_to_assign_names_a_deputy_or_ends_an_absence(ada, ben, people):
    with pytest.raises(NotAllowed):
        assignment.delegate(person=ada, to=ben, first=day(0), last=day(0), by=people.requester)
    absence = assignment.delegate(person=ada, to=ben, first=day(0), last=day(0), by=people.ops)
    with pytest.raises(NotAllowed):
        assignment.end_absence(absence.pk, by=ben)
    for verb in (
        lambda: assignment.delegate(person=ada, to=ben, first=day(0), last=day(0), by=people.stranger),
        lambda: assignment.end_absence(absence.pk, by=people.stranger),
        lambda: assignment.end_absence(999, by=people.ops),
    ):
        with pytest.raises(Stranger):
            verb()
    assignment.end_absence(absence.pk, by=people.ops)
    assert AuditEvent.objects.filter(kind="verb-refused").count() == 5


# Through the pages


def bulk(person, approvals, to, headers=None, seen=""):
    ticked = [f"{approval.pk}:{seen}" for approval in approvals]
    return browser(person).post("/inbox/assign/", {"approval": ticked, "to": to.pk if to else ""}, headers=headers)


@pytest.mark.parametrize("headers", [None, HTMX])
def test_many_are_assigned_at_once_and_the_page_says_what_became_of_each(stage, ada, ben, headers):
    approvals = [stage.asked("one"), stage.asked("two")]
    told = bulk(ada, approvals, ben, headers)
    assert told.status_code == 200
    assert "2 approvals assigned to ben" in text(told)
    assert ("<html" in told.content.decode()) == (headers is None)
    late = bulk(ada, approvals, ada, headers)
    assert late.status_code == 409
    assert "Nothing was assigned" in text(late)
    assert text(late).count("ben holds it since") == 2


def test_a_bulk_form_without_rows_or_person_or_sense_assigns_nothing(approval, ada, ben):
    assert bulk(ada, [], ben).status_code == 422
    assert bulk(ada, [approval], None).status_code == 422
    for nonsense in ("x:1", ":", f"{approval.pk}:-1", "9" * 30):
        sent = {"approval": nonsense, "to": ben.pk}
        assert browser(ada).post("/inbox/assign/", sent).status_code == 422, nonsense
    assert browser(ada).get("/inbox/assign/").status_code == 302
    assert holder(approval) is None


def test_nothing_decides_more_than_one_approval(approval, ada):
    page = browser(ada).get("/inbox/").content.decode()
    assert "/decide/" not in page
    assert bulk(ada, [approval], ada).status_code == 200
    assert not approval.decisions.exists()


@pytest.mark.parametrize("headers", [None, HTMX])
def test_one_is_claimed_released_and_assigned_from_its_page(approval, ada, ben, headers):
    address = f"/approvals/{approval.pk}/assign/"
    done = 200 if headers else 303
    page = browser(ada).get(f"/approvals/{approval.pk}/")
    assert "Unassigned" in text(page)
    for sent, expected in (
        ({"act": "claim"}, ada),
        ({"act": "release"}, None),
        ({"act": "assign", "to": ben.pk, "seen": ""}, ben),
    ):
        assert browser(ada).post(address, sent, headers=headers).status_code == done
        assert holder(approval) == expected
    late = browser(ada).post(address, {"act": "claim"}, headers=headers)
    assert late.status_code == 409
    assert "ben holds it since" in text(late)
    assert browser(ada).get(address).status_code == 302


def test_a_stranger_gets_404_for_every_form_of_assigning_and_whoever_may_not_403(approval, people):
    address = f"/approvals/{approval.pk}/assign/"
    for act in ("claim", "release", "assign"):
        assert browser(people.stranger).post(address, {"act": act}).status_code == 404
    assert browser(people.requester).post(address, {"act": "claim"}).status_code == 403
    assert browser(people.auditor).post(address, {"act": "assign", "to": people.adjuster.pk}).status_code == 403
    for person in (people.requester, people.auditor, people.superuser):
        assert 'value="claim"' not in browser(person).get(f"/approvals/{approval.pk}/").content.decode()
    assert "row-select" not in browser(people.auditor).get("/inbox/?scope=all").content.decode()
    assert "row-select" in browser(people.ops).get("/inbox/?scope=all").content.decode()


def test_people_of_other_teams_are_offered_nowhere(approval, people):
    for address in ("/inbox/", f"/approvals/{approval.pk}/", "/inbox/absences/"):
        for person in (people.adjuster, people.ops):
            assert ">eve" not in browser(person).get(address).content.decode()


def test_a_deputy_is_named_shown_and_dismissed_on_a_page(people, ada, ben):
    client, sent = browser(ada), {"to": ben.pk, "first": day(0).isoformat(), "last": day(3).isoformat()}
    assert client.post("/inbox/absences/new/", sent).status_code == 303
    page = text(client.get("/inbox/absences/"))
    assert "ada (you)" in page
    assert "End now" in page
    assert "End now" not in text(browser(ben).get("/inbox/absences/"))
    absence = Absence.objects.get()
    assert browser(people.stranger).post(f"/inbox/absences/{absence.pk}/end/").status_code == 404
    assert browser(ben).post(f"/inbox/absences/{absence.pk}/end/").status_code == 403
    assert client.post(f"/inbox/absences/{absence.pk}/end/").status_code == 303
    assert "Nobody here is away" in text(client.get("/inbox/absences/"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"to": ""}, "Choose a deputy."),
        ({"to": "999"}, "Choose a deputy."),
        ({"first": "soon"}, "Say a day"),
        ({"last": "2020-01-01"}, "The last day is before the first."),
        ({"first": "0001-01-01", "last": "9999-12-31"}, "An absence lasts 366 days at most."),
        ({"first": "9999-12-31", "last": "9999-12-31"}, "more than 3660 days ahead"),
    ],
)
def test_a_form_that_names_no_deputy_or_no_days_is_told_so_at_the_field(ada, ben, changes, words):
    sent = {"to": ben.pk, "first": day(0).isoformat(), "last": day(1).isoformat()} | changes
    refused = browser(ada).post("/inbox/absences/new/", sent)
    assert refused.status_code == 422
    assert text(refused).count(words) == 2
    assert not Absence.objects.exists()


def test_who_may_read_the_log_are_auditors(people):
    names = Permission.objects.filter(group__name="auditors").values_list("codename", flat=True)
    assert {"view_assignmentevent", "view_absence"} <= set(names)
    assert browser(people.auditor).get("/admin/approvals/assignmentevent/").status_code == 200
