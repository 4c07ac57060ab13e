"""Alarms: rules say what must not be; each case of it opens one alarm, told of by one mail, and closed by itself.

The sweep looks every few seconds, on one host at a time: a case that is new opens an alarm, in the same transaction as
the notice of it; a case that is over closes it. The mail is sent afterwards, outside any transaction, and again until
the mail server takes it. Other apps register conditions of their own. May import upkeep, stuck, models.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from smtplib import SMTPException
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import F

from . import stuck
from .errors import BadRequest, NotAllowed, RunError
from .models import (
    Alarm,
    AlarmRule,
    AuditEvent,
    Beat,
    Call,
    DatabaseClock,
    DatabaseNow,
    Notice,
    Run,
    database_clock,
)
from .states import Status, WaitKind
from .upkeep import job

logger = logging.getLogger(__name__)

MOST_CASES = 500
"""Cases of one rule that are kept open at a time: who has more of them reads the lists."""
NAMED = 20
"""Alarms that one mail spells out."""
WAIT_BEFORE_RETRY, LONGEST_WAIT = timedelta(minutes=1), timedelta(hours=1)
SILENT_FOR_GOOD = timedelta(days=7)
"""A host whose runner has not beaten for that long is taken for dismantled."""
DEFAULT_GROUP = "ops"


class NoSuchAlarm(RunError):
    def __init__(self, alarm_id: int) -> None:
        super().__init__(f"There is no alarm {alarm_id}.")


@dataclass(frozen=True)
class Case:
    """One thing that must not be, now. `team` None: it is nobody's in particular."""

    subject: str
    sentence: str
    run_id: int | None = None
    team_id: int | None = None


@dataclass(frozen=True)
class Condition:
    name: str
    title: str
    cases: Callable[[timedelta], Iterable[Case]]


conditions: dict[str, Condition] = {}


def condition(name: str, title: str) -> Callable[[Callable[[timedelta], Iterable[Case]]], Any]:
    """Register a condition: a function of the rule's `after` that tells its cases as they are now."""

    def register(cases: Callable[[timedelta], Iterable[Case]]) -> Any:
        conditions[name] = Condition(name, title, cases)
        return cases

    return register


# The looks


@job("alarms")
def look(state: dict[str, Any]) -> bool:
    """Open and close the alarms of every rule; nothing is left to do after it."""
    for rule in AlarmRule.objects.order_by("name"):
        known = conditions.get(rule.condition)
        _keep(rule, list(known.cases(rule.after))[:MOST_CASES] if known and rule.is_on else [])
    return False


def _keep(rule: AlarmRule, cases: list[Case]) -> None:
    now = {case.subject: case for case in cases}
    already = set(rule.alarms.open().values_list("subject", flat=True))
    if over := already - set(now):
        rule.alarms.open().filter(subject__in=over).update(closed_at=DatabaseClock())
    if new := [case for subject, case in now.items() if subject not in already]:
        notice = Notice.objects.create(rule=rule)
        Alarm.objects.bulk_create(_opened(rule, notice, case) for case in new)


def _opened(rule: AlarmRule, notice: Notice, case: Case) -> Alarm:
    told = {"subject": case.subject[:255], "sentence": case.sentence, "run_id": case.run_id, "team_id": case.team_id}
    return Alarm(rule=rule, notice=notice, **told)


# The mail


@job("notices")
def post(state: dict[str, Any]) -> bool:
    """Have the notices that are due sent once this look's transaction is over."""
    transaction.on_commit(send_one)
    return False


def send_one() -> None:
    """Send the notice that is due next, outside any transaction.

    It is tried later before it is tried: a process that dies in between sends it once more, under the same message id,
    and two never send it at the same time.
    """
    with transaction.atomic():
        unsent = Notice.objects.select_for_update(skip_locked=True).filter(sent_at__isnull=True)
        notice = unsent.filter(next_try_at__lte=DatabaseNow()).order_by("next_try_at").first()
        if notice is None:
            return
        pause = min(LONGEST_WAIT, WAIT_BEFORE_RETRY * 2 ** min(notice.tries, 10))
        Notice.objects.filter(pk=notice.pk).update(tries=F("tries") + 1, next_try_at=DatabaseClock() + pause)
    try:
        _message(notice).send()
    except (OSError, SMTPException, ValueError) as error:
        logger.error("Notice %s could not be sent: %s. It is tried again.", notice.pk, type(error).__name__)
        Notice.objects.filter(pk=notice.pk).update(error=f"{type(error).__name__}: {error}"[:500])
    else:
        Notice.objects.filter(pk=notice.pk).update(sent_at=DatabaseClock(), error="")


def _message(notice: Notice) -> EmailMessage:
    alarms = list(notice.alarms.order_by("id"))
    title = conditions[notice.rule.condition].title if notice.rule.condition in conditions else notice.rule.name
    subject = f"[Durable Runs] {title}: {alarms[0].subject}" if len(alarms) == 1 else f"[Durable Runs] {title}"
    lines = [f"{alarm.subject}: {alarm.sentence}" for alarm in alarms[:NAMED]]
    if len(alarms) > NAMED:
        lines.append(f"… and {len(alarms) - NAMED} more.")
    body = "\n\n".join([*lines, "The health page lists all alarms. Each closes by itself once it is over."])
    # The same name each time it is tried: a mailbox that got it twice can tell.
    name = {"Message-ID": f"<alarm-notice-{notice.pk}-{notice.made_at:%Y%m%d%H%M%S}@durable-runs>"}
    return EmailMessage(" ".join(subject.split())[:150], body, bcc=recipients(notice.rule), headers=name)


def recipients(rule: AlarmRule) -> list[str]:
    """Who is told: the rule's own addresses, or the active members of the group ops."""
    if named := [address.strip() for address in rule.mail_to.split(",") if address.strip()]:
        return named
    members = get_user_model().objects.filter(groups__name=DEFAULT_GROUP, is_active=True).exclude(email="")
    return sorted(set(members.values_list("email", flat=True)))


# What people do


def acknowledge(alarm_id: int, *, by: Any) -> Alarm:
    """Say that somebody sees to it. Doing so twice changes nothing. Raises NoSuchAlarm, NotAllowed, BadRequest."""
    alarm = Alarm.objects.visible_to(by).filter(pk=alarm_id).first()
    if alarm is None:
        raise NoSuchAlarm(alarm_id)
    if not by.has_perm("runs.operate_run"):
        rule = "To acknowledge an alarm takes the right to operate runs (group ops)."
        AuditEvent.objects.create(
            kind=AuditEvent.Kind.VERB_REFUSED, run_id=alarm.run_id, detail=f"acknowledge alarm: {rule}", user=by
        )
        raise NotAllowed(rule)
    if alarm.closed_at is not None:
        raise BadRequest(f"The alarm about {alarm.subject} is over already. Nothing was changed.")
    Alarm.objects.filter(pk=alarm_id).acknowledge(by)
    alarm.refresh_from_db()
    return alarm


# What the engine itself knows of


@condition("dead-letter", "Dead letter")
def _dead(after: timedelta) -> Iterable[Case]:
    for run in Run.objects.filter(status=Status.DEAD).order_by("id")[:MOST_CASES]:
        yield Case(run.key, run.reason or "It went to the dead letters.", run.pk, run.team_id)


@condition("run-stuck", "Stuck run")
def _stuck(after: timedelta) -> Iterable[Case]:
    runs = {run.pk: run for run in Run.objects.stuck().order_by("id")[:MOST_CASES]}
    now = database_clock()
    for pk, still in stuck.among(runs.values()).items():
        if now - still.since >= after:
            yield Case(runs[pk].key, still.sentence(runs[pk]), pk, runs[pk].team_id)


@condition("approval-late", "Approval due soon or overdue")
def _late(before: timedelta) -> Iterable[Case]:
    waiting = Run.objects.filter(status=Status.WAITING, wait_kind=WaitKind.APPROVAL)
    for run in waiting.filter(due_at__lte=DatabaseNow() + before).order_by("due_at")[:MOST_CASES]:
        yield Case(run.key, f"It waits until {_moment(run.due_at)}: {run.wait_name}.", run.pk, run.team_id)


@condition("key-reused", "Idempotency key reused with another request")
def _reused(after: timedelta) -> Iterable[Case]:
    # Over once the run that asked has been seen to: redriven, discarded or ended.
    events = AuditEvent.objects.filter(kind=AuditEvent.Kind.KEY_REUSED, run__status=Status.DEAD)
    for event in events.select_related("run", "call").order_by("-id")[:MOST_CASES]:
        run: Any = event.run
        yield Case(event.call.key if event.call else run.key, event.detail, run.pk, run.team_id)


@condition("effect-unknown", "Effect unknown for too long")
def _unknown(after: timedelta) -> Iterable[Case]:
    calls = Call.objects.unresolved().filter(sent_at__lte=DatabaseNow() - after)
    for call in calls.select_related("run").order_by("id")[:MOST_CASES]:
        since = _moment(call.sent_at)
        sentence = f"It is not known since {since} whether {call.tool} happened for run {call.run.key}."
        yield Case(call.key, sentence, call.run_id, call.run.team_id)


@condition("runner-silent", "Runner silent")
def _silent(after: timedelta) -> Iterable[Case]:
    now = database_clock()
    beats = list(Beat.objects.filter(beat_at__gt=now - SILENT_FOR_GOOD).order_by("host"))
    for beat in beats:
        if now - beat.beat_at >= max(after, timedelta(seconds=2)):
            yield Case(beat.host, f"The runner on {beat.host} last said at {_moment(beat.beat_at)} that it lives.")
        elif not _is_hung(beat, now, after):
            continue
        else:
            at = _moment(beat.canary_at) if beat.canary_at else "never"
            yield Case(beat.host, f"The runner on {beat.host} lives, but its queue last answered {at}: it hangs.")


def _is_hung(beat: Beat, now: Any, after: timedelta) -> bool:
    answered = beat.canary_at or beat.started_at
    return now - answered >= after + timedelta(seconds=settings.CANARY_EVERY) and not stuck.is_answered()


def _moment(at: Any) -> str:
    return f"{at:%d %b %Y, %H:%M:%S} UTC"
