"""FEMA's rows are read by column name, in both styles; what cannot be read is refused with its line and a reason."""

import csv
import io
import time
from collections.abc import Iterator
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from durable_site.claims import fema
from durable_site.claims.fema import NotClaims, ParsedClaim, RefusedRow, read_rows, why_amount_unknown

ROOT = Path(__file__).resolve().parent.parent
REAL = ROOT.parent / "shared" / "data"
SAMPLE = ROOT / "durable_site" / "claims" / "sample"
BUILDING, CONTENTS, COMPLIANCE = fema.PAID_COLUMNS

GOOD = dict.fromkeys(fema.REQUIRED_COLUMNS, "NA") | {
    "id": "invented-1",
    BUILDING: "1840",
    CONTENTS: "0",
    COMPLIANCE: "0",
    "dateOfLoss": "2017-08-27T00:00:00.000Z",
    "state": "TX",
    "floodEvent": "Invented Nor'easter",
}


def csv_text(*rows: dict[str, str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read(content: str | bytes) -> list[tuple[int, ParsedClaim | RefusedRow]]:
    return list(read_rows(io.BytesIO(content.encode() if isinstance(content, str) else content)))


def row(**columns: str) -> ParsedClaim:
    [(_, parsed)] = read(csv_text(GOOD | columns))
    assert isinstance(parsed, ParsedClaim), parsed
    return parsed


def refusal(**columns: str) -> str:
    [(line, refused)] = read(csv_text(GOOD | columns))
    assert isinstance(refused, RefusedRow), refused
    assert line == refused.line == 2
    return refused.reason


def paid(building: str, contents: str, compliance: str, **columns: str) -> ParsedClaim:
    return row(**{BUILDING: building, CONTENTS: contents, COMPLIANCE: compliance}, **columns)


def real(name: str) -> list[ParsedClaim]:
    file = REAL / name
    if not file.exists():
        pytest.skip(f"the real rows are not here: {file}")
    rows = [parsed for _, parsed in read(file.read_bytes())]
    assert not [refused for refused in rows if isinstance(refused, RefusedRow)]
    return [parsed for parsed in rows if isinstance(parsed, ParsedClaim)]


def test_the_611_real_rows_are_read_to_the_cent() -> None:
    claims = real("nfip_claims_sample.csv")
    known = [claim.amount_minor for claim in claims if claim.amount_minor is not None]
    assert len(claims) == 611
    assert len([claim for claim in claims if claim.amount_minor is None and claim.non_payment_reason]) == 37
    assert len([minor for minor in known if minor <= 100_000]) == 48
    assert len([minor for minor in known if minor > 100_000]) == 526
    assert sum(known) == 2_417_134_457
    assert len({claim.state for claim in claims}) == 35
    assert len([claim for claim in claims if claim.row["reportedZipCode"].startswith("0")]) == 44


def test_the_native_style_is_read_by_column_name_too() -> None:
    claims = real("nfip_claims_native_format.csv")
    assert [claim.amount_minor for claim in claims] == [1_641_478, 1_933_947, None, 1_260_000, None]
    assert [claim.non_payment_reason for claim in claims] == ["", "", "building 97", "", "building 20, contents 20"]
    assert claims[0].date_of_loss == date(2010, 3, 13)
    assert claims[0].reference == "166eb26d-1103-4b12-b59d-449c9d944a6f"


def test_the_order_of_columns_does_not_matter() -> None:
    assert read(csv_text(dict(reversed(GOOD.items())))) == read(csv_text(GOOD))


def test_columns_that_nobody_asked_for_are_kept_as_text() -> None:
    assert row(reportedZipCode="02025").row["reportedZipCode"] == "02025"


@pytest.mark.parametrize(
    ("text", "minor"),
    [
        ("13864.1", 1_386_410),
        ("1747.8", 174_780),
        ("0.0", 0),
        ("0", 0),
        ("250000", 25_000_000),
        ("0.07", 7),
        ("1.29", 129),
    ],
)
def test_unpadded_cents_are_exact(text: str, minor: int) -> None:
    assert paid(text, "0", "0").amount_minor == minor


def test_the_amount_is_the_sum_of_the_three_paid_columns() -> None:
    assert paid("13864.1", "6016.25", "30000").amount_minor == 4_988_035


@pytest.mark.parametrize("nothing", ["NA", ""])
def test_nothing_paid_for_a_reason_keeps_the_code_with_its_zero(nothing: str) -> None:
    claim = paid(nothing, nothing, nothing, nonPaymentReasonBuilding="01", nonPaymentReasonContents="-1")
    assert (claim.amount_minor, claim.non_payment_reason) == (None, "building 01")


def test_nothing_paid_without_a_reason_is_an_amount_that_cannot_be_known() -> None:
    claim = paid("NA", "NA", "NA")
    assert (claim.amount_minor, claim.non_payment_reason) == (None, "")
    assert "no paid amount and no reason" in why_amount_unknown(claim.row)


def test_an_amount_given_only_in_part_cannot_be_known_whatever_the_reasons() -> None:
    claim = paid("1840", "NA", "", nonPaymentReasonContents="97")
    assert (claim.amount_minor, claim.non_payment_reason) == (None, "")
    assert f"{CONTENTS} and {COMPLIANCE} are missing" in why_amount_unknown(claim.row)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-1", "is negative"),
        ("-0.01", "is negative"),
        ("1e5", "has an exponent"),
        ("1.5E+3", "has an exponent"),
        ("13,864.10", "has a thousands separator"),
        ("13 864", "has a thousands separator"),
        ("1.005", "has more than two decimals"),
        ("NaN", "is not an amount"),
        ("Infinity", "is not an amount"),
        ("inf", "is not an amount"),
        ("1840 ", "is not an amount"),
        ("1840\n", "is not an amount"),
        ("$1840", "is not an amount"),
        ("1_840", "is not an amount"),
        ("1840.", "is not an amount"),
        (".5", "is not an amount"),
        ("١٨٤٠", "is not an amount"),
        ("99999999999", "is larger than"),
    ],
)
@pytest.mark.parametrize("column", fema.PAID_COLUMNS)
def test_an_amount_that_is_not_plain_is_refused(text: str, problem: str, column: str) -> None:
    assert refusal(**{column: text}).startswith(f"{column} {problem}")


@pytest.fixture(params=["America/Los_Angeles", "Pacific/Auckland"])
def far_from_greenwich(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_from_greenwich")
@pytest.mark.parametrize(
    "text", ["2017-08-27T00:00:00.000Z", "2017-08-27", "2017-08-27 00:00:00", "2017-08-27T23:59:59Z"]
)
def test_a_date_is_the_day_that_is_written(text: str) -> None:
    assert row(dateOfLoss=text).date_of_loss == date(2017, 8, 27)


def test_a_missing_date_stays_unknown() -> None:
    assert row(dateOfLoss="NA").date_of_loss is None


@pytest.mark.parametrize("text", ["27/08/2017", "2017-02-30", "2017-08-27T00:00:00+09:00", "20170827", "٢٠١٧-08-27"])
def test_what_is_not_a_day_is_refused(text: str) -> None:
    assert refusal(dateOfLoss=text).startswith("dateOfLoss is")


@pytest.mark.parametrize("text", ["", "NA", "-1"])
def test_a_row_without_id_is_refused(text: str) -> None:
    assert refusal(id=text) == "the id is missing"


@pytest.mark.parametrize("text", ["a_b", "a b", " a", "a/b", "ends-", "é1", "\u212a1", "x" * 43, "a\n"])
def test_an_id_that_cannot_name_a_run_is_refused(text: str) -> None:
    assert "cannot name a run" in refusal(id=text)


def test_the_longest_id_makes_the_longest_run_key() -> None:
    assert len("claim-" + row(id="X" * 42).reference) == 48


def test_an_id_that_comes_again_is_refused_with_the_line_of_the_first_also_in_other_letters() -> None:
    rows = read(csv_text(GOOD | {"id": "ab-1"}, GOOD | {"id": "ab-2"}, GOOD | {"id": "AB-1"}))
    assert rows[2] == (4, RefusedRow(4, "the id ab-1 stands on line 2 already"))


def test_a_new_reading_of_the_same_file_knows_nothing_of_the_first() -> None:
    assert read(csv_text(GOOD)) == read(csv_text(GOOD))


def test_text_that_is_longer_than_its_column_is_refused() -> None:
    assert refusal(floodEvent="x" * 101) == "floodEvent is longer than 100 characters"
    assert refusal(state="TEX") == "state is longer than 2 characters"
    assert "non-payment reasons" in refusal(
        **dict.fromkeys(fema.PAID_COLUMNS, "NA"), nonPaymentReasonBuilding="9" * 40, nonPaymentReasonContents="01"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"a\0b", "floodEvent holds NUL"),
        (b"caf\xe9", "floodEvent holds bytes that are not UTF-8"),
        (b"\xed\xa0\x80", "floodEvent holds bytes that are not UTF-8"),
    ],
)
def test_text_that_cannot_be_kept_costs_its_own_row_only(text: bytes, problem: str) -> None:
    content = csv_text(GOOD | {"floodEvent": "HERE"}, GOOD | {"id": "next"}).encode().replace(b"HERE", text)
    refused, following = read(content)
    assert refused == (2, RefusedRow(2, problem))
    assert isinstance(following[1], ParsedClaim)


def test_letters_that_are_not_ascii_are_kept() -> None:
    assert row(floodEvent="Invented Hurricane Zoë 東").event == "Invented Hurricane Zoë 東"


def test_a_byte_order_mark_is_no_part_of_the_first_name() -> None:
    assert read(b"\xef\xbb\xbf" + csv_text(GOOD).encode()) == read(csv_text(GOOD))
    quoted = csv_text(GOOD).replace("id,", '"id",', 1)
    assert read(b"\xef\xbb\xbf" + quoted.encode()) == read(csv_text(GOOD))


def test_windows_line_ends_are_no_part_of_the_last_value() -> None:
    assert read(csv_text(GOOD).replace("\n", "\r\n")) == read(csv_text(GOOD))


def test_lines_are_physical_lines_also_after_quoted_newlines_and_empty_lines() -> None:
    broad = csv_text(GOOD | {"floodEvent": "two\nlines"})
    second, third = (csv_text(GOOD | {"id": name}).split("\n")[1] for name in ("second", "third"))
    rows = read("\n".join([broad, second, third]))
    assert [line for line, _ in rows] == [2, 5, 6]
    assert next(parsed.event for _, parsed in rows if isinstance(parsed, ParsedClaim)) == "two\nlines"


def test_a_row_with_another_number_of_fields_is_refused() -> None:
    header, values, _ = csv_text(GOOD).split("\n")
    rows = read("\n".join([header, values + ",more", values.rsplit(",", 1)[0], values]))
    width = len(GOOD)
    assert [parsed.reason for _, parsed in rows[:2] if isinstance(parsed, RefusedRow)] == [
        f"the row has {width + 1} fields and the header {width}",
        f"the row has {width - 1} fields and the header {width}",
    ]
    assert isinstance(rows[2][1], ParsedClaim)


def test_broken_quotes_name_every_line_they_cost_and_the_rest_is_read() -> None:
    first, second, third = (csv_text(GOOD | {"id": name}).split("\n")[1] for name in ("one", "two", "three"))
    header = csv_text(GOOD).split("\n")[0]
    opened = '"' + first
    closed = second.replace("1840", '1840"x')
    rows = read("\n".join([header, opened, closed, third]))
    assert [line for line, _ in rows] == [2, 4]
    refused = rows[0][1]
    assert isinstance(refused, RefusedRow)
    assert "from lines 2 to 3" in refused.reason
    assert isinstance(rows[1][1], ParsedClaim)


def test_a_quote_that_never_closes_is_refused_with_the_lines_it_swallowed() -> None:
    rows = read(csv_text(GOOD, GOOD | {"id": '"'}).replace('""""', '"open'))
    assert [type(parsed) for _, parsed in rows] == [ParsedClaim, RefusedRow]


def test_a_file_that_lacks_columns_is_refused_with_their_names() -> None:
    fewer = {name: text for name, text in GOOD.items() if name not in {"id", "dateOfLoss"}}
    with pytest.raises(NotClaims, match="the header has no id, dateOfLoss"):
        read(csv_text(fewer))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 invented archive", "header has no id"),
        (csv_text(GOOD).encode("utf-16"), "Not a CSV"),
        (csv_text(GOOD).replace(",", ";").encode(), "header has no id"),
        (csv_text(GOOD).replace("floodEvent", "floodEvent,state", 1).encode(), "twice: state"),
        (csv_text(GOOD).encode().replace(b"floodEvent", b"floodEvent,\xff", 1), "header line holds"),
        (b'"id', "in the header line"),
        (b"x" * fema.LONGEST_LINE, "A line of"),
    ],
)
def test_a_file_that_cannot_hold_claims_is_refused_whole(content: bytes, problem: str) -> None:
    with pytest.raises(NotClaims, match=problem):
        read(content)


def test_a_header_alone_is_a_file_without_claims() -> None:
    assert read(csv_text(GOOD).split("\n")[0]) == []


class GuardedFile(io.RawIOBase):
    """A file of claims that may be read up to a line and not beyond."""

    def __init__(self, last_line: int) -> None:
        self.lines = self._lines(last_line)

    def _lines(self, last_line: int) -> Iterator[bytes]:
        header, values, _ = csv_text(GOOD).split("\n")
        yield header.encode() + b"\n"
        for line in range(2, last_line + 1):
            yield values.replace("invented-1", f"invented-{line}").encode() + b"\n"
        raise AssertionError(f"line {last_line + 1} was read before anybody asked for its row")

    def readline(self, size: int | None = -1, /) -> Any:
        return next(self.lines)


def test_rows_are_read_one_at_a_time() -> None:
    rows = list(islice(read_rows(GuardedFile(last_line=1001)), 1000))  # type: ignore[arg-type]
    assert rows[-1][0] == 1001
    assert all(isinstance(parsed, ParsedClaim) for _, parsed in rows)


def test_the_invented_rows_that_ship_are_marked_and_good() -> None:
    claims = [parsed for _, parsed in read((SAMPLE / "claims.csv").read_bytes())]
    assert len(claims) == 30
    for claim in claims:
        assert isinstance(claim, ParsedClaim)
        assert len(claim.row) == 73
        assert claim.row["reportedCity"] == "Invented City"
    unknown = [claim for claim in claims if claim.amount_minor is None]  # type: ignore[union-attr]
    assert [claim.reference for claim in unknown if not claim.non_payment_reason] == ["demo-0030"]  # type: ignore[union-attr]
    assert len(unknown) == 5


def test_the_two_claims_of_the_demo_are_1840_dollars_each() -> None:
    claims = [parsed for _, parsed in read((SAMPLE / "two_claims.csv").read_bytes())]
    assert [(claim.reference, claim.amount_minor) for claim in claims] == [("0042", 184_000), ("0043", 184_000)]  # type: ignore[union-attr]


def test_the_invented_rows_have_the_columns_of_the_real_table() -> None:
    file = REAL / "nfip_claims_sample.csv"
    if not file.exists():
        pytest.skip(f"the real rows are not here: {file}")
    header = file.read_text().split("\n", 1)[0]
    for name in ("claims.csv", "two_claims.csv"):
        assert (SAMPLE / name).read_text(encoding="utf-8").split("\n", 1)[0] == header
