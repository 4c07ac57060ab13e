"""Made-up claims for tests: in the system of record and in the outside world. Imports the app's own models."""

import httpx
from django.conf import settings

from .models import Claim


def made_up_claim(reference: str, *, amount_minor: int | None, non_payment_reason: str = "") -> Claim:
    """A claim with its policy and flood report in the sandbox."""
    policy = f"NFIP-{reference.upper()}"
    with httpx.Client(base_url=settings.SANDBOX_URL, timeout=5) as world:
        world.post("/policies", json=_policy(policy)).raise_for_status()
        world.post("/flood-reports", json=_report(reference)).raise_for_status()
    return Claim.objects.create(
        reference=reference,
        policy_number=policy,
        payee=f"policyholder-{reference}",
        email=f"policyholder-{reference}@example.invalid",
        amount_minor=amount_minor,
        non_payment_reason=non_payment_reason,
        row={},
    )


def _policy(number: str) -> dict:
    cover = {"building_cover_minor": 25_000_000, "contents_cover_minor": 10_000_000}
    deductible = {"building_deductible_minor": 50_000, "contents_deductible_minor": 50_000}
    return {"policy": number, "status": "in force", "holder": "invented", "currency": "USD"} | cover | deductible


def _report(claim: str) -> dict:
    damage = {"building_damage_minor": 234_000, "contents_damage_minor": 0}
    return {"claim": claim, "event": "invented", "water_depth_inches": 12, "cause": "rainfall"} | damage
