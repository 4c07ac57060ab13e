"""The test kit's fake approver, for authors too: decides like a person at the page, through the same verb."""

from typing import Any

from runs.testing import refuse_elsewhere

from .decisions import decide
from .facts import current
from .models import Approval, Decision


def answer(approval: Approval, user: Any, verdict: str = "approve", comment: str = "") -> Decision:
    """Decide on what the page would show this person now."""
    refuse_elsewhere()
    return decide(
        approval.pk,
        user=user,
        verdict=verdict,
        comment=comment or ("" if verdict == "approve" else "rejected in a test"),
        payload_digest=approval.payload_digest,
        facts_digest=current(approval).digest,
        actor="test",
    )


def answer_all(user: Any, verdict: str = "approve") -> int:
    """Decide everything that this person was asked and that can still be decided; how many."""
    approvals = Approval.objects.visible_to(user).asked_of(user).decidable()
    return len([answer(approval, user, verdict) for approval in approvals])
