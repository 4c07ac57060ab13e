"""What an operator may do with a run: each action's name, the runs it is for, and the verb that does it.

The pages, the bulk work and the buttons all read this one table. `act` does an action unless somebody else acted since
the page was drawn. May import engine, repair, models, states, errors.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import Case, Q, Value, When

from . import engine, repair
from .errors import BadRequest, ChangedMeanwhile
from .models import AuditEvent, Run, Transition
from .states import FINAL, Status, WaitKind

PARKED = Q(status__in=[Status.SLEEPING, Status.WAITING])
ASKED = [WaitKind.APPROVAL, WaitKind.EVENT, WaitKind.CAP, WaitKind.MIGRATION]


@dataclass(frozen=True)
class Action:
    """One thing to do. `does`, in the infinitive, fills "To … a run takes the right"; `done` says what became of a run
    in bulk; `runs`: those it is possible for; `says`: what will happen, in a sentence or two."""

    name: str
    title: str
    does: str
    done: str
    verb: Callable[..., Run]
    runs: Q
    says: str
    is_dangerous: bool = False
    in_bulk: bool = True


_EVERY = (
    Action(
        "retry",
        "Retry now",
        "retry",
        "tried again",
        repair.retry_now,
        PARKED & Q(wait_kind__in=[WaitKind.RETRY, WaitKind.MIGRATION, WaitKind.CAP]),
        "It does not wait for its back-off, for repaired code or for a raised cap: the next free worker tries now.",
    ),
    Action(
        "redrive",
        "Redrive",
        "redrive",
        "redriven",
        repair.redrive,
        Q(status=Status.DEAD),
        "It goes on at its unfinished step, with the same input and its attempts counted anew. Finished steps are not "
        "repeated, and what was sent before is sent again under the same key only.",
    ),
    Action(
        "resume",
        "Resume",
        "resume",
        "resumed",
        repair.resume,
        Q(status=Status.PAUSED),
        "It goes back to what it waited for, or goes on at once when that was answered meanwhile.",
        in_bulk=False,
    ),
    Action(
        "extend",
        "Extend wait",
        "extend the wait of",
        "extended",
        repair.extend,
        Q(status__in=[Status.WAITING, Status.PAUSED], wait_kind__in=ASKED),
        "It waits for longer before it is closed for want of an answer. The question of an approval stays open too. "
        "A signature that was given stays valid: the deadline is no part of what is signed.",
        in_bulk=False,
    ),
    Action(
        "raise-cap",
        "Raise a cap",
        "raise a cap of",
        "given a higher cap",
        repair.raise_cap,
        ~Q(status__in=FINAL),
        "This run alone may make more steps, work for longer, grow older or spend more. If it waits at that cap, it "
        "goes on.",
        in_bulk=False,
    ),
    Action(
        "pause",
        "Pause",
        "pause",
        "paused",
        repair.pause,
        Q(status__in=[Status.READY, Status.RUNNING, Status.SLEEPING, Status.WAITING]),
        "It is held where it is until somebody resumes it. A step that is under way does not get to commit, and is "
        "entered again. Deadlines go on: time may run out while it is paused.",
    ),
    Action(
        "fork",
        "Fork",
        "fork",
        "forked",
        repair.fork,
        Q(status__in=[*FINAL, Status.DEAD], withholding=None),
        "It is done again from a step, as a new run with a key of its own. What came before is copied; no approval is "
        "inherited.",
        in_bulk=False,
    ),
    Action(
        "discard",
        "Discard",
        "discard",
        "discarded",
        repair.discard,
        Q(status=Status.DEAD),
        "It is given up and ends as cancelled. What it has done stays. This cannot be undone.",
        is_dangerous=True,
    ),
    Action(
        "cancel",
        "Cancel run",
        "cancel",
        "cancelled",
        engine.cancel,
        ~Q(status__in=FINAL),
        "Nothing more will be done by it; what it has done stays. A question it has put to people is withdrawn. "
        "This cannot be undone.",
        is_dangerous=True,
    ),
)

ACTIONS = {action.name: action for action in _EVERY}
BULK = {action.name: action for action in _EVERY if action.in_bulk}


def possible(run: Run, user: Any) -> list[Action]:
    """What this person may do with this run now, in one query."""
    if not user.has_perm("runs.operate_run"):
        return []
    fits = [_when(action.runs) for action in _EVERY]
    found = Run.objects.filter(pk=run.pk).values_list(*fits).get()
    return [action for action, is_fit in zip(_EVERY, found, strict=True) if is_fit]


def seen(run: Run) -> str:
    """What people did to the run so far: an action of somebody who saw less is refused."""
    last = run.transitions.filter(user__isnull=False).order_by("-pk").values_list("pk", flat=True).first()
    said = _acts(run).values_list("pk", flat=True).first()
    forked = run.forks.order_by("-pk").values_list("pk", flat=True).first()
    return f"{last or 0}-{said or 0}-{forked or 0}"


def act(name: str, key: str, *, saw: str, by: Any, why: str, actor: str = "web", **terms: Any) -> Run:
    """Do this to the run, unless another person acted on it since the page that `saw` was drawn: of two operators at
    once one wins and the other is told. Raises ChangedMeanwhile, and what the verb raises."""
    action = ACTIONS[name]
    if not why.strip():
        raise BadRequest("Give a reason: it stays in the run's history.")
    # Before the transaction: the row that a refusal leaves is not rolled back with it.
    engine.may_operate(key, by, action.does)
    with transaction.atomic():
        run = engine.locked(key, by)
        if saw and saw != seen(run):
            raise ChangedMeanwhile(key, _last_act(run))
        return action.verb(key, by=by, why=why, actor=actor, **terms)


def _acts(run: Run) -> Any:
    kinds = [AuditEvent.Kind.CAP_RAISED, AuditEvent.Kind.WAIT_EXTENDED]
    return AuditEvent.objects.filter(run=run, kind__in=kinds, user__isnull=False).order_by("-pk")


def _last_act(run: Run) -> str:
    move = run.transitions.filter(user__isnull=False).select_related("user").order_by("-pk").first()
    said = _acts(run).select_related("user").first()
    fork = Transition.objects.filter(run__forked_from=run, from_status="").select_related("run", "user").last()
    acts = [act for act in (move, said, fork) if act is not None]
    if not acts:
        return "the run was acted on"
    last: Any = max(acts, key=lambda act: act.at)
    who = last.user.get_username() if last.user else "somebody"
    if last is said:
        return f"{who} acted on it ({last.get_kind_display().lower()}, {last.detail})"
    if fork is not None and last is fork:
        return f"{who} forked it as {fork.run.key} ({fork.why})"
    return f"{who} acted on it (now {last.to_status}: {last.why})"


def _when(fit: Q) -> Any:
    return Case(When(fit, then=Value(True)), default=Value(False))
