"""A ticket desk that knows no idempotency keys: every request opens a ticket, and a search finds it only a while
later. Imports `clock`, `messages` and `store`.

A ticket is opened at the instant its line is in tickets.jsonl, which is read anew at every start.
"""

import json
import secrets
import threading
from datetime import datetime, timedelta
from typing import Any

from durable_site.sandbox.clock import Clock, stamp
from durable_site.sandbox.messages import require_text
from durable_site.sandbox.store import Store, StoreDamaged

MEMBERS = ("reference", "subject", "text")


class TicketDesk:
    """`delay`: how long, by the sandbox's clock, a new ticket is not found yet. Raises StoreDamaged on opening."""

    def __init__(self, store: Store, clock: Clock, *, delay: timedelta = timedelta()) -> None:
        self._journal, self._clock, self._delay = store.tickets, clock, delay
        self._lock = threading.Lock()
        self._tickets = [_ticket_of(store, n, line) for n, line in enumerate(store.tickets.lines(), start=1)]

    def open(self, wish: dict[str, Any]) -> dict[str, Any]:
        """The new ticket. Raises Refusal."""
        for member in MEMBERS:
            require_text(wish, member)
        with self._lock:
            ticket = {
                "n": len(self._tickets) + 1,
                "at": stamp(self._clock.now()),
                "kind": "ticket",
                "ticket": f"tkt_{secrets.token_hex(12)}",
                **{member: wish[member] for member in MEMBERS},
            }
            self._journal.append(json.dumps(ticket))
            self._tickets.append(ticket)
        return ticket

    def found(self, reference: str) -> list[dict[str, Any]]:
        """The tickets with this reference that a search shows by now, in the order they were opened."""
        shown_since = self._clock.now() - self._delay
        return [
            ticket
            for ticket in self._tickets
            if ticket["reference"] == reference and datetime.fromisoformat(ticket["at"]) <= shown_since
        ]


def _ticket_of(store: Store, n: int, line: str) -> dict[str, Any]:
    try:
        ticket: dict[str, Any] = json.loads(line)
        is_ticket = ticket["n"] == n and bool(datetime.fromisoformat(ticket["at"])) and bool(ticket["reference"])
    except (ValueError, KeyError, TypeError):
        is_ticket = False
    if not is_ticket:
        raise StoreDamaged(store.folder, f"line {n} of tickets.jsonl is not its ticket number {n}")
    return ticket
