"""While nobody answers: each rung is fired once, late if nobody swept, never after the answer; and people are told."""

from datetime import timedelta

import pytest
from browsing import browser, text
from django.core import mail
from django.db import connection
from stage import Party, Stage, fresh, holding, press, question, shown, wait_until_blocked
from webhook_receiver import SECRET, Receiver

from approvals import escalation, ledger, notices, proposals
from approvals.gate import escalate, remind, remind_and_wait
from approvals.models import Approval, Authority, LedgerEntry, Notice, Rung
from approvals.refusals import NotAnApprover, TooLate
from runs import sweep
from runs.models import Recurring
from runs.testing import drain, move_clock

HOUR = timedelta(hours=1)
DAY = 24 * HOUR


@pytest.fixture
def stage(people):
    from django.contrib.auth.models import Group, User

    with Stage(people) as stage:
        seniors = Group.objects.get(name="senior-adjusters")
        Authority.objects.create(group=seniors, valid_from="2020-01-01T00:00:00Z")
        stage.senior = User.objects.create(username="sam", email="sam@example.invalid")
        stage.senior.groups.set([seniors, people.team])
        yield stage


def asks(stage, **terms):
    ladder = [remind(after=HOUR), escalate(to="senior-adjusters", after=2 * HOUR)]
    stage.asks_then_pays(**{"ladder": ladder, "expires_in": 4 * HOUR} | terms)
    return stage.asked()


def fired():
    return list(Rung.objects.filter(fired_at__isnull=False, is_void=False).values_list("kind", flat=True))


def ladder_entries():
    return [entry.record for entry in LedgerEntry.objects.filter(kind="ladder").order_by("sequence")]


def send_all():
    while notices.send_next():
        pass
    sent, mail.outbox[:] = list(mail.outbox), []
    return sent


@pytest.mark.parametrize(
    ("past", "expected"),
    [
        (HOUR - timedelta(seconds=30), []),
        (HOUR + timedelta(seconds=1), ["remind"]),
        (2 * HOUR - timedelta(seconds=30), ["remind"]),
        (2 * HOUR + timedelta(seconds=1), ["remind", "escalate"]),
    ],
)
def test_a_rung_is_fired_when_its_time_has_come(stage, past, expected):
    asks(stage)
    move_clock(past)
    sweep.sweep()
    assert fired() == expected
    assert len(ladder_entries()) == len(expected)
    assert ledger.verify().problems == []


def test_an_escalation_lets_the_next_group_decide_and_the_earlier_one_still(stage):
    approval = asks(stage)
    with pytest.raises(NotAnApprover, match="Only adjusters may"):
        press(approval, stage.senior)
    move_clock(2 * HOUR + timedelta(seconds=1))
    sweep.sweep()
    assert (question(approval.run).level, fresh(approval.run).status) == (1, "waiting")
    assert "Level 1" in text(browser(stage.people.adjuster).get(f"/approvals/{approval.pk}/"))
    press(approval, stage.senior)


def test_an_escalation_may_take_the_question_from_the_earlier_group(stage):
    approval = asks(stage, ladder=[escalate(to="senior-adjusters", after=HOUR, earlier_may_decide=False)])
    page = shown(approval)
    move_clock(HOUR + timedelta(seconds=1))
    sweep.sweep()
    with pytest.raises(NotAnApprover, match="Only senior-adjusters may"):
        press(approval, stage.people.adjuster, page=page)
    press(approval, stage.senior, page=page)


def test_of_two_sweeps_at_once_each_rung_is_fired_by_one(stage, database):
    """C22: the first waits for the ledger with the run locked; the second steps aside."""
    asks(stage)
    move_clock(3 * HOUR)
    with holding(database, "SELECT FROM approvals_ledgerhead FOR UPDATE"):
        first = Party(escalation.fire_due)
        wait_until_blocked(database)
        assert escalation.fire_due() == 0
    assert first.outcome() == 2
    assert escalation.fire_due() == 0
    assert (fired(), len(ladder_entries())) == (["remind", "escalate"], 2)


def test_a_sweep_that_saw_a_rung_before_another_fired_it_does_not_fire_it_again(stage, database):
    """The other interleaving: it read the list of what is due, and comes to the row when the first has committed."""
    approval = asks(stage)
    move_clock(3 * HOUR)
    with holding(database, "SELECT FROM approvals_approval WHERE id = %s FOR NO KEY UPDATE", approval.pk) as other:
        late = Party(escalation.fire_due)
        wait_until_blocked(database)
        other.execute("UPDATE approvals_rung SET fired_at = now()")
        other.commit()
    assert late.outcome() == 0
    assert ladder_entries() == []


def test_after_a_stop_over_several_rungs_each_is_fired_once_and_one_notice_tells_how_it_stands(stage):
    """C22: no burst."""
    approval = asks(stage)
    send_all()
    move_clock(3 * HOUR)
    sweep.sweep()
    sweep.sweep()
    assert fired() == ["remind", "escalate"]
    [told] = send_all()
    assert told.subject == "Escalated to you: an approval waits: run run-1"
    assert sorted(told.bcc) == ["ada@example.invalid", "ben@example.invalid", "sam@example.invalid"]
    assert approval.run.requested_by.email not in told.bcc


def test_after_a_stop_over_the_deadline_each_rung_is_fired_once_and_then_it_expires(stage):
    approval = asks(stage)
    page = shown(approval)
    move_clock(5 * HOUR)
    with pytest.raises(TooLate):
        press(approval, stage.people.adjuster, page=page)
    drain()
    assert fired() == ["remind", "escalate"]
    kinds = list(LedgerEntry.objects.order_by("sequence").values_list("kind", flat=True))
    assert kinds == ["ladder", "ladder", "expiry"]
    assert (fresh(approval.run).status, Approval.objects.get().status) == ("expired", "expired")
    assert [told.subject for told in send_all()] == ["An approval expired: run run-1"]


def test_nothing_is_fired_or_told_after_the_answer(stage):
    approval = asks(stage)
    press(approval, stage.people.adjuster)
    drain()
    move_clock(3 * HOUR)
    sweep.sweep()
    assert (fired(), ladder_entries(), send_all()) == ([], [], [])
    assert not Rung.objects.pending().exists()


def test_the_ladder_goes_on_for_a_counter_proposal(stage):
    approval = asks(stage)
    arguments = approval.payload.replace("184000", "150000")
    proposals.edit(
        approval.pk,
        user=stage.people.adjuster,
        comment="less",
        arguments=arguments[len('{"arguments":') : arguments.index(',"tool"')],
        **shown(approval),
    )
    move_clock(3 * HOUR)
    sweep.sweep()
    second = question(approval.run)
    assert (second.version, second.level, fired()) == (2, 1, ["remind", "escalate"])
    press(second, stage.senior)


def test_an_empty_group_is_escalated_to_and_it_shows_that_nobody_was_told(stage):
    """C22"""
    stage.senior.groups.clear()
    asks(stage, ladder=[escalate(to="senior-adjusters", after=HOUR, earlier_may_decide=False)])
    send_all()
    move_clock(HOUR + timedelta(seconds=1))
    sweep.sweep()
    assert (fired(), send_all()) == (["escalate"], [])
    notice = Notice.objects.get(kind="escalation")
    assert (notice.told, notice.sent_at is not None) == (0, True)


def test_on_expiry_escalate_gives_the_next_group_as_long_again_and_then_it_expires(stage):
    approval = asks(stage, ladder=[escalate(to="senior-adjusters")], on_expiry="escalate")
    assert approval.due_at - approval.asked_at == 8 * HOUR
    move_clock(4 * HOUR + timedelta(seconds=1))
    drain()
    assert (question(approval.run).level, fresh(approval.run).status) == (1, "waiting")
    move_clock(8 * HOUR + timedelta(seconds=1))
    drain()
    assert fresh(approval.run).status == "expired"


def test_remind_and_wait_reminds_again_and_again_up_to_its_last_end(stage):
    approval = asks(stage, ladder=[], on_expiry=remind_and_wait(every=2 * HOUR, until=9 * HOUR))
    for hours, count in ((3, 0), (4.1, 1), (6.1, 2), (8.1, 3)):
        move_clock(hours * HOUR)
        drain()
        assert (len(fired()), fresh(approval.run).status) == (count, "waiting")
    move_clock(9 * HOUR + timedelta(seconds=1))
    drain()
    assert (len(fired()), fresh(approval.run).status) == (3, "expired")


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        ({"ladder": [remind(after=4 * HOUR)]}, "must be within"),
        ({"ladder": [remind(after=timedelta())]}, "must be within"),
        ({"ladder": [escalate(to="nobody-knows", after=HOUR)]}, "there is no group nobody-knows"),
        ({"ladder": [escalate(to="senior-adjusters")]}, "needs after="),
        ({"on_expiry": "escalate"}, "without after= in its ladder"),
        ({"on_expiry": remind_and_wait(every=HOUR, until=4 * HOUR)}, "until= after expires_in"),
        ({"on_expiry": remind_and_wait(every=timedelta(seconds=1), until=9 * HOUR)}, "rungs"),
    ],
)
def test_a_ladder_that_cannot_be_climbed_is_refused_when_it_is_asked(stage, terms, sentence):
    stage.asks_then_pays(**{"expires_in": 4 * HOUR} | terms)
    run = stage.begin()
    assert (run.status, Approval.objects.count()) == ("dead", 0)
    assert sentence in run.reason


# Notices


def test_asking_tells_those_who_may_decide_by_a_link_that_decides_nothing(stage):
    """C09: and says nothing of payee or amount."""
    approval = asks(stage)
    assert mail.outbox == []
    [told] = send_all()
    assert (told.to, sorted(told.bcc)) == ([], ["ada@example.invalid", "ben@example.invalid"])
    assert f"http://localhost:8000/approvals/{approval.pk}/" in told.body
    assert "1,840" not in told.body
    assert "p-1" not in told.body
    for client in (browser(stage.people.adjuster), browser(stage.people.stranger)):
        for method in (client.get, client.head):
            method(f"/approvals/{approval.pk}/", headers={"Sec-Purpose": "prefetch"})
    assert question(approval.run) == approval
    assert not approval.decisions.exists()


def test_a_roll_back_tells_nobody(stage):
    stage.asks_then_pays(ladder=[escalate(to="nobody-knows", after=HOUR)])
    stage.begin()
    assert not Notice.objects.exists()


def test_a_death_between_sending_and_noting_it_sends_once_more_and_no_oftener(stage):
    asks(stage)

    class Dead(BaseException):
        pass

    def die(execute, sql, params, many, context):
        if sql.startswith('UPDATE "approvals_notice" SET "sent_at"'):
            raise Dead
        return execute(sql, params, many, context)

    with pytest.raises(Dead), connection.execute_wrapper(die):
        notices.send_next()
    assert len(mail.outbox) == 1
    assert notices.send_next() is False
    move_clock(timedelta(minutes=5, seconds=1))
    send_all()
    assert notices.send_next() is False
    assert (Notice.objects.get().attempts, Notice.objects.get().told) == (2, 2)


@pytest.mark.parametrize("tries", [4, 5])
def test_what_cannot_be_sent_is_tried_five_times_and_then_says_why(stage, settings, tries):
    asks(stage)
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    for number in range(tries):
        move_clock(number * timedelta(minutes=6))
        assert notices.send_next() is True
    move_clock(tries * timedelta(minutes=6))
    assert notices.send_next() is (tries < 5)
    assert Notice.objects.get().error == "ConnectionRefusedError"


def test_the_sweep_starts_the_sending_only_when_there_is_something_to_send(stage):
    due = {"every": timedelta(seconds=30), "due_at": "2020-01-01T00:00:00Z", "team": stage.people.team}
    Recurring.objects.create(name="approval-notices", workflow="approval-notices", **due)
    assert sweep.sweep()["started"] == 0
    stage.asks_then_pays()
    stage.begin()
    Recurring.objects.update(due_at="2020-01-01T00:00:00Z")
    drain()
    assert len(mail.outbox) == 1
    assert not Notice.objects.unsent().exists()


def test_the_webhook_is_signed_after_standard_webhooks_and_keeps_its_id_at_each_try(stage, settings):
    with Receiver(500) as receiver:
        settings.NOTIFY_WEBHOOK_URL, settings.NOTIFY_WEBHOOK_SECRET = receiver.url, SECRET
        approval = asks(stage)
        send_all()
        move_clock(timedelta(minutes=6))
        send_all()
    assert receiver.ids == [f"notice-{Notice.objects.last().pk}"] * 2
    for event in receiver.events:
        assert (event["type"], event["data"]["approval"]) == ("approval.asked", approval.pk)
    assert not any(b"p-1" in body for body, _ in receiver.received)


def test_what_is_due_is_found_by_index_among_many_rungs(stage, database):
    approval = asks(stage)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO approvals_rung (approval_id, number, kind, earlier_may_decide, due_at, is_void) "
            "SELECT %s, (n %% 32000)::smallint, 'remind', true, now() + n * interval '1 hour', false "
            "FROM generate_series(100, 30000) n",
            [approval.pk],
        )
        cursor.execute("ANALYZE approvals_rung")
        due = Rung.objects.due().order_by("due_at").values_list("approval_id", "approval__run_id")[:500]
        plan = due.explain()
    assert "rung_due" in plan
    assert "Seq Scan on approvals_rung" not in plan
