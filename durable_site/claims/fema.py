"""Reading FEMA's claim rows: by column name, in both styles in which the table is published, one row at a time.

A row becomes a ParsedClaim or, with its line and a sentence, a RefusedRow; a file that cannot hold claims at all raises
NotClaims. Nothing is guessed: text codes keep their leading zeros, a date is a day whatever follows it, an amount that
the row does not tell stays None. Imports of ours: `money`.
"""

import csv
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import date
from functools import partial
from typing import BinaryIO, NamedTuple

from durable_site.claims.money import BadAmount, cents

PAID_COLUMNS = (
    "amountPaidOnBuildingClaim",
    "amountPaidOnContentsClaim",
    "amountPaidOnIncreasedCostOfComplianceClaim",
)
REASON_COLUMNS = {"building": "nonPaymentReasonBuilding", "contents": "nonPaymentReasonContents"}
REQUIRED_COLUMNS = (
    "id",
    *PAID_COLUMNS,
    *REASON_COLUMNS.values(),
    "dateOfLoss",
    "state",
    "floodEvent",
    "waterDepth",
    "causeOfDamage",
    "originalConstructionDate",
    "buildingDamageAmount",
    "contentsDamageAmount",
    "totalBuildingInsuranceCoverage",
    "totalContentsInsuranceCoverage",
    "buildingDeductibleCode",
    "contentsDeductibleCode",
    "netBuildingPaymentAmount",
    "netContentsPaymentAmount",
    "netIccPaymentAmount",
)
"""What the import and the assessment read. Any other column is kept with the claim as it is."""

LONGEST_LINE = 1_000_000
"""Bytes. A longer line means that the file is something else; reading on would only fill the memory."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_REFERENCE = re.compile(r"[a-z0-9-]{0,41}[a-z0-9]")
_DAY = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?Z?)?")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_LONGEST = {"state": 2, "floodEvent": 100}


class ParsedClaim(NamedTuple):
    """What one row says. Money in cents of US dollars; no amount means not paid, for the reason given, or unknown."""

    reference: str
    amount_minor: int | None
    non_payment_reason: str
    date_of_loss: date | None
    state: str
    event: str
    row: dict[str, str]


class RefusedRow(NamedTuple):
    """A row that was not read. `line` is the physical line on which it begins, the header's being 1."""

    line: int
    reason: str


class NotClaims(Exception):
    """The file as a whole is not a CSV of claims; the sentence says why."""


def read_rows(file: BinaryIO) -> Iterator[tuple[int, ParsedClaim | RefusedRow]]:
    """Each row with the physical line on which it begins. Reads on only when asked for the next. Raises NotClaims."""
    records = _records(_physical_lines(file))
    header = _header(next(records, None))
    with closing(_SeenIds()) as seen:
        for record in records:
            yield record.line, _read(record, header, seen)


def missing(text: str) -> bool:
    """FEMA writes "not known" as nothing or as NA."""
    return text in {"", "NA"}


def code(text: str) -> str:
    """A code as it stands, leading zeros kept; "" when missing, which code columns also write as -1."""
    return "" if missing(text) or text == "-1" else text


def day(text: str) -> date | None:
    """The day that is written, in no time zone; None when missing. Raises ValueError for anything else."""
    if missing(text):
        return None
    found = _DAY.fullmatch(text)
    if not found:
        raise ValueError(f"is not a date ({text[:30]!a}); write it like 2017-08-27")
    try:
        return date.fromisoformat(found[1])
    except ValueError:
        raise ValueError(f"is a day that the calendar does not have ({found[1]})") from None


def amount(text: str) -> int | None:
    """Dollars as integer cents; None when missing. Raises BadAmount. Minus one dollar is negative here, not missing."""
    return None if missing(text) else cents(text)


def paid_minor(row: Mapping[str, str]) -> int | None:
    """The sum of the three paid columns in cents; None when any of them is missing. Raises BadAmount."""
    paid = [amount(row.get(column, "")) for column in PAID_COLUMNS]
    known = [minor for minor in paid if minor is not None]
    return sum(known) if len(known) == len(paid) else None


def non_payment_reason(row: Mapping[str, str]) -> str:
    """Such as `building 01, contents 97`: why nothing was paid. Empty when something was, or for want of a reason."""
    if len(_absent(row)) < len(PAID_COLUMNS):
        return ""
    reasons = {part: code(row.get(column, "")) for part, column in REASON_COLUMNS.items()}
    return ", ".join(f"{part} {reason}" for part, reason in reasons.items() if reason)


def why_amount_unknown(row: Mapping[str, str]) -> str:
    """The sentence for a row whose amount is None and that gives no reason for it; empty when no amount is missing."""
    absent = _absent(row)
    if not absent:
        return ""
    if len(absent) == len(PAID_COLUMNS):
        return "The amount cannot be known because no paid amount and no reason for non-payment is given."
    verb = "is" if len(absent) == 1 else "are"
    return f"The amount cannot be known because {' and '.join(absent)} {verb} missing while another amount is given."


def _absent(row: Mapping[str, str]) -> list[str]:
    return [column for column in PAID_COLUMNS if missing(row.get(column, ""))]


# From bytes to records: physical lines, then fields. Bytes that are not UTF-8 become lone surrogates, which the check
# of the fields refuses: so they cost one row, not the file.


class _Record(NamedTuple):
    """The fields of one row and the physical lines it takes; `problem` says why it has none."""

    line: int
    last_line: int
    fields: list[str]
    problem: str = ""


def _physical_lines(file: BinaryIO) -> Iterator[str]:
    first = True
    for raw in iter(partial(file.readline, LONGEST_LINE), b""):
        if len(raw) == LONGEST_LINE:
            raise NotClaims(f"A line of {LONGEST_LINE:,} bytes or more: this is not a CSV file of claims.")
        yield (raw.removeprefix(_BYTE_ORDER_MARK) if first else raw).decode("utf-8", "surrogateescape")
        first = False


def _records(lines: Iterator[str]) -> Iterator[_Record]:
    reader = csv.reader(lines, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield _Record(line, reader.line_num, [], f"the quotes or separators are broken ({error})")
        else:
            if fields:  # an empty line is no row
                yield _Record(line, reader.line_num, fields)


def _header(record: _Record | None) -> list[str]:
    if record is None:
        raise NotClaims("The file is empty: not even a header line.")
    header = record.fields
    if record.problem:
        raise NotClaims(f"Not a CSV file of claims: in the header line {record.problem}.")
    absent = [column for column in REQUIRED_COLUMNS if column not in header]
    if absent:
        raise NotClaims(f"Not a CSV file of claims: the header has no {', '.join(absent)}.")
    if any(_UNSTORABLE.search(column) for column in header):
        raise NotClaims("The header line holds NUL or bytes that are not UTF-8.")
    repeated = sorted({column for column in header if header.count(column) > 1})
    if repeated:
        raise NotClaims(f"The header names a column twice: {', '.join(repeated)}.")
    return header


# From fields to a claim.


class _SeenIds:
    """Which ids a file has shown, and where. A temporary database, so that a million of them need no memory."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("")
        self._database.execute("CREATE TABLE seen (reference TEXT PRIMARY KEY, line INTEGER) WITHOUT ROWID")

    def first_line_of(self, reference: str, line: int) -> int:
        """The line that showed it first, which is `line` itself for a new one."""
        added = self._database.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (reference, line)).rowcount
        if added:
            return line
        return self._database.execute("SELECT line FROM seen WHERE reference = ?", (reference,)).fetchone()[0]

    def close(self) -> None:
        self._database.close()


class _Unreadable(Exception):
    """Why a row is refused."""


def _read(record: _Record, header: list[str], seen: _SeenIds) -> ParsedClaim | RefusedRow:
    try:
        return _parsed(_row(record, header), record.line, seen)
    except _Unreadable as refusal:
        return RefusedRow(record.line, str(refusal))


def _row(record: _Record, header: list[str]) -> dict[str, str]:
    taken = "" if record.line == record.last_line else f", read from lines {record.line} to {record.last_line}"
    if record.problem:
        raise _Unreadable(f"{record.problem}{taken}")
    if len(record.fields) != len(header):
        raise _Unreadable(f"the row has {len(record.fields)} fields and the header {len(header)}{taken}")
    return dict(zip(header, record.fields, strict=True))


def _parsed(row: dict[str, str], line: int, seen: _SeenIds) -> ParsedClaim:
    _refuse_what_cannot_be_kept(row)
    reference = _reference(row["id"])
    first = seen.first_line_of(reference, line)
    if first != line:
        raise _Unreadable(f"the id {reference} stands on line {first} already")
    return ParsedClaim(
        reference=reference,
        amount_minor=_paid(row),
        non_payment_reason=_reason(row),
        date_of_loss=_date_of_loss(row),
        state=_short(row, "state"),
        event=_short(row, "floodEvent"),
        row=row,
    )


def _refuse_what_cannot_be_kept(row: dict[str, str]) -> None:
    if not _UNSTORABLE.search("".join(row.values())):
        return
    for column, text in row.items():
        found = _UNSTORABLE.search(text)
        if found:
            raise _Unreadable(f"{column} holds {'NUL' if found[0] == chr(0) else 'bytes that are not UTF-8'}")


def _reference(text: str) -> str:
    if not code(text):
        raise _Unreadable("the id is missing")
    reference = text.lower()
    # Before lower() some letters of other alphabets are not ASCII and after it they are (the Kelvin sign).
    if not text.isascii() or not _REFERENCE.fullmatch(reference):
        shown = ascii(text[:48])
        raise _Unreadable(f"the id {shown} cannot name a run: at most 42 letters, digits and hyphens, no hyphen last")
    return reference


def _paid(row: dict[str, str]) -> int | None:
    for column in PAID_COLUMNS:
        try:
            amount(row[column])
        except BadAmount as problem:
            raise _Unreadable(f"{column} {problem}") from None
    return paid_minor(row)


def _reason(row: dict[str, str]) -> str:
    reason = non_payment_reason(row)
    if len(reason) > 40:
        raise _Unreadable("the non-payment reasons are longer than codes are")
    return reason


def _date_of_loss(row: dict[str, str]) -> date | None:
    try:
        return day(row["dateOfLoss"])
    except ValueError as problem:
        raise _Unreadable(f"dateOfLoss {problem}") from None


def _short(row: dict[str, str], column: str) -> str:
    text = "" if missing(row[column]) else row[column]
    if len(text) > _LONGEST[column]:
        raise _Unreadable(f"{column} is longer than {_LONGEST[column]} characters")
    return text
