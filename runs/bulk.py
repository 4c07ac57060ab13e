"""One action on many runs: what would be done, choosing the runs once and for all, and treating one after the other.

Bulk work is a run of the built-in workflow bulk-work; builtin registers it. May import actions, engine, models, errors.
"""

import logging
import re
import time
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import InterfaceError, OperationalError, connection, transaction

from . import engine
from .actions import BULK, Action
from .errors import BadRequest, NotAllowed, RunError, sentence_of
from .models import AuditEvent, Batch, BatchItem, DatabaseClock, Run, RunQuerySet
from .states import Status

logger = logging.getLogger(__name__)

WORKFLOW = "bulk-work"
MOST = 100_000
"""Runs that one piece of bulk work may be about."""
AT_WORK = 2.0
"""Seconds until a step ends where it is: a pause, a cancel or a stop of the worker is then obeyed."""

_CHOOSE = """
INSERT INTO runs_batchitem (batch_id, run_id, outcome, sentence)
SELECT %s, chosen.id, '', '' FROM ({chosen}) AS chosen (id)
"""


class MoreThanShown(RunError):
    def __init__(self, shown: int, now: int) -> None:
        super().__init__(
            f"You were shown {shown:,} runs, and {now:,} would be chosen now. Nothing was done; look again."
        )


@dataclass(frozen=True)
class Preview:
    """What would be done: of so many `matching` runs, `fitting` are in a state that the action is for."""

    action: Action
    matching: int
    fitting: int
    sample: list[Run]

    @property
    def left_out(self) -> int:
        return self.matching - self.fitting


def preview(action: Action, runs: RunQuerySet) -> Preview:
    """Counted up to one more than MOST; nothing is changed."""
    fitting = runs.filter(action.runs)
    sample = list(fitting.select_related("team").defer("input", "tags").order_by("-pk")[:10])
    return Preview(action, _count(runs), _count(fitting), sample)


def begin(
    action: str, runs: RunQuerySet, *, shown: int, token: str, by: Any, why: str, chosen: str, actor: str = "web"
) -> Batch:
    """Choose the runs that the action is for, once and for all, and start the run that treats them as `by`.

    `token` makes it one: sent again it gives the batch of the first time. `shown`: how many runs the person was shown.
    Raises NotAllowed, BadRequest and MoreThanShown.
    """
    _check(action, by, why, token)
    with transaction.atomic():
        fitting = runs.filter(BULK[action].runs)
        team = _team(fitting, by)
        key, given = f"bulk-{action}-{token}", {"action": action}
        run = engine.start(WORKFLOW, key=key, input=given, team=team, by=by, actor=actor)
        if (known := Batch.objects.filter(run=run).first()) is not None:
            return known
        batch = Batch.objects.create(run=run, action=action, why=why, chosen=chosen, asked_by=by)
        batch.total = _choose(batch, fitting)
        if batch.total > min(shown, MOST):
            raise MoreThanShown(shown, batch.total)
        batch.save(update_fields=["total"])
    return batch


def work(run_key: str, after: int, seconds: float = AT_WORK) -> int | None:
    """Treat the next runs of this run's batch, those behind the item `after`; where to go on, None when all are done.

    Each is treated in one transaction with the row that says so: a worker that dies leaves it undone or done, and
    nothing is done twice.
    """
    batch, until = Batch.objects.get(run__key=run_key), time.monotonic() + seconds
    while time.monotonic() < until:
        treated = _treat_next(batch, after)
        if treated is None:
            break
        after = treated
    if batch.items.filter(outcome="", pk__gt=after).exists():
        return after
    return 0 if batch.items.filter(outcome="").exists() else None


def words(run_key: str) -> str:
    """What came of it, as the run's outcome."""
    batch = Batch.objects.get(run__key=run_key)
    tally = batch.tally()
    return f"{tally['done']} {BULK[batch.action].done}, {tally['refused']} refused"


def _treat_next(batch: Batch, after: int) -> int | None:
    with transaction.atomic():
        # Only while its own run is at work: paused or cancelled it stops before the next, not at the step's end.
        waiting = batch.items.filter(outcome="", pk__gt=after, batch__run__status=Status.RUNNING)
        item = waiting.select_for_update(no_key=True, of=("self",)).select_related("run").order_by("pk").first()
        if item is None:
            return None
        outcome, sentence = _treat(batch, item.run)
        batch.items.filter(pk=item.pk).update(outcome=outcome, sentence=sentence, done_at=DatabaseClock())
    return item.pk


def _treat(batch: Batch, run: Run) -> tuple[BatchItem.Outcome, str]:
    # Read anew for each: whoever loses the right meanwhile goes no further.
    person = get_user_model().objects.get(pk=batch.asked_by_id)
    try:
        with transaction.atomic():
            BULK[batch.action].verb(run.key, by=person, why=batch.why, actor=_actor(batch))
    except RunError as refusal:
        _keep_refusal(batch, run, person, refusal)
        return BatchItem.Outcome.REFUSED, str(refusal)
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        logger.exception("Run %s could not be %s in bulk.", run.key, BULK[batch.action].done)
        return BatchItem.Outcome.REFUSED, sentence_of(error)
    return BatchItem.Outcome.DONE, ""


def _keep_refusal(batch: Batch, run: Run, person: Any, refusal: RunError) -> None:
    """The verb's own row of it went with the verb's transaction."""
    if isinstance(refusal, NotAllowed):
        detail = f"{batch.action} in bulk: {refusal}"
        AuditEvent.objects.create(
            kind=AuditEvent.Kind.VERB_REFUSED, run=run, detail=detail, user=person, actor=_actor(batch)
        )


def _actor(batch: Batch) -> str:
    return f"batch {batch.pk}"


def _check(action: str, by: Any, why: str, token: str) -> None:
    if action not in BULK:
        raise BadRequest(f"Choose what is to be done: {', '.join(BULK)}.")
    if not why.strip():
        raise BadRequest("Give a reason: it stays in the history of each run.")
    engine.check_words(why, "reason")
    if not re.fullmatch(r"[0-9a-f]{16}", token):
        raise BadRequest("This form is not whole. Open the page again.")
    if not by.has_perm("runs.operate_run"):
        rule = f"To {BULK[action].does} runs takes the right to operate runs; {by.get_username()} does not have it."
        AuditEvent.objects.create(kind=AuditEvent.Kind.VERB_REFUSED, detail=f"{action} in bulk: {rule}", user=by)
        raise NotAllowed(rule)


def _team(runs: RunQuerySet, by: Any) -> Group:
    """Whose run the bulk work is: a team of the chosen runs that the person belongs to, else any of the person's."""
    first = runs.order_by("-pk").select_related("team").first()
    if first is None:
        raise BadRequest("None of these runs is in a state for that. Nothing was changed.")
    if by.is_superuser or by.groups.filter(pk=first.team_id).exists():
        return first.team
    own = by.groups.order_by("pk").first()
    if own is None:
        raise BadRequest("Bulk work belongs to a team, and you are in none.")
    return own


def _choose(batch: Batch, runs: RunQuerySet) -> int:
    statement, values = runs.order_by("pk").values("pk")[: MOST + 1].query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(_CHOOSE.format(chosen=statement), [batch.pk, *values])
        return cursor.rowcount


def _count(runs: RunQuerySet) -> int:
    return runs.order_by().values("pk")[: MOST + 1].count()
