"""What each side says of one effect, as JSON that a finding keeps. Stays the same as long as what it tells of does.

May import models.
"""

import json
from datetime import UTC, datetime
from typing import Any

from .models import Call, Listed

AMOUNTS_IN_ANSWERS = ("amount_minor", "paid_minor")


def ours_of(call: Call) -> dict[str, Any]:
    """An effect as it is recorded here."""
    amount, currency = asked_amount(call)
    return {
        "key": call.key,
        "run": call.run.key,
        "step": f"{call.position} {call.step}",
        "state": call.state,
        "amount_minor": amount,
        "currency": currency,
        "sends": call.sends,
        "sent_at": _instant(call.sent_at),
        "settled_at": _instant(call.settled_at),
        "request_sha256": call.digest,
        "error": call.error,
    }


def theirs_of(row: Listed) -> dict[str, Any]:
    """A record as the provider lists it."""
    return {
        "id": row.record,
        "key": row.key,
        "reference": row.reference,
        "amount_minor": row.amount_minor,
        "currency": row.currency,
        "created_at": _instant(row.created_at),
    }


def asked_amount(call: Call) -> tuple[int | None, str]:
    """What the stored request asks for: minor units and currency; None when it has no amount."""
    try:
        arguments = json.loads(call.request)["arguments"]
        amount = arguments.get("amount_minor")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, ""
    return (amount if type(amount) is int else None), str(arguments.get("currency") or "").upper()


def has_other_amount(call: Call, amount_minor: int | None, currency: str) -> bool:
    """Whether this is another amount than was asked for. What is not said differs from nothing."""
    asked, asked_currency = asked_amount(call)
    if asked is None or amount_minor is None:
        return False
    return amount_minor != asked or bool(currency and asked_currency and currency != asked_currency)


def found_other_amount(call: Call, found: dict[str, Any]) -> bool:
    """Whether a look-up tells of another amount than was asked for."""
    told = [found[name] for name in AMOUNTS_IN_ANSWERS if type(found.get(name)) is int]
    return any(has_other_amount(call, amount, "") for amount in told)


def _instant(at: datetime | None) -> str | None:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z") if at else None
