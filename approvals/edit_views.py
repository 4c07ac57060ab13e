"""Propose otherwise: the form with a field for each argument, the preview that shows what would change, and signing.

Three plain forms after each other; only the last calls a verb. May import answers, argument_fields, forms, ledger,
proposals, reading and views; runs' tools, models and values.
"""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from runs import tools
from runs.models import database_clock
from runs.values import BadValue, as_json, from_json

from . import answers, decisions, ledger, proposals, reading
from .argument_fields import ArgumentsForm
from .forms import ProposalForm
from .models import Approval, Decision
from .proposals import Proposal
from .refusals import Changed, DecisionRefused, Invalid, NotTaken, Stranger
from .views import facts_context, found, proof, refused, see_other, standing_of


def edit(request: HttpRequest, pk: int) -> HttpResponse:
    """The form; posted, the preview of it, the form again (`act` "change"), or the signature ("sign")."""
    approval = found(request, pk)
    act = request.POST.get("act") if request.method == "POST" else "begin"
    if act == "sign":
        return _sign(request, approval)
    form = ProposalForm(request.POST or None)
    if standing_of(request.user, approval, database_clock()).kind != "open":
        # The approval's page says why.
        return redirect("approvals:approval", pk) if act == "begin" else refused(request, pk, form)
    if act == "begin":
        return _fields(request, approval, form, ArgumentsForm(_tool(approval), _asked(approval)))
    if act == "change":
        return _fields(request, approval, form, _as_edited(request, approval))
    return _preview(request, approval, form, _as_typed(request, approval))


def _preview(request: HttpRequest, approval: Approval, form: ProposalForm, typed: ArgumentsForm) -> HttpResponse:
    # Both are looked at, so that all that is wrong is told at once.
    if not all([form.is_valid(), typed.is_valid()]):
        return _fields(request, approval, form, typed, 422)
    try:
        proposal = proposals.previewed(approval, typed.arguments)
    except Invalid as refusal:
        return _refused_fields(request, approval, form, typed, refusal)
    return _proposal(request, approval, form, proposal)


def _sign(request: HttpRequest, approval: Approval) -> HttpResponse:
    form = ProposalForm(request.POST)
    if not form.is_valid():
        return _fields(request, approval, form, _as_edited(request, approval), 422)
    try:
        decision = proposals.edit(approval.pk, user=request.user, **form.cleaned_data, **proof(request))
    except Stranger as refusal:
        raise Http404(str(refusal)) from None
    except Invalid as refusal:
        return _refused_fields(request, approval, form, _as_edited(request, approval), refusal)
    except Changed as refusal:
        return _changed(request, approval, form, refusal)
    except (DecisionRefused, ledger.CannotSign) as refusal:
        return refused(request, approval.pk, form, refusal)
    return see_other(request, reverse("approvals:receipt", args=[decision.entry_id]))


def _changed(request: HttpRequest, approval: Approval, form: ProposalForm, refusal: Changed) -> HttpResponse:
    """Changed facts are shown beside the proposal, which is kept; another action leads back to the approval."""
    if refusal.what != "facts":
        return refused(request, approval.pk, form, refusal)
    try:
        proposal = proposals.previewed(approval, form.cleaned_data["arguments"])
    except Invalid as problem:
        return _refused_fields(request, approval, form, _as_edited(request, approval), problem)
    return _proposal(request, approval, form, proposal, refusal)


def _fields(
    request: HttpRequest, approval: Approval, form: ProposalForm, typed: ArgumentsForm, status: int = 200
) -> HttpResponse:
    context = facts_context(request, approval) | {"form": form, "typed": typed}
    # Not asked of the form by the template, where an argument of such a name would come first.
    context |= {"is_wrong": bool(form.errors or typed.errors), "general_errors": typed.non_field_errors()}
    context |= {"currency": typed.currency, "action": reading.action_in_words(approval.payload)}
    return render(request, "approvals/edit.html", context, status=status)


def _refused_fields(
    request: HttpRequest, approval: Approval, form: ProposalForm, typed: ArgumentsForm, refusal: Invalid
) -> HttpResponse:
    """What the tool said stands beside the field that it spoke of."""
    if refusal.field in form.fields and refusal.field != "arguments":
        form.add_error(refusal.field, str(refusal))
    elif isinstance(refusal, NotTaken):
        typed.refuse(refusal.problems)
    else:
        typed.refuse({"": str(refusal)})
    return _fields(request, approval, form, typed, refusal.status)


def _proposal(
    request: HttpRequest, approval: Approval, form: ProposalForm, proposal: Proposal, refusal: Changed | None = None
) -> HttpResponse:
    context, action = facts_context(request, approval), proposal.action
    context |= {
        "form": form,
        "refusal": refusal,
        "proposal": proposal,
        "action": reading.action_in_words(action.payload),
        "hidden": reading.hidden_characters(action.statement, action.payload),
        "look_alikes": reading.look_alikes(action.statement, action.payload),
        "changes": answers.differences(_asked(approval), action.arguments),
        "facts_changes": answers.differences(context["facts"].values, proposal.facts.values),
        "arguments": as_json(action.arguments),
        "meaning": decisions.MEANING[Decision.Verdict.EDIT],
    }
    return render(request, "approvals/proposal.html", context, status=refusal.status if refusal else 200)


def _as_typed(request: HttpRequest, approval: Approval) -> ArgumentsForm:
    return ArgumentsForm(_tool(approval), _asked(approval), request.POST)


def _as_edited(request: HttpRequest, approval: Approval) -> ArgumentsForm:
    """The fields with what was previewed, or, when that cannot be read, with what is asked."""
    asked = _asked(approval)
    try:
        edited = from_json(request.POST.get("arguments", ""))
    except BadValue:
        edited = None
    return ArgumentsForm(_tool(approval), asked, edited=edited if isinstance(edited, dict) else asked)


def _tool(approval: Approval) -> tools.Tool:
    tool = tools.get(approval.tool)
    if tool is None:
        raise Http404(f"Nothing else can be proposed: this code does not know the tool {approval.tool}.")
    return tool


def _asked(approval: Approval) -> dict[str, Any]:
    arguments: dict[str, Any] = from_json(approval.payload)["arguments"]
    return arguments
