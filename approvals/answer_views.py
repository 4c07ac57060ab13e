"""The forms of the approval page that ask for changes or withdraw. Each parses, calls one verb of proposals and renders
as a decision does. May import forms, proposals and views.
"""

from collections.abc import Callable

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from . import proposals
from .forms import AnswerForm
from .ledger import CannotSign
from .models import Decision
from .refusals import DecisionRefused, Invalid, Stranger
from .views import proof, refused, see_other

Verb = Callable[..., Decision]


def respond(request: HttpRequest, pk: int) -> HttpResponse:
    return _answered(request, pk, proposals.respond)


def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    return _answered(request, pk, proposals.withdraw)


def _answered(request: HttpRequest, pk: int, verb: Verb) -> HttpResponse:
    if request.method != "POST":
        return redirect("approvals:approval", pk)
    form = AnswerForm(request.POST)
    if not form.is_valid():
        return refused(request, pk, form)
    try:
        decision = verb(pk, user=request.user, **form.cleaned_data, **proof(request))
    except Stranger as refusal:
        raise Http404(str(refusal)) from None
    except Invalid as refusal:
        form.add_error(refusal.field if refusal.field in form.fields else None, str(refusal))
        return refused(request, pk, form)
    except (DecisionRefused, CannotSign) as refusal:
        return refused(request, pk, form, refusal)
    return see_other(request, reverse("approvals:receipt", args=[decision.entry_id]))
