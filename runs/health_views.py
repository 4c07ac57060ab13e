"""The health page, its alarms, and what monitors ask: /metrics and /readyz.

A view never writes: it parses, calls one verb of alerts, and renders. May import health, metrics, alerts, stuck, models
and fragments.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required, permission_required
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from . import alerts, health, metrics, stuck
from .alerts import NoSuchAlarm
from .errors import BadRequest, NotAllowed
from .fragments import answer, count, first_rows
from .models import Alarm, Beat, DatabaseNow

may_see = permission_required("runs.view_health", raise_exception=True)
SHOWN_ON_TOP = 3
"""Alarms that stand at the top of the health page; the list has all."""


@may_see
@require_safe
def page(request: HttpRequest) -> HttpResponse:
    return answer(request, "runs/health.html", "runs/partials/health_cards.html", _context(request))


def _context(request: HttpRequest) -> dict[str, Any]:
    window = health.window_of(request.GET.get("window"))
    alarms = Alarm.objects.visible_to(request.user).open().select_related("rule", "run")
    return {
        "window": window,
        "windows": health.WINDOWS,
        "cards": health.cards(window),
        "alarms": _titled(alarms.filter(acknowledged_at__isnull=True)[:SHOWN_ON_TOP]),
        "open": count(alarms),
    }


@may_see
@require_safe
def alarm_list(request: HttpRequest) -> HttpResponse:
    return render(request, "runs/health_alarms.html", _list_context(request))


@may_see
@require_POST
def acknowledge(request: HttpRequest, alarm_id: int) -> HttpResponse:
    try:
        alerts.acknowledge(alarm_id, by=request.user)
    except NoSuchAlarm as stranger:
        raise Http404(str(stranger)) from None
    except (BadRequest, NotAllowed) as refusal:
        status = 403 if isinstance(refusal, NotAllowed) else 409
        context = _list_context(request) | {"error": str(refusal)}
        return render(request, "runs/health_alarms.html", context, status=status)
    response = redirect(reverse("health:alarms"))
    response.status_code = 303
    return response


def _list_context(request: HttpRequest) -> dict[str, Any]:
    closed, after = request.GET.get("show") == "closed", request.GET.get("after", "")
    visible = Alarm.objects.visible_to(request.user)
    chosen = visible.closed() if closed else visible.open()
    if after.isdecimal() and len(after) < 19:
        chosen = chosen.filter(pk__lt=int(after))
    chosen = chosen.select_related("rule", "run", "team", "acknowledged_by", "notice")
    chosen = chosen.prefetch_related("notice__sendings").order_by("-pk")
    rows, following = first_rows(chosen, lambda alarm: f"{alarm.pk}")
    tabs = [("Open", False, count(visible.open())), ("Closed", True, count(visible.closed()))]
    may = request.user.has_perm("runs.operate_run")
    return {"closed": closed, "rows": _titled(rows), "following": following, "tabs": tabs, "may_acknowledge": may}


def _titled(found: Iterable[Alarm]) -> list[tuple[Alarm, str]]:
    """Each with what its rule is about, in words."""
    titles = {name: known.title for name, known in alerts.conditions.items()}
    return [(alarm, titles.get(alarm.rule.condition, alarm.rule.name)) for alarm in found]


# What monitors ask


@login_not_required
@never_cache
@require_safe
def metrics_text(request: HttpRequest) -> HttpResponse:
    """The text format of Prometheus, for whoever has METRICS_TOKEN. Without that setting nobody has it."""
    given = request.headers.get("Authorization", "")
    if not settings.METRICS_TOKEN:
        return _plain("Metrics are off: METRICS_TOKEN is not set.\n", 403)
    if not constant_time_compare(given, f"Bearer {settings.METRICS_TOKEN}"):
        response = _plain("Send METRICS_TOKEN as a bearer token.\n", 401)
        response["WWW-Authenticate"] = "Bearer"
        return response
    return HttpResponse(metrics.text(), content_type=CONTENT_TYPE_LATEST)


@login_not_required
@never_cache
@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """200 when runs that start now will be worked: database, migrations, a runner, and a queue that answers."""
    faults = dict(_faults())
    lines = [f"{name}: {faults.get(name, 'ok')}" for name in ("database", "migrations", "runner", "queue")]
    return _plain("\n".join(lines) + "\n", 503 if faults else 200)


def _faults() -> list[tuple[str, str]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    executor = MigrationExecutor(connection)
    if missing := len(executor.migration_plan(executor.loader.graph.leaf_nodes())):
        # What follows may need tables that are not there yet.
        return [("migrations", f"{missing} not applied"), *((name, "not looked at") for name in ("runner", "queue"))]
    recently = DatabaseNow() - timedelta(seconds=metrics.ALIVE_WITHIN)
    if not Beat.objects.filter(beat_at__gt=recently).exists():
        return [("runner", "none beats"), ("queue", "no runner")]
    return [] if stuck.is_answered() else [("queue", "it acknowledges nothing: it hangs, or is starting")]


def _plain(text: str, status: int) -> HttpResponse:
    return HttpResponse(text, status=status, content_type="text/plain; charset=utf-8")
