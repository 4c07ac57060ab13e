"""The assessment is evidence in exact cents: it follows damage, cover and deductible, and says what is not known."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from durable_site.claims.assessment import DEDUCTIBLES, assess
from durable_site.claims.fema import ParsedClaim, read_rows
from durable_site.claims.money import BadAmount, cents, dollars

REAL = Path(__file__).resolve().parent.parent.parent / "shared" / "data"

ROW = {
    "amountPaidOnBuildingClaim": "1840",
    "amountPaidOnContentsClaim": "0",
    "amountPaidOnIncreasedCostOfComplianceClaim": "0",
    "netBuildingPaymentAmount": "1840",
    "netContentsPaymentAmount": "0",
    "netIccPaymentAmount": "0",
    "buildingDamageAmount": "2840",
    "contentsDamageAmount": "0",
    "totalBuildingInsuranceCoverage": "100000",
    "totalContentsInsuranceCoverage": "40000",
    "buildingDeductibleCode": "1",
    "contentsDeductibleCode": "1",
    "nonPaymentReasonBuilding": "NA",
    "nonPaymentReasonContents": "97",
    "originalConstructionDate": "1974-07-01T00:00:00.000Z",
    "dateOfLoss": "2024-09-26T00:00:00.000Z",
}
NOTHING_PAID = dict.fromkeys([name for name in ROW if name.startswith("amountPaid")], "NA")


def evidence(
    policy: dict[str, Any] | None = None, report: dict[str, Any] | None = None, **columns: str
) -> dict[str, Any]:
    return assess(ROW | columns, policy or {}, report or {})


def test_an_ordinary_claim_is_payable_as_it_was_paid_and_nothing_is_odd() -> None:
    assert evidence() == {
        "currency": "USD",
        "building": {
            "damage_minor": 284_000,
            "cover_minor": 10_000_000,
            "deductible_minor": 100_000,
            "payable_minor": 184_000,
            "paid_minor": 184_000,
            "difference_minor": 0,
        },
        "contents": {
            "damage_minor": 0,
            "cover_minor": 4_000_000,
            "deductible_minor": 100_000,
            "payable_minor": 0,
            "paid_minor": 0,
            "difference_minor": 0,
        },
        "payable_minor": 184_000,
        "paid_minor": 184_000,
        "difference_minor": 0,
        "notes": [],
    }


@pytest.mark.parametrize(
    ("damage", "cover", "payable"),
    [
        ("0", "100000", 0),
        ("1000", "100000", 0),  # the deductible exactly
        ("1001", "100000", 100),
        ("101000", "100000", 10_000_000),  # the cover exactly
        ("323518", "100000", 10_000_000),
        ("NA", "0", 0),  # without cover nothing is payable, whatever the damage
    ],
)
def test_payable_is_damage_less_deductible_between_nothing_and_the_cover(damage: str, cover: str, payable: int) -> None:
    found = evidence(buildingDamageAmount=damage, totalBuildingInsuranceCoverage=cover)
    assert found["building"]["payable_minor"] == payable


def test_the_codes_of_the_deductible_are_those_of_the_data_dictionary() -> None:
    file = REAL / "columns.csv"
    if not file.exists():
        pytest.skip(f"the data dictionary is not here: {file}")
    with file.open(encoding="utf-8", newline="") as lines:
        described = {row["name"]: row["fema_description"] for row in csv.DictReader(lines)}
    for column in ("buildingDeductibleCode", "contentsDeductibleCode"):
        codes = re.findall(r"(\w) : \$([0-9,]+)", described[column])
        assert {code: cents(amount.replace(",", "")) for code, amount in codes} == DEDUCTIBLES


@pytest.mark.parametrize(
    ("code", "minor"), [("0", 50_000), ("9", 75_000), ("F", 125_000), ("H", 20_000), ("E", 5_000_000)]
)
def test_a_deductible_is_a_code_and_not_dollars(code: str, minor: int) -> None:
    assert evidence(buildingDeductibleCode=code)["building"]["deductible_minor"] == minor


def test_the_policy_s_own_deductible_wins_even_when_it_is_nothing() -> None:
    found = evidence(policy={"building_deductible_minor": 0, "contents_deductible_minor": None})
    assert found["building"]["deductible_minor"] == 0
    assert found["contents"]["deductible_minor"] == 100_000


def test_what_policy_and_report_say_now_wins_and_the_difference_is_noted() -> None:
    found = evidence(policy={"building_cover_minor": 150_000}, report={"building_damage_minor": 300_000})
    assert found["building"]["damage_minor"] == 300_000
    assert found["building"]["payable_minor"] == 150_000
    assert any("flood report says 3,000.00" in note for note in found["notes"])
    assert any("policy says 1,500.00" in note for note in found["notes"])


def test_what_they_say_alike_or_not_at_all_is_no_difference() -> None:
    found = evidence(policy={"building_cover_minor": 10_000_000}, report={"building_damage_minor": None})
    assert found == evidence()


@pytest.mark.parametrize(
    ("columns", "gap"),
    [
        ({"buildingDamageAmount": ""}, "damage"),
        ({"totalBuildingInsuranceCoverage": "NA"}, "cover"),
        ({"buildingDeductibleCode": "-1"}, "deductible"),
        ({"buildingDamageAmount": "", "buildingDeductibleCode": "NA"}, "damage and deductible"),
    ],
)
def test_what_is_not_known_stays_unknown_and_is_said(columns: dict[str, str], gap: str) -> None:
    found = evidence(**columns)
    assert found["building"]["payable_minor"] is None
    assert found["payable_minor"] is None
    assert found["difference_minor"] is None
    assert found["notes"] == [f"What is payable on the building is not known, for want of its {gap}."]


def test_a_code_that_fema_does_not_know_is_said() -> None:
    assert "buildingDeductibleCode 'Q' is not one of FEMA's codes." in evidence(buildingDeductibleCode="Q")["notes"]


def test_an_amount_that_cannot_be_read_is_unknown_and_said() -> None:
    found = evidence(buildingDamageAmount="-5")
    assert found["building"]["damage_minor"] is None
    assert any(note.startswith("buildingDamageAmount is negative") for note in found["notes"])


def test_nothing_paid_is_unknown_not_zero_and_has_its_reason() -> None:
    found = evidence(**NOTHING_PAID, nonPaymentReasonBuilding="01")
    assert found["paid_minor"] is None
    assert found["difference_minor"] is None
    assert found["notes"] == ["Nothing was paid; the reason codes are building 01, contents 97."]


def test_an_amount_that_cannot_be_known_is_said() -> None:
    found = evidence(amountPaidOnContentsClaim="NA")
    assert found["paid_minor"] is None
    assert any("amountPaidOnContentsClaim is missing" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("columns", "note"),
    [
        ({"buildingDamageAmount": "1839"}, "Paid on the building: 1,840.00, more than the damage of 1,839.00."),
        ({"totalBuildingInsuranceCoverage": "1840"}, "Paid on the building: 1,840.00, exactly the limit of cover."),
        (
            {"totalBuildingInsuranceCoverage": "1800"},
            "Paid on the building: 1,840.00, more than the cover of 1,800.00.",
        ),
        (
            {"netBuildingPaymentAmount": "0"},
            "netBuildingPaymentAmount is 0.00 and differs from what was paid, 1,840.00.",
        ),
        (
            {"originalConstructionDate": "2024-09-27"},
            "The building was built on 2024-09-27, after the loss on 2024-09-26.",
        ),
        ({"originalConstructionDate": "soon"}, "The day of construction or the day of loss cannot be read."),
    ],
)
def test_oddities_are_noted(columns: dict[str, str], note: str) -> None:
    assert evidence(**columns)["notes"] == [note]


@pytest.mark.parametrize(
    "columns",
    [
        {"buildingDamageAmount": "1840", "buildingDeductibleCode": "1"},
        {"originalConstructionDate": "2024-09-26"},
        {"originalConstructionDate": "NA"},
        {"netBuildingPaymentAmount": "1840.00"},
        {"totalContentsInsuranceCoverage": "0"},  # nothing paid, no cover: no limit was reached
    ],
)
def test_what_is_just_not_odd_is_not_noted(columns: dict[str, str]) -> None:
    assert evidence(**columns)["notes"] == []


def test_compliance_counts_as_paid_but_not_as_payable() -> None:
    found = evidence(amountPaidOnIncreasedCostOfComplianceClaim="30000", netIccPaymentAmount="30000")
    assert found["paid_minor"] - found["payable_minor"] == found["difference_minor"] == 3_000_000
    assert found["notes"] == ["30,000.00 was paid for increased cost of compliance, which is not assessed here."]


def test_a_row_that_says_nothing_is_assessed_as_unknown() -> None:
    found = assess({}, {}, {})
    assert found["payable_minor"] is None
    assert found["paid_minor"] is None


def test_the_real_oddities_are_found() -> None:
    file = REAL / "nfip_claims_sample.csv"
    if not file.exists():
        pytest.skip(f"the real rows are not here: {file}")
    with file.open("rb") as content:
        claims = [parsed for _, parsed in read_rows(content) if isinstance(parsed, ParsedClaim)]
    notes = {claim.reference: assess(claim.row, {}, {})["notes"] for claim in claims}

    def claims_noting(words: str) -> int:
        return sum(any(words in note for note in noted) for noted in notes.values())

    assert claims_noting("more than the damage") == 31
    assert claims_noting("more than the cover") == 0
    assert claims_noting("after the loss") == 3
    assert claims_noting("differs from what was paid") == 7  # five on the building, two on the contents
    assert claims_noting("building: 250,000.00, exactly the limit") == 10
    assert claims_noting("Nothing was paid") == 37
    assert claims_noting("not known") == 0


def test_evidence_is_json_without_floats() -> None:
    def refuse(text: str) -> None:
        raise AssertionError(f"a float: {text}")

    found = evidence(amountPaidOnBuildingClaim="13864.1", buildingDamageAmount="14864.35")
    assert json.loads(json.dumps(found), parse_float=refuse) == found
    assert found["building"]["paid_minor"] == 1_386_410
    assert found["building"]["damage_minor"] == 1_486_435


def test_the_row_is_left_as_it_was() -> None:
    row = dict(ROW)
    assess(row, {"building_deductible_minor": 1}, {"building_damage_minor": 2})
    assert row == ROW


@pytest.mark.parametrize(
    ("minor", "text"), [(0, "0.00"), (7, "0.07"), (-7, "-0.07"), (1_386_410, "13,864.10"), (-100_050, "-1,000.50")]
)
def test_cents_are_shown_with_both_decimals(minor: int, text: str) -> None:
    assert dollars(minor) == text


def test_a_refused_amount_says_how_to_write_it() -> None:
    with pytest.raises(BadAmount, match=r"has a thousands separator \('1,840'\); write it like 1840 or 1840\.00"):
        cents("1,840")
