"""The page of findings: what does not fit, with both evidences side by side, and the form that resolves one.

A view never writes: it parses, calls one verb of reconciliation, and renders. May import reconciliation, findings,
models, fragments.
"""

from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from . import reconciliation
from .errors import BadRequest, EffectSettled, FindingClosed, NoSuchEffect, NoSuchFinding, NotAllowed, RunError
from .findings import Evidence, FindingQuerySet
from .fragments import count, first_rows
from .models import Finding
from .templatetags.show import in_words, money

STATUS: dict[type[RunError], int] = {BadRequest: 422, NotAllowed: 403, EffectSettled: 409, FindingClosed: 409}
LABELS = {"id": "Name there", "amount_minor": "Amount", "paid_minor": "Paid", "request_sha256": "Request SHA-256"}
UNITS = {"amount_minor", "paid_minor"}


@dataclass(frozen=True)
class Choice:
    """What the address asks for; anything it should not ask for is taken as the default."""

    closed: bool
    after: int | None

    @classmethod
    def of(cls, query: QueryDict) -> "Choice":
        after = query.get("after", "")
        return cls(query.get("show") == "closed", int(after) if after.isdecimal() and len(after) < 19 else None)

    def address(self, **changes: Any) -> str:
        """The query string of this choice with some changes; a change of anything starts at the first page again."""
        chosen = {"show": "closed" if self.closed else ""} | changes
        query = QueryDict(mutable=True)
        query.update({name: str(value) for name, value in chosen.items() if value})
        return f"?{query.urlencode()}"


@dataclass(frozen=True)
class Row:
    """One finding of the list. `words`: what its form held when it was refused."""

    finding: Finding
    ours: list[list[tuple[str, str]]]
    theirs: list[list[tuple[str, str]]]
    words: dict[str, str]

    @property
    def may_be_settled(self) -> bool:
        return self.finding.kind == Finding.Kind.UNKNOWN


@require_safe
def finding_list(request: HttpRequest) -> HttpResponse:
    return render(request, "runs/findings.html", _context(request, Choice.of(request.GET)))


@require_POST
def finding_resolve(request: HttpRequest, finding_id: int) -> HttpResponse:
    """The form of one finding: closes it, or settles its effect by the person's word."""
    why, outcome = request.POST.get("why", ""), request.POST.get("outcome", "")
    try:
        _say(finding_id, request.user, why, outcome)
    except (NoSuchFinding, NoSuchEffect) as stranger:
        raise Http404(str(stranger)) from None
    except (BadRequest, NotAllowed, EffectSettled, FindingClosed) as refusal:
        words = {"why": why, "outcome": outcome, "error": str(refusal)}
        context = _context(request, Choice.of(request.GET), refused=finding_id, words=words)
        return render(request, "runs/findings.html", context, status=STATUS[type(refusal)])
    response = redirect(reverse("runs:findings"))
    response.status_code = 303
    return response


def _say(finding_id: int, user: Any, why: str, outcome: str) -> None:
    finding = reconciliation.find(finding_id, user)
    if outcome and finding.kind == Finding.Kind.UNKNOWN:
        reconciliation.settle_by_hand(finding.key, outcome=outcome, by=user, why=why, actor="web")
    else:
        reconciliation.resolve(finding_id, by=user, why=why, actor="web")


def _context(
    request: HttpRequest, choice: Choice, *, refused: int | None = None, words: dict[str, str] | None = None
) -> dict[str, Any]:
    visible = Finding.objects.visible_to(request.user)
    tabs = [("Open", False, count(visible.open())), ("Closed", True, count(visible.closed()))]
    listed, following = first_rows(_chosen(visible, choice), lambda finding: f"{finding.pk}")
    rows = [_row(finding, words or {} if finding.pk == refused else {}) for finding in listed]
    may = request.user.has_perm("runs.operate_run")
    shown = {"rows": rows, "following": following, "tabs": tabs, "choice": choice, "may_resolve": may}
    return shown | {"error": (words or {}).get("error", ""), "refused": refused}


def _chosen(visible: FindingQuerySet, choice: Choice) -> FindingQuerySet:
    chosen = visible.closed() if choice.closed else visible.open()
    if choice.after is not None:
        chosen = chosen.filter(pk__lt=choice.after)
    return chosen.select_related("run", "team", "resolved_by").order_by("-pk")


def _row(finding: Finding, words: dict[str, str]) -> Row:
    return Row(finding, _told(finding.ours), _told(finding.theirs), words)


def _told(evidence: Evidence) -> list[list[tuple[str, str]]]:
    return [
        [
            (LABELS.get(name) or in_words(name), _text(name, value, item))
            for name, value in item.items()
            if value not in ("", None)
        ]
        for item in evidence
    ]


def _text(name: str, value: Any, item: dict[str, Any]) -> str:
    if name in UNITS and type(value) is int:
        return f"{money(value, item.get('currency', ''))} ({value} minor units)"
    return str(value)
