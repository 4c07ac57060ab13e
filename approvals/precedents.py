"""What was decided before on the like of an approval: the same tool paying the same payee, or the same claim.

Questions only; may import models.
"""

from typing import Any

from django.db.models import F, Func, TextField, Value

from .models import Approval, ApprovalQuerySet, ApprovalStatus

MOST = 5


def similar(user: Any, approval: Approval) -> list[Approval]:
    """The newest decided approvals, of those that this person may see, with the same payee or about the same claim.
    Each has `same_payee` and `same_claim`."""
    decided = Approval.objects.visible_to(user).exclude(pk=approval.pk)
    decided = decided.filter(status__in=[ApprovalStatus.APPROVED, ApprovalStatus.REJECTED])
    decided = decided.annotate(payee_named=_argument("payee"), claim_named=_argument("claim"))
    named = Approval.objects.annotate(payee_named=_argument("payee"), claim_named=_argument("claim"))
    payee, claim = named.values_list("payee_named", "claim_named").get(pk=approval.pk)
    # One question each, so that each is answered from its own index.
    found = _newest(decided.filter(tool=approval.tool, payee_named=payee)) if payee else []
    found += _newest(decided.filter(claim_named=claim)) if claim else []
    newest = sorted({row.pk: row for row in found}.values(), key=lambda row: row.closed_at, reverse=True)[:MOST]
    for row in newest:
        row.same_payee = bool(payee) and (row.tool, row.payee_named) == (approval.tool, payee)
        row.same_claim = bool(claim) and row.claim_named == claim
    return newest


def _argument(name: str) -> Func:
    """One argument of the frozen action, as text; no more than its first 200 characters."""
    return Func(F("payload"), Value(name), function="approvals_argument", output_field=TextField())


def _newest(rows: ApprovalQuerySet) -> list[Any]:
    rows = rows.select_related("run").prefetch_related("decisions__user").order_by("-closed_at")
    return list(rows.defer("payload", "facts", "signed_facts", "terms", "run__input", "run__tags")[:MOST])
