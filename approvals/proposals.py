"""What else a person may answer than yes or no: propose otherwise (edit), ask for changes (respond), take back
(withdraw). Signed, locked and refused like a decision, in one transaction with what follows from it.

May import decisions, facts, ledger, models, notices and runs' tools.
"""

import re
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from runs import tools
from runs.engine import wake
from runs.tools import BadArguments, ProposedAction
from runs.values import BadValue, digest, from_json

from . import ledger, notices
from .decisions import Answer, Held, answering, check_facts, close, hold, shown_facts, sign
from .facts import Facts, FactsFailed, read_for
from .models import Approval, ApprovalStatus, Decision, Notice, payee_of
from .refusals import Invalid, NotTaken

NOT_OFFERED = "This workflow says nothing of where a request for changes would go. Reject it, or propose otherwise."

CURRENCY = re.compile("([A-Z]{3})?")

COPIED = (
    "run_id",
    "position",
    "step",
    "team_id",
    "requested_by_id",
    "tool",
    "facts_source",
    "terms",
    "evidence",
    "required",
    "due_at",
    "act_within",
)
"""What a counter-proposal takes over: who decides and until when is not the editor's to change."""


def edit(approval_id: int, *, arguments: str, **said: Any) -> Decision:
    """Propose the same use of the tool with other arguments (JSON text of them all): a new version is asked in place of
    this one, votes given so far are void, and its editor may not approve it.

    `said`: user, comment, the digests that were shown, auth_method, auth_age, actor. Raises DecisionRefused, of it
    Invalid with field "arguments" where the tool does not take them.
    """
    answer = _answer(Decision.Verdict.EDIT, said)
    return answering(approval_id, answer, lambda approval: _edit(approval, answer, arguments))


def respond(approval_id: int, **said: Any) -> Decision:
    """Ask for changes: closes the question, and the run goes where its workflow's `on_respond` says; there ctx.answer
    holds the comment. Raises DecisionRefused."""
    answer = _answer(Decision.Verdict.RESPOND, said)

    def take(approval: Approval) -> Decision:
        if not approval.terms.get("on_respond"):
            raise Invalid("comment", NOT_OFFERED)
        facts = shown_facts(approval)
        with transaction.atomic():
            return _closed(approval, answer, facts, ApprovalStatus.RESPONDED)

    return answering(approval_id, answer, take)


def withdraw(approval_id: int, **said: Any) -> Decision:
    """Take the question back: only whoever asked it may. The run ends, or goes where `on_withdraw` says. Raises
    DecisionRefused."""
    answer = _answer(Decision.Verdict.WITHDRAW, said)

    def take(approval: Approval) -> Decision:
        # On no facts: it can be taken back also when they cannot be read.
        facts = Facts(from_json(approval.facts or "{}"), approval.facts, approval.facts_digest)
        with transaction.atomic():
            return _closed(approval, answer, facts, ApprovalStatus.WITHDRAWN)

    return answering(approval_id, answer, take)


@dataclass(frozen=True)
class Proposal:
    """What would be asked instead, and the facts that it would rest on."""

    action: ProposedAction
    facts: Facts

    @property
    def amount_minor(self) -> int | None:
        found = self.action.arguments.get("amount_minor")
        return found if type(found) is int else None

    @property
    def currency(self) -> str:
        return str(self.action.arguments.get("currency") or "")


def previewed(approval: Approval, arguments: str) -> Proposal:
    """The edited action, validated and normalised like the first; nothing is stored. Raises Invalid with field
    "arguments", of it NotTaken where it can be said which argument is wrong."""
    action = _action(approval, arguments)
    try:
        return Proposal(action, read_for(approval.facts_source, action.arguments))
    except FactsFailed as failure:
        raise Invalid("arguments", str(failure)) from None


def _action(approval: Approval, arguments: str) -> ProposedAction:
    tool = tools.get(approval.tool)
    if tool is None:
        raise Invalid("arguments", f"This code does not know the tool {approval.tool}: nothing else can be proposed.")
    try:
        if not isinstance(from_json(arguments, where="arguments"), dict):
            raise Invalid("arguments", "The arguments must be one JSON object.")
        action = tool.proposed_in_json(arguments)
    except BadArguments as error:
        raise NotTaken(f"Nothing was proposed: {error}", dict(error.problems)) from None
    except BadValue as error:
        raise Invalid("arguments", f"Nothing was proposed: {error}") from None
    if action.digest == approval.payload_digest:
        raise Invalid("arguments", "These are the arguments that are asked already; change them, or decide.")
    if not CURRENCY.fullmatch(str(action.arguments.get("currency") or "")):
        said = "A currency is three capital letters, such as USD."
        raise NotTaken(f"Nothing was proposed: currency: {said}", {"currency": said})
    return action


def _answer(verdict: str, said: dict[str, Any]) -> Answer:
    words = {"facts_digest": "", "auth_method": "password", "auth_age": None, "actor": "web"} | said
    return Answer(verdict=str(verdict), **words | {"comment": words["comment"].strip()})


def _edit(seen: Approval, answer: Answer, arguments: str) -> Decision:
    if known := seen.decisions.filter(user=answer.user, verdict=answer.verdict).first():
        return known
    proposal, facts = previewed(seen, arguments), shown_facts(seen)
    with transaction.atomic():
        held = hold(seen, answer)
        if isinstance(held, Decision):
            return held
        check_facts(answer, facts)
        close(held, ApprovalStatus.SUPERSEDED, facts)
        new = _next_version(held, proposal)
        _ask_anew(held, new)
        more = {"proposed_digest": proposal.action.digest, "proposed_approval": new.pk}
        return sign(held, answer, facts, held.grounds[0], **more)


def _next_version(held: Held, proposal: Proposal) -> Approval:
    old, action, facts = held.approval, proposal.action, proposal.facts
    # The words may have changed since the first version was asked.
    ledger.keep_template(action.tool.statement_version, action.tool.statement)
    new = Approval.objects.create(
        **{name: getattr(old, name) for name in COPIED},
        version=old.version + 1,
        edited_by=held.signer,
        statement=action.statement,
        statement_version=action.tool.statement_version,
        payload=action.payload,
        payload_digest=digest(action.payload),
        amount_minor=proposal.amount_minor,
        currency=proposal.currency,
        payee=payee_of(action.arguments),
        facts=facts.text,
        facts_digest=facts.digest,
        asked_at=held.now,
    )
    new.groups.set(old.groups.all())
    old.superseded_by = new
    old.save(update_fields=["superseded_by"])
    return new


def _ask_anew(held: Held, new: Approval) -> None:
    """The run goes on waiting, for the new version. It does not move, so it leaves no transition: the ledger tells."""
    run = held.run
    # What is left of the ladder goes on for the new version, and its deadline is the same.
    held.approval.rungs.pending().update(approval=new)
    notices.write(new, Notice.Kind.ASKED)
    run.wait_terms = (run.wait_terms or {}) | {"approval": new.pk}
    run.wait_name = run.wait_name.replace(held.approval.statement, new.statement)[:200]
    run.save(update_fields=["wait_terms", "wait_name"])


def _closed(seen: Approval, answer: Answer, facts: Facts, status: ApprovalStatus) -> Decision:
    held = hold(seen, answer)
    if isinstance(held, Decision):
        return held
    if status == ApprovalStatus.RESPONDED:
        check_facts(answer, facts)
    close(held, status, facts)
    why = {
        ApprovalStatus.RESPONDED: "changes were asked for by",
        ApprovalStatus.WITHDRAWN: "withdrawn by",
    }[status]
    wake(held.run, why=f"{why} {held.signer.get_username()}", actor=answer.actor, user=held.signer)
    return sign(held, answer, facts, held.grounds[0] if held.grounds else None)
