"""The pages on which an operator acts on one run: what will happen, the reason, and the answer. Plain forms.

A view never writes: it parses, calls one verb, and renders. May import actions, engine, repair, fragments, models,
workflows, spending, money, states, errors.
"""

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from . import actions, engine, repair, spending, workflows
from .actions import ACTIONS, Action
from .errors import (
    AlreadyStarted,
    BadRequest,
    ChangedMeanwhile,
    IllegalMove,
    NoSuchRun,
    NotAllowed,
    RunError,
    WaitIsOver,
)
from .models import Call, Run
from .money import Money, minor_units
from .states import EffectState
from .templatetags.show import pretty
from .workflows import Caps

REFUSED: dict[type[RunError], int] = {
    BadRequest: 422,
    AlreadyStarted: 422,
    NotAllowed: 403,
    IllegalMove: 409,
    ChangedMeanwhile: 409,
    WaitIsOver: 410,
}
MOST = 2**31 - 1
"""Steps, hours or days that a cap may be raised to."""
LONGEST_INPUT = 1_000_000
"""Characters of an input that a form takes."""


@require_http_methods(["GET", "HEAD", "POST"])
def run_action(request: HttpRequest, key: str, action: str) -> HttpResponse:
    """The question whether to do it, as a page; posted, the answer."""
    if action not in ACTIONS:
        raise Http404(f"There is nothing called {action} to do with a run.")
    run, chosen = _found(request, key), ACTIONS[action]
    if action == "fork":
        return _fork(request, run, chosen)
    if request.method != "POST":
        return _form(request, run, chosen)
    return _do(request, run, chosen, lambda: TERMS[action](run, request.POST) if action in TERMS else {})


def _do(
    request: HttpRequest, run: Run, action: Action, terms: Callable[[], dict[str, Any]], **shown: Any
) -> HttpResponse:
    sent = request.POST
    try:
        made = actions.act(
            action.name, run.key, saw=sent.get("saw", ""), by=request.user, why=sent.get("why", ""), **terms()
        )
    except NoSuchRun as stranger:
        raise Http404(str(stranger)) from None
    except RunError as refusal:
        return _refused(request, run, action, refusal, **shown)
    response = redirect(reverse("runs:run", args=[made.key]))
    response.status_code = 303
    return response


def _refused(request: HttpRequest, run: Run, action: Action, refusal: RunError, **shown: Any) -> HttpResponse:
    status = REFUSED.get(type(refusal), 422)
    words = {"error" if status == 422 else "rule": str(refusal)}
    return _form(request, _found(request, run.key), action, status=status, **words, **shown)


def _form(request: HttpRequest, run: Run, action: Action, *, status: int = 200, **shown: Any) -> HttpResponse:
    if not request.user.has_perm("runs.operate_run"):
        shown.setdefault("rule", f"To {action.does} a run takes the right to operate runs.")
        status = 403
    elif "rule" not in shown and action not in actions.possible(run, request.user):
        shown["rule"] = f"Run {run.key} is {run.get_status_display().lower()}, which leaves nothing to {action.does}."
        status = 409
    context = {"run": run, "action": action, "explanation": engine.explain(run), "saw": actions.seen(run)}
    template = "runs/fork.html" if action.name == "fork" else "runs/action.html"
    return render(request, template, context | _hints(run, action) | {"sent": request.POST} | shown, status=status)


def _hints(run: Run, action: Action) -> dict[str, Any]:
    if action.name == "raise-cap":
        return {"caps": _caps_of(run)}
    if action.name == "extend" and run.due_at:
        return {"until": (run.due_at + timedelta(days=1)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M")}
    return {}


def _caps_of(run: Run) -> dict[str, Any]:
    known = workflows.get(run.workflow, run.version)
    caps, raised = known.caps if known else Caps(), run.caps or {}
    return {
        "steps": raised.get("steps", caps.steps),
        "hours": raised.get("working_time", caps.working_time.total_seconds()) / 3600,
        "days": raised.get("age", caps.age.total_seconds()) / 86_400,
        "spend": spending.cap_of(run),
        "spends": spending.of(run),
    }


# What is sent


def _until(run: Run, sent: QueryDict) -> dict[str, Any]:
    try:
        until = datetime.fromisoformat(sent.get("until", ""))
    except ValueError:
        raise BadRequest("Say until when, as a date and a time in UTC.") from None
    return {"until": until if until.tzinfo else until.replace(tzinfo=UTC)}


def _raised(run: Run, sent: QueryDict) -> dict[str, Any]:
    steps, hours, days = (_number(sent, name) for name in ("steps", "hours", "days"))
    return {
        "steps": steps,
        "working_time": timedelta(hours=hours) if hours else None,
        "age": timedelta(days=days) if days else None,
        "spend": _spend(run, sent.get("spend", "").strip()),
    }


def _spend(run: Run, words: str) -> Money | None:
    """In the currency of the run's own cap, which the form names."""
    cap = spending.cap_of(run)
    if not words:
        return None
    if cap is None:
        raise BadRequest(f"Run {run.key} has no spend cap that could be raised.")
    try:
        return Money(minor_units(words, cap.currency), cap.currency)
    except ValueError:
        raise BadRequest(f"Give the spend as an amount of {cap.currency} alone, as 25.") from None


def _number(sent: QueryDict, name: str) -> int | None:
    word = sent.get(name, "").strip()
    if not word:
        return None
    if not (word.isascii() and word.isdecimal() and len(word) < 11 and 1 <= int(word) <= LIMITS[name]):
        raise BadRequest(f"Give {name} as a whole number from 1 to {LIMITS[name]:,}.")
    return int(word)


LIMITS = {"steps": MOST, "hours": 100_000, "days": 36_500}
TERMS: dict[str, Callable[[Run, QueryDict], dict[str, Any]]] = {"extend": _until, "raise-cap": _raised}


# Forking: first what would be done again, then the answer


@dataclass(frozen=True)
class Fork:
    """What the form of a fork says so far, and what would come of it."""

    new_key: str
    position: int
    text: str
    input: Any = None
    error: str = ""
    changes: list[tuple[str, str]] = field(default_factory=list)
    repeated: list[Call] = field(default_factory=list)

    @property
    def unknown(self) -> list[Call]:
        return [call for call in self.repeated if call.state != EffectState.CONFIRMED]

    @property
    def is_changed(self) -> bool:
        return any(sign != " " for sign, _ in self.changes)


def _fork(request: HttpRequest, run: Run, action: Action) -> HttpResponse:
    asked = request.POST if request.method == "POST" else request.GET
    fork, steps = _forked(run, asked), _steps_of(run)
    shown: dict[str, Any] = {"fork": fork, "steps": steps}
    if request.method != "POST" or asked.get("do") != "fork":
        previewed = request.method == "POST" and not fork.error and asked.get("do") != "edit"
        shown |= {"is_preview": previewed}
        if fork.error:
            return _form(request, run, action, status=422, error=fork.error, **shown)
        return _form(request, run, action, **shown)
    if fork.error:
        return _form(request, run, action, status=422, error=fork.error, is_preview=False, **shown)

    def terms() -> dict[str, Any]:
        named = {"new_key": fork.new_key, "position": fork.position, "repeating": asked.getlist("repeating")}
        return named | {"input": fork.input if fork.is_changed else None}

    return _do(request, run, action, terms, is_preview=True, **shown)


def _forked(run: Run, asked: QueryDict) -> Fork:
    text = asked.get("input", pretty(run.input)).replace("\r\n", "\n")
    word = asked.get("position", "")
    # Where it stopped, unless the page says otherwise.
    position = int(word) if word.isdecimal() and len(word) < 10 else run.position + (run.status != "completed")
    plain = Fork(asked.get("new_key", f"{run.key[:44]}-{2 + run.forks.count()}"), position, text)
    try:
        repeated, given = repair.repeated_by_fork(run, position), _input_of(text)
        engine.check_key(plain.new_key)
    except BadRequest as refusal:
        return Fork(plain.new_key, position, text, error=str(refusal))
    return Fork(plain.new_key, position, text, given, "", _changes(run.input, given), repeated)


def _input_of(text: str) -> Any:
    if len(text) > LONGEST_INPUT:
        raise BadRequest(f"The input has {len(text):,} characters; {LONGEST_INPUT:,} is the most.")
    try:
        given = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"The input is not JSON: {error}.") from None
    engine.input_text(given)
    return given


def _changes(before: Any, after: Any) -> list[tuple[str, str]]:
    """The input's lines, each with its sign: - taken out, + put in, a space where it stays."""
    lines = difflib.ndiff(pretty(before).splitlines(), pretty(after).splitlines())
    return [(line[0], line[2:]) for line in lines if line[0] != "?"]


def _steps_of(run: Run) -> list[tuple[int, str]]:
    done = list(run.checkpoints.order_by("position").values_list("position", "step")[:1000])
    return done if run.status == "completed" else [*done, (run.position + 1, run.next_step)]


def _found(request: HttpRequest, key: str) -> Run:
    try:
        return engine.find(key, request.user)
    except NoSuchRun as stranger:
        raise Http404(str(stranger)) from None
