"""Alarms: rules say what must not be; each case of it opens one alarm, told of by one mail, and closed by itself.

The sweep looks every few seconds, on one host at a time: a case that is new opens an alarm, in the same transaction as
the notice of it; a case that is over closes it. What sends the notices is in notices. Other apps register conditions of
their own. May import notices, upkeep, stuck, models.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings

from . import notices, stuck
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

MOST_CASES = 500
"""Cases of one rule that are kept open at a time: who has more of them reads the lists."""
SILENT_FOR_GOOD = timedelta(days=7)
"""A host whose runner has not beaten for that long is taken for dismantled."""
BACK_FOR = timedelta(seconds=15)
"""So long it is still said of a runner that it was silent: some look sees it, though it began with another's beat."""


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
        known = conditions.get(rule.condition)
        notice = notices.write(rule, known.title if known else rule.name)
        Alarm.objects.bulk_create(_opened(rule, notice, case) for case in new)


def _opened(rule: AlarmRule, notice: Notice, case: Case) -> Alarm:
    told = {"subject": case.subject[:255], "sentence": case.sentence, "run_id": case.run_id, "team_id": case.team_id}
    return Alarm(rule=rule, notice=notice, **told)


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
    for beat in Beat.objects.filter(beat_at__gt=now - SILENT_FOR_GOOD).order_by("host"):
        if sentence := _silence(beat, now, after):
            yield Case(beat.host, sentence)


def _silence(beat: Beat, now: Any, after: timedelta) -> str:
    """What is wrong with this runner, or was until just now; empty when nothing is."""
    least = max(after, timedelta(seconds=2))
    if now - beat.beat_at >= least:
        return f"The runner on {beat.host} last said at {_moment(beat.beat_at)} that it lives."
    if beat.silent_from and beat.back_at and beat.back_at - beat.silent_from >= least and now - beat.back_at < BACK_FOR:
        return f"The runner on {beat.host} was silent from {_moment(beat.silent_from)} to {_moment(beat.back_at)}."
    if not _is_hung(beat, now, after):
        return ""
    at = _moment(beat.canary_at) if beat.canary_at else "never"
    return f"The runner on {beat.host} lives, but its queue last answered {at}: it hangs."


def _is_hung(beat: Beat, now: Any, after: timedelta) -> bool:
    answered = beat.canary_at or beat.started_at
    return now - answered >= after + timedelta(seconds=settings.CANARY_EVERY) and not stuck.is_answered()


def _moment(at: Any) -> str:
    return f"{at:%-d %b %Y, %H:%M:%S} UTC"
