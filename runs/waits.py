"""Wait: a step returns one to park its run. What a kind of wait must answer, and the kinds event and timer.

Public. `approvals` adds its own kind by subclassing Wait. A kind owns its rows; the engine owns the run's. May import
models, states, errors, values and workflows.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar

from .errors import PermanentError
from .models import Delivery, Run
from .states import Status, WaitKind
from .values import as_json, from_json
from .workflows import Finish, Goto, Step

Closing = dict[str, Any] | Goto | Finish
"""What ends a wait: the checkpoint's output, or where to go with it."""

kinds: dict[str, type["Wait"]] = {}


@dataclass(frozen=True)
class Parked:
    """The run sleeps or waits now. `name`: for whom or what, in words. `terms`: what the kind needs to close it."""

    name: str
    due_at: datetime
    terms: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answered:
    """No need to park: the answer is here already."""

    closing: Closing


@dataclass(frozen=True)
class Grant:
    """Leave to make one effect: exactly this request of this tool."""

    tool: str
    request: str
    digest: str


class Wait:
    """Base of what a step returns to park its run. Every wait has a due time and a named outcome."""

    kind: ClassVar[str]
    parks_as: ClassVar[Status] = Status.WAITING

    def __init_subclass__(cls) -> None:
        kinds[cls.kind] = cls

    def park(self, run: Run, position: int, now: datetime) -> Parked | Answered:
        """Called with the run locked, in the transaction that parks it: write the kind's own rows, and look once more
        for an answer that came early. `now` is the database's clock."""
        raise NotImplementedError

    @classmethod
    def resolve(cls, run: Run, position: int) -> Closing:
        """Called by the worker that resumes the run, outside any transaction: what the wait came to."""
        raise NotImplementedError

    @classmethod
    def fall_due(cls, run: Run, now: datetime) -> Status:
        """Called with the run locked when nobody answered in time: EXPIRED to end the run, READY to let resolve say
        where it goes on."""
        raise NotImplementedError

    @classmethod
    def close(cls, run: Run, now: datetime) -> None:
        """Called with the run locked when a person ends the wait (cancel): close the kind's own rows."""

    @classmethod
    def extend(cls, run: Run, until: datetime, now: datetime, *, by: Any, why: str) -> None:
        """Called with the run locked when a person gives the wait more time: let the kind's own rows follow. Raises
        PermanentError when they no longer can."""

    @classmethod
    def asking_step(cls, run: Run, key: str) -> str:
        """The step that asked for the effect under this key; empty when this kind granted it to nobody."""
        return ""

    @classmethod
    def recheck(cls, run: Run, position: int) -> Goto | Finish | None:
        """Called before an effect that this wait granted, outside any transaction: None, or where to go instead."""
        raise PermanentError(f"A wait for {cls.kind} grants no effects, so step {position} cannot be performed.")

    @classmethod
    def granted(cls, run: Run, position: int, key: str) -> Grant | None:
        """What was granted at `position` and spent under `key`; None if nothing was."""
        return None

    @classmethod
    def authorise(cls, run: Run, position: int, key: str, now: datetime) -> Grant | Goto | Finish:
        """Called with the run locked, in the transaction that writes an effect's intent: spend the grant as `key`."""
        raise PermanentError(f"A wait for {cls.kind} grants no effects, so step {position} cannot be performed.")


@dataclass(frozen=True)
class EventWait(Wait):
    """Wait until `engine.deliver` brings an event of this name; the checkpoint is {"event": its body}."""

    kind: ClassVar[str] = WaitKind.EVENT
    event: str
    expires_in: timedelta
    on_expiry: str = "expire"

    def park(self, run: Run, position: int, now: datetime) -> Parked | Answered:
        early = take_delivery(run, self.event, position)
        if early is not None:
            return Answered({"event": early.body})
        return Parked(self.event, now + self.expires_in, {"event": self.event, "on_expiry": self.on_expiry})

    @classmethod
    def resolve(cls, run: Run, position: int) -> Closing:
        taken = Delivery.objects.filter(run=run, position=position).first()
        if taken is not None:
            return {"event": taken.body}
        return Goto(_terms(run)["on_expiry"], {}, closed_as="expired")

    @classmethod
    def fall_due(cls, run: Run, now: datetime) -> Status:
        return Status.EXPIRED if _terms(run)["on_expiry"] == "expire" else Status.READY


def event(name: str, *, expires_in: timedelta, on_expiry: str | Step = "expire") -> EventWait:
    """Return this from a step to wait for an event. `on_expiry`: "expire" ends the run; a step's name goes on there."""
    return EventWait(name, expires_in, on_expiry if isinstance(on_expiry, str) else on_expiry.name)


@dataclass(frozen=True)
class TimerWait(Wait):
    """Sleep for a time or until an instant; the checkpoint is `output`."""

    kind: ClassVar[str] = WaitKind.TIMER
    parks_as: ClassVar[Status] = Status.SLEEPING
    after: timedelta | None
    until: datetime | None
    output: dict[str, Any]

    def park(self, run: Run, position: int, now: datetime) -> Parked | Answered:
        due = self.until if self.until is not None else now + (self.after or timedelta())
        output = from_json(as_json(self.output, where="output"))
        return Parked("the clock", due, {"output": output}) if due > now else Answered(output)

    @classmethod
    def resolve(cls, run: Run, position: int) -> Closing:
        return _terms(run)["output"]


def timer(
    *, after: timedelta | None = None, until: datetime | None = None, output: dict[str, Any] | None = None
) -> TimerWait:
    """Return this from a step to sleep. Give `after`, or `until` with a time zone."""
    if (after is None) == (until is None):
        raise PermanentError("timer() takes either after= or until=.")
    if until is not None and until.tzinfo is None:
        raise PermanentError(
            "timer(until=…) needs a time with a time zone: a naive one means another instant elsewhere."
        )
    return TimerWait(after, until, output or {})


def _terms(run: Run) -> dict[str, Any]:
    return run.wait_terms or {}


def take_delivery(run: Run, name: str, position: int) -> Delivery | None:
    """Give an untaken delivery of that name to this position. The caller holds the run's lock."""
    delivery = Delivery.objects.filter(run=run, name=name, position__isnull=True).first()
    if delivery is not None:
        delivery.position = position
        delivery.save(update_fields=["position"])
    return delivery
