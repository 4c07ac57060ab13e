"""The inbox, and the forms that say who holds what: one approval or many at once, and who stands in while away.

A view never writes: it parses, calls one verb of assignment, and renders. There is no form here that decides anything.
May import assignment, inbox, inbox_forms, models; runs' fragments.
"""

from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth import get_user_model
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from runs.fragments import ROWS, answer, wants_fragment
from runs.models import database_clock

from . import assignment, inbox
from .assignment import AssignmentRefused
from .inbox_forms import AbsenceForm
from .models import Approval


@require_safe
def inbox_page(request: HttpRequest) -> HttpResponse:
    return answer(request, "approvals/inbox.html", "approvals/partials/inbox_panel.html", _context(request))


@require_safe
def inbox_rows(request: HttpRequest) -> HttpResponse:
    return answer(request, "approvals/inbox.html", "approvals/partials/inbox_rows.html", _context(request))


def _context(request: HttpRequest) -> dict[str, Any]:
    choice, hers = inbox.Choice.of(request.GET), inbox.Inbox.of(request)
    listed = hers.listed(choice)
    return {
        "choice": choice,
        "listed": listed,
        "tabs": hers.tabs(),
        "sorts": inbox.SORTS,
        "represented": hers.represented,
        "candidates": _candidates(request.user, listed.rows),
    }


def _candidates(user: Any, rows: list[Approval]) -> list[Any]:
    """Whom this person may assign some of these rows to, herself first; nobody when she may assign none."""
    people = list(assignment.holders_of_any(rows)) if rows else []
    if user not in people and not user.has_perm(assignment.RIGHT):
        return []
    return sorted(people, key=lambda person: person != user)


# Many at once


@dataclass(frozen=True)
class Told:
    """What became of a bulk assignment, for the notice above the rows."""

    to: Any
    done: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def assign_many(request: HttpRequest) -> HttpResponse:
    """Assign the ticked rows. The answer is the list as it is now, and what became of each."""
    if request.method != "POST":
        return redirect("approvals:inbox")
    chosen = [_ticked(value) for value in request.POST.getlist("approval")[:ROWS]]
    to, rows = _person(request.POST.get("to", "")), [each for each in chosen if each is not None]
    if rows and to is not None:
        outcome = assignment.assign_many(rows, to=to, by=request.user)
        told = Told(to, outcome.done, outcome.refused)
    else:
        told = Told(to, refused=["Tick at least one approval." if to else "Choose somebody to assign to."])
    context = _context(request) | {"told": told}
    status = 200 if told.done else 409 if rows and to else 422
    return answer(request, "approvals/inbox.html", "approvals/partials/inbox_panel.html", context, status=status)


def _ticked(value: str) -> tuple[int, int | None] | None:
    """A ticked box: the approval's key, and the key of the holder who was shown, if any."""
    approval, _, holder = value.partition(":")
    if not _is_key(approval) or (holder and not _is_key(holder)):
        return None
    return int(approval), int(holder) if holder else None


def _is_key(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


def _person(key: str) -> Any:
    return get_user_model().objects.filter(pk=int(key)).first() if _is_key(key) else None


# One


def assign_one(request: HttpRequest, pk: int) -> HttpResponse:
    """Claim, release or assign one approval, from its page."""
    if request.method != "POST":
        return redirect("approvals:approval", pk)
    try:
        _act(request, pk)
    except assignment.Stranger as refusal:
        raise Http404(str(refusal)) from None
    except AssignmentRefused as refusal:
        return _assignee(request, pk, refusal)
    if wants_fragment(request):
        return _assignee(request, pk, None)
    return _see_other(reverse("approvals:approval", args=[pk]))


def _act(request: HttpRequest, pk: int) -> None:
    match request.POST.get("act"):
        case "claim":
            assignment.claim(pk, by=request.user)
        case "release":
            assignment.release(pk, by=request.user)
        case _:
            seen, to = request.POST.get("seen", ""), _person(request.POST.get("to", ""))
            assignment.assign(pk, to=to, seen=int(seen) if _is_key(seen) else None, by=request.user)


def _assignee(request: HttpRequest, pk: int, refusal: AssignmentRefused | None) -> HttpResponse:
    approval = Approval.objects.visible_to(request.user).filter(pk=pk).select_related("run", "team").first()
    if approval is None:
        raise Http404("There is no such approval.")
    context = {"approval": approval, "held": assignment.standing(request.user, approval), "not_assigned": refusal}
    page, fragment = "approvals/assignee.html", "approvals/partials/assignee.html"
    return answer(request, page, fragment, context, status=refusal.status if refusal else 200)


# Away


@require_safe
def absences(request: HttpRequest) -> HttpResponse:
    return _absences(request, AbsenceForm(user=request.user))


@require_POST
def delegate(request: HttpRequest) -> HttpResponse:
    form = AbsenceForm(request.POST, user=request.user)
    if not form.is_valid():
        return _absences(request, form, 422)
    try:
        assignment.delegate(by=request.user, **form.cleaned_data)
    except assignment.Stranger as refusal:
        raise Http404(str(refusal)) from None
    except AssignmentRefused as refusal:
        form.add_error(getattr(refusal, "field", None), str(refusal))
        return _absences(request, form, refusal.status)
    return _see_other(reverse("approvals:absences"))


@require_POST
def end_absence(request: HttpRequest, pk: int) -> HttpResponse:
    try:
        assignment.end_absence(pk, by=request.user)
    except assignment.Stranger as refusal:
        raise Http404(str(refusal)) from None
    except AssignmentRefused as refusal:
        form = AbsenceForm(user=request.user)
        return _absences(request, form, refusal.status, refusal)
    return _see_other(reverse("approvals:absences"))


def _absences(
    request: HttpRequest, form: AbsenceForm, status: int = 200, refusal: AssignmentRefused | None = None
) -> HttpResponse:
    context = {
        "form": form,
        "refusal": refusal,
        "now": database_clock(),
        "absences": assignment.absences_of(request.user),
        "may_for_others": request.user.has_perm(assignment.RIGHT),
    }
    return render(request, "approvals/absences.html", context, status=status)


def _see_other(address: str) -> HttpResponse:
    response = redirect(address)
    response.status_code = 303
    return response
