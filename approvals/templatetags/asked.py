"""Lets a run's page show what was asked of people, without the engine knowing approvals: the template asks here."""

from typing import Any

from django import template

from approvals.models import Approval, Decision
from runs.models import Run, Transition
from runs.states import Status

register = template.Library()


@register.simple_tag(takes_context=True)
def approvals_of(context: dict[str, Any], run: Run) -> list[Approval]:
    """The run's approvals that the reader may see, in the order of asking, with their signatures."""
    visible = Approval.objects.visible_to(context["request"].user).filter(run=run).order_by("position", "version")
    return list(visible.defer("payload", "facts", "signed_facts").prefetch_related("groups", "decisions__user"))


@register.filter
def at_position(approvals: list[Approval], position: int) -> list[Approval]:
    return [approval for approval in approvals if approval.position == position]


@register.filter
def approvals_given(approval: Approval) -> int:
    """How many people have approved this, of its `required`."""
    return sum(1 for decision in approval.decisions.all() if decision.verdict == Decision.Verdict.APPROVE)


@register.filter
def last_decision(approval: Approval) -> Decision | None:
    """The answer that closed it, or the last before it was closed otherwise."""
    given = sorted(approval.decisions.all(), key=lambda decision: decision.pk)
    return given[-1] if given else None


@register.simple_tag
def cancellation_of(approval: Approval) -> Transition | None:
    """How the run was cancelled that an approval was of."""
    cancelled = Transition.objects.filter(run=approval.run_id, to_status=Status.CANCELLED)
    return cancelled.select_related("user").last()


@register.filter
def approvals_missing(approval: Approval) -> int:
    """How many people must still approve this."""
    return max(0, approval.required - approvals_given(approval))
