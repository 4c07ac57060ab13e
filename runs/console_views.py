"""The pages of the runs console: the list with its tabs and filters, its rows alone, and the same as CSV.

A view never writes: it parses, asks console, and renders. May import console, narrowing, actions, fragments,
workflows.
"""

from typing import Any

from django.contrib.auth.models import Group
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.views.decorators.http import require_safe

from . import console, workflows
from .actions import BULK
from .console import AGE_TITLES, COUNT_LIMIT, Choice
from .fragments import answer
from .models import database_clock
from .narrowing import LOOKED
from .states import WaitKind


@require_safe
def run_list(request: HttpRequest) -> HttpResponse:
    return answer(request, "runs/list.html", "runs/partials/list_panel.html", _context(request))


@require_safe
def run_rows(request: HttpRequest) -> HttpResponse:
    return answer(request, "runs/list.html", "runs/partials/list_rows.html", _context(request))


@require_safe
def run_export(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """All runs of the choice as CSV."""
    lines = console.export(request.user, Choice.of(request.GET))
    response = StreamingHttpResponse(lines, content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="runs-{database_clock():%Y%m%d-%H%M%S}.csv"'
    response["Cache-Control"] = "no-store"
    return response


def _context(request: HttpRequest) -> dict[str, Any]:
    choice = Choice.of(request.GET)
    page = console.page(request.user, choice)
    may = request.user.has_perm("runs.operate_run")
    shown = {"choice": choice, "rows": page.rows, "older": page.older, "newer": page.newer, "following": page.older}
    shown |= {"looked": page.found, "look_limit": f"{LOOKED:,}"}
    counted = {"tabs": console.tabs(request.user), "count_limit": COUNT_LIMIT}
    return shown | counted | _offered(request, choice) | {"bulk": list(BULK.values()) if may else []}


def _offered(request: HttpRequest, choice: Choice) -> dict[str, Any]:
    """What the filters can be set to; what is set stays on offer, even when nobody here knows it."""
    names = sorted({workflow.name for workflow in workflows.registered()} | {choice.workflow} - {""})
    groups = Group.objects if request.user.has_perm("runs.view_all_teams") else request.user.groups
    teams = sorted({*groups.order_by("name").values_list("name", flat=True)[:200], choice.team} - {""})
    return {"workflows": names, "teams": teams, "ages": AGE_TITLES.items(), "waits": WaitKind.choices}
