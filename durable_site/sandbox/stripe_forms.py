"""Stripe's forms: what comes in form-encoded, and what goes out as an object. Pure functions; imports `clock`,
`messages`, `payments` and `refusals`.
"""

import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from durable_site.sandbox.clock import stamp
from durable_site.sandbox.messages import LARGEST_AMOUNT
from durable_site.sandbox.payments import TRANSFER, Order, Payment, Search
from durable_site.sandbox.refusals import Refusal

OPTIONAL_TEXTS = ("description", "source_transaction", "source_type", "transfer_group")
CREATE_PARAMS = {"amount", "currency", "destination", "expand", "metadata", *OPTIONAL_TEXTS}
LIST_PARAMS = {"created", "destination", "expand", "limit", "starting_after", "transfer_group"}
LARGEST_PAGE = 100
METADATA_PAIRS, LONGEST_METADATA_KEY, LONGEST_METADATA_VALUE = 50, 40, 500
LATEST_TIME = 253_370_764_800  # the year 9999

FIELD = re.compile(r"([^\[\]]+)(?:\[([^\[\]]*)\])?")


class StripeRefusal(Refusal):
    """A refusal that names the parameter it is about, with one of Stripe's error codes."""

    def __init__(self, sentence: str, *, code: str, param: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.code, self.param, self.status = code, param, status


def form(encoded: bytes) -> dict[str, Any]:
    """The fields by name: texts, and objects of texts where the name has brackets, as in `metadata[claim]`."""
    fields: dict[str, Any] = {}
    try:
        pairs = parse_qsl(encoded.decode("utf-8"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise Refusal("The request is not a form in UTF-8.") from None
    for name, value in pairs:
        parts = FIELD.fullmatch(name)
        if parts is None:
            raise StripeRefusal(f"Invalid parameter name: {name}", code="parameter_unknown", param=name)
        _put(fields, parts[1], parts[2], value)
    return fields


def transfer_order(fields: dict[str, Any]) -> Order:
    """Raises StripeRefusal, naming the parameter that is missing, unknown or wrong."""
    _refuse_unknown(fields, CREATE_PARAMS)
    for name in OPTIONAL_TEXTS:
        _text(fields, name, default="")
    metadata = _metadata(fields)
    return Order(
        body=fields,
        amount_minor=_amount(_text(fields, "amount")),
        currency=_currency(_text(fields, "currency")),
        payee=_text(fields, "destination"),
        reference=metadata.get("reference") or _text(fields, "transfer_group", default=""),
        id_prefix=TRANSFER,
    )


def transfer_list(fields: dict[str, Any]) -> tuple[Search, int]:
    """What a list is asked for, and how many at most. Raises StripeRefusal."""
    _refuse_unknown(fields, LIST_PARAMS)
    since, until = _created(fields)
    search = Search(
        payee=_text(fields, "destination", default="") or None,
        group=_text(fields, "transfer_group", default="") or None,
        since=since,
        until=until,
        after=_text(fields, "starting_after", default="") or None,
        newest_first=True,
    )
    limit = _integer(_text(fields, "limit", default="10"), "limit", least=1, most=LARGEST_PAGE)
    return search, limit


def transfer_object(payment: Payment) -> dict[str, Any]:
    """A payment as Stripe tells a transfer; one that was made through the sandbox's own API has no metadata."""
    members = payment.members
    request = members["request"] if members["payment"].startswith(TRANSFER) else {}
    tail = members["payment"].partition("_")[2]
    return {
        "id": members["payment"],
        "object": "transfer",
        "amount": members["amount_minor"],
        "amount_reversed": 0,
        "balance_transaction": f"txn_{tail}",
        "created": int(datetime.fromisoformat(members["at"]).timestamp()),
        "currency": members["currency"].lower(),
        "description": request.get("description"),
        "destination": members["payee"],
        "destination_payment": f"py_{tail}",
        "livemode": False,
        "metadata": _metadata(request),
        "reversals": {
            "object": "list",
            "data": [],
            "has_more": False,
            "total_count": 0,
            "url": f"/v1/transfers/{members['payment']}/reversals",
        },
        "reversed": False,
        "source_transaction": request.get("source_transaction"),
        "source_type": request.get("source_type", "card"),
        "transfer_group": request.get("transfer_group"),
    }


def _put(fields: dict[str, Any], name: str, inner: str | None, value: str) -> None:
    target, last = (fields, name) if inner is None else (fields.setdefault(name, {}), inner)
    if not isinstance(target, dict) or last in target:
        raise StripeRefusal(f"The parameter {name} was sent more than once.", code="parameter_invalid", param=name)
    target[last] = value


def _refuse_unknown(fields: dict[str, Any], known: set[str]) -> None:
    for name in fields:
        if name not in known:
            raise StripeRefusal(f"Received unknown parameter: {name}", code="parameter_unknown", param=name)


def _text(fields: dict[str, Any], name: str, *, default: str | None = None) -> str:
    value = fields.get(name, default)
    if value is None or (value == "" and default is None):
        raise StripeRefusal(f"Missing required param: {name}.", code="parameter_missing", param=name)
    if not isinstance(value, str):
        raise StripeRefusal(f"Invalid string: {name} is an object.", code="parameter_invalid", param=name)
    return value


def _integer(text: str, name: str, *, least: int, most: int) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise StripeRefusal(f"Invalid integer: {text}", code="parameter_invalid_integer", param=name)
    if not least <= int(text) <= most:
        sentence = f"The value of {name} must be from {least} to {most}."
        raise StripeRefusal(sentence, code="parameter_invalid_integer", param=name)
    return int(text)


def _amount(text: str) -> int:
    return _integer(text, "amount", least=1, most=LARGEST_AMOUNT)


def _currency(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z]{3}", text):
        raise StripeRefusal(f"Invalid currency: {text}.", code="parameter_invalid", param="currency")
    return text.upper()


def _metadata(fields: dict[str, Any]) -> dict[str, str]:
    """As it is kept: a pair without a value is none."""
    metadata = fields.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise StripeRefusal("Invalid object: metadata.", code="parameter_invalid", param="metadata")
    if len(metadata) > METADATA_PAIRS:
        raise StripeRefusal(f"More than {METADATA_PAIRS} pairs.", code="parameter_invalid", param="metadata")
    for name, value in metadata.items():
        if len(name) > LONGEST_METADATA_KEY or len(value) > LONGEST_METADATA_VALUE:
            raise StripeRefusal(f"Metadata {name[:40]} is too long.", code="parameter_invalid", param="metadata")
    return {name: value for name, value in metadata.items() if value}


def _created(fields: dict[str, Any]) -> tuple[str | None, str | None]:
    """The first instant and the first one too late, from `created[gte]`, `[gt]`, `[lt]`, `[lte]` or `created` alone."""
    asked = fields.get("created", {})
    bounds = {"gte": asked, "lte": asked} if isinstance(asked, str) else asked
    since: list[int] = []
    until: list[int] = []
    for name, text in bounds.items():
        if name not in {"gt", "gte", "lt", "lte"}:
            raise StripeRefusal(f"Invalid created[{name}].", code="parameter_unknown", param="created")
        second = _integer(text, "created", least=0, most=LATEST_TIME)
        # Times are told in whole seconds: later than a second, or up to its end, is from the next one on.
        (since if name.startswith("g") else until).append(second + (name in {"gt", "lte"}))
    return _at(max(since, default=None)), _at(min(until, default=None))


def _at(second: int | None) -> str | None:
    return None if second is None else stamp(datetime.fromtimestamp(second, UTC))
