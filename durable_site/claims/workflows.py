"""The worked example: a flood claim from registration to payout, in nine steps. This is all that an author writes."""

from datetime import timedelta
from typing import Any

from approvals.gate import ask, escalate, facts, remind
from runs.errors import PermanentError
from runs.tools import over
from runs.workflows import Retry, Workflow, finish, goto

from .assessment import assess
from .fema import why_amount_unknown
from .models import Claim, ClaimStatus, ReserveEntry
from .tools import ASK_OVER, fetch_flood_report, notify, read_policy, transfer

claim_payout = Workflow("claim-payout", version=1, retry=Retry(attempts=5, base=2, cap=600))


@facts("claims.claim")
def claim_facts(arguments: dict[str, Any]) -> dict[str, Any]:
    claim = Claim.objects.get(reference=arguments["claim"])
    return {
        "claim_status": claim.status,
        "amount_minor": claim.amount_minor,
        "currency": claim.currency,
        "payee": claim.payee,
        "policy": claim.policy_number,
    }


@claim_payout.step(atomic=True)
def register_claim(ctx):
    """Register the claim"""
    claim = Claim.objects.select_for_update().get(reference=ctx.input["claim"])
    if claim.status == ClaimStatus.IMPORTED:
        claim.status = ClaimStatus.REGISTERED
        claim.save(update_fields=["status"])
    return {
        "claim": claim.reference,
        "policy": claim.policy_number,
        "payee": claim.payee,
        "amount_minor": claim.amount_minor,
        "currency": claim.currency,
        "non_payment_reason": claim.non_payment_reason,
    }


@claim_payout.step
def check_policy(ctx):
    """Check the policy"""
    policy = ctx.call(read_policy, policy=ctx.state["policy"])
    if policy["status"] != "in force":
        raise PermanentError(f"Policy {policy['policy']} is {policy['status']}, so nothing can be paid on it.")
    return {"policy_terms": policy}


@claim_payout.step
def fetch_report(ctx):
    """Fetch the flood report"""
    return {"report": ctx.call(fetch_flood_report, claim=ctx.input["claim"])}


@claim_payout.step
def assess_damage(ctx):
    """Assess the damage"""
    claim = Claim.objects.get(reference=ctx.input["claim"])
    assessment = assess(claim.row, ctx.state["policy_terms"], ctx.state["report"])
    if not ctx.state["amount_minor"]:
        if ctx.state["amount_minor"] is None and not ctx.state["non_payment_reason"]:
            raise PermanentError(why_amount_unknown(claim.row))
        Claim.objects.filter(pk=claim.pk).update(status=ClaimStatus.CLOSED_UNPAID)
        return finish("closed without payment", {"assessment": assessment})
    return {"assessment": assessment}


@claim_payout.step
def approve_payout(ctx):
    """Approve the payout"""
    return ask(
        transfer.proposed(
            amount_minor=ctx.state["amount_minor"],
            currency=ctx.state["currency"],
            payee=ctx.state["payee"],
            claim=ctx.input["claim"],
        ),
        when=over(ASK_OVER),
        question=f"adjuster must approve payouts over {ASK_OVER // 100}",
        groups=["adjusters"],
        facts=claim_facts,
        expires_in=timedelta(days=3),
        act_within=timedelta(hours=24),
        ladder=[remind(after=timedelta(days=1)), escalate(to="senior-adjusters", after=timedelta(days=2))],
        on_respond=goto("assess_damage"),
    )


@claim_payout.step
def pay_claimant(ctx):
    """Pay the claimant"""
    return {"payment": ctx.perform(approve_payout)}


@claim_payout.step
def notify_claimant(ctx):
    """Notify the claimant"""
    action = ctx.state["action"]["arguments"]
    claim = Claim.objects.get(reference=ctx.input["claim"])
    amount = f"{action['amount_minor'] // 100:,}.{action['amount_minor'] % 100:02d} {action['currency']}"
    notice = ctx.call(
        notify,
        to=claim.email,
        subject=f"Your flood claim {claim.reference}",
        text=f"We have paid {amount} on your claim {claim.reference}.",
    )
    return {"notice": notice}


@claim_payout.step(atomic=True)
def book_reserve(ctx):
    """Book the reserve"""
    claim = Claim.objects.select_for_update().get(reference=ctx.input["claim"])
    action = ctx.state["action"]["arguments"]
    ReserveEntry.objects.create(
        claim=claim,
        amount_minor=-action["amount_minor"],
        currency=action["currency"],
        payment=ctx.state["payment"]["payment"],
    )
    claim.status = ClaimStatus.PAID
    claim.save(update_fields=["status"])
    return {"booked_minor": -action["amount_minor"]}


@claim_payout.step(atomic=True)
def close_claim(ctx):
    """Close the claim"""
    Claim.objects.filter(reference=ctx.input["claim"]).update(status=ClaimStatus.CLOSED)
    return {"closed": True}
