"""The pages of those who watch runs: the list, one run with its timeline, and cancelling one.

A view never writes: it parses, calls one verb of engine, and renders. What approvals a run has is not known here; the
templates ask approvals for it. May import engine, history, timeline, workflows, models, states, fragments.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_safe

from . import engine, history, spending, timeline, workflows
from .errors import BadRequest, IllegalMove, NoSuchRun, NotAllowed
from .fragments import answer, count, first_rows
from .models import DatabaseNow, Run, RunQuerySet, database_clock
from .states import Status

POLL_AT_WORK, POLL_PARKED = 5, 30
"""Seconds between two looks of an open page at a run that moves, and at one that waits."""
FINDINGS = 3
"""Open findings that a run's page names; the page of findings has them all."""


class Tab(NamedTuple):
    name: str
    title: str
    statuses: tuple[Status, ...] = ()
    is_bad: bool = False


TABS = (
    Tab("all", "All"),
    Tab("working", "At work", (Status.READY, Status.RUNNING)),
    Tab("waiting", "Waiting", (Status.WAITING,)),
    Tab("sleeping", "Sleeping", (Status.SLEEPING,)),
    Tab("paused", "Paused", (Status.PAUSED,)),
    Tab("stuck", "Stuck", is_bad=True),
    Tab("dead", "Dead letter", (Status.DEAD,), is_bad=True),
    Tab("completed", "Completed", (Status.COMPLETED,)),
    Tab("expired", "Expired", (Status.EXPIRED,)),
    Tab("cancelled", "Cancelled", (Status.CANCELLED,)),
)


@dataclass(frozen=True)
class Choice:
    """What the address asks for; anything it should not ask for is taken as the default."""

    tab: Tab
    search: str
    after: int | None

    @classmethod
    def of(cls, query: QueryDict) -> "Choice":
        tab = next((tab for tab in TABS if tab.name == query.get("status")), TABS[0])
        after = query.get("after", "")
        key = int(after) if after.isdecimal() and len(after) < 19 else None
        return cls(tab, query.get("q", "").strip().lower().replace("\0", "")[:48], key)

    def address(self, **changes: Any) -> str:
        """The query string of this choice with some changes; a change of anything starts at the first page again."""
        chosen = {"status": self.tab.name, "q": self.search} | changes
        query = QueryDict(mutable=True)
        query.update({name: str(value) for name, value in chosen.items() if value})
        return f"?{query.urlencode()}"


@dataclass(frozen=True)
class Row:
    """One line of the list."""

    run: Run
    number: int
    total: int
    title: str
    why: str
    until: datetime

    @property
    def age(self) -> Any:
        return self.until - self.run.created_at


# The list


@require_safe
def run_list(request: HttpRequest) -> HttpResponse:
    return answer(request, "runs/list.html", "runs/partials/list_panel.html", _list_context(request))


@require_safe
def run_rows(request: HttpRequest) -> HttpResponse:
    return answer(request, "runs/list.html", "runs/partials/list_rows.html", _list_context(request))


def _list_context(request: HttpRequest) -> dict[str, Any]:
    choice, visible = Choice.of(request.GET), Run.objects.visible_to(request.user)
    listed = _in_tab(visible, choice.tab)
    if choice.search:
        listed = listed.filter(key__startswith=choice.search)
    if choice.after is not None:
        listed = listed.filter(pk__lt=choice.after)
    listed = listed.select_related("team").annotate(now=DatabaseNow()).order_by("-pk")
    listed = listed.defer("input", "tags", "wait_terms")
    runs, following = first_rows(listed, lambda run: f"{run.pk}")
    tabs = [(tab, count(_in_tab(visible, tab))) for tab in TABS]
    return {"choice": choice, "rows": list(_rows(runs)), "following": following, "tabs": tabs}


def _in_tab(runs: RunQuerySet, tab: Tab) -> RunQuerySet:
    if tab.name == "stuck":
        return runs.stuck()
    return runs.filter(status__in=tab.statuses) if tab.statuses else runs


def _rows(runs: list[Any]) -> Iterable[Row]:
    why = engine.explained(runs)
    for run in runs:
        number, total, title = timeline.place(run, workflows.get(run.workflow, run.version))
        yield Row(run, number, total, title, why[run.pk], run.finished_at or run.now)


# One run


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


def run_cancel(request: HttpRequest, key: str) -> HttpResponse:
    """The question whether to cancel, as a page; posted, the answer."""
    run = _found(request, key)
    if request.method != "POST":
        return _cancel_form(request, run)
    why = request.POST.get("why", "")
    try:
        engine.cancel(key, by=request.user, why=why, actor="web")
    except BadRequest as refusal:
        return _cancel_form(request, run, why=why, error=str(refusal), status=422)
    except NotAllowed as refusal:
        return _cancel_form(request, run, why=why, rule=str(refusal), status=403)
    except IllegalMove as refusal:
        return _cancel_form(request, _found(request, key), why=why, conflict=str(refusal), status=409)
    response = redirect(reverse("runs:run", args=[key]))
    response.status_code = 303
    return response


def _cancel_form(request: HttpRequest, run: Run, *, status: int = 200, **words: str) -> HttpResponse:
    if not request.user.has_perm("runs.operate_run"):
        words.setdefault("rule", "To cancel a run takes the right to operate runs.")
        status = 403
    return render(request, "runs/cancel.html", {"run": run, "explanation": engine.explain(run)} | words, status=status)


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
        "may_cancel": not run.is_final and request.user.has_perm("runs.operate_run"),
    }


def _steps_context(run: Run, now: datetime) -> dict[str, Any]:
    return {"run": run, "poll": _poll(run), "history": history.of(run, now), "now": now}


def _poll(run: Run) -> int | None:
    """Seconds until an open page looks again; None once there is nothing more to see: that ends the poll."""
    if run.is_final:
        return None
    return POLL_PARKED if run.status in (Status.WAITING, Status.PAUSED, Status.DEAD) else POLL_AT_WORK
