"""What was paid: the journal, and the database that makes it searchable. Imports `clock`, `messages`, `refusals` and
`store`.

A payment is made at the instant its line is in the journal; everything ever said about it is derived from that line.
"""

import json
import secrets
import sqlite3
from dataclasses import dataclass
from typing import Any

from durable_site.sandbox.clock import Clock, stamp
from durable_site.sandbox.messages import canonical, require_amount, require_currency, require_text
from durable_site.sandbox.refusals import NotFound, Refusal
from durable_site.sandbox.store import Store, StoreDamaged, stop_at_once

ANSWERED_MEMBERS = ("payment", "status", "amount_minor", "currency", "payee", "reference", "created_at")
INSERT = "INSERT INTO payments VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
TRANSFER = "tr_"


@dataclass(frozen=True)
class Order:
    """A payment asked for: the whole request as it came, and what of it the provider acts on."""

    body: dict[str, Any]
    amount_minor: int
    currency: str
    payee: str
    reference: str
    id_prefix: str = "pay_"

    @classmethod
    def of(cls, body: dict[str, Any]) -> "Order":
        """An order in the sandbox's own JSON. Raises Refusal."""
        require_amount(body, "amount_minor", least=1)
        require_currency(body, "currency")
        require_text(body, "payee")
        require_text(body, "reference")
        if "claim" in body:
            require_text(body, "claim")
        return cls(body, body["amount_minor"], body["currency"], body["payee"], body["reference"])


@dataclass(frozen=True)
class Payment:
    """A payment made: one line of the journal."""

    line: str

    @classmethod
    def make(cls, n: int, at: str, key: str | None, order: Order) -> "Payment":
        members = {
            "n": n,
            "at": at,
            "payment": f"{order.id_prefix}{secrets.token_hex(12)}",
            "key": key,
            "reference": order.reference,
            "amount_minor": order.amount_minor,
            "currency": order.currency,
            "payee": order.payee,
            "request": order.body,
        }
        return cls(json.dumps(members))

    @property
    def members(self) -> dict[str, Any]:
        members: dict[str, Any] = json.loads(self.line)
        return members

    @property
    def row(self) -> tuple[object, ...]:
        members = self.members
        group = members["request"].get("transfer_group") if members["payment"].startswith(TRANSFER) else None
        columns = (members[name] for name in ("n", "payment", "key", "reference", "payee", "at"))
        return *columns, group, self.line

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


@dataclass(frozen=True)
class Search:
    """Which payments are wanted; None does not limit. `since` is the first instant, `until` the first one too late;
    `after` is the payment behind which to go on, in the order that is asked for."""

    reference: str | None = None
    key: str | None = None
    payee: str | None = None
    group: str | None = None
    since: str | None = None
    until: str | None = None
    after: str | None = None
    newest_first: bool = False

    def conditions(self, number_of_after: int | None) -> dict[str, object]:
        conditions = {
            "reference = ?": self.reference,
            "key = ?": self.key,
            "payee = ?": self.payee,
            "transfer_group = ?": self.group,
            "at >= ?": self.since,
            "at < ?": self.until,
            f"n {'<' if self.newest_first else '>'} ?": number_of_after,
        }
        return {condition: value for condition, value in conditions.items() if value is not None}


class Payments:
    """All payments. Raises StoreDamaged on opening when journal and database contradict each other."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._journal, self._database, self._clock = store.journal, store.database, clock
        _index_journal(store)

    def make(self, key: str | None, order: Order) -> Payment:
        # The journal first, then its index; the lock is held over both, so that numbers follow the order of the lines.
        with self._database.lock:
            ((n,),) = self._database.rows("SELECT coalesce(max(n), 0) + 1 FROM payments")
            payment = Payment.make(n, stamp(self._clock.now()), key, order)
            self._journal.append(payment.line)
            try:
                self._database.write(INSERT, payment.row)
            except sqlite3.Error as error:
                stop_at_once(error)
            return payment

    def one(self, payment_id: str) -> Payment:
        """Raises NotFound."""
        for (line,) in self._database.rows("SELECT line FROM payments WHERE payment = ?", payment_id):
            return Payment(line)
        raise NotFound("payment", payment_id)

    def latest_under(self, key: str) -> Payment | None:
        rows = self._database.rows("SELECT line FROM payments WHERE key = ? ORDER BY n DESC LIMIT 1", key)
        return Payment(rows[0][0]) if rows else None

    def page(self, search: Search, limit: int) -> tuple[list[Payment], str | None]:
        """The first `limit` payments found, and the id to ask `after` for the next, if there is one."""
        given = search.conditions(None if search.after is None else self._number_of(search.after))
        where = " AND ".join(["TRUE", *given])
        order = "DESC" if search.newest_first else "ASC"
        sql = f"SELECT line FROM payments WHERE {where} ORDER BY n {order} LIMIT ?"
        lines = self._database.rows(sql, *given.values(), limit + 1)
        page = [Payment(line) for (line,) in lines[:limit]]
        return page, page[-1].members["payment"] if len(lines) > limit else None

    def _number_of(self, payment_id: str) -> int:
        try:
            return int(self.one(payment_id).members["n"])
        except NotFound:
            raise Refusal(f"The list cannot go on after {payment_id}: there is no such payment.") from None


def _index_journal(store: Store) -> None:
    """Bring the database up to the journal, which is ahead of it by what was paid when the last process was killed."""
    indexed = dict(store.database.rows("SELECT n, line FROM payments"))
    missing = []
    for n, line in enumerate(store.journal.lines(), start=1):
        if n not in indexed:
            missing.append(_row_of(store, n, line))
        elif indexed.pop(n) != line:
            raise StoreDamaged(store.folder, f"line {n} of journal.jsonl is not the payment that the database holds")
    if indexed:
        raise StoreDamaged(store.folder, f"payment {min(indexed)} of the database is not in journal.jsonl")
    try:
        store.database.write(INSERT, *missing)
    except sqlite3.IntegrityError as error:
        raise StoreDamaged(store.folder, f"journal.jsonl repeats a payment ({error})") from None


def _row_of(store: Store, n: int, line: str) -> tuple[object, ...]:
    try:
        row = Payment(line).row
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StoreDamaged(store.folder, f"line {n} of journal.jsonl is not a payment") from None
    if row[0] != n:
        raise StoreDamaged(store.folder, f"line {n} of journal.jsonl is numbered {row[0]}")
    return row
