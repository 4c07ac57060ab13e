"""The forms of the approval page that are neither yes nor no: propose otherwise, ask for changes, withdraw.

Each parses, calls one verb of proposals and renders as a decision does. May import forms, proposals and views.
"""

from collections.abc import Callable
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from . import proposals
from .forms import AnswerForm
from .models import Decision
from .refusals import DecisionRefused, Invalid, Stranger
from .views import proof, refused, see_other

Verb = Callable[..., Decision]


def edit(request: HttpRequest, pk: int) -> HttpResponse:
    """On to the new version, which others now have to approve."""
    return _answered(request, pk, proposals.edit, "arguments")


def respond(request: HttpRequest, pk: int) -> HttpResponse:
    return _answered(request, pk, proposals.respond)


def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    return _answered(request, pk, proposals.withdraw)


def _answered(request: HttpRequest, pk: int, verb: Verb, *more: str) -> HttpResponse:
    if request.method != "POST":
        return redirect("approvals:approval", pk)
    form = AnswerForm(request.POST)
    if not form.is_valid():
        return refused(request, pk, form)
    said: dict[str, Any] = {
        name: form.cleaned_data[name] for name in ("comment", "payload_digest", "facts_digest", *more)
    }
    try:
        decision = verb(pk, user=request.user, **said, **proof(request))
    except Stranger as refusal:
        raise Http404(str(refusal)) from None
    except Invalid as refusal:
        form.add_error(refusal.field if refusal.field in form.fields else None, str(refusal))
        return refused(request, pk, form)
    except DecisionRefused as refusal:
        return refused(request, pk, form, refusal)
    return see_other(request, reverse("approvals:receipt", args=[decision.entry_id]))
