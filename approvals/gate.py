"""ask: put a proposed action to people, and park the run until they have answered. Public, for workflow authors.

The wait kind "approval": how the engine parks, closes and resolves such a wait, and how an approval is spent. May
import approvals.facts, ledger, models and runs.waits, tools, values, workflows, errors.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.contrib.auth.models import Group

from runs import tools
from runs.errors import NotApproved, PermanentError
from runs.models import Run
from runs.states import Status, WaitKind
from runs.tools import ProposedAction, Rule, over
from runs.values import canonical, digest, from_json
from runs.waits import Answered, Closing, Grant, Parked, Wait
from runs.workflows import Finish, Goto, Step

from . import ladder as ladders
from . import ledger, notices
from .facts import Facts, FactSource, facts, read
from .given import approvals_signed, facts_changed
from .ladder import Escalate, Planned, Remind, RemindAndWait, escalate, remind, remind_and_wait
from .models import Approval, ApprovalStatus, Decision, Notice, payee_of

__all__ = ["ask", "escalate", "facts", "over", "remind", "remind_and_wait"]

ASK_AGAIN, REJECT = "ask-again", "reject"


@dataclass(frozen=True)
class ApprovalWait(Wait):
    """What `ask` returns. The step that returns it is not entered again: its checkpoint will be
    {"decision": …, "action": {"tool": …, "arguments": …}, "approval": id}."""

    kind: ClassVar[str] = WaitKind.APPROVAL
    action: ProposedAction
    needed: bool
    groups: tuple[str, ...]
    source: str
    facts: Facts
    expires_in: timedelta
    rungs: tuple[Planned, ...]
    act_within: timedelta
    required: int
    question: str
    terms: dict[str, Any]
    evidence: str

    def park(self, run: Run, position: int, now: datetime) -> Parked | Answered:
        approval = self._freeze(run, position, now)
        if not self.needed:
            return Answered(_closing("not required", approval))
        return Parked(self.question, approval.due_at, {"approval": approval.pk})

    def _freeze(self, run: Run, position: int, now: datetime) -> Approval:
        arguments = self.action.arguments
        ledger.keep_template(self.action.tool.statement_version, self.action.tool.statement)
        approval = Approval.objects.create(
            run=run,
            position=position,
            step=run.next_step,
            team_id=run.team_id,
            requested_by_id=run.requested_by_id,
            tool=self.action.tool.name,
            statement=self.action.statement,
            statement_version=self.action.tool.statement_version,
            payload=self.action.payload,
            payload_digest=self.action.digest,
            amount_minor=arguments.get("amount_minor"),
            currency=arguments.get("currency", ""),
            payee=payee_of(arguments),
            facts_source=self.source,
            facts=self.facts.text,
            facts_digest=self.facts.digest,
            terms=self.terms,
            evidence=self.evidence,
            status=ApprovalStatus.OPEN if self.needed else ApprovalStatus.NOT_REQUIRED,
            required=self.required,
            asked_at=now,
            due_at=now + self.expires_in,
            act_within=self.act_within,
            closed_at=None if self.needed else now,
        )
        approval.groups.set(_groups(self.groups) if self.needed else [])
        _supersede_earlier(approval)
        if self.needed:
            ladders.set_up(approval, self.rungs, now)
            notices.write(approval, Notice.Kind.ASKED)
        return approval

    @classmethod
    def resolve(cls, run: Run, position: int) -> Closing:
        approval = _latest(run, position)
        match approval.status:
            case ApprovalStatus.APPROVED:
                return cls.recheck(run, position) or _closing("approved", approval)
            case ApprovalStatus.REJECTED:
                return _elsewhere(approval, "on_reject", "rejected")
            case ApprovalStatus.EXPIRED:
                return _elsewhere(approval, "on_expiry", "expired")
            case ApprovalStatus.RESPONDED:
                return _elsewhere(approval, "on_respond", "responded", {"answer": _response(approval)})
            case ApprovalStatus.WITHDRAWN:
                return _elsewhere(approval, "on_withdraw", "withdrawn")
        raise PermanentError(
            f"Approval {approval.pk} of step {position} is {approval.status}, so the step cannot go on."
        )

    @classmethod
    def fall_due(cls, run: Run, now: datetime) -> Status:
        approval = Approval.objects.select_for_update().get(pk=(run.wait_terms or {})["approval"])
        approval.status, approval.closed_at = ApprovalStatus.EXPIRED, now
        approval.save(update_fields=["status", "closed_at"])
        ledger.append(
            "expiry",
            ledger.subject(approval, run) | {"due_at": ledger.instant(approval.due_at), "actor": "system"},
            at=now,
        )
        notices.write(approval, Notice.Kind.EXPIRED)
        return Status.EXPIRED if approval.terms["on_expiry"] == "expire" else Status.READY

    @classmethod
    def close(cls, run: Run, now: datetime) -> None:
        Approval.objects.filter(run=run, status=ApprovalStatus.OPEN).update(
            status=ApprovalStatus.WITHDRAWN, closed_at=now
        )

    @classmethod
    def extend(cls, run: Run, until: datetime, now: datetime, *, by: Any, why: str) -> None:
        """The question stays open for longer. What was signed so far stays signed: a deadline is no part of it."""
        approval = Approval.objects.select_for_update().get(pk=(run.wait_terms or {})["approval"])
        if approval.status != ApprovalStatus.OPEN:
            raise PermanentError(f"Approval {approval.pk} is {approval.status} already, so nobody is waited for.")
        was, approval.due_at = approval.due_at, until
        approval.save(update_fields=["due_at"])
        terms = {"due_at": ledger.instant(until), "was_due_at": ledger.instant(was), "reason": why}
        actor = by.get_username() if by else "system"
        ledger.append("extension", ledger.subject(approval, run) | terms | {"actor": actor}, at=now)

    @classmethod
    def asking_step(cls, run: Run, key: str) -> str:
        return Approval.objects.filter(run=run, spent_key=key).values_list("step", flat=True).first() or ""

    @classmethod
    def recheck(cls, run: Run, position: int) -> Goto | Finish | None:
        approval = Approval.objects.filter(run=run, position=position).order_by("-version").first()
        if approval is None:
            # A fork inherits no approval: its copied checkpoint says who asked, and it is asked again.
            return Goto(run.checkpoints.get(position=position).step, {}, "unapproved")
        now = read(approval.facts_source, from_json(approval.payload)["arguments"])
        changed = facts_changed(approval, now)
        return None if changed is None else _again(approval, "changed", {"changed_facts": changed})

    @classmethod
    def granted(cls, run: Run, position: int, key: str) -> Grant | None:
        spent = Approval.objects.filter(run=run, position=position, spent_key=key).first()
        return Grant(spent.tool, spent.payload, spent.payload_digest) if spent else None

    @classmethod
    def authorise(cls, run: Run, position: int, key: str, now: datetime) -> Grant | Goto | Finish:
        approval = _latest(run, position, lock=True)
        _refuse_unless_given(approval)
        given = approval.closed_at or now
        if now > given + approval.act_within:
            return _again(approval, "lapsed", {"approved_at": ledger.instant(given)})
        # Compare and swap: of two spenders one finds no row.
        if not Approval.objects.filter(pk=approval.pk, spent_at__isnull=True).update(spent_at=now, spent_key=key):
            raise NotApproved(approval.tool, f"approval {approval.pk} was spent already, on {approval.spent_key}.")
        return Grant(approval.tool, approval.payload, approval.payload_digest)


def ask(
    action: ProposedAction,
    *,
    groups: list[str],
    expires_in: timedelta,
    question: str = "",
    when: bool | Rule = True,
    facts: FactSource | None = None,
    act_within: timedelta = timedelta(hours=24),
    required: int = 1,
    ladder: Sequence[Remind | Escalate] = (),
    on_expiry: str | Step | Goto | RemindAndWait = "expire",
    on_reject: str | Step | Goto = "finish",
    on_change: str | Step | Goto = ASK_AGAIN,
    on_respond: str | Step | Goto = "",
    on_withdraw: str | Step | Goto = "finish",
    harmless: Collection[str] = (),
    evidence: dict[str, str] | None = None,
) -> ApprovalWait:
    """Return this from a step: freezes the action, and asks people where `when` says so.

    `ladder`: remind(after=…) and escalate(to=…, after=…), counted from asking. `on_expiry` may also be "escalate" (to
    the ladder's escalate without `after`, which then has `expires_in` once more) or remind_and_wait(every=…, until=…).

    `groups`: any member of one of them, in the run's team, may decide. `expires_in`: until when somebody must have
    answered. `act_within`: how long the approval holds once given. `required`: distinct approvers. `on_expiry`:
    "expire" ends the run, `on_reject`: "finish" ends it as rejected, `on_change`: "ask-again" asks anew with fresh
    facts, "reject" does as `on_reject`; each may name another step instead. `harmless`: the facts whose change alone
    changes nothing. `on_respond`: the step that a request for changes goes to (there ctx.answer holds it); without it
    nobody can ask for changes. `on_withdraw`: what follows when whoever asked takes it back, "finish" or a step.
    `evidence`: SHA-256 digests of what was looked at, by name. `question`: why people are asked, as lists show it.
    """
    needed = when(action.arguments) if callable(when) else when
    plan = ladders.plan(ladder, expires_in, on_expiry)
    if on_expiry == "escalate" or isinstance(on_expiry, RemindAndWait):
        # The rungs do that; what follows the last end is that it expires.
        on_expiry = "expire"
    if needed and not groups:
        raise PermanentError("ask() needs groups: somebody must be able to answer.")
    return ApprovalWait(
        action=action,
        needed=needed,
        groups=tuple(groups),
        source=facts.name if facts else "",
        facts=read(facts.name if facts else "", action.arguments),
        expires_in=plan.expires_in,
        rungs=plan.rungs,
        act_within=act_within,
        required=required,
        evidence=canonical(evidence, where="evidence") if evidence else "",
        question=question or f"{', '.join(groups)} must approve: {action.statement}",
        terms={
            "on_expiry": _name(on_expiry),
            "on_reject": _name(on_reject),
            "on_change": _name(on_change),
            "on_respond": _name(on_respond),
            "on_withdraw": _name(on_withdraw),
            "harmless": sorted(harmless),
        },
    )


def _refuse_unless_given(approval: Approval) -> None:
    if digest(approval.payload) != approval.payload_digest:
        raise NotApproved(
            approval.tool, f"the payload of approval {approval.pk} is not the one that was frozen. Somebody changed it."
        )
    if approval.status == ApprovalStatus.NOT_REQUIRED:
        tool = tools.get(approval.tool)
        if tool is None or tool.needs_approval(from_json(approval.payload)["arguments"]):
            raise NotApproved(approval.tool, "the tool requires an approval for this, and nobody was asked.")
    elif approval.status != ApprovalStatus.APPROVED:
        raise NotApproved(approval.tool, f"approval {approval.pk} is {approval.status}.")
    elif len(approvals_signed(approval)) < approval.required:
        raise NotApproved(approval.tool, f"approval {approval.pk} has fewer signatures than it requires.")


def _latest(run: Run, position: int, *, lock: bool = False) -> Approval:
    approvals = Approval.objects.select_for_update() if lock else Approval.objects
    return approvals.filter(run=run, position=position).order_by("-version")[0]


def _closing(decision: str, approval: Approval) -> dict[str, Any]:
    return {"decision": decision, "action": from_json(approval.payload), "approval": approval.pk}


def _elsewhere(approval: Approval, term: str, closed_as: str, more: dict[str, Any] | None = None) -> Goto | Finish:
    # An approval from before there was this term goes the way of all.
    where = approval.terms.get(term) or "finish"
    output = {"decision": closed_as, "approval": approval.pk} | (more or {})
    return Finish(closed_as, output, closed_as) if where == "finish" else Goto(where, output, closed_as)


def _response(approval: Approval) -> dict[str, Any]:
    """What ctx.answer holds behind a request for changes."""
    said = approval.decisions.get(verdict=Decision.Verdict.RESPOND)
    return {"comment": said.comment, "approval": approval.pk, "payload_digest": approval.payload_digest}


def _supersede_earlier(approval: Approval) -> None:
    """What the same step of this run asked before and did not act on is replaced by this, and linked to it."""
    earlier = Approval.objects.filter(run=approval.run_id, step=approval.step, position__lt=approval.position)
    last = earlier.filter(spent_at=None, superseded_by=None).order_by("-position", "-version").first()
    if last is None:
        return
    last.superseded_by = approval
    if last.status in (ApprovalStatus.APPROVED, ApprovalStatus.NOT_REQUIRED):
        last.status = ApprovalStatus.SUPERSEDED
    last.save(update_fields=["superseded_by", "status"])


def _again(approval: Approval, closed_as: str, output: dict[str, Any]) -> Goto | Finish:
    """Facts changed or the approval grew too old: back to the step that asked, or where the author said."""
    where = approval.terms["on_change"]
    if where == REJECT and closed_as == "lapsed":
        # It only grew too old: nothing speaks against asking again.
        where = ASK_AGAIN
    if where == REJECT:
        on_reject = approval.terms["on_reject"]
        return Finish("rejected", output, closed_as) if on_reject == "finish" else Goto(on_reject, output, closed_as)
    return Goto(approval.step if where == ASK_AGAIN else where, output, closed_as)


def _groups(names: tuple[str, ...]) -> list[Group]:
    found = list(Group.objects.filter(name__in=names))
    if missing := set(names) - {group.name for group in found}:
        raise PermanentError(f"Nobody can be asked: there is no group {', '.join(sorted(missing))}.")
    return found


def _name(step: str | Step | Goto) -> str:
    if isinstance(step, Goto):
        return step.step
    return step if isinstance(step, str) else step.name
