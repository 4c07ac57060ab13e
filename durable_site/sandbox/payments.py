"""The payment provider: pays once for each idempotency key. Imports `messages`, `refusals` and `store`.

A payment is made at the instant its line is in the journal; the database only makes the journal searchable. Keys being
answered are known to this process alone, so that a killed process leaves no key in progress: after a start a key either
has its line in the journal, and gets its answer, or is free.
"""

import json
import secrets
import sqlite3
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from durable_site.sandbox.messages import canonical, require_amount, require_currency, require_text
from durable_site.sandbox.refusals import KeyInProgress, KeyReused, NotFound, Refusal
from durable_site.sandbox.store import Store, StoreDamaged, stop_at_once

ANSWERED_MEMBERS = ("payment", "status", "amount_minor", "currency", "payee", "reference", "created_at")


@dataclass(frozen=True)
class Order:
    """A payment asked for: the whole body as it came, its obligatory members checked."""

    body: dict[str, Any]

    def __post_init__(self) -> None:
        require_amount(self.body, "amount_minor", least=1)
        require_currency(self.body, "currency")
        require_text(self.body, "payee")
        require_text(self.body, "reference")
        if "claim" in self.body:
            require_text(self.body, "claim")


@dataclass(frozen=True)
class Payment:
    """A payment made: one line of the journal. Everything ever said about it is derived from that line."""

    line: str

    @classmethod
    def make(cls, n: int, key: str, order: Order) -> "Payment":
        at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        members = {"n": n, "at": at, "payment": f"pay_{secrets.token_hex(12)}", "key": key}
        members |= {member: order.body[member] for member in ("reference", "amount_minor", "currency", "payee")}
        return cls(json.dumps({**members, "request": order.body}))

    @property
    def members(self) -> dict[str, Any]:
        members: dict[str, Any] = json.loads(self.line)
        return members

    @property
    def row(self) -> tuple[int, str, str, str, str]:
        members = self.members
        return members["n"], members["payment"], members["key"], members["reference"], self.line

    @property
    def details(self) -> dict[str, Any]:
        """What a look-up tells: the answer's members, the key, and the request as it came."""
        members = self.members
        return {**members, "status": "succeeded", "created_at": members["at"]}

    @property
    def answer(self) -> dict[str, Any]:
        """What whoever paid is told, the first time and on every replay."""
        details = self.details
        return {member: details[member] for member in ANSWERED_MEMBERS}

    def answers(self, order: Order) -> bool:
        return canonical(self.members["request"]) == canonical(order.body)


class PaymentDesk:
    """Pays, replays and looks up. Raises StoreDamaged on opening when journal and database contradict each other."""

    def __init__(self, store: Store, *, delay_seconds: float = 0.0) -> None:
        self._journal = store.journal
        self._database = store.database
        self._delay_seconds = delay_seconds
        self._in_progress: set[str] = set()
        self._closing = threading.Event()
        _index_journal(store)

    def pay(self, key: str, order: Order) -> tuple[Payment, bool]:
        """The payment under this key and whether it was made earlier. Raises KeyReused, KeyInProgress."""
        earlier = self._take_key(key, order)
        if earlier:
            return earlier, True
        payment = self._make(key, order)
        self._closing.wait(self._delay_seconds)
        # Not in a `finally`: after an unforeseen error nobody knows whether money moved, so the key stays in progress
        # until the next start reads the truth from the journal.
        self._in_progress.remove(key)
        return payment, False

    def payment(self, payment_id: str) -> Payment:
        """Raises NotFound."""
        for (line,) in self._database.rows("SELECT line FROM payments WHERE payment = ?", payment_id):
            return Payment(line)
        raise NotFound("payment", payment_id)

    def payments(
        self, *, reference: str | None, key: str | None, after: str | None, limit: int
    ) -> tuple[list[Payment], str | None]:
        """A page of payments in the order they were made, and the id to ask `after` for the next, if there is one."""
        filters = {
            "reference = ?": reference,
            "key = ?": key,
            "n > ?": None if after is None else self._number_of(after),
        }
        given = {condition: value for condition, value in filters.items() if value is not None}
        where = " AND ".join(["TRUE", *given])
        sql = f"SELECT line FROM payments WHERE {where} ORDER BY n LIMIT ?"
        lines = self._database.rows(sql, *given.values(), limit + 1)
        page = [Payment(line) for (line,) in lines[:limit]]
        return page, page[-1].members["payment"] if len(lines) > limit else None

    def hurry(self) -> None:
        """End all delays between payment and answer, now and from now on."""
        self._closing.set()

    def _take_key(self, key: str, order: Order) -> Payment | None:
        # One lock around look and take: of twenty requests at once with one key, one takes it. "In progress" is asked
        # first, so that a payment is not replayed before its first answer is on its way.
        with self._database.lock:
            if key in self._in_progress:
                raise KeyInProgress(key)
            earlier = self._payment_under(key)
            if earlier is None:
                self._in_progress.add(key)
            elif not earlier.answers(order):
                raise KeyReused(key)
            return earlier

    def _payment_under(self, key: str) -> Payment | None:
        rows = self._database.rows("SELECT line FROM payments WHERE key = ?", key)
        return Payment(rows[0][0]) if rows else None

    def _make(self, key: str, order: Order) -> Payment:
        # The journal first, then its index; the lock is held over both, so that numbers follow the order of the lines.
        with self._database.lock:
            ((n,),) = self._database.rows("SELECT coalesce(max(n), 0) + 1 FROM payments")
            payment = Payment.make(n, key, order)
            self._journal.append(payment.line)
            try:
                self._database.write("INSERT INTO payments VALUES (?, ?, ?, ?, ?)", payment.row)
            except sqlite3.Error as error:
                stop_at_once(error)
            return payment

    def _number_of(self, payment_id: str) -> int:
        try:
            return int(self.payment(payment_id).members["n"])
        except NotFound:
            raise Refusal(f"The parameter after names no payment: {payment_id}.") from None


def _index_journal(store: Store) -> None:
    """Bring the database up to the journal, which is ahead of it by what was paid when the last process was killed."""
    indexed = dict(store.database.rows("SELECT n, line FROM payments"))
    missing = []
    for n, line in enumerate(store.journal_lines(), start=1):
        if n not in indexed:
            missing.append(_row_of(store, n, line))
        elif indexed.pop(n) != line:
            raise StoreDamaged(store.folder, f"line {n} of journal.jsonl is not the payment that the database holds")
    if indexed:
        raise StoreDamaged(store.folder, f"payment {min(indexed)} of the database is not in journal.jsonl")
    try:
        store.database.write("INSERT INTO payments VALUES (?, ?, ?, ?, ?)", *missing)
    except sqlite3.IntegrityError as error:
        raise StoreDamaged(store.folder, f"journal.jsonl repeats a payment ({error})") from None


def _row_of(store: Store, n: int, line: str) -> tuple[int, str, str, str, str]:
    try:
        row = Payment(line).row
    except (ValueError, KeyError, TypeError):
        raise StoreDamaged(store.folder, f"line {n} of journal.jsonl is not a payment") from None
    if row[0] != n:
        raise StoreDamaged(store.folder, f"line {n} of journal.jsonl is numbered {row[0]}")
    return row
