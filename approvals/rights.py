"""Who may answer an approval, and with what: the rules a page shows are the rules that the deciding transaction checks.

May import authority, models and refusals.
"""

from typing import Any

from runs.models import database_clock

from . import authority
from .models import Approval, Authority, Decision
from .refusals import NotAnApprover

EDITED = "Whoever changed what is asked may not approve it: four eyes."


def may_decide(user: Any, approval: Approval) -> str:
    """Empty when this person may answer this approval now, else the rule that forbids it."""
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
    return "" if authority.matching(user, approval, database_clock()).exists() else authority.NO_AUTHORITY


def may_approve(user: Any, approval: Approval) -> str:
    """The rule that forbids this person, who may answer, to approve: their own proposal, or more than they may."""
    if user.pk in approval.editors:
        return EDITED
    now = database_clock()
    try:
        authority.to_approve(authority.ordered(user, approval, now), approval, now, lock=False)
    except NotAnApprover as refusal:
        return str(refusal)
    return ""


def grounds(signer: Any, approval: Approval, verdict: str) -> list[Authority]:
    """On which authorities this person may answer so; they stay locked until the deciding transaction ends. Raises
    NotAnApprover with the rule."""
    if verdict == Decision.Verdict.WITHDRAW:
        if approval.requested_by_id != signer.pk or not signer.is_active:
            raise NotAnApprover("Only whoever asked for this may withdraw it.")
        return []
    if rule := may_decide(signer, approval):
        raise NotAnApprover(rule)
    return authority.held(signer, approval, database_clock())
