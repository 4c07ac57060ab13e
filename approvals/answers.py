"""Which answers besides yes and no a page offers this person, and how one version of an action differs from another.

Questions only. May import authority, decisions, models, reading, and runs' tools.
"""

import json
from dataclasses import dataclass
from typing import Any

from runs import tools
from runs.models import database_clock

from . import authority, reading
from .models import Approval, ApprovalStatus
from .reading import Comparison
from .refusals import NotAnApprover


@dataclass(frozen=True)
class Options:
    """`asks_password`: approving takes a password given now. `changes`: this version beside the one that it replaced;
    `facts_changes` likewise."""

    can_edit: bool
    can_respond: bool
    can_withdraw: bool
    asks_password: bool
    earlier: Approval | None
    later: Approval | None
    changes: list[Comparison]
    facts_changes: list[Comparison]


def options(user: Any, approval: Approval, auth_age: int | None) -> Options:
    earlier: Approval | None = getattr(approval, "supersedes", None)
    is_open = approval.status == ApprovalStatus.OPEN
    arguments = json.loads(approval.payload or "{}").get("arguments", {})
    return Options(
        can_edit=tools.get(approval.tool) is not None,
        can_respond=bool(approval.terms.get("on_respond")),
        can_withdraw=is_open and approval.requested_by_id == user.pk,
        asks_password=is_open and _asks_password(user, approval, auth_age),
        earlier=earlier,
        later=approval.superseded_by,
        changes=differences(_arguments(earlier), arguments) if earlier else [],
        facts_changes=differences(
            json.loads(earlier.signed_facts or earlier.facts or "{}"), json.loads(approval.facts or "{}")
        )
        if earlier
        else [],
    )


def _asks_password(user: Any, approval: Approval, auth_age: int | None) -> bool:
    now = database_clock()
    try:
        used = authority.to_approve(authority.ordered(user, approval, now), approval, now, lock=False)
    except NotAnApprover:
        return False
    is_fresh = auth_age is not None and auth_age <= authority.FRESH
    return authority.needs_password(used, approval) and not is_fresh


def _arguments(approval: Approval) -> dict[str, Any]:
    return json.loads(approval.payload or "{}").get("arguments", {})


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[Comparison]:
    """What differs between two flat sets of values, in words."""
    both = reading.comparisons(json.dumps(before), json.dumps(now))
    return [each for each in both if each.change != "same"]
