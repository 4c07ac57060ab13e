"""Alarms: each fault opens one, told of by one mail, acknowledged by whoever may, and closed by itself once over."""

import json
import threading
from datetime import timedelta

import pytest
from browsing import Inline, browser, text
from django.core import mail
from django.db import IntegrityError, transaction
from sandbox_process import wait_until
from stage import Party, Stage, freeze_clock, holding
from webhook_receiver import SECRET, Receiver

from approvals import ledger
from approvals.measures import VERIFIED
from approvals.models import LedgerEntry
from runs import alerts, engine, notices, repair, upkeep
from runs.errors import BadRequest, NotAllowed, PermanentError
from runs.models import Alarm, AlarmRule, AuditEvent, Beat, Run, Sending, Upkeep, database_clock
from runs.sweep import sweep
from runs.tools import tool

SECOND = timedelta(seconds=1)


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


def look() -> None:
    """One look of the sweep's, and what a runner's threads then send."""
    Upkeep.objects.get_or_create(name="alarms", defaults={"every": 5 * SECOND, "due_at": database_clock()})
    upkeep.do("alarms", now=True)
    notices.send_due()


def opened(rule: str) -> list[Alarm]:
    return list(Alarm.objects.open().filter(rule=rule))


def breaks(stage) -> None:
    @stage.flow.step
    def fail(ctx):
        raise PermanentError("the claim has no policy")


def dead_letter(stage):
    breaks(stage)
    run = stage.begin()
    return run.key, lambda: repair.discard(run.key, why="seen to")


def late_approval(stage):
    stage.asks_then_pays(expires_in=timedelta(minutes=90))
    run = stage.begin()
    return run.key, lambda: engine.cancel(run.key, why="not needed")


def reused_key(stage):
    @tool("test.wire", effect=True)
    def wire(*, idempotency_key: str, amount: int) -> dict:
        raise TimeoutError

    @stage.flow.step
    def settle(ctx):
        return {"paid": ctx.call(wire, amount=ctx.attempt)}

    stage.begin()
    stage.later(times=3)
    return "run-1:step1", lambda: repair.discard("run-1", why="seen to")


def unknown_effect(stage):
    stage.receiver.script = [TimeoutError(), {"paid": True}]
    stage.calls_then_goes_on(stage.tool())
    stage.begin()
    return "run-1:step1", stage.later


def broken_chain(stage):
    upkeep.report(VERIFIED, {"ok": False, "problems": ["Entry 2: its signature does not fit its record."]})
    return "ledger", lambda: upkeep.report(VERIFIED, {"ok": True, "problems": []})


def silent_runner(stage):
    at = database_clock() - 31 * SECOND
    Beat.objects.create(host="here", pid=1, workers=1, started_at=at, beat_at=at, canary_at=at)
    return "here", lambda: Beat.objects.update(beat_at=database_clock(), canary_at=database_clock())


def stuck_run(stage):
    @stage.flow.step
    def one(ctx):
        return {}

    run = engine.start(stage.flow, key="run-1", input={}, team=stage.people.team)
    freeze_clock(run.created_at + timedelta(minutes=2))
    return "run-1", lambda: engine.cancel("run-1", why="not needed")


FAULTS = {
    "dead-letter": dead_letter,
    "approval-late": late_approval,
    "key-reused": reused_key,
    "effect-unknown": unknown_effect,
    "chain-broken": broken_chain,
    "runner-silent": silent_runner,
    "run-stuck": stuck_run,
}


@pytest.mark.parametrize("rule", FAULTS)
def test_each_fault_opens_one_alarm_sends_one_mail_and_closes_by_itself(stage, rule):
    look()
    assert not Alarm.objects.exists()
    AlarmRule.objects.exclude(name=rule).update(is_on=False)
    AlarmRule.objects.filter(name="effect-unknown").update(after=timedelta())
    subject, mend = FAULTS[rule](stage)
    for _ in range(3):
        look()
    alarm = opened(rule)[0]
    assert [one.subject for one in Alarm.objects.all()] == [subject]
    assert len(mail.outbox) == 1
    assert mail.outbox[0].bcc == ["eve@example.invalid", "olga@example.invalid"]
    assert alarm.sentence in mail.outbox[0].body
    mend()
    look()
    alarm.refresh_from_db()
    assert alarm.closed_at is not None
    assert len(mail.outbox) == 1


def test_every_rule_that_comes_with_the_site_has_a_fault_here_and_a_condition(database):
    names = set(AlarmRule.objects.values_list("name", flat=True))
    assert names == set(FAULTS)
    assert set(AlarmRule.objects.values_list("condition", flat=True)) <= set(alerts.conditions)


def test_what_comes_back_opens_a_new_alarm_and_a_new_mail(stage):
    for _ in range(2):
        _, mend = broken_chain(stage)
        look()
        mend()
        look()
    assert Alarm.objects.filter(rule="chain-broken").count() == 2
    assert len(mail.outbox) == 2


def test_many_cases_of_one_look_share_one_mail(stage):
    breaks(stage)
    for number in range(25):
        engine.start(stage.flow, key=f"run-{number}", input={}, team=stage.people.team)
    stage.later()
    look()
    assert len(opened("dead-letter")) == 25
    assert len(mail.outbox) == 1
    assert "… and 5 more." in mail.outbox[0].body


def test_a_rule_that_is_switched_off_closes_what_it_opened(stage):
    broken_chain(stage)
    look()
    AlarmRule.objects.filter(name="chain-broken").update(is_on=False)
    look()
    assert not Alarm.objects.open().exists()


def test_a_rules_own_addresses_are_told(stage):
    AlarmRule.objects.filter(name="chain-broken").update(mail_to="night@example.invalid, ,day@example.invalid")
    broken_chain(stage)
    look()
    assert mail.outbox[0].bcc == ["night@example.invalid", "day@example.invalid"]


def test_a_mail_server_that_is_away_gets_the_mail_later_under_the_same_name(stage, settings):
    backend = settings.EMAIL_BACKEND
    settings.EMAIL_BACKEND, settings.EMAIL_HOST, settings.EMAIL_PORT = (
        "django.core.mail.backends.smtp.EmailBackend",
        "127.0.0.1",
        1,
    )
    broken_chain(stage)
    look()
    sending = Sending.objects.get()
    assert (sending.tries, sending.sent_at) == (1, None)
    assert "refused" in sending.error.lower()
    settings.EMAIL_BACKEND = backend
    look()
    assert mail.outbox == [], "not before its time"
    freeze_clock(sending.next_try_at)
    look()
    sending.refresh_from_db()
    assert (sending.tries, len(mail.outbox), sending.error) == (2, 1, "")
    assert sending.sent_at is not None
    freeze_clock(sending.next_try_at + timedelta(days=1))
    look()
    assert len(mail.outbox) == 1


def test_two_hosts_that_look_at_once_open_one_alarm(stage, database):
    broken_chain(stage)
    Upkeep.objects.create(name="alarms", every=5 * SECOND, due_at=database_clock())
    with holding(database, "SELECT FROM runs_upkeep WHERE name = 'alarms' FOR NO KEY UPDATE"):
        Party(sweep).outcome()
        assert not Alarm.objects.exists()
    sweep()
    assert len(opened("chain-broken")) == 1
    with pytest.raises(IntegrityError), transaction.atomic():
        Alarm.objects.create(rule_id="chain-broken", subject="ledger", sentence="again")


# The webhook


@pytest.fixture
def posted(settings):
    """Call it with a receiver: alarms are posted there."""

    def to(receiver: Receiver) -> Receiver:
        settings.ALARM_WEBHOOK_URL, settings.ALARM_WEBHOOK_SECRET = receiver.url, SECRET
        return receiver

    return to


def test_an_alarm_is_posted_once_signed_after_standard_webhooks_beside_its_mail(stage, posted):
    with posted(Receiver()) as receiver:
        broken_chain(stage)
        for _ in range(3):
            look()
        event = receiver.events[0]
    alarm = Alarm.objects.get()
    assert len(receiver.events) == len(mail.outbox) == 1
    assert (event["type"], event["data"]["rule"], event["data"]["title"]) == (
        "alarm.opened",
        "chain-broken",
        "Ledger broken",
    )
    assert event["data"]["alarms"] == [
        {
            "alarm": alarm.pk,
            "subject": "ledger",
            "sentence": alarm.sentence,
            "opened_at": alarm.opened_at.isoformat(),
        }
    ]
    assert event["data"]["url"].endswith("/health/alarms/")


def test_a_post_that_is_refused_is_tried_again_under_the_same_id_and_the_mail_is_not_sent_again(stage, posted):
    with posted(Receiver(500, 302)) as receiver:
        broken_chain(stage)
        look()
        for tries in (2, 3):
            freeze_clock(Sending.objects.get(channel="webhook").next_try_at)
            look()
            assert Sending.objects.get(channel="webhook").tries == tries
    assert len(set(receiver.ids)) == 1
    assert len(receiver.ids) == 3
    assert (Sending.objects.get(channel="webhook").error, len(mail.outbox)) == ("", 1)


def test_a_receiver_that_hangs_holds_up_neither_the_sweep_nor_the_mails(stage, posted):
    stop = threading.Event()
    with posted(Receiver(hangs=True)) as receiver:
        broken_chain(stage)
        Upkeep.objects.create(name="alarms", every=timedelta(), due_at=database_clock())
        carriers = [Party(lambda channel=channel: notices.carry(channel, stop)) for channel in ("mail", "webhook")]
        sweep()
        wait_until(lambda: len(receiver.received) == 1)
        wait_until(lambda: len(mail.outbox) == 1)
        breaks(stage)
        stage.begin()
        sweep()
        assert len(opened("dead-letter")) == 1, "the sweep goes on"
        wait_until(lambda: len(mail.outbox) == 2)
        assert Sending.objects.filter(channel="webhook", sent_at__isnull=False).count() == 0
        stop.set()
    for carrier in carriers:
        carrier.outcome()


def test_a_rule_that_is_not_posted_is_mailed_alone(stage, posted):
    AlarmRule.objects.update(is_posted=False)
    with posted(Receiver()) as receiver:
        broken_chain(stage)
        look()
    assert (receiver.received, len(mail.outbox)) == ([], 1)


def test_two_carriers_send_one_notice_once(stage, posted):
    with posted(Receiver()) as receiver:
        broken_chain(stage)
        Upkeep.objects.create(name="alarms", every=5 * SECOND, due_at=database_clock())
        upkeep.do("alarms")
        parties = [Party(notices.send_due) for _ in range(4)]
        assert sum(party.outcome() for party in parties) == 2
    assert (len(receiver.received), len(mail.outbox)) == (1, 1)


# A runner that is back


@pytest.mark.parametrize(("silent_for", "expected"), [(29, 0), (30, 1), (3600, 1)])
def test_a_silence_that_nobody_saw_is_told_of_once_when_the_runner_is_back(stage, silent_for, expected):
    """One host alone: its own first beat is what ends the silence."""
    now = database_clock()
    freeze_clock(now)
    beat = {"pid": 1, "workers": 1, "started_at": now, "beat_at": now, "canary_at": now}
    Beat.objects.create(host="here", silent_from=now - silent_for * SECOND, back_at=now, **beat)
    look()
    assert len(opened("runner-silent")) == expected
    if expected:
        assert "was silent from" in opened("runner-silent")[0].sentence
    freeze_clock(now + 15 * SECOND)
    Beat.objects.update(beat_at=now + 15 * SECOND, canary_at=now + 15 * SECOND)
    look()
    assert opened("runner-silent") == []
    assert len(mail.outbox) == expected


# Who sees them, and who acknowledges


@pytest.fixture
def alarm(stage) -> Alarm:
    breaks(stage)
    stage.begin()
    look()
    return opened("dead-letter")[0]


def test_acknowledging_takes_the_right_and_is_done_once(alarm, people):
    address = f"/health/alarms/{alarm.pk}/acknowledge/"
    assert browser(people.adjuster).post(address).status_code == 403
    assert browser(people.auditor).post(address).status_code == 403
    assert AuditEvent.objects.filter(kind="verb-refused", user=people.auditor).count() == 1
    assert browser(people.stranger).post(address).status_code == 404
    assert browser(people.ops).get(address).status_code == 405
    assert "1 alarm" in text(browser(people.ops).get("/runs/"))
    assert browser(people.ops).post(address).status_code == 303
    first = Alarm.objects.get()
    assert (first.acknowledged_by, first.closed_at) == (people.ops, None)
    assert "1 alarm" not in text(browser(people.ops).get("/runs/"))
    assert browser(people.superuser).post(address).status_code == 303
    assert Alarm.objects.get().acknowledged_by == people.ops


def test_what_is_over_is_not_acknowledged(alarm, people):
    repair.discard("run-1", why="seen to")
    look()
    assert browser(people.ops).post(f"/health/alarms/{alarm.pk}/acknowledge/").status_code == 409
    with pytest.raises(BadRequest):
        alerts.acknowledge(alarm.pk, by=people.ops)
    with pytest.raises(NotAllowed):
        alerts.acknowledge(alarm.pk, by=people.auditor)


def test_other_teams_alarms_are_not_shown(alarm, people):
    for address in ("/health/", "/health/alarms/"):
        assert "run-1" in text(browser(people.ops).get(address))
        assert "run-1" in text(browser(people.auditor).get(address))
        assert "run-1" not in text(browser(people.stranger).get(address))
        assert browser(people.adjuster).get(address).status_code == 403


def test_the_pages_are_whole_without_a_script_and_the_fragment_is_part_of_the_page(alarm, people):
    ops = browser(people.ops)
    for window in ("1h", "24h", "7d", "30d", "nonsense"):
        page = ops.get(f"/health/?window={window}")
        assert Inline(page.content.decode()).found == []
        assert page.content.decode().count('class="card') >= 12
    part = ops.get("/health/?window=7d", headers={"HX-Request": "true"})
    assert "<html" not in part.content.decode()
    assert "Resume rate" in text(part)
    assert Inline(ops.get("/health/alarms/?show=closed&after=x").content.decode()).found == []


def test_rules_are_edited_in_the_admin_by_whoever_has_the_right_and_alarms_by_nobody(alarm, people):
    root, auditor, address = (
        browser(people.superuser),
        browser(people.auditor),
        "/admin/runs/alarmrule/dead-letter/change/",
    )
    assert root.get(address).status_code == 200
    sent = {"condition": "dead-letter", "is_on": "", "after": "00:00:00", "mail_to": "a@example.invalid"}
    assert root.post(address, sent).status_code == 302
    assert AlarmRule.objects.get(name="dead-letter").mail_to == "a@example.invalid"
    assert auditor.post(address, sent).status_code == 403
    for verb in ("change/", "delete/"):
        response = root.post(f"/admin/runs/alarm/{alarm.pk}/{verb}", {})
        assert response.status_code == 403
    assert root.post("/admin/runs/alarmrule/dead-letter/delete/", {"post": "yes"}).status_code == 403
    for wrong in ({"condition": "no-such"}, {"mail_to": "a@example.invalid, nobody"}, {"after": "-1"}):
        assert root.post(address, sent | wrong).status_code == 200
    assert Run.objects.count() == 1


def test_each_change_of_a_rule_is_an_entry_of_the_ledger_without_addresses_in_its_record(people):
    root = browser(people.superuser)
    sent = {"condition": "dead-letter", "is_on": "on", "after": "00:01:30", "mail_to": "a@example.invalid"}
    assert root.post("/admin/runs/alarmrule/dead-letter/change/", sent).status_code == 302
    assert root.post("/admin/runs/alarmrule/dead-letter/change/", sent).status_code == 302
    assert root.post("/admin/runs/alarmrule/add/", sent | {"name": "at-night", "is_posted": "on"}).status_code == 302
    assert root.post("/admin/runs/alarmrule/dead-letter/change/", sent | {"condition": "no-such"}).status_code == 200
    changed, made = LedgerEntry.objects.order_by("sequence")
    record = json.loads(changed.record)
    assert (record["kind"], record["rule"], record["act"], record["by"]) == (
        "alarm-rule",
        "dead-letter",
        "changed",
        people.superuser.pk,
    )
    assert (record["after"], record["is_on"], record["is_posted"]) == (90, True, False)
    assert "example.invalid" not in changed.record
    assert ledger.told(changed)["mail_to"] == "a@example.invalid"
    assert (json.loads(made.record)["act"], AlarmRule.objects.get(name="at-night").is_posted) == ("made", True)
    assert ledger.verify().problems == []
