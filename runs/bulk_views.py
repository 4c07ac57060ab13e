"""The pages of bulk work: what would be done, confirming it, watching it, and the latest of it.

A view never writes: it parses, calls one verb of bulk, and renders. May import bulk, actions, console, engine,
fragments, models, errors.
"""

import secrets
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from . import bulk, console, engine
from .actions import BULK, Action
from .bulk import MoreThanShown
from .console import Choice
from .errors import AlreadyStarted, BadRequest, NotAllowed, RunError
from .fragments import answer, first_rows
from .models import Batch, Run, RunQuerySet

REFUSED: dict[type[RunError], int] = {BadRequest: 422, AlreadyStarted: 409, NotAllowed: 403, MoreThanShown: 412}
MOST_TICKED = 200
"""Runs that can be ticked one by one: as many as an address carries."""
POLL = 2
"""Seconds between two looks of an open page at work that goes on."""


@require_safe
def batch_list(request: HttpRequest) -> HttpResponse:
    """The latest bulk work."""
    batches = Batch.objects.visible_to(request.user).select_related("run", "asked_by").distinct().order_by("-pk")
    return render(request, "runs/batches.html", {"batches": [_named(batch) for batch in batches[:50]]})


@require_http_methods(["GET", "HEAD", "POST"])
def batch_new(request: HttpRequest) -> HttpResponse:
    """What would be done to which runs; posted, it is begun."""
    sent = request.POST if request.method == "POST" else request.GET
    action = BULK.get(sent.get("do", ""))
    if not request.user.has_perm("runs.operate_run"):
        return _confirm(request, sent, None, status=403, rule="To repair runs takes the right to operate runs.")
    if action is None:
        return _confirm(request, sent, None, status=422, rule="Choose what is to be done, then say to which runs.")
    if request.method != "POST":
        return _confirm(request, sent, action)
    return _begin(request, sent, action)


@require_safe
def batch_page(request: HttpRequest, batch_id: int) -> HttpResponse:
    """How far it has come, and what became of each run."""
    batch = Batch.objects.visible_to(request.user).select_related("run", "asked_by").filter(pk=batch_id).first()
    if batch is None:
        raise Http404(f"There is no bulk work {batch_id} that you may see.")
    return answer(request, "runs/batch.html", "runs/partials/batch.html", _progress(request, batch))


def _begin(request: HttpRequest, sent: QueryDict, action: Action) -> HttpResponse:
    try:
        batch = bulk.begin(
            action.name,
            _runs(request.user, sent),
            shown=_number(sent.get("shown", "")),
            token=sent.get("token", ""),
            by=request.user,
            why=sent.get("why", ""),
            chosen=_chosen(sent),
        )
    except RunError as refusal:
        return _confirm(request, sent, action, status=REFUSED.get(type(refusal), 422), error=str(refusal))
    response = redirect(reverse("runs:batch", args=[batch.pk]))
    response.status_code = 303
    return response


def _confirm(
    request: HttpRequest, sent: QueryDict, action: Action | None, *, status: int = 200, **words: str
) -> HttpResponse:
    choice, context = Choice.of(sent), dict[str, Any](words)
    if action is not None:
        preview = bulk.preview(action, _runs(request.user, sent))
        lines = [(run, engine.explain(run)) for run in preview.sample]
        context |= {"preview": preview, "action": action, "lines": lines}
        if not preview.fitting and "error" not in words:
            status = 409
    ticked = _ticked(sent)
    context |= {"choice": choice, "scope": sent.get("scope", ""), "ticked": ticked, "most": bulk.MOST, "sent": sent}
    context |= {"token": sent.get("token") or secrets.token_hex(8), "chosen": _chosen(sent)}
    return render(request, "runs/bulk.html", context, status=status)


def _runs(user: Any, sent: QueryDict) -> RunQuerySet:
    """What the form speaks of: those that were ticked, or all that the list shows."""
    if sent.get("scope") == "all":
        return console.chosen(user, Choice.of(sent))
    return console.selected(user, _ticked(sent))


def _ticked(sent: QueryDict) -> list[str]:
    return [] if sent.get("scope") == "all" else list(dict.fromkeys(sent.getlist("run")))[:MOST_TICKED]


def _chosen(sent: QueryDict) -> str:
    if sent.get("scope") != "all":
        return f"{len(_ticked(sent))} ticked"
    choice = Choice.of(sent)
    narrowed = ", ".join(f"{name} {value}" for name, value in choice.filters.items())
    return f"all under “{choice.tab.title}”" + (f" with {narrowed}" if narrowed else "")


def _progress(request: HttpRequest, batch: Batch) -> dict[str, Any]:
    tally = batch.tally()
    outcomes = {"refused": "Refused", "done": "Done", "open": "Still to come"}
    counts = {"refused": tally["refused"], "done": tally["done"], "open": tally[""]}
    show = request.GET.get("show", "")
    show = show if show in outcomes else ("refused" if counts["refused"] else "done")
    after = _number(request.GET.get("after", ""))
    items = batch.items.filter(outcome="" if show == "open" else show, pk__gt=after)
    items = items.filter(run__in=Run.objects.visible_to(request.user)).select_related("run").order_by("pk")
    rows, following = first_rows(items.defer("run__input", "run__tags"), lambda item: f"{item.pk}")
    tabs = [(name, title, counts[name]) for name, title in outcomes.items()]
    come = counts["done"] + counts["refused"]
    progress = {"come": come, "percent": 100 * come // max(1, batch.total), "tabs": tabs, "show": show}
    listed = {"items": rows, "following": following, "after": after or ""}
    state = {"poll": None if batch.run.is_final else POLL, "explanation": engine.explain(batch.run)}
    return {"batch": _named(batch), "run": batch.run} | progress | listed | state


def _named(batch: Batch) -> dict[str, Any]:
    action = BULK.get(batch.action)
    return {"row": batch, "title": action.title if action else batch.action, "done": action.done if action else "done"}


def _number(word: str) -> int:
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 19 else 0
