"""decide: one person's signed answer to an approval. One transaction decides, moves the run, rings and signs.

Rights, deadline and digests are checked there, when the decision is taken, not when the page was drawn. May import
authority, facts, ledger, models, refusals, rights, runs' failpoints and the verbs of runs.engine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import transaction

from runs.engine import wake
from runs.failpoints import reach
from runs.models import AuditEvent, Run, database_clock
from runs.values import BadValue, as_json, digest

from . import authority, ledger, rights
from .facts import Facts, current
from .models import Approval, ApprovalStatus, Authority, Decision
from .refusals import (
    AlreadyDecided,
    Changed,
    DecisionRefused,
    FactsUnreadable,
    Invalid,
    NotAnApprover,
    Stranger,
    TooLate,
    when,
)
from .rights import may_approve, may_decide

__all__ = [
    "LONGEST_COMMENT",
    "MEANING",
    "AlreadyDecided",
    "Changed",
    "DecisionRefused",
    "FactsUnreadable",
    "Invalid",
    "NotAnApprover",
    "Stranger",
    "TooLate",
    "decide",
    "may_approve",
    "may_decide",
]

MEANING = {
    Decision.Verdict.APPROVE: "I have read this payload and these facts, and approve that exactly these bytes be sent.",
    Decision.Verdict.REJECT: "I have read this payload, and reject it.",
    Decision.Verdict.EDIT: "I have read this payload, and propose another in its place, for others to approve.",
    Decision.Verdict.RESPOND: "I have read this payload, and ask for changes before anybody approves it.",
    Decision.Verdict.WITHDRAW: "I asked for this, and withdraw it.",
}
SAY_WHY = {
    Decision.Verdict.REJECT: "Say why you reject it: the reason is kept in the audit trail and shown to the team.",
    Decision.Verdict.EDIT: "Say why you propose something else: the reason is kept and shown to those who decide.",
    Decision.Verdict.RESPOND: "Say which changes you ask for: these words are the answer that the workflow gets.",
    Decision.Verdict.WITHDRAW: "Say why you withdraw it: the reason is kept in the audit trail.",
}
LONGEST_COMMENT = 4000


@dataclass(frozen=True)
class Held:
    """An open approval under the locks of the deciding transaction. `grounds`: the signer's authorities, the narrowest
    first. `now`: the database's clock, read after the locks."""

    run: Run
    approval: Approval
    signer: Any
    grounds: list[Authority]
    now: datetime


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
    return answering(approval_id, answer, lambda approval: _take(approval, answer))


def hold(seen: Approval, answer: Answer) -> Held | Decision:
    """Lock what an answer changes, and refuse whoever may not answer or comes too late; the person's first decision
    when they say the same again. In the deciding transaction."""
    # Lock order everywhere: run, approval, authority, payee, and the ledger's head last.
    run = Run.objects.select_for_update(no_key=True).get(pk=seen.run_id)
    approval = Approval.objects.select_for_update(no_key=True).get(pk=seen.pk)
    signer = get_user_model().objects.select_for_update(no_key=True).get(pk=answer.user.pk)
    _keep_in_groups(signer)
    approval.run = run
    before = approval.decisions.filter(user=signer).first()
    if before is not None and before.verdict == answer.verdict:
        return before
    grounds = rights.grounds(signer, approval, answer.verdict)
    _check_open(approval)
    if before is not None:
        raise AlreadyDecided(
            f"You answered this already, at {when(before.decided_at)}. Your answer changed nothing.", before
        )
    # The clock is read after the locks: whoever waited for them may have waited past the deadline.
    now = database_clock()
    if now >= approval.due_at:
        raise TooLate(approval.due_at)
    if answer.payload_digest != approval.payload_digest or digest(approval.payload) != approval.payload_digest:
        raise Changed("payload")
    reach(run.key, approval.position, "locked")
    return Held(run, approval, signer, grounds, now)


def sign(held: Held, answer: Answer, facts: Facts, used: Authority | None, **more: Any) -> Decision:
    """Append the signed record and the decision's row: the last that a deciding transaction does. `more`: members that
    the record has besides."""
    members = _record(held.approval, held.run, held.signer, answer, facts) | _authority_used(used) | more
    reach(held.run.key, held.approval.position, "signing")
    entry = ledger.append("decision", members, at=held.now)
    decision = Decision.objects.create(
        approval=held.approval,
        user=held.signer,
        verdict=answer.verdict,
        comment=answer.comment,
        facts=facts.text,
        decided_at=held.now,
        entry=entry,
    )
    reach(held.run.key, held.approval.position, "signed")
    return decision


def check_facts(answer: Answer, facts: Facts) -> None:
    """Refuse an answer to other facts than those of now. Raises Changed."""
    if answer.facts_digest != facts.digest:
        raise Changed("facts")


def close(held: Held, status: ApprovalStatus, facts: Facts) -> None:
    """The question is settled: keep the facts that its last signer was shown."""
    held.approval.status, held.approval.closed_at, held.approval.signed_facts = status, held.now, facts.text
    held.approval.save(update_fields=["signed_facts", "status", "closed_at"])


def answering(approval_id: int, answer: Answer, take: Callable[[Approval], Decision]) -> Decision:
    """Let `take` decide on an approval that the person may see; a refusal leaves a row in the audit trail."""
    approval = Approval.objects.visible_to(answer.user).select_related("run").filter(pk=approval_id).first()
    try:
        if approval is None:
            raise Stranger
        _check_words(answer)
        reach(approval.run.key, approval.position, "answering")
        decision = take(approval)
    except DecisionRefused as refusal:
        _record_refusal(approval, answer, refusal)
        raise
    reach(approval.run.key, approval.position, "answered")
    return decision


def shown_facts(approval: Approval) -> Facts:
    """The facts now, read before the transaction: reading them may ask other systems. Raises FactsUnreadable."""
    facts = current(approval)
    if facts.problem and approval.status == ApprovalStatus.OPEN:
        raise FactsUnreadable(facts.problem)
    return facts


def _take(approval: Approval, answer: Answer) -> Decision:
    if answer.verdict not in (Decision.Verdict.APPROVE, Decision.Verdict.REJECT):
        raise Invalid("verdict", "Choose approve or reject.")
    facts = shown_facts(approval)
    with transaction.atomic():
        return _decide(approval, answer, facts)


def _decide(seen: Approval, answer: Answer, facts: Facts) -> Decision:
    held = hold(seen, answer)
    if isinstance(held, Decision):
        return held
    check_facts(answer, facts)
    used = _authority_for(held, answer)
    if answer.verdict == Decision.Verdict.REJECT:
        _settle(held, ApprovalStatus.REJECTED, answer, facts)
    elif held.approval.decisions.filter(verdict=Decision.Verdict.APPROVE).count() + 1 >= held.approval.required:
        _settle(held, ApprovalStatus.APPROVED, answer, facts)
    else:
        held.approval.signed_facts = facts.text
        held.approval.save(update_fields=["signed_facts"])
    return sign(held, answer, facts, used)


def _settle(held: Held, status: ApprovalStatus, answer: Answer, facts: Facts) -> None:
    """One rejection settles it, and so does the last approval required."""
    close(held, status, facts)
    wake(held.run, why=f"{status} by {held.signer.get_username()}", actor=answer.actor, user=held.signer)


def _authority_for(held: Held, answer: Answer) -> Authority:
    if answer.verdict != Decision.Verdict.APPROVE:
        return held.grounds[0]
    if held.signer.pk in held.approval.editors:
        raise NotAnApprover(rights.EDITED)
    used = authority.to_approve(held.grounds, held.approval, held.now)
    authority.check_fresh(used, held.approval, answer.auth_age)
    return used


def _authority_used(used: Authority | None) -> dict[str, Any]:
    if used is None:
        return {"authority": None}
    return {
        "authority": used.pk,
        "authority_limit_minor": used.limit_minor,
        "authority_payee_limit_minor": used.payee_limit_minor,
        "authority_currency": used.currency,
    }


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


def _keep_in_groups(signer: Any) -> None:
    """Whoever takes a role away waits for a decision that rests on it, or the decision sees that it is gone."""
    memberships = get_user_model().groups.through.objects.select_for_update(no_key=True)
    list(memberships.filter(user=signer).order_by("pk").values_list("pk"))


def _check_words(answer: Answer) -> None:
    if answer.verdict not in Decision.Verdict.values:
        raise Invalid("verdict", "Choose approve or reject.")
    if answer.verdict != Decision.Verdict.APPROVE and not answer.comment:
        raise Invalid("comment", SAY_WHY[Decision.Verdict(answer.verdict)])
    if len(answer.comment) > LONGEST_COMMENT:
        raise Invalid("comment", f"The comment has {len(answer.comment)} characters; {LONGEST_COMMENT} is the most.")
    try:
        as_json(answer.comment, where="comment")
    except BadValue:
        raise Invalid(
            "comment", "The comment holds characters that cannot be kept or signed (NUL or half a character)."
        ) from None


def _check_open(approval: Approval) -> None:
    if approval.status == ApprovalStatus.EXPIRED:
        raise TooLate(approval.due_at)
    if approval.status == ApprovalStatus.OPEN:
        return
    last = approval.decisions.select_related("user").order_by("-decided_at").first()
    who = f" by {last.user.get_username()} at {when(last.decided_at)}" if last else f" at {when(approval.closed_at)}"
    with_its_run = approval.status == ApprovalStatus.WITHDRAWN and last is None
    label = "cancelled with its run" if with_its_run else approval.get_status_display().lower()
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
