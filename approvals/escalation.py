"""fire_due: the rungs whose time has come. Called by the sweep; however many sweep, each rung is fired once.

Nothing is decided here. May import ledger, notices, models and runs' models and states.
"""

import logging
from datetime import datetime

from django.db import transaction

from runs.models import Run, database_clock

from . import ledger, notices
from .models import Approval, ApprovalStatus, Notice, Rung

logger = logging.getLogger(__name__)

BATCH = 500


def fire_due() -> int:
    """Fire what is due, approval by approval, each in a transaction of its own; how many rungs were."""
    due = Rung.objects.due().order_by("due_at").values_list("approval_id", "approval__run_id")[:BATCH]
    return sum(_isolated(approval_id, run_id) for approval_id, run_id in dict.fromkeys(due))


def _isolated(approval_id: int, run_id: int) -> int:
    try:
        with transaction.atomic():
            return _fire(approval_id, run_id)
    except Exception:
        logger.exception("The ladder of approval %s could not be climbed; it is tried again.", approval_id)
        return 0


def _fire(approval_id: int, run_id: int) -> int:
    # Lock order everywhere: run, approval, and the ledger's head last. Whoever holds the run is deciding, or sweeping.
    run = Run.objects.select_for_update(no_key=True, skip_locked=True).filter(pk=run_id).first()
    if run is None:
        return 0
    approval = Approval.objects.select_for_update(no_key=True).get(pk=approval_id)
    # Read again under the lock: another sweep may have fired them.
    rungs = list(approval.rungs.due().select_related("to"))
    now = database_clock()
    if approval.status != ApprovalStatus.OPEN:
        approval.rungs.pending().update(fired_at=now, is_void=True)
        return 0
    for rung in rungs:
        _climb(rung, approval, run, now)
    if rungs and approval.due_at > now:
        # One notice for all that were missed: the last says how it stands.
        kind = Notice.Kind.ESCALATION if rungs[-1].kind == Rung.Kind.ESCALATE else Notice.Kind.REMINDER
        notices.write(approval, kind, rungs[-1])
    return len(rungs)


def _climb(rung: Rung, approval: Approval, run: Run, now: datetime) -> None:
    if rung.to is not None:
        if rung.earlier_may_decide:
            approval.groups.add(rung.to)
        else:
            approval.groups.set([rung.to])
    rung.fired_at = now
    rung.save(update_fields=["fired_at"])
    said = {
        "act": rung.kind,
        "rung": rung.number,
        "level": approval.level,
        "groups": sorted(approval.groups.values_list("name", flat=True)),
        "due_at": ledger.instant(rung.due_at),
        "actor": "system",
    }
    ledger.append("ladder", ledger.subject(approval, run) | said, at=now)
