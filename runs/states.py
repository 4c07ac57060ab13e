"""What a run can be, and every legal move between those states.

Lives here: statuses, wait kinds, MOVES. Imports nothing of ours, so that models, migrations and pages can all read it.
"""

from django.db.models import TextChoices


class Status(TextChoices):
    READY = "ready", "Ready"
    """Next moved by a worker, which claims it."""
    RUNNING = "running", "Running"
    """Next moved by the holder of its lease, or by the sweep once the lease is past."""
    SLEEPING = "sleeping", "Sleeping"
    """Next moved by the clock: a timer or a retry's back-off."""
    WAITING = "waiting", "Waiting"
    """Next moved by whoever decides or delivers, or by its due time."""
    PAUSED = "paused", "Paused"
    """Next moved by an operator."""
    DEAD = "dead", "Dead letter"
    """Next moved by an operator: redrive, or discard."""
    COMPLETED = "completed", "Completed"
    """Final: the workflow reached an end of its own; the outcome says which."""
    EXPIRED = "expired", "Expired"
    """Final: nobody answered in time, and the workflow names no other step for that."""
    CANCELLED = "cancelled", "Cancelled"
    """Final: a person ended it."""


FINAL = frozenset({Status.COMPLETED, Status.EXPIRED, Status.CANCELLED})
LIVE = frozenset(Status) - FINAL

MOVES: dict[Status, frozenset[Status]] = {
    Status.READY: frozenset({Status.RUNNING, Status.PAUSED, Status.CANCELLED}),
    Status.RUNNING: frozenset(
        {
            Status.READY,
            Status.SLEEPING,
            Status.WAITING,
            Status.PAUSED,
            Status.DEAD,
            Status.COMPLETED,
            Status.EXPIRED,
            Status.CANCELLED,
        }
    ),
    Status.SLEEPING: frozenset({Status.READY, Status.PAUSED, Status.CANCELLED}),
    Status.WAITING: frozenset({Status.READY, Status.PAUSED, Status.DEAD, Status.EXPIRED, Status.CANCELLED}),
    Status.PAUSED: frozenset({Status.READY, Status.SLEEPING, Status.WAITING, Status.CANCELLED}),
    Status.DEAD: frozenset({Status.READY, Status.CANCELLED}),
    Status.COMPLETED: frozenset(),
    Status.EXPIRED: frozenset(),
    Status.CANCELLED: frozenset(),
}


class WaitKind(TextChoices):
    """Why a run is parked. `approvals` brings the first; the engine itself only knows the others."""

    APPROVAL = "approval", "Approval"
    EVENT = "event", "Event"
    TIMER = "timer", "Timer"
    RETRY = "retry", "Retry"
    CAP = "cap", "Cap"
    MIGRATION = "migration", "Migration"


class EffectState(TextChoices):
    """How much is known of one call."""

    PREPARED = "prepared", "Prepared"
    """Its intent is committed; it was surely never sent."""
    SENT = "sent", "Sent"
    """It was about to be sent, and no outcome is recorded (yet)."""
    CONFIRMED = "confirmed", "Confirmed"
    """It was answered: it happened."""
    REFUSED = "refused", "Refused"
    """It was answered: it did not happen, and will not."""
    UNKNOWN = "unknown", "Unknown"
    """It may have happened. Resolved by the same key, by looking it up or by a person; never by guessing."""


class CallKind(TextChoices):
    READ = "read", "Read"
    EFFECT = "effect", "Effect"
    MODEL = "model", "Model"
