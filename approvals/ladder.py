"""remind, escalate, remind_and_wait: what an author says of deadlines, and the rungs that come of it. Public, by gate.

May import models, and runs' errors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.auth.models import Group

from runs.errors import PermanentError

from .models import Approval, Rung

MOST_RUNGS = 50


@dataclass(frozen=True)
class Remind:
    after: timedelta


@dataclass(frozen=True)
class Escalate:
    to: str
    after: timedelta | None
    earlier_may_decide: bool


@dataclass(frozen=True)
class RemindAndWait:
    every: timedelta
    until: timedelta


@dataclass(frozen=True)
class Planned:
    """One rung as it is asked for: `after` counts from asking."""

    kind: str
    after: timedelta
    to: str = ""
    earlier_may_decide: bool = True


@dataclass(frozen=True)
class Plan:
    """`expires_in`: the last end. `on_expiry`: what follows then."""

    rungs: tuple[Planned, ...]
    expires_in: timedelta


def remind(*, after: timedelta) -> Remind:
    """Tell those who may decide once more, this long after asking."""
    return Remind(after)


def escalate(to: str, *, after: timedelta | None = None, earlier_may_decide: bool = True) -> Escalate:
    """Ask the group `to` as well, this long after asking; with `earlier_may_decide=False` in place of those asked so
    far. Without `after`: at expiry, with on_expiry="escalate"."""
    return Escalate(to, after, earlier_may_decide)


def remind_and_wait(*, every: timedelta, until: timedelta) -> RemindAndWait:
    """As on_expiry: from then on remind each `every`; `until`, counted from asking, is the last end: it expires."""
    return RemindAndWait(every, until)


def plan(ladder: Sequence[Remind | Escalate], expires_in: timedelta, on_expiry: object) -> Plan:
    """The rungs and the last end. Raises PermanentError for a ladder that cannot be climbed."""
    rungs, last_end = [_planned(each, expires_in, on_expiry) for each in ladder], expires_in
    if on_expiry == "escalate":
        if not any(isinstance(each, Escalate) and each.after is None for each in ladder):
            raise PermanentError('on_expiry="escalate" needs escalate(to=…) without after= in its ladder.')
        last_end = 2 * expires_in
    if isinstance(on_expiry, RemindAndWait):
        last_end = on_expiry.until
        rungs += _reminders(on_expiry, expires_in)
    if late := [rung for rung in rungs if not timedelta() < rung.after < last_end]:
        raise PermanentError(f"The ladder has a rung {late[0].after} after asking; it must be within {last_end}.")
    if len(rungs) > MOST_RUNGS:
        raise PermanentError(f"The ladder has {len(rungs)} rungs; {MOST_RUNGS} are the most. Remind less often.")
    return Plan(tuple(sorted(rungs, key=lambda rung: rung.after)), last_end)


def set_up(approval: Approval, rungs: Sequence[Planned], asked_at: datetime) -> None:
    """The rows of an approval's ladder, in the transaction that asks. Raises PermanentError for an unknown group."""
    groups = {group.name: group for group in Group.objects.filter(name__in=[rung.to for rung in rungs if rung.to])}
    if missing := {rung.to for rung in rungs if rung.to} - groups.keys():
        raise PermanentError(f"It cannot be escalated: there is no group {', '.join(sorted(missing))}.")
    Rung.objects.bulk_create(
        Rung(
            approval=approval,
            number=number,
            kind=rung.kind,
            to=groups.get(rung.to),
            earlier_may_decide=rung.earlier_may_decide,
            due_at=asked_at + rung.after,
        )
        for number, rung in enumerate(rungs, start=1)
    )


def _planned(each: Remind | Escalate, expires_in: timedelta, on_expiry: object) -> Planned:
    if isinstance(each, Remind):
        return Planned(Rung.Kind.REMIND, each.after)
    if each.after is None and on_expiry != "escalate":
        raise PermanentError(f'escalate(to="{each.to}") needs after=, or on_expiry="escalate".')
    after = expires_in if each.after is None else each.after
    return Planned(Rung.Kind.ESCALATE, after, each.to, each.earlier_may_decide)


def _reminders(waiting: RemindAndWait, expires_in: timedelta) -> list[Planned]:
    if waiting.every <= timedelta() or waiting.until <= expires_in:
        raise PermanentError("remind_and_wait() needs every= above zero, and until= after expires_in.")
    count = min(-((expires_in - waiting.until) // waiting.every), MOST_RUNGS + 1)
    times = [expires_in + number * waiting.every for number in range(count)]
    return [Planned(Rung.Kind.REMIND, time) for time in times if time < waiting.until]
