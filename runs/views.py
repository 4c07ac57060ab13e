"""The page of one run with its timeline. The list is in console_views, acting on a run in action_views.

A view never writes: it parses, asks, and renders. What approvals a run has is not known here; the templates ask
approvals for it. May import actions, engine, history, timeline, workflows, models, states, fragments.
"""

from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from . import actions, engine, history, limits, spending, timeline, workflows
from .errors import NoSuchRun
from .fragments import answer
from .models import Run, database_clock
from .states import Status

POLL_AT_WORK, POLL_PARKED = 5, 30
"""Seconds between two looks of an open page at a run that moves, and at one that waits."""
FINDINGS = 3
"""Open findings that a run's page names; the page of findings has them all."""


@require_safe
def run_page(request: HttpRequest, key: str) -> HttpResponse:
    run, now = _found(request, key), database_clock()
    return render(request, "runs/run.html", _header_context(request, run, now) | _steps_context(run, now))


@require_safe
def run_header(request: HttpRequest, key: str) -> HttpResponse:
    run = _found(request, key)
    fragment = "runs/partials/header.html"
    return answer(request, fragment, fragment, _header_context(request, run, database_clock()))


@require_safe
def run_steps(request: HttpRequest, key: str) -> HttpResponse:
    run, fragment = _found(request, key), "runs/partials/steps.html"
    return answer(request, fragment, fragment, _steps_context(run, database_clock()))


def _found(request: HttpRequest, key: str) -> Run:
    try:
        return engine.find(key, request.user)
    except NoSuchRun as stranger:
        raise Http404(str(stranger)) from None


def _header_context(request: HttpRequest, run: Run, now: datetime) -> dict[str, Any]:
    number, total, title = timeline.place(run, workflows.get(run.workflow, run.version))
    findings = list(run.findings.visible_to(request.user).open().order_by("-pk")[: FINDINGS + 1])
    return {
        "run": run,
        "poll": _poll(run),
        "number": number,
        "total": total,
        "title": title,
        "explanation": engine.explain(run),
        "spends": spending.of(run),
        "age": (run.finished_at or now) - run.created_at,
        "findings": findings[:FINDINGS],
        "more_findings": len(findings) > FINDINGS,
        "actions": actions.possible(run, request.user),
    }


def _steps_context(run: Run, now: datetime) -> dict[str, Any]:
    shown = {"run": run, "poll": _poll(run), "now": now}
    return shown | {"history": history.of(run, now), "limits": limits.of(run, now)}


def _poll(run: Run) -> int | None:
    """Seconds until an open page looks again; None once there is nothing more to see: that ends the poll."""
    if run.is_final:
        return None
    return POLL_PARKED if run.status in (Status.WAITING, Status.PAUSED, Status.DEAD) else POLL_AT_WORK
