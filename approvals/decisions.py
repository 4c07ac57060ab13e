"""decide: one person's signed answer to an approval. One transaction decides, moves the run, rings and signs.

Rights, deadline and digests are checked there, when the decision is taken, not when the page was drawn. May import
approvals.facts, ledger, models and the verbs of runs.engine.
"""

from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.db import transaction

from runs.engine import wake
from runs.models import AuditEvent, Run, database_clock
from runs.values import BadValue, as_json, digest

from . import ledger
from .facts import Facts, current
from .models import Approval, ApprovalStatus, Decision

MEANING = {
    Decision.Verdict.APPROVE: "I have read this payload and these facts, and approve that exactly these bytes are executed.",
    Decision.Verdict.REJECT: "I have read this payload, and reject it.",
}
LONGEST_COMMENT = 4000


class DecisionRefused(Exception):
    """Nothing was decided. `status` is the HTTP status that says the same."""

    status = 400


class Stranger(DecisionRefused):
    status = 404

    def __init__(self) -> None:
        super().__init__("There is no such approval.")


class NotAnApprover(DecisionRefused):
    status = 403


class AlreadyDecided(DecisionRefused):
    status = 409

    def __init__(self, sentence: str, decision: Decision | None = None) -> None:
        super().__init__(sentence)
        self.decision = decision


class TooLate(DecisionRefused):
    status = 410

    def __init__(self, due_at: datetime) -> None:
        super().__init__(f"This approval expired at {_when(due_at)}. Nothing was decided and nothing is paid.")
        self.due_at = due_at


class Changed(DecisionRefused):
    status = 412

    def __init__(self, what: str) -> None:
        super().__init__(f"The {what} changed since you saw it. Nothing was decided; read what is shown now and decide on that.")
        self.what = what


class Invalid(DecisionRefused):
    status = 422

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


class FactsUnreadable(DecisionRefused):
    status = 503


def decide(
    approval_id: int,
    *,
    user: Any,
    verdict: str,
    comment: str,
    payload_digest: str,
    facts_digest: str,
    auth_method: str = "password",
    auth_age: int | None = None,
    actor: str = "web",
) -> Decision:
    """Sign a verdict on exactly the payload and facts whose digests the person was shown.

    The same answer of the same person again returns the first decision. Every refusal is a DecisionRefused, and leaves
    a row in the audit trail.
    """
    approval = Approval.objects.visible_to(user).filter(pk=approval_id).first()
    try:
        if approval is None:
            raise Stranger
        _check_words(verdict, comment)
        # Outside the transaction: reading facts may ask other systems.
        now = current(approval)
        if now.problem and approval.status == ApprovalStatus.OPEN:
            raise FactsUnreadable(now.problem)
        with transaction.atomic():
            return _decide(approval, user, verdict, comment.strip(), payload_digest, facts_digest, now, auth_method, auth_age, actor)
    except DecisionRefused as refusal:
        _record_refusal(approval, user, verdict, refusal, actor)
        raise


def may_decide(user: Any, approval: Approval) -> str:
    """Empty when this person may decide this approval now, else the rule that forbids it."""
    if not user.is_active:
        return "This account is switched off."
    if user.is_superuser:
        return "A superuser sees everything and decides nothing."
    if approval.requested_by_id == user.pk:
        return "Whoever asked for this may not approve it: four eyes."
    own = set(user.groups.values_list("pk", flat=True))
    asked = list(approval.groups.all())
    if not own & {group.pk for group in asked}:
        return f"Only {' or '.join(sorted(group.name for group in asked)) or 'nobody'} may decide this."
    if approval.team_id not in own:
        return f"Only members of the team {approval.team.name} may decide this."
    return ""


def _decide(
    seen: Approval,
    user: Any,
    verdict: str,
    comment: str,
    payload_digest: str,
    facts_digest: str,
    facts: Facts,
    auth_method: str,
    auth_age: int | None,
    actor: str,
) -> Decision:
    # Lock order everywhere: run, approval, authority, and the ledger's head last.
    run = Run.objects.select_for_update(no_key=True).get(pk=seen.run_id)
    approval = Approval.objects.select_for_update(no_key=True).get(pk=seen.pk)
    signer = get_user_model().objects.select_for_update(of=("self",)).get(pk=user.pk)
    before = approval.decisions.filter(user=signer).first()
    if before is not None and before.verdict == verdict:
        return before
    _check_rights(signer, approval)
    _check_open(approval)
    # The clock is read after the locks: whoever waited for them may have waited past the deadline.
    now = database_clock()
    if now >= approval.due_at:
        raise TooLate(approval.due_at)
    if payload_digest != approval.payload_digest or digest(approval.payload) != approval.payload_digest:
        raise Changed("payload")
    if facts_digest != facts.digest:
        raise Changed("facts")
    given = _close(approval, verdict, facts, now)
    if given:
        wake(run, why=f"{verdict}d by {signer.get_username()}" if verdict == "approve" else f"rejected by {signer.get_username()}", actor=actor, user=signer)
    entry = ledger.append("decision", _record(approval, run, signer, verdict, comment, facts, auth_method, auth_age), at=now)
    return Decision.objects.create(approval=approval, user=signer, verdict=verdict, comment=comment, decided_at=now, entry=entry)


def _close(approval: Approval, verdict: str, facts: Facts, now: datetime) -> bool:
    """Close the approval if this verdict settles it: one rejection does, and so does the last approval required."""
    if verdict == Decision.Verdict.APPROVE:
        approval.signed_facts = facts.text
        earlier = approval.decisions.filter(verdict=Decision.Verdict.APPROVE).count()
        if earlier + 1 < approval.required:
            approval.save(update_fields=["signed_facts"])
            return False
    approval.status = ApprovalStatus.APPROVED if verdict == Decision.Verdict.APPROVE else ApprovalStatus.REJECTED
    approval.closed_at = now
    approval.save(update_fields=["signed_facts", "status", "closed_at"])
    return True


def _record(
    approval: Approval, run: Run, signer: Any, verdict: str, comment: str, facts: Facts, auth_method: str, auth_age: int | None
) -> dict[str, Any]:
    return ledger.subject(approval, run) | {
        "verdict": verdict,
        "comment": comment,
        "meaning": MEANING[Decision.Verdict(verdict)],
        "signer_id": signer.pk,
        "signer_name": signer.get_username(),
        "signer_role": ", ".join(sorted(group.name for group in approval.groups.all() if signer.groups.filter(pk=group.pk).exists())),
        "facts_digest": facts.digest,
        "auth_method": auth_method,
        "auth_age": auth_age,
    }


def _check_words(verdict: str, comment: str) -> None:
    if verdict not in Decision.Verdict.values:
        raise Invalid("verdict", "Choose approve or reject.")
    if verdict == Decision.Verdict.REJECT and not comment.strip():
        raise Invalid("comment", "Say why you reject it: the reason is kept in the audit trail and shown to the team.")
    if len(comment) > LONGEST_COMMENT:
        raise Invalid("comment", f"The comment has {len(comment)} characters; {LONGEST_COMMENT} is the most.")
    try:
        as_json(comment, where="comment")
    except BadValue:
        raise Invalid("comment", "The comment holds characters that cannot be kept or signed (NUL or half a character).") from None


def _check_rights(signer: Any, approval: Approval) -> None:
    if rule := may_decide(signer, approval):
        raise NotAnApprover(rule)


def _check_open(approval: Approval) -> None:
    if approval.status == ApprovalStatus.EXPIRED:
        raise TooLate(approval.due_at)
    if approval.status == ApprovalStatus.OPEN:
        return
    last = approval.decisions.select_related("user").order_by("-decided_at").first()
    who = f" by {last.user.get_username()} at {_when(last.decided_at)}" if last else f" at {_when(approval.closed_at)}"
    label = "cancelled with its run" if approval.status == ApprovalStatus.WITHDRAWN else approval.get_status_display().lower()
    raise AlreadyDecided(f"This was already {label}{who}. Your answer changed nothing.", last)


def _record_refusal(approval: Approval | None, user: Any, verdict: str, refusal: DecisionRefused, actor: str) -> None:
    """In a transaction of its own: the deciding one was rolled back."""
    AuditEvent.objects.create(
        kind=AuditEvent.Kind.DECISION_REFUSED,
        run_id=approval.run_id if approval else None,
        position=approval.position if approval else None,
        detail=f"{verdict[:20]}: {refusal.status} {refusal}",
        actor=actor,
        user=user if user.pk else None,
    )


def _when(moment: datetime | None) -> str:
    return f"{moment:%d %b %Y, %H:%M:%S} UTC" if moment else "an unknown time"
