"""Starts the built-in workflows that are due. Called by the sweep; two sweeps at once start one run.

May import engine, workflows, models.
"""

import logging
from collections.abc import Callable
from datetime import datetime

from django.db import transaction

from . import engine, workflows
from .models import DatabaseNow, Recurring, database_clock

logger = logging.getLogger(__name__)

_only_when: dict[str, Callable[[], bool]] = {}


def only_when(workflow: str, is_needed: Callable[[], bool]) -> None:
    """Start this workflow only when `is_needed()` says so: otherwise its time moves on, and no run is made."""
    _only_when[workflow] = is_needed


def start_due() -> int:
    """Start a run of each that is due and whose workflow this code knows; how many were started."""
    known = {workflow.name for workflow in workflows.registered()}
    due = Recurring.objects.filter(due_at__lte=DatabaseNow(), workflow__in=known).values_list("pk", flat=True)
    return sum(_take_turn(recurring) for recurring in list(due))


def _take_turn(recurring_id: int) -> int:
    with transaction.atomic():
        due = Recurring.objects.select_for_update(skip_locked=True, no_key=True, of=("self",)).select_related("team")
        recurring = due.filter(pk=recurring_id, due_at__lte=DatabaseNow()).first()
        if recurring is None:
            return 0
        was_due = recurring.due_at
        # One run makes up for all the times that were missed; the next is in the future.
        recurring.due_at += ((database_clock() - was_due) // recurring.every + 1) * recurring.every
        recurring.save(update_fields=["due_at"])
        return _start(recurring, was_due)


def _start(recurring: Recurring, was_due: datetime) -> int:
    try:
        with transaction.atomic():
            if not _only_when.get(recurring.workflow, lambda: True)():
                return 0
            engine.start(
                recurring.workflow,
                key=f"{recurring.name}-{was_due:%Y%m%d-%H%M%S}",
                input=recurring.input | {"due_at": was_due.isoformat(), "every": recurring.every.total_seconds()},
                team=recurring.team,
                actor="sweep",
            )
    except Exception:
        logger.exception("%s could not be started; it is tried again at %s.", recurring.name, recurring.due_at)
        return 0
    return 1
