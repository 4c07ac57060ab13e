"""ask: put a proposed action to people, and park the run until they have answered. Public, for workflow authors.

The wait kind "approval": how the engine parks, closes and resolves such a wait, and how an approval is spent. May
import approvals.facts, ledger, models and runs.waits, tools, values, workflows, errors.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.contrib.auth.models import Group

from runs import tools
from runs.errors import NotApproved, PermanentError
from runs.models import Run
from runs.states import Status, WaitKind
from runs.tools import ProposedAction, Rule, over
from runs.values import digest, from_json
from runs.waits import Answered, Closing, Grant, Parked, Wait
from runs.workflows import Finish, Goto, Step

from . import ledger
from .facts import Facts, FactSource, compare, facts, read
from .models import Approval, ApprovalStatus, Decision

__all__ = ["ask", "facts", "over"]

ASK_AGAIN = "ask-again"


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
    act_within: timedelta
    required: int
    question: str
    terms: dict[str, str]

    def park(self, run: Run, position: int, now: datetime) -> Parked | Answered:
        approval = self._freeze(run, position, now)
        if not self.needed:
            return Answered(_closing("not required", approval))
        return Parked(self.question, approval.due_at, {"approval": approval.pk})

    def _freeze(self, run: Run, position: int, now: datetime) -> Approval:
        arguments = self.action.arguments
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
            facts_source=self.source,
            facts=self.facts.text,
            facts_digest=self.facts.digest,
            terms=self.terms,
            status=ApprovalStatus.OPEN if self.needed else ApprovalStatus.NOT_REQUIRED,
            required=self.required,
            asked_at=now,
            due_at=now + self.expires_in,
            act_within=self.act_within,
            closed_at=None if self.needed else now,
        )
        approval.groups.set(_groups(self.groups) if self.needed else [])
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
        signed = from_json(approval.signed_facts or approval.facts)
        now = read(approval.facts_source, from_json(approval.payload)["arguments"])
        changed = [difference.name for difference in compare(signed, now.values) if difference.change != "same"]
        # Of several approvers each signed what she was shown.
        unlike = any(said["facts_digest"] != now.digest for said in _approvals_signed(approval))
        return _again(approval, "changed", {"changed_facts": changed}) if changed or unlike else None

    @classmethod
    def granted(cls, run: Run, position: int, key: str) -> str | None:
        spent = Approval.objects.filter(run=run, position=position, spent_key=key)
        return spent.values_list("payload_digest", flat=True).first()

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
    on_expiry: str | Step = "expire",
    on_reject: str | Step = "finish",
    on_change: str | Step = ASK_AGAIN,
) -> ApprovalWait:
    """Return this from a step: freezes the action, and asks people where `when` says so.

    `groups`: any member of one of them, in the run's team, may decide. `expires_in`: until when somebody must have
    answered. `act_within`: how long the approval holds once given. `required`: distinct approvers. `on_expiry`:
    "expire" ends the run, `on_reject`: "finish" ends it as rejected, `on_change`: "ask-again" asks anew with fresh
    facts; each may name another step instead. `question`: why people are asked, in words that lists show.
    """
    needed = when(action.arguments) if callable(when) else when
    if needed and not groups:
        raise PermanentError("ask() needs groups: somebody must be able to answer.")
    return ApprovalWait(
        action=action,
        needed=needed,
        groups=tuple(groups),
        source=facts.name if facts else "",
        facts=read(facts.name if facts else "", action.arguments),
        expires_in=expires_in,
        act_within=act_within,
        required=required,
        question=question or f"{', '.join(groups)} must approve: {action.statement}",
        terms={
            name: _name(step)
            for name, step in (("on_expiry", on_expiry), ("on_reject", on_reject), ("on_change", on_change))
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
    elif len(_approvals_signed(approval)) < approval.required:
        raise NotApproved(approval.tool, f"approval {approval.pk} has fewer signatures than it requires.")


def _approvals_signed(approval: Approval) -> list[dict[str, Any]]:
    """The records of those who approved, as far as signature, hash and rows agree."""
    given = approval.decisions.filter(verdict=Decision.Verdict.APPROVE).select_related("entry").order_by("entry_id")
    entries = [decision.entry for decision in given]
    return [from_json(entry.record) for entry in entries if entry.kind == "decision" and ledger.check_entry(entry)]


def _latest(run: Run, position: int, *, lock: bool = False) -> Approval:
    approvals = Approval.objects.select_for_update() if lock else Approval.objects
    return approvals.filter(run=run, position=position).order_by("-version")[0]


def _closing(decision: str, approval: Approval) -> dict[str, Any]:
    return {"decision": decision, "action": from_json(approval.payload), "approval": approval.pk}


def _elsewhere(approval: Approval, term: str, closed_as: str) -> Goto | Finish:
    where, output = approval.terms[term], {"decision": closed_as, "approval": approval.pk}
    return Finish(closed_as, output, closed_as) if where == "finish" else Goto(where, output, closed_as)


def _again(approval: Approval, closed_as: str, output: dict[str, Any]) -> Goto:
    """Facts changed or the approval grew too old: back to the step that asked, or where the author said."""
    where = approval.terms["on_change"]
    return Goto(approval.step if where == ASK_AGAIN else where, output, closed_as)


def _groups(names: tuple[str, ...]) -> list[Group]:
    found = list(Group.objects.filter(name__in=names))
    if missing := set(names) - {group.name for group in found}:
        raise PermanentError(f"Nobody can be asked: there is no group {', '.join(sorted(missing))}.")
    return found


def _name(step: str | Step) -> str:
    return step if isinstance(step, str) else step.name
