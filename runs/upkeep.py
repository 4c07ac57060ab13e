"""What the sweep keeps up: registered jobs, each done by one runner at a time, however many there are.

A job is a function that does a bounded amount of work in the transaction that holds its row, and answers whether more
is left. May import models.
"""

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import transaction

from .models import DatabaseClock, DatabaseNow, Upkeep, database_clock

logger = logging.getLogger(__name__)

Job = Callable[[dict[str, Any]], bool]

_jobs: dict[str, Job] = {}


def job(name: str) -> Callable[[Job], Job]:
    """Register what is done when the row of this name is due. It is given the row's state, and may change it."""

    def register(function: Job) -> Job:
        _jobs[name] = function
        return function

    return register


def do_due() -> int:
    """Do each job that is due and that nobody is doing; how many were done."""
    due = Upkeep.objects.filter(due_at__lte=DatabaseNow(), name__in=list(_jobs)).values_list("name", flat=True)
    return sum(do(name) for name in list(due))


def do(name: str, *, now: bool = False) -> int:
    """Do this job, if it is due or `now`, unless somebody is doing it; 1 when it was done, also when it failed."""
    with transaction.atomic():
        rows = Upkeep.objects.select_for_update(skip_locked=True, no_key=True).filter(name=name)
        row = (rows if now else rows.filter(due_at__lte=DatabaseNow())).first()
        if row is None:
            return 0
        is_more_left = _attempt(row)
        # What is behind goes on with the next look; what is not keeps its pause from now: missed times are no debt.
        row.due_at = database_clock() + (timedelta() if is_more_left else row.every or timedelta())
        row.done_at = database_clock()
        row.save(update_fields=["due_at", "done_at", "state"])
    return 1


def report(name: str, state: dict[str, Any]) -> None:
    """Keep what a command found, and when."""
    told = {"done_at": DatabaseClock(), "state": state}
    Upkeep.objects.update_or_create(name=name, defaults=told, create_defaults=told)


def reported(name: str) -> Upkeep | None:
    """What was reported last under this name."""
    return Upkeep.objects.filter(name=name, done_at__isnull=False).first()


def _attempt(row: Upkeep) -> bool:
    state = dict(row.state)
    try:
        with transaction.atomic():
            is_more_left = _jobs[row.name](state)
    except Exception:
        logger.exception("The upkeep of %s failed; it is tried again in %s.", row.name, row.every)
        return False
    row.state = state
    return is_more_left
