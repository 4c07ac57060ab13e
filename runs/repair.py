"""The operators' verbs: pause, resume, retry now, extend a wait, raise a cap, redrive, discard, fork.

Each is one transaction with who and why, guarded against all others by the run's lock: one wins, the other is told.
May import engine, waits, workflows, doorbell, models, states, errors.
"""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import Q

from . import spending, waits, workflows
from .doorbell import ring
from .engine import check_key, check_words, input_text, locked, may_operate, wake
from .errors import AlreadyStarted, BadRequest, IllegalMove, PermanentError, WaitIsOver
from .models import AuditEvent, Call, Checkpoint, DatabaseNow, Run, Transition, database_clock
from .money import Money
from .states import FINAL, CallKind, EffectState, Status, WaitKind

SLEEPS = {WaitKind.TIMER, WaitKind.RETRY}
LONGEST_EXTENSION = timedelta(days=366)
"""From now; a wait that should last longer is another wait."""

_COPY = """
INSERT INTO runs_checkpoint (run_id, position, step, output, wait_kind, closed_as, attempt, started_at, committed_at)
SELECT %s, position, step, output, wait_kind, closed_as, attempt, started_at, committed_at
  FROM runs_checkpoint WHERE run_id = %s AND position < %s
"""

_COPY_KEPT = """
INSERT INTO runs_artefact (run_id, position, place, sha256, size, media_type, kept_at)
SELECT %s, position, place, sha256, size, media_type, kept_at
  FROM runs_artefact WHERE run_id = %s AND position < %s ORDER BY id
"""


def pause(key: str, *, by: Any = None, why: str, actor: str = "") -> Run:
    """Hold a run where it is. A step that is under way does not get to commit, and is entered again on resume; what it
    sent is still recorded. Deadlines go on: an answer may be given, and time may run out, while it is paused."""
    _may_repair(key, by, why, "pause")
    with transaction.atomic():
        run = locked(key, by)
        if run.status == Status.PAUSED:
            return run
        run.move(Status.PAUSED, why=why, actor=actor or "pause", user=by, reason=why, attempt=0)
    return run


def resume(key: str, *, by: Any = None, why: str, actor: str = "") -> Run:
    """Let a paused run go on: back to what it waited for, or ready when that was answered meanwhile."""
    _may_repair(key, by, why, "resume")
    with transaction.atomic():
        run = locked(key, by)
        if run.status != Status.PAUSED:
            raise IllegalMove(key, run.status, "resumed")
        back_to = Status.READY if not run.wait_kind else Status.SLEEPING if run.wait_kind in SLEEPS else Status.WAITING
        _move(run, back_to, why, actor or "resume", by, reason="")
    return run


def retry_now(key: str, *, by: Any = None, why: str, actor: str = "") -> Run:
    """Do not wait for the back-off, the repaired code or the raised cap: try now."""
    _may_repair(key, by, why, "retry")
    with transaction.atomic():
        run = locked(key, by)
        if run.wait_kind not in (WaitKind.RETRY, WaitKind.MIGRATION, WaitKind.CAP) or run.status == Status.PAUSED:
            raise IllegalMove(key, _standing(run), "tried again now")
        _move(run, Status.READY, why, actor or "retry", by, reason="")
    return run


def extend(key: str, *, until: datetime, by: Any = None, why: str, actor: str = "") -> Run:
    """Give the wait of a run more time: it is due at `until`, later than before. The question of an approval stays open
    as long, and what was signed so far stays signed.

    Also of a paused run, whose deadlines go on. Raises BadRequest, IllegalMove (it sleeps, or waits for nothing) and
    WaitIsOver: a wait whose time is over has ended, even when no sweep has come by.
    """
    _may_repair(key, by, why, "extend the wait of")
    with transaction.atomic():
        run = locked(key, by)
        if run.is_final or not run.wait_kind or run.wait_kind in SLEEPS or run.due_at is None:
            raise IllegalMove(key, _standing(run), "given more time to wait")
        now, was = database_clock(), run.due_at
        if was <= now:
            raise WaitIsOver(key, was)
        if not was < until <= now + LONGEST_EXTENSION:
            raise BadRequest(
                f"The wait is due on {was:%-d %b %Y, %H:%M} UTC: give a later time, "
                f"at most {LONGEST_EXTENSION.days} days from now."
            )
        _let_wait_until(run, until, now, by, why)
        AuditEvent.objects.create(
            kind=AuditEvent.Kind.WAIT_EXTENDED,
            run=run,
            position=run.position + 1,
            detail=f"from {was:%-d %b %Y, %H:%M:%S} to {until:%-d %b %Y, %H:%M:%S} UTC: {why}",
            actor=actor or "extend",
            user=by,
        )
    return run


def _let_wait_until(run: Run, until: datetime, now: datetime, by: Any, why: str) -> None:
    run.due_at = until
    run.save(update_fields=["due_at"])
    if run.wait_kind in waits.kinds:
        try:
            waits.kinds[run.wait_kind].extend(run, until, now, by=by, why=why)
        except PermanentError as error:
            raise BadRequest(f"The wait of run {run.key} cannot be extended: {error}") from None


def raise_cap(
    key: str,
    *,
    by: Any = None,
    why: str,
    steps: int | None = None,
    working_time: timedelta | None = None,
    age: timedelta | None = None,
    spend: Money | None = None,
    actor: str = "",
) -> Run:
    """Give this run alone more steps, working time, age or money to spend; one that waits at a cap goes on."""
    given = {
        "steps": steps,
        "working_time": working_time.total_seconds() if working_time else None,
        "age": age.total_seconds() if age else None,
    }
    raised = {name: value for name, value in given.items() if value is not None}
    if not (raised or spend) or any(value <= 0 for value in [*raised.values(), *([spend.minor] if spend else [])]):
        raise BadRequest("Say which cap to raise (steps, working time, age or spend), and to what positive value.")
    _may_repair(key, by, why, "raise a cap of")
    with transaction.atomic():
        run = locked(key, by)
        if run.is_final:
            raise IllegalMove(key, run.status, "given a higher cap")
        if spend is not None:
            _check_currency(run, spend)
        run.caps = (run.caps or {}) | raised | ({"spend": asdict(spend)} if spend else {})
        run.save(update_fields=["caps"])
        AuditEvent.objects.create(
            kind=AuditEvent.Kind.CAP_RAISED,
            run=run,
            detail=f"{', '.join(_spelled_caps(raised, spend))}: {why}",
            actor=actor or "raise cap",
            user=by,
        )
        if run.wait_kind == WaitKind.CAP:
            # A paused one stays paused, but is ready when it is resumed.
            wake(run, why=why, actor=actor or "raise cap", user=by)
    return run


def _check_currency(run: Run, spend: Money) -> None:
    cap = spending.cap_of(run)
    if cap is None:
        raise BadRequest(f"Run {run.key} has no spend cap that could be raised.")
    if cap.currency != spend.currency:
        raise BadRequest(f"The spend cap of run {run.key} is in {cap.currency}, not in {spend.currency}.")


def _spelled_caps(raised: dict[str, float], spend: Money | None) -> list[str]:
    return [f"{name} {value:g}" for name, value in raised.items()] + ([f"spend {spend}"] if spend else [])


def redrive(key: str, *, by: Any = None, why: str, actor: str = "") -> Run:
    """Try the unfinished position of a dead run again, with the same input and its attempts counted anew.

    Where an effect of that position was refused, the position is closed: the run goes back to the step that asked for
    it, or to the same step, at a new position and so under a new key.
    """
    _may_repair(key, by, why, "redrive")
    with transaction.atomic():
        run = locked(key, by)
        if run.status != Status.DEAD:
            raise IllegalMove(key, _standing(run), "redriven")
        _close_refused(run)
        _move(run, Status.READY, why, actor or "redrive", by, reason="", attempt=0)
    return run


def discard(key: str, *, by: Any = None, why: str, actor: str = "") -> Run:
    """Give a dead run up: it ends as cancelled."""
    _may_repair(key, by, why, "discard")
    with transaction.atomic():
        run = locked(key, by)
        if run.status != Status.DEAD:
            raise IllegalMove(key, _standing(run), "discarded")
        if run.asked:
            waits.kinds[run.asked].close(run, database_clock())
        run.move(Status.CANCELLED, why=why, actor=actor or "discard", user=by, reason=why, outcome="discarded")
    return run


def repeated_by_fork(run: Run, position: int) -> list[Call]:
    """The effects that a fork from this position would make again: those known to have happened, and the unknown.

    A fork's copied checkpoints stand for what its origin did: that would happen again too. Raises BadRequest for a
    position that the run was never at.
    """
    _step_at(run, position)
    happened = [EffectState.CONFIRMED, EffectState.UNKNOWN, EffectState.SENT]
    effects = Call.objects.filter(kind=CallKind.EFFECT, state__in=happened).order_by("position", "pk")
    return [call for part in _origins(run, position) for call in effects.filter(part)]


def fork(
    key: str,
    new_key: str,
    *,
    position: int = 1,
    input: dict[str, Any] | None = None,
    repeating: list[str] | None = None,
    by: Any = None,
    why: str,
    actor: str = "",
) -> Run:
    """Do a run again from `position`, as a new run: what came before is copied, no approval is inherited.

    Only of a final or dead run. `input` None means the same. `repeating`: the idempotency keys of the effects that will
    happen again, all of them, said by whoever decides so; an effect whose outcome is unknown blocks the fork.
    """
    check_key(new_key)
    _may_repair(key, by, why, "fork")
    with transaction.atomic():
        run = locked(key, by)
        if run.status not in FINAL and run.status != Status.DEAD:
            raise IllegalMove(key, _standing(run), "forked; cancel it first")
        if run.withholding is not None:
            raise BadRequest(
                f"Run {key} cannot be forked: its values were withheld by retention on {run.withholding.at:%-d %b %Y}."
            )
        step = _step_at(run, position)
        _check_repeated(run, position, repeating or [])
        given = run.input if input is None else input
        made = _copy(run, new_key, position=position, step=step, input=given, by=by)
        Transition.objects.create(
            run=made,
            at=database_clock(),
            to_status=Status.READY,
            position=position,
            step=step,
            why=f"forked from {key} at step {position}: {why}",
            actor=actor or "fork",
            user=by,
        )
        ring(made.pk)
    return made


def _may_repair(key: str, by: Any, why: str, verb: str) -> None:
    """Refuse whoever may not repair the run or does not say why. Outside the verb's transaction: the refusal of a
    right leaves a row, which must not be rolled back with it."""
    if not why.strip():
        raise BadRequest(f"Say why you {verb} the run: the reason stays in its history.")
    check_words(why, "reason")
    may_operate(key, by, verb)


def _move(run: Run, to: Status, why: str, actor: str, by: Any, **columns: Any) -> None:
    run.move(to, why=why, actor=actor, user=by, **columns)
    if to == Status.READY:
        ring(run.pk)


def _standing(run: Run) -> str:
    return f"{run.status} ({run.wait_kind})" if run.wait_kind else run.status


def _close_refused(run: Run) -> None:
    position = run.position + 1
    effects = run.calls.filter(kind=CallKind.EFFECT, position=position)
    refused = effects.filter(state=EffectState.REFUSED).first()
    if refused is None or run.asked:
        # A step that has asked since is not entered again: only its wait is resolved anew.
        return
    if others := [call.key for call in effects.exclude(state__in=[EffectState.REFUSED, EffectState.PREPARED])]:
        raise BadRequest(
            f"{refused.key} was refused, so its step would be entered anew, under new keys, and would make "
            f"{', '.join(others)} again. Fork {run.key} at step {position}, naming each, or discard it."
        )
    Checkpoint.objects.create(
        run=run,
        position=position,
        step=run.next_step,
        output={},
        closed_as="refused",
        attempt=run.attempt,
        started_at=refused.prepared_at,
        committed_at=database_clock(),
    )
    asking = [step for kind in waits.kinds.values() if (step := kind.asking_step(run, refused.key))]
    run.position, run.next_step = position, asking[0] if asking else run.next_step
    run.save(update_fields=["position", "next_step"])


def _origins(run: Run, position: int) -> list[Q]:
    """Whose calls stand for this run's positions from `position` on, the eldest first."""
    parts: list[Q] = []
    last = run.position + 1
    while last >= position:
        begun_at = run.transitions.order_by("pk").values_list("position", flat=True)[0]
        parts.insert(0, Q(run=run, position__range=(max(position, begun_at), last)))
        if run.forked_from is None:
            break
        run, last = run.forked_from, min(last, begun_at - 1)
    return parts


def _step_at(run: Run, position: int) -> str:
    # A completed run has no unfinished position behind its last.
    last = run.position if run.status == Status.COMPLETED else run.position + 1
    if not 1 <= position <= last:
        raise BadRequest(f"Run {run.key} has been at steps 1 to {last}; it cannot be forked at {position}.")
    checkpoint = run.checkpoints.filter(position=position).first()
    return checkpoint.step if checkpoint else run.next_step


def _check_repeated(run: Run, position: int, repeating: list[str]) -> None:
    again = repeated_by_fork(run, position)
    if unknown := [call.key for call in again if call.state != EffectState.CONFIRMED]:
        raise BadRequest(
            f"It is not known whether {', '.join(unknown)} happened; settle that before forking {run.key}."
        )
    if missing := sorted({call.key for call in again} - set(repeating)):
        raise BadRequest(
            f"A fork from step {position} makes these effects again: {', '.join(missing)}. Name each to do so."
        )


def _copy(run: Run, new_key: str, *, position: int, step: str, input: dict[str, Any], by: Any) -> Run:
    input_text(input)
    known = workflows.get(run.workflow, run.version)
    if known is not None and step not in known.steps:
        raise BadRequest(f"Workflow {run.workflow} version {run.version} has no step {step} in this code.")
    try:
        with transaction.atomic():
            made = Run.objects.create(
                key=new_key,
                workflow=run.workflow,
                version=run.version,
                team_id=run.team_id,
                requested_by=by or run.requested_by,
                input=input,
                tags=run.tags,
                position=position - 1,
                next_step=step,
                forked_from=run,
                created_at=DatabaseNow(),
            )
    except IntegrityError:
        # Of two that want the key at once, the second waited for the first.
        if not Run.objects.filter(key=new_key).exists():
            raise
        raise AlreadyStarted(new_key, "history") from None
    with connection.cursor() as cursor:
        cursor.execute(_COPY, [made.pk, run.pk, position])
        cursor.execute(_COPY_KEPT, [made.pk, run.pk, position])
    return made
