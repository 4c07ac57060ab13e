"""The pages of the people who decide: approval, receipt, and the counts in the top bar.

A view never writes: it parses, calls one verb of decisions, and renders. May import assignment, decisions, facts,
forms, inbox, ledger, checkpoints, precedents, reading, models; runs' history and fragments.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar, Literal

from django.db.models import Prefetch
from django.forms import Form
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_safe
from django_htmx.http import HttpResponseClientRedirect

from runs import history, narrowing, stuck
from runs.fragments import COUNT_LIMIT, answer, count, wants_fragment
from runs.models import Alarm, Finding, database_clock

from . import answers, assignment, checkpoints, decisions, facts, inbox, ledger, passwords, precedents, reading
from .decisions import DecisionRefused
from .forms import DecisionForm
from .models import Approval, ApprovalStatus, Decision, LedgerEntry


class Navigation:
    """What the top bar shows, each counted when a template first asks for it."""

    def __init__(self, request: HttpRequest) -> None:
        self.user, self._request = request.user, request
        match = request.resolver_match
        app = match.namespace if match else ""
        polled = match is not None and match.view_name == "approvals:nav_counts"
        of_app = {"approvals": "inbox", "runs": "runs", "health": "health"}.get(app, "")
        section = "findings" if match and match.view_name in ("runs:findings", "runs:resolve") else of_app
        self.section = request.GET.get("at", "") if polled else section

    @cached_property
    def now(self) -> datetime:
        return database_clock()

    @cached_property
    def _inbox(self) -> inbox.Inbox:
        return inbox.Inbox.of(self._request)

    @cached_property
    def waiting(self) -> int:
        return self._inbox.count("groups")

    @cached_property
    def overdue(self) -> int:
        return self._inbox.count("overdue")

    @cached_property
    def stuck(self) -> int:
        return stuck.count(narrowing.teams_of(self.user), COUNT_LIMIT)

    @cached_property
    def alarms(self) -> int:
        return count(Alarm.objects.visible_to(self.user).unacknowledged())

    @cached_property
    def findings(self) -> int:
        return count(Finding.objects.visible_to(self.user).open())


def navigation(request: HttpRequest) -> dict[str, Any]:
    """Context processor: `nav`, for those who have signed in."""
    user = getattr(request, "user", None)
    return {"nav": Navigation(request)} if user is not None and user.is_authenticated else {}


@require_safe
def nav_counts(request: HttpRequest) -> HttpResponse:
    fragment = "approvals/partials/nav_counts.html"
    return answer(request, fragment, fragment)


# Approval


Kind = Literal[
    "open", "signed", "forbidden", "decided", "expired", "withdrawn", "not-required", "responded", "superseded"
]


@dataclass(frozen=True)
class Standing:
    """Whether this person can decide this approval now, and if not, why. `rule` is set when a rule forbids it."""

    kind: Kind
    rule: str = ""
    approve_rule: str = ""
    """Why this person, who may answer, may not approve."""

    STATUS: ClassVar[dict[Kind, int]] = {
        "forbidden": 403,
        "decided": 409,
        "withdrawn": 409,
        "responded": 409,
        "superseded": 409,
        "expired": 410,
    }
    KINDS: ClassVar[dict[ApprovalStatus, Kind]] = {
        ApprovalStatus.APPROVED: "decided",
        ApprovalStatus.REJECTED: "decided",
        ApprovalStatus.EXPIRED: "expired",
        ApprovalStatus.WITHDRAWN: "withdrawn",
        ApprovalStatus.NOT_REQUIRED: "not-required",
        ApprovalStatus.RESPONDED: "responded",
        ApprovalStatus.SUPERSEDED: "superseded",
    }

    @property
    def is_closed(self) -> bool:
        return self.kind not in ("open", "signed", "forbidden")


def standing_of(user: Any, approval: Approval, now: datetime) -> Standing:
    if approval.status != ApprovalStatus.OPEN:
        return Standing(Standing.KINDS[ApprovalStatus(approval.status)])
    if approval.due_at <= now:
        return Standing("expired")
    if any(decision.user_id == user.pk for decision in approval.decisions.all()):
        return Standing("signed")
    rule = decisions.may_decide(user, approval)
    return Standing("forbidden", rule) if rule else Standing("open", "", decisions.may_approve(user, approval))


def found(request: HttpRequest, pk: int) -> Approval:
    """Strangers get 404, as for an approval that does not exist."""
    visible = Approval.objects.visible_to(request.user).filter(pk=pk)
    visible = visible.select_related("run__team", "team", "requested_by", "edited_by", "superseded_by", "supersedes")
    signatures = Prefetch("decisions", Decision.objects.select_related("user").order_by("decided_at", "pk"))
    approval = visible.prefetch_related("groups", "rungs__to", signatures).first()
    if approval is None:
        raise Http404("There is no such approval.")
    return approval


@require_safe
def approval_page(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "approvals/approval.html", approval_context(request, found(request, pk)))


@require_GET
def approval_state(request: HttpRequest, pk: int) -> HttpResponse:
    """The watcher of an open page: 204 while nothing changed, else the notice and a locked panel."""
    approval = found(request, pk)
    standing = standing_of(request.user, approval, database_clock())
    changed = request.GET.get("seen") != approval.payload_digest
    if not standing.is_closed and not changed:
        return HttpResponse(status=204)
    context = {"approval": approval, "standing": standing, "replaced": changed}
    context |= {"while_reading": True, "is_fragment": True}
    return render(request, "approvals/partials/state.html", context)


@require_GET
def approval_facts(request: HttpRequest, pk: int) -> HttpResponse:
    """The facts, read again. When they are others than the page showed, the forms are told: what is signed is what is
    shown, and having read it is asked again."""
    if not wants_fragment(request):
        return redirect("approvals:approval", pk)
    approval = found(request, pk)
    context = facts_context(request, approval)
    context["renew"] = context["standing"].kind == "open" and request.GET.get("seen") != context["facts"].digest
    return answer(request, "approvals/approval.html", "approvals/partials/facts.html", context)


def decide(request: HttpRequest, pk: int) -> HttpResponse:
    """Sign a verdict. A refusal answers with the approval as it is now, why, and the status that says so."""
    if request.method != "POST":
        return redirect("approvals:approval", pk)
    approval, form = found(request, pk), DecisionForm(request.POST)
    if not form.is_valid():
        return refused(request, pk, form)
    try:
        if form.cleaned_data["password"]:
            prove_again(request, form.cleaned_data["password"])
        decision = decisions.decide(approval.pk, user=request.user, **_answer(request, form))
    except decisions.Stranger as refusal:
        raise Http404(str(refusal)) from None
    except decisions.Invalid as refusal:
        form.add_error(refusal.field if refusal.field in form.fields else None, str(refusal))
        return refused(request, pk, form)
    except (DecisionRefused, ledger.CannotSign) as refusal:
        return refused(request, pk, form, refusal)
    return see_other(request, reverse("approvals:receipt", args=[decision.entry_id]))


def see_other(request: HttpRequest, address: str) -> HttpResponse:
    """To the page that shows what came of it: by htmx's header, or 303."""
    if wants_fragment(request):
        return HttpResponseClientRedirect(address)
    response = redirect(address)
    response.status_code = 303
    return response


def prove_again(request: HttpRequest, password: str) -> None:
    """The session notes that the person proved who they are just now, as signing in does. Raises Invalid,
    TooManyTries."""
    passwords.confirm(request, password)
    # It keeps its key: of two presses, or when the answer is lost, one would be left with a session that is gone.
    request.session["signed_in_at"] = int(datetime.now(UTC).timestamp())


def _answer(request: HttpRequest, form: DecisionForm) -> dict[str, Any]:
    """What the person says and was shown, and how they proved who they are."""
    said = {name: form.cleaned_data[name] for name in ("verdict", "comment", "payload_digest", "facts_digest")}
    return said | proof(request)


def proof(request: HttpRequest) -> dict[str, Any]:
    """How the person proved who they are, and how many seconds ago."""
    signed_in_at = request.session.get("signed_in_at")
    age = None if signed_in_at is None else max(0, int(datetime.now(UTC).timestamp()) - signed_in_at)
    return {"auth_method": "password", "auth_age": age, "actor": "web"}


def refused(
    request: HttpRequest, pk: int, form: Form, refusal: DecisionRefused | ledger.CannotSign | None = None
) -> HttpResponse:
    """The approval's page, or its panel and notice for htmx, read anew: somebody may have decided meanwhile."""
    approval = found(request, pk)
    replaced = getattr(refusal, "what", "") == "payload"
    context = approval_context(request, approval) | {"form": form, "refusal": refusal, "is_replaced": replaced}
    context["answered"] = request.resolver_match.url_name if request.resolver_match else ""
    status = refusal.status if refusal else Standing.STATUS.get(context["standing"].kind, 422)
    return answer(request, "approvals/approval.html", "approvals/partials/refused.html", context, status=status)


def approval_context(request: HttpRequest, approval: Approval) -> dict[str, Any]:
    before, behind = inbox.neighbours(request.user, approval)
    context = facts_context(request, approval)
    return context | {
        "meaning": decisions.MEANING,
        "action": reading.action_in_words(approval.payload),
        "hidden": reading.hidden_characters(approval.statement, approval.payload),
        "look_alikes": reading.look_alikes(approval.statement, approval.payload),
        "held": assignment.standing(request.user, approval),
        "similar": precedents.similar(request.user, approval),
        "history": history.of(approval.run, context["now"], with_calls=False),
        "before": before,
        "behind": behind,
        "form": DecisionForm(),
        "answered": "",
        "options": answers.options(request.user, approval, proof(request)["auth_age"]),
    }


def facts_context(request: HttpRequest, approval: Approval) -> dict[str, Any]:
    """Facts at asking beside those of now, or, once it is closed, beside those that were signed."""
    now = database_clock()
    standing = standing_of(request.user, approval, now)
    if standing.is_closed:
        read, later = None, approval.signed_facts or approval.facts
    else:
        read = facts.current(approval)
        later = read.text
    return {
        "approval": approval,
        "now": now,
        "standing": standing,
        "facts": read,
        "comparisons": [] if read and read.problem else reading.comparisons(approval.facts, later),
        "facts_hidden": reading.hidden_characters(approval.facts, later),
    }


@require_safe
def payload(request: HttpRequest, pk: int) -> HttpResponse:
    """The exact bytes, unmarked and unwrapped."""
    approval = found(request, pk)
    if not approval.payload:
        raise Http404("The payload was withheld by retention.")
    return _download(approval.payload, f"{approval.run.key}-approval-{approval.pk}.json")


# Receipt


@require_safe
def receipt(request: HttpRequest, sequence: int) -> HttpResponse:
    """What was signed, told from the signed record itself; and nothing is told from a record that does not hold."""
    entry = _entry(request, sequence)
    approval, valid = entry.decision.approval, ledger.check_entry(entry)
    signed = ledger.told(entry) if valid else {}
    context = {
        "entry": entry,
        "approval": approval,
        "record": signed,
        "signed_at": datetime.fromisoformat(signed["signed_at"]) if valid else None,
        "valid": valid,
        "lines": reading.payload_lines(approval.payload),
        "hidden": reading.hidden_characters(entry.record, _body_of(entry), approval.payload),
        "body": _body_of(entry),
        "is_withheld": entry.body is not None and entry.body.text is None,
        "signatures": approval.decisions.select_related("user").order_by("entry_id"),
        "checkpoint": checkpoints.last(),
        "following": inbox.Inbox(request.user).scope("groups").order_by("due_at", "pk").only("pk").first(),
    }
    return render(request, "approvals/receipt.html", context)


def _body_of(entry: LedgerEntry) -> str:
    return (entry.body.text if entry.body else "") or ""


@require_safe
def approval_receipt(request: HttpRequest, pk: int) -> HttpResponse:
    """The receipt of the last signature under an approval; it lists the others."""
    last = found(request, pk).decisions.order_by("entry_id").last()
    if last is None:
        raise Http404("Nobody has signed this.")
    return redirect("approvals:receipt", last.entry_id)


@require_safe
def record(request: HttpRequest, sequence: int) -> HttpResponse:
    """The signed record's exact bytes."""
    return _download(_entry(request, sequence).record, f"receipt-{sequence}.json")


def _entry(request: HttpRequest, sequence: int) -> LedgerEntry:
    seen = Decision.objects.filter(approval__in=Approval.objects.visible_to(request.user), entry_id=sequence)
    decision = seen.select_related("entry__body", "user", "approval__run").first()
    if decision is None:
        raise Http404("There is no such receipt.")
    decision.entry.decision = decision
    return decision.entry


def _download(text: str, name: str) -> HttpResponse:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(text.encode(), content_type="application/json", headers=headers)
