"""What was given with an approval: the signatures that hold, and whether the facts are still those that were signed.

May import facts, ledger and models.
"""

from typing import Any

from runs.values import digest, from_json

from . import ledger
from .facts import Facts, compare
from .models import Approval, Decision


def approvals_signed(approval: Approval) -> list[dict[str, Any]]:
    """The records of those who approved, as far as signature, hash and rows agree."""
    given = approval.decisions.filter(verdict=Decision.Verdict.APPROVE).select_related("entry").order_by("entry_id")
    entries = [decision.entry for decision in given]
    return [from_json(entry.record) for entry in entries if entry.kind == "decision" and ledger.check_entry(entry)]


def facts_changed(approval: Approval, now: Facts) -> list[str] | None:
    """The names of facts that are others than those that were signed, harmless ones left out; None when there is no
    harm. Of several approvers each signed what she was shown."""
    harmless = set(approval.terms.get("harmless", ()))
    names = _differing(from_json(approval.signed_facts or approval.facts), now.values, harmless)
    is_changed = bool(names)
    for text, signed_digest in _facts_signed(approval):
        if signed_digest == now.digest:
            continue
        if digest(text) != signed_digest:
            # What this signer was shown is not kept: only the same facts are surely the same.
            is_changed = True
            continue
        seen = _differing(from_json(text), now.values, harmless)
        names |= seen
        is_changed = is_changed or bool(seen)
    return sorted(names) if is_changed else None


def _differing(then: dict[str, Any], now: dict[str, Any], harmless: set[str]) -> set[str]:
    return {each.name for each in compare(then, now) if each.change != "same"} - harmless


def _facts_signed(approval: Approval) -> list[tuple[str, str]]:
    """Of each approver the facts as they are kept, and the digest that was signed."""
    kept = dict(approval.decisions.values_list("entry__sequence", "facts"))
    return [(kept.get(said["sequence"], ""), said["facts_digest"]) for said in approvals_signed(approval)]
