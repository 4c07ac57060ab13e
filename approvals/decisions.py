"""decide: one person's signed answer to an approval. One transaction decides, moves the run, rings and signs.

Rights, deadline and digests are checked there, when the decision is taken, not when the page was drawn. May import
approvals.facts, ledger, models and the verbs of runs.engine.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import transaction

from runs.engine import wake
from runs.models import AuditEvent, Run, database_clock
from runs.values import BadValue, as_json, digest

from . import ledger
from .facts import Facts, current
from .models import Approval, ApprovalStatus, Decision

MEANING = {
    Decision.Verdict.APPROVE: "I have read this payload and these facts, and approve that exactly these bytes be sent.",
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
        super().__init__(
            f"The {what} changed since you saw it. Nothing was decided; read what is shown now and decide on that."
        )
        self.what = what


class Invalid(DecisionRefused):
    status = 422

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


class FactsUnreadable(DecisionRefused):
    status = 503


@dataclass(frozen=True)
class Answer:
    """What one person answered, and the digests of what they were shown."""

    user: Any
    verdict: str
    comment: str
    payload_digest: str
    facts_digest: str
    auth_method: str
    auth_age: int | None
    actor: str


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

    `auth_age`: seconds since the person proved who they are. The same answer of the same person again returns the first
    decision. Every refusal is a DecisionRefused, and leaves a row in the audit trail.
    """
    answer = Answer(user, verdict, comment.strip(), payload_digest, facts_digest, auth_method, auth_age, actor)
    approval = Approval.objects.visible_to(user).filter(pk=approval_id).first()
    try:
        if approval is None:
            raise Stranger
        _check_words(answer)
        # Outside the transaction: reading facts may ask other systems.
        facts = current(approval)
        if facts.problem and approval.status == ApprovalStatus.OPEN:
            raise FactsUnreadable(facts.problem)
        with transaction.atomic():
            return _decide(approval, answer, facts)
    except DecisionRefused as refusal:
        _record_refusal(approval, answer, refusal)
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


def _decide(seen: Approval, answer: Answer, facts: Facts) -> Decision:
    # Lock order everywhere: run, approval, authority, and the ledger's head last.
    run = Run.objects.select_for_update(no_key=True).get(pk=seen.run_id)
    approval = Approval.objects.select_for_update(no_key=True).get(pk=seen.pk)
    signer = get_user_model().objects.select_for_update(no_key=True).get(pk=answer.user.pk)
    before = approval.decisions.filter(user=signer).first()
    if before is not None and before.verdict == answer.verdict:
        return before
    _check_rights(signer, approval)
    _check_open(approval)
    if before is not None:
        raise AlreadyDecided(
            f"You answered this already, at {_when(before.decided_at)}. Your answer changed nothing.", before
        )
    # The clock is read after the locks: whoever waited for them may have waited past the deadline.
    now = database_clock()
    if now >= approval.due_at:
        raise TooLate(approval.due_at)
    _check_seen(approval, answer, facts)
    if _close(approval, answer.verdict, facts, now):
        words = "approved" if answer.verdict == Decision.Verdict.APPROVE else "rejected"
        wake(run, why=f"{words} by {signer.get_username()}", actor=answer.actor, user=signer)
    entry = ledger.append("decision", _record(approval, run, signer, answer, facts), at=now)
    return Decision.objects.create(
        approval=approval, user=signer, verdict=answer.verdict, comment=answer.comment, decided_at=now, entry=entry
    )


def _close(approval: Approval, verdict: str, facts: Facts, now: datetime) -> bool:
    """Close the approval if this verdict settles it: one rejection does, and so does the last approval required."""
    approval.signed_facts = facts.text
    if verdict == Decision.Verdict.APPROVE:
        earlier = approval.decisions.filter(verdict=Decision.Verdict.APPROVE).count()
        if earlier + 1 < approval.required:
            approval.save(update_fields=["signed_facts"])
            return False
    approval.status = ApprovalStatus.APPROVED if verdict == Decision.Verdict.APPROVE else ApprovalStatus.REJECTED
    approval.closed_at = now
    approval.save(update_fields=["signed_facts", "status", "closed_at"])
    return True


def _record(approval: Approval, run: Run, signer: Any, answer: Answer, facts: Facts) -> dict[str, Any]:
    roles = Group.objects.filter(pk__in=approval.groups.all()).filter(pk__in=signer.groups.all())
    return ledger.subject(approval, run) | {
        "verdict": answer.verdict,
        "comment": answer.comment,
        "meaning": MEANING[Decision.Verdict(answer.verdict)],
        "signer_id": signer.pk,
        "signer_name": signer.get_username(),
        "signer_role": ", ".join(sorted(roles.values_list("name", flat=True))),
        "facts_digest": facts.digest,
        "auth_method": answer.auth_method,
        "auth_age": answer.auth_age,
    }


def _check_words(answer: Answer) -> None:
    if answer.verdict not in Decision.Verdict.values:
        raise Invalid("verdict", "Choose approve or reject.")
    if answer.verdict == Decision.Verdict.REJECT and not answer.comment:
        raise Invalid("comment", "Say why you reject it: the reason is kept in the audit trail and shown to the team.")
    if len(answer.comment) > LONGEST_COMMENT:
        raise Invalid("comment", f"The comment has {len(answer.comment)} characters; {LONGEST_COMMENT} is the most.")
    try:
        as_json(answer.comment, where="comment")
    except BadValue:
        raise Invalid(
            "comment", "The comment holds characters that cannot be kept or signed (NUL or half a character)."
        ) from None


def _check_seen(approval: Approval, answer: Answer, facts: Facts) -> None:
    if answer.payload_digest != approval.payload_digest or digest(approval.payload) != approval.payload_digest:
        raise Changed("payload")
    if answer.facts_digest != facts.digest:
        raise Changed("facts")


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
    label = (
        "cancelled with its run"
        if approval.status == ApprovalStatus.WITHDRAWN
        else approval.get_status_display().lower()
    )
    raise AlreadyDecided(f"This was already {label}{who}. Your answer changed nothing.", last)


def _record_refusal(approval: Approval | None, answer: Answer, refusal: DecisionRefused) -> None:
    """In a transaction of its own: the deciding one was rolled back."""
    AuditEvent.objects.create(
        kind=AuditEvent.Kind.DECISION_REFUSED,
        run_id=approval.run_id if approval else None,
        position=approval.position if approval else None,
        detail=f"{str(answer.verdict)[:20]!a}: {refusal.status} {refusal}",
        actor=answer.actor,
        user=answer.user,
    )


def _when(moment: datetime | None) -> str:
    return f"{moment:%d %b %Y, %H:%M:%S} UTC" if moment else "an unknown time"
