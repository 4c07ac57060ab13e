"""The verbs that people, commands, pages and other apps use on runs: start, deliver, cancel, and what explains a run.

Each is one transaction, top to bottom; rights are checked inside it, when it is done. May import workflows, waits,
doorbell, models, values, errors.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any

from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connection, transaction

from . import stuck, waits, workflows
from .doorbell import NOTIFY, RING, ring
from .errors import AlreadyStarted, BadRequest, IllegalMove, NoSuchRun, NotAllowed, TooLate
from .failpoints import reach
from .models import AuditEvent, Delivery, Run, database_clock, run_key
from .states import Status, WaitKind
from .values import BadValue, as_json, from_json
from .workflows import Workflow

logger = logging.getLogger(__name__)

LONGEST_NAME, LONGEST_REASON = 100, 2000
"""Characters of an event's name and of a person's reason."""

_START = f"""
WITH made AS (
  INSERT INTO runs_run (key, workflow, version, team_id, requested_by_id, input, tags, status, outcome, reason,
         position, next_step, attempt, fence, worker, asked, wait_kind, wait_name)
  VALUES (%(key)s, %(workflow)s, %(version)s, %(team)s, %(by)s, %(input)s, %(tags)s, 'ready', '', '', 0,
         %(step)s, 0, 0, '', '', '', '')
  ON CONFLICT (key) DO NOTHING RETURNING id, next_step
), logged AS (
  INSERT INTO runs_transition (run_id, at, from_status, to_status, position, step, why, actor, user_id)
  SELECT id, runs_clock(), '', 'ready', 1, next_step, 'started', %(actor)s, %(by)s FROM made
), rung AS ({RING.format(source="made", when="true")})
SELECT id, ({NOTIFY} FROM rung) FROM made
"""


def start(
    workflow: Workflow | str,
    *,
    key: str,
    input: dict[str, Any],
    team: Group | str,
    tags: dict[str, Any] | None = None,
    by: Any = None,
    actor: str = "",
) -> Run:
    """Start a run in the caller's transaction: a roll-back leaves no ghost run.

    The same key with the same workflow, input and team returns the run that was started first; another one raises
    AlreadyStarted. `by` is who asks: a member of the team, who may not approve what the run proposes. Raises BadRequest
    for a key, an input or a workflow that cannot be, NotAllowed for a person of another team.
    """
    found = workflow if isinstance(workflow, Workflow) else _workflow(workflow)
    check_key(key)
    group = team if isinstance(team, Group) else _team(team)
    _check_member(by, group)
    text = input_text(input)
    values = {
        "key": key,
        "workflow": found.name,
        "version": found.version,
        "team": group.pk,
        "by": by.pk if by else None,
        "input": text,
        "tags": as_json(tags or {}, where="tags"),
        "step": found.first,
        "actor": actor or "start",
    }
    with connection.cursor() as cursor:
        cursor.execute(_START, values)
        made = cursor.fetchone()
    return Run.objects.get(pk=made[0]) if made else _started_before(key, found, text, group)


def deliver(key: str, name: str, body: dict[str, Any], *, by: Any = None, actor: str = "") -> Delivery:
    """Bring a run the event it waits for, or will wait for: one that comes early is kept.

    Delivering the same body again before it is taken returns the first delivery; another one raises BadRequest. Raises
    NoSuchRun, NotAllowed, IllegalMove (the run has ended), TooLate (its wait is past its due time).
    """
    text = input_text(body, where="event")
    check_words(name, "name of the event", LONGEST_NAME)
    may_operate(key, by, "deliver an event to")
    with transaction.atomic():
        run = locked(key, by)
        if run.is_final:
            raise IllegalMove(key, run.status, f"given the event {name}")
        waiting = Delivery.objects.filter(run=run, name=name, position__isnull=True).first()
        if waiting is not None:
            if waiting.body != from_json(text):
                raise BadRequest(
                    f"Run {key} holds another event {name} already, which no step has taken yet. Nothing was changed."
                )
            return waiting
        taken_at = run.position + 1 if _waits_for(run, name) else None
        # A late answer is refused here, by the clock read under the lock, even when no sweep has come by.
        if taken_at is not None and run.due_at is not None and run.due_at <= database_clock():
            raise TooLate(key, name, run.due_at)
        delivery = Delivery.objects.create(run=run, name=name, body=from_json(text), delivered_by=by, position=taken_at)
        if taken_at is not None:
            wake(run, why=f"event {name} was delivered", actor=actor, user=by)
        reach(key, run.position + 1, "delivering")
    reach(key, run.position + 1, "delivered")
    return delivery


def cancel(key: str, *, by: Any = None, why: str, actor: str = "") -> Run:
    """End a run for good. What it has done stays; an effect that is under way is still recorded when it is known.

    Cancelling a cancelled run changes nothing. Raises NoSuchRun, NotAllowed, BadRequest (no reason), IllegalMove.
    """
    if not why.strip():
        raise BadRequest("Say why the run is cancelled: the reason stays in its history.")
    check_words(why, "reason")
    may_operate(key, by, "cancel")
    with transaction.atomic():
        run = locked(key, by)
        if run.status == Status.CANCELLED:
            return run
        if run.is_final:
            raise IllegalMove(key, run.status, "cancelled")
        if run.asked:
            waits.kinds[run.asked].close(run, database_clock())
        run.move(Status.CANCELLED, why=why, actor=actor or "cancel", user=by, reason=why, outcome="cancelled")
    return run


def wake(run: Run, *, why: str, actor: str, user: Any = None) -> None:
    """Make a parked run, whose row the caller has locked, ready again, and ring for it, in the caller's transaction.

    A paused run stays paused: its wait is over, and resuming makes it ready.
    """
    if run.status == Status.PAUSED:
        over = {"wait_kind": "", "wait_name": "", "wait_since": None, "due_at": None}
        Run.objects.filter(pk=run.pk).update(**over)
        return
    run.move(Status.READY, why=why, actor=actor or "answer", user=user)
    _ring(run)


def _ring(run: Run) -> None:
    """A bell that the queue refuses is like one that was lost: what it announces stays, and the sweep rings."""
    try:
        with transaction.atomic():
            ring(run.pk)
    except DatabaseError:
        if connection.needs_rollback:
            # Not the queue alone: the database is away, and all of the transaction with it.
            raise
        logger.exception("No bell could be rung for run %s; the sweep will ring for it.", run.key)


def find(key: str, user: Any) -> Run:
    """The run, if the user may see it; NoSuchRun for strangers as for keys that do not exist. None sees all."""
    runs = Run.objects.all() if user is None else Run.objects.visible_to(user)
    if not key.isascii() or "\0" in key:
        raise NoSuchRun(key)
    run = runs.select_related("team", "requested_by").filter(key=key).first()
    if run is None:
        raise NoSuchRun(key)
    return run


def may_operate(key: str, user: Any, verb: str) -> None:
    """Refuse whoever may not repair this run: strangers as if it did not exist, others with the rule. Recorded."""
    if user is None:
        return
    run = find(key, user)
    if not user.has_perm("runs.operate_run"):
        rule = f"To {verb} a run takes the right to operate runs (group ops); {user.get_username()} does not have it."
        AuditEvent.objects.create(kind=AuditEvent.Kind.VERB_REFUSED, run=run, detail=f"{verb}: {rule}", user=user)
        raise NotAllowed(rule)


def explain(run: Run) -> str:
    """Why this run is not moving, or what happens to it next: one sentence."""
    return explained([run])[run.pk]


def explained(runs: Sequence[Run]) -> dict[int, str]:
    """That sentence for each of these runs, by their ids, in one query."""
    standing_still = stuck.among(runs)
    return {
        run.pk: standing_still[run.pk].sentence(run) if run.pk in standing_still else _what_is_next(run) for run in runs
    }


def _what_is_next(run: Run) -> str:
    step = f"step {run.position + 1} ({run.next_step.replace('_', ' ')})"
    match run.status:
        case Status.READY:
            return f"Ready for {step}: the next free worker claims it."
        case Status.RUNNING:
            lease = f"{run.lease_until:%H:%M:%S} UTC"
            return f"A worker is at {step}, attempt {run.attempt}; if it falls silent, another goes on after {lease}."
        case Status.SLEEPING | Status.WAITING:
            return _explain_wait(run, step)
        case Status.PAUSED:
            return f"Paused before {step}; an operator resumes it."
        case Status.DEAD:
            return run.reason or f"Dead at {step}."
    return f"Ended: {run.outcome}." + (f" {run.reason}" if run.reason else "")


def _explain_wait(run: Run, step: str) -> str:
    due = f"{run.due_at:%-d %b %Y, %H:%M:%S} UTC"
    match run.wait_kind:
        case WaitKind.RETRY:
            return f"{run.wait_name}. Tried again at {due}."
        case WaitKind.TIMER:
            return f"Sleeps at {step} until {due}."
        case WaitKind.MIGRATION | WaitKind.CAP:
            return f"{run.wait_name}. Unless that is mended it goes to the dead letters at {due}."
        case WaitKind.EVENT:
            return f"Waits at {step} for the event {run.wait_name}, until {due}."
    return f"Waits at {step} until {due}: {run.wait_name}."


def _waits_for(run: Run, name: str) -> bool:
    parked = run.status in (Status.WAITING, Status.PAUSED)
    return parked and run.wait_kind == WaitKind.EVENT and run.wait_name == name


def locked(key: str, user: Any) -> Run:
    """The run's row, locked until the transaction ends, if the user may see it. Raises NoSuchRun."""
    find(key, user)
    return Run.objects.select_for_update(no_key=True).get(key=key)


def _started_before(key: str, workflow: Workflow, text: str, team: Group) -> Run:
    run = Run.objects.get(key=key)
    if run.withholding_id is not None:
        raise AlreadyStarted(key, "input, or the same: retention withheld it")
    for difference, same in (
        ("workflow", run.workflow == workflow.name),
        ("input", run.input == json.loads(text)),
        ("team", run.team_id == team.pk),
    ):
        if not same:
            raise AlreadyStarted(key, difference)
    return run


def _workflow(name: str) -> Workflow:
    found = workflows.get(name)
    if found is None:
        known = ", ".join(sorted({workflow.name for workflow in workflows.registered()})) or "none"
        raise BadRequest(f"There is no workflow {name}. Known here: {known}.")
    return found


def _team(name: str) -> Group:
    group = Group.objects.filter(name=name).first()
    if group is None:
        raise BadRequest(f"There is no team (group) {name}.")
    return group


def _check_member(user: Any, team: Group) -> None:
    if user is None or user.is_superuser or user.groups.filter(pk=team.pk).exists():
        return
    rule = f"Only members of the team {team.name} may start its runs; {user.get_username()} is none."
    AuditEvent.objects.create(kind=AuditEvent.Kind.VERB_REFUSED, detail=f"start: {rule}", user=user)
    raise NotAllowed(rule)


def check_words(text: str, what: str, longest: int = LONGEST_REASON) -> None:
    """Refuse words that are too long or cannot be kept. Raises BadRequest."""
    if len(text) > longest:
        raise BadRequest(f"The {what} has {len(text)} characters; {longest} is the most.")
    try:
        as_json(text, where=what)
    except BadValue:
        raise BadRequest(f"The {what} holds characters that cannot be kept (NUL or half a character).") from None


def check_key(key: str) -> None:
    """Refuse what cannot be a run key. Raises BadRequest."""
    try:
        run_key(key)
    except ValidationError as error:
        raise BadRequest(f"{key!r} cannot be a run key. {error.messages[0]}") from None


def input_text(value: dict[str, Any], where: str = "input") -> str:
    """The JSON text of an object from outside. Raises BadRequest."""
    if not isinstance(value, dict):
        raise BadRequest(f"The {where} must be a JSON object.")
    try:
        return as_json(value, where=where)
    except BadValue as error:
        raise BadRequest(str(error)) from None
