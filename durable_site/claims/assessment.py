"""What a claim would be worth by damage, cover and deductible: evidence, which never changes the imported amount.

Pure functions. All money is integer cents of US dollars; None means that it is not known, and a note says why. Imports
of ours: `fema` and `money`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from durable_site.claims.fema import amount, code, day, non_payment_reason, why_amount_unknown
from durable_site.claims.money import BadAmount, dollars

DEDUCTIBLES = {
    "0": 500_00,
    "1": 1_000_00,
    "2": 2_000_00,
    "3": 3_000_00,
    "4": 4_000_00,
    "5": 5_000_00,
    "9": 750_00,
    "A": 10_000_00,
    "B": 15_000_00,
    "C": 20_000_00,
    "D": 25_000_00,
    "E": 50_000_00,
    "F": 1_250_00,
    "G": 1_500_00,
    "H": 200_00,
}
"""FEMA's codes for the deductible, in cents; the same for building and contents."""


@dataclass(frozen=True)
class Part:
    """One part of the cover, and where its figures stand in the row."""

    name: str
    damage: str
    cover: str
    deductible_code: str
    paid: str


BUILDING = Part(
    name="building",
    damage="buildingDamageAmount",
    cover="totalBuildingInsuranceCoverage",
    deductible_code="buildingDeductibleCode",
    paid="amountPaidOnBuildingClaim",
)
CONTENTS = Part(
    name="contents",
    damage="contentsDamageAmount",
    cover="totalContentsInsuranceCoverage",
    deductible_code="contentsDeductibleCode",
    paid="amountPaidOnContentsClaim",
)
COMPLIANCE_PAID = "amountPaidOnIncreasedCostOfComplianceClaim"
NET_OF = {
    BUILDING.paid: "netBuildingPaymentAmount",
    CONTENTS.paid: "netContentsPaymentAmount",
    COMPLIANCE_PAID: "netIccPaymentAmount",
}
MONEY_COLUMNS = (*NET_OF, *NET_OF.values(), BUILDING.damage, BUILDING.cover, CONTENTS.damage, CONTENTS.cover)


def assess(row: Mapping[str, str], policy: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """What building and contents would be paid, and what is odd about the claim, as plain JSON.

    Damage comes from the flood report, cover and deductible from the policy; where they say null, from the row, the
    deductible there being a code. Payable is damage less deductible, at most the cover, at least 0. The total holds
    building and contents; `paid_minor` also what was paid for increased cost of compliance, which is not assessed.
    """
    claim = _Claim(row, policy, report)
    parts = {part.name: claim.part(part) for part in (BUILDING, CONTENTS)}
    payable = _sum(figures["payable_minor"] for figures in parts.values())
    paid = _sum(claim.imported[column] for column in NET_OF)
    claim.note_nothing_paid()
    claim.note_compliance()
    claim.note_net_payments()
    claim.note_construction()
    return {
        "currency": "USD",
        **parts,
        "payable_minor": payable,
        "paid_minor": paid,
        "difference_minor": _difference(paid, payable),
        "notes": claim.notes,
    }


class _Claim:
    """The figures of one claim as they were imported and as they are told now, and the notes that they give rise to."""

    def __init__(self, row: Mapping[str, str], policy: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        self.row, self.policy, self.report = row, policy, report
        self.notes: list[str] = []
        self.imported = {column: self._amount(column) for column in MONEY_COLUMNS}

    def _amount(self, column: str) -> int | None:
        try:
            return amount(self.row.get(column, ""))
        except BadAmount as problem:
            self.notes.append(f"{column} {problem}.")
            return None

    def part(self, part: Part) -> dict[str, int | None]:
        damage = self._told("flood report", self.report.get(f"{part.name}_damage_minor"), part.damage)
        cover = self._told("policy", self.policy.get(f"{part.name}_cover_minor"), part.cover)
        deductible = self._deductible(part)
        paid = self.imported[part.paid]
        payable = _payable(damage, cover, deductible)
        if payable is None:
            self._note_unknown(part, damage=damage, cover=cover, deductible=deductible)
        self._note_paid(part, paid=paid or 0, damage=damage, cover=cover)
        return {
            "damage_minor": damage,
            "cover_minor": cover,
            "deductible_minor": deductible,
            "payable_minor": payable,
            "paid_minor": paid,
            "difference_minor": _difference(paid, payable),
        }

    def _told(self, source: str, told: int | None, column: str) -> int | None:
        imported = self.imported[column]
        if told is None:
            return imported
        if imported is not None and told != imported:
            self.notes.append(f"The {source} says {dollars(told)}, which is used; {column} says {dollars(imported)}.")
        return told

    def _deductible(self, part: Part) -> int | None:
        told: int | None = self.policy.get(f"{part.name}_deductible_minor")
        if told is not None:
            return told
        letter = code(self.row.get(part.deductible_code, ""))
        if letter and letter not in DEDUCTIBLES:
            self.notes.append(f"{part.deductible_code} {letter[:20]!a} is not one of FEMA's codes.")
        return DEDUCTIBLES.get(letter)

    def _note_unknown(self, part: Part, **figures: int | None) -> None:
        unknown = " and ".join(name for name, figure in figures.items() if figure is None)
        self.notes.append(f"What is payable on the {part.name} is not known, for want of its {unknown}.")

    def _note_paid(self, part: Part, *, paid: int, damage: int | None, cover: int | None) -> None:
        beginning = f"Paid on the {part.name}: {dollars(paid)},"
        if damage is not None and paid > damage:
            self.notes.append(f"{beginning} more than the damage of {dollars(damage)}.")
        if cover is not None and paid > cover:
            self.notes.append(f"{beginning} more than the cover of {dollars(cover)}.")
        if paid and paid == cover:
            self.notes.append(f"{beginning} exactly the limit of cover.")

    def note_nothing_paid(self) -> None:
        reason, gap = non_payment_reason(self.row), why_amount_unknown(self.row)
        if reason:
            self.notes.append(f"Nothing was paid; the reason codes are {reason}.")
        elif gap:
            self.notes.append(gap)

    def note_compliance(self) -> None:
        paid = self.imported[COMPLIANCE_PAID]
        if paid:
            self.notes.append(f"{dollars(paid)} was paid for increased cost of compliance, which is not assessed here.")

    def note_net_payments(self) -> None:
        for paid_column, net_column in NET_OF.items():
            paid, net = self.imported[paid_column], self.imported[net_column]
            if paid is not None and net is not None and paid != net:
                self.notes.append(f"{net_column} is {dollars(net)} and differs from what was paid, {dollars(paid)}.")

    def note_construction(self) -> None:
        try:
            built, lost = (day(self.row.get(column, "")) for column in ("originalConstructionDate", "dateOfLoss"))
        except ValueError:
            self.notes.append("The day of construction or the day of loss cannot be read.")
            return
        if built and lost and built > lost:
            self.notes.append(f"The building was built on {built}, after the loss on {lost}.")


def _payable(damage: int | None, cover: int | None, deductible: int | None) -> int | None:
    if cover == 0:
        return 0  # whatever the damage, known or not
    if damage is None or cover is None or deductible is None:
        return None
    return max(min(damage - deductible, cover), 0)


def _sum(amounts: Iterable[int | None]) -> int | None:
    """None as soon as one of them is not known."""
    known = list(amounts)
    return None if None in known else sum(minor for minor in known if minor is not None)


def _difference(paid: int | None, payable: int | None) -> int | None:
    """Positive when more was paid than is payable."""
    return None if paid is None or payable is None else paid - payable
