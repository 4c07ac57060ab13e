"""The rows of one run's history, in a fixed number of queries, and the story told from them.

A run that loops may have very many positions: the last WINDOW are read, and `earlier` says how many are not. May
import models, alarms, timeline, workflows.
"""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from . import alarms, timeline, workflows
from .models import AuditEvent, Run, Transition
from .timeline import Timeline

ACTS = [AuditEvent.Kind.CAP_RAISED, AuditEvent.Kind.WAIT_EXTENDED, AuditEvent.Kind.EFFECT_SETTLED]
"""What people do to a run without moving it."""
WINDOW = 100
"""Positions that a page shows of a run; the admin has them all."""


@dataclass(frozen=True)
class History:
    timeline: Timeline
    moves: list[Transition]
    earlier: int
    acts: list[AuditEvent]
    extension: AuditEvent | None
    """The last extension of the wait that the run is in."""


def of(run: Run, now: datetime, *, with_calls: bool = True) -> History:
    """What this run did until `now`, the database's clock."""
    earlier = max(0, run.position - WINDOW)
    moves = list(run.transitions.filter(position__gt=earlier).select_related("user").order_by("pk"))
    story = timeline.tell(
        run,
        transitions=moves,
        checkpoints=list(run.checkpoints.filter(position__gt=earlier).order_by("position")),
        calls=run.calls.filter(position__gt=earlier).order_by("pk") if with_calls else (),
        artefacts=run.artefacts.filter(position__gt=earlier).order_by("pk") if with_calls else (),
        alarms=alarms.of_calls(_reused(run, earlier)) if with_calls else (),
        workflow=workflows.get(run.workflow, run.version),
        now=now,
    )
    acts = list(run.audit_events.filter(kind__in=ACTS).select_related("user").order_by("-pk")[:WINDOW])[::-1]
    here = [act for act in acts if act.kind == AuditEvent.Kind.WAIT_EXTENDED and act.position == run.position + 1]
    return History(story, moves, earlier, acts, here[-1] if here and run.due_at else None)


def _reused(run: Run, earlier: int) -> QuerySet[AuditEvent]:
    events = run.audit_events.filter(kind=AuditEvent.Kind.KEY_REUSED, position__gt=earlier)
    return events.select_related("call").order_by("pk")
