"""Alarms: each fault opens one, told of by one mail, acknowledged by whoever may, and closed by itself once over."""

from datetime import timedelta

import pytest
from browsing import Inline, browser, text
from django.core import mail
from django.db import IntegrityError, transaction
from stage import Party, Stage, freeze_clock, holding

from approvals.measures import VERIFIED
from runs import alerts, engine, repair, upkeep
from runs.errors import BadRequest, NotAllowed, PermanentError
from runs.models import Alarm, AlarmRule, AuditEvent, Beat, Notice, Run, Upkeep, database_clock
from runs.sweep import sweep
from runs.tools import tool

SECOND = timedelta(seconds=1)


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


def look() -> None:
    """One look of the sweep's, and the mail that follows it."""
    for name in ("alarms", "notices"):
        Upkeep.objects.get_or_create(name=name, defaults={"every": 5 * SECOND, "due_at": database_clock()})
        upkeep.do(name, now=True)


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
    notice = Notice.objects.get()
    assert (notice.tries, notice.sent_at) == (1, None)
    assert "refused" in notice.error.lower()
    settings.EMAIL_BACKEND = backend
    look()
    assert mail.outbox == [], "not before its time"
    freeze_clock(notice.next_try_at)
    look()
    notice.refresh_from_db()
    assert (notice.tries, len(mail.outbox), notice.error) == (2, 1, "")
    assert notice.sent_at is not None
    freeze_clock(notice.next_try_at + timedelta(days=1))
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
    root, auditor = browser(people.superuser), browser(people.auditor)
    assert root.get("/admin/runs/alarmrule/dead-letter/change/").status_code == 200
    sent = {"condition": "dead-letter", "is_on": "", "after": "00:00:00", "mail_to": "a@example.invalid"}
    assert root.post("/admin/runs/alarmrule/dead-letter/change/", sent).status_code == 302
    assert AlarmRule.objects.get(name="dead-letter").mail_to == "a@example.invalid"
    assert auditor.post("/admin/runs/alarmrule/dead-letter/change/", sent).status_code == 403
    for verb in ("change/", "delete/"):
        response = root.post(f"/admin/runs/alarm/{alarm.pk}/{verb}", {})
        assert response.status_code == 403
    wrong = root.post("/admin/runs/alarmrule/dead-letter/change/", sent | {"condition": "no-such"})
    assert wrong.status_code == 200
    assert Run.objects.count() == 1
