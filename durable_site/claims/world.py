"""The outside world's side of an imported claim: its policy and its flood report, put into the sandbox.

The data hold no names, so policy number and payee are invented from the claim's reference. Imports of ours: `fema` and
`money`.
"""

import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx
from django.conf import settings

from durable_site.claims.fema import ParsedClaim, amount, code
from durable_site.claims.money import BadAmount

TIMEOUT = httpx.Timeout(10, connect=3)
"""Seconds for each of connecting, sending and receiving."""

CAUSES = {
    "0": "other causes",
    "1": "tidal water overflow",
    "2": "stream, river or lake overflow",
    "3": "alluvial fan overflow",
    "4": "accumulation of rainfall or snowmelt",
    "7": "erosion, demolition",
    "8": "erosion, removal",
    "9": "earth movement, landslide, subsidence or sinkhole",
    "A": "closed basin lake",
    "B": "expedited claim handling without site inspection",
    "C": "expedited claim handling with follow-up site inspection",
    "D": "remote adjustment",
}
"""FEMA's codes for the cause of damage; a claim may have several, as in `2D`."""

_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_WHOLE_INCHES = re.compile(r"-?[0-9]{1,4}")


class WorldError(Exception):
    """The outside world could not be set up for a claim. Repeating the import is safe."""


class WorldIsDown(WorldError):
    def __init__(self, address: str, why: str) -> None:
        super().__init__(
            f"The sandbox at {address} does not answer ({why}). Start it (`python -m durable_site.sandbox`, "
            "or set SANDBOX_URL), then import again."
        )


class WorldRefused(WorldError):
    def __init__(self, document: str, status: int, answer: str) -> None:
        super().__init__(f"the sandbox refused the {document} with status {status}: {answer}")


class Invented(NamedTuple):
    """What the data do not hold about a claim."""

    policy_number: str
    payee: str
    email: str


def invented(reference: str) -> Invented:
    """The first eight characters of a UUID tell claims apart well enough; of any other reference all are needed."""
    name = reference[:8] if _UUID.fullmatch(reference) else reference
    return Invented(f"NFIP-{name.upper()}", f"policyholder-{name}", f"policyholder-{name}@example.invalid")


class World:
    """One connection to the sandbox for a whole import. Use it in a `with` statement."""

    def __init__(self) -> None:
        # trust_env=False: a proxy of the machine's environment must not see, or lose, what is meant for the sandbox.
        self._client = httpx.Client(base_url=settings.SANDBOX_URL, timeout=TIMEOUT, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def set_up(self, claim: ParsedClaim) -> None:
        """Put the claim's policy and flood report there; doing so again changes nothing. Raises WorldError."""
        self._put("/policies", "policy", policy(claim))
        self._put("/flood-reports", "flood report", flood_report(claim))

    def _put(self, path: str, document: str, body: dict[str, Any]) -> None:
        try:
            answer = self._client.post(path, json=body)
        except httpx.TransportError as error:
            raise WorldIsDown(settings.SANDBOX_URL, type(error).__name__) from error
        if answer.status_code >= 500:
            raise WorldIsDown(settings.SANDBOX_URL, f"status {answer.status_code}")
        if not answer.is_success:
            raise WorldRefused(document, answer.status_code, answer.text[:200])


def policy(claim: ParsedClaim) -> dict[str, Any]:
    """The policy register's document. Deductibles are null: the row holds codes, and the assessment decodes them."""
    about = invented(claim.reference)
    return {
        "policy": about.policy_number,
        "status": "in force",
        "holder": about.payee,
        "building_cover_minor": _minor(claim.row, "totalBuildingInsuranceCoverage"),
        "contents_cover_minor": _minor(claim.row, "totalContentsInsuranceCoverage"),
        "building_deductible_minor": None,
        "contents_deductible_minor": None,
        "currency": "USD",
    }


def flood_report(claim: ParsedClaim) -> dict[str, Any]:
    """The flood-report service's document. Null where the row does not say."""
    return {
        "claim": claim.reference,
        "event": claim.event or None,
        "water_depth_inches": _inches(claim.row["waterDepth"]),
        "building_damage_minor": _minor(claim.row, "buildingDamageAmount"),
        "contents_damage_minor": _minor(claim.row, "contentsDamageAmount"),
        "cause": _causes(claim.row["causeOfDamage"]),
    }


def _minor(row: Mapping[str, str], column: str) -> int | None:
    """Cents; null also for what cannot be read, which the assessment notes."""
    try:
        return amount(row[column])
    except BadAmount:
        return None


def _inches(text: str) -> int | None:
    """Water below the floor is negative; a depth is no code, so -1 is a depth too."""
    return int(text) if _WHOLE_INCHES.fullmatch(text) else None


def _causes(text: str) -> str | None:
    return "; ".join(CAUSES.get(letter, f"code {letter}") for letter in code(text)) or None
