"""What is read from a request and written into an answer: strict JSON, its members, the idempotency key, the query.

Pure functions; imports `refusals` only.
"""

import json
import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from durable_site.sandbox.refusals import KeyInvalid, KeyMissing, Refusal

LARGEST_AMOUNT = 2**53 - 1  # beyond it two different JSON integers can become one double
DEEPEST_NESTING = 64
LONGEST_KEY = 255

PRINTABLE_ASCII = re.compile(r"[\x20-\x7e]+")
QUOTED_STRING = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')  # RFC 8941, section 3.3.3


def json_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Refuses what Python lets pass: NaN, infinity, repeated names, lone surrogates."""
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object_without_repeats,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8")
        too_deep = _depth(value) > DEEPEST_NESTING
    except RecursionError:
        too_deep = True
    except UnicodeError:
        raise Refusal("The body is not valid Unicode text in UTF-8.") from None
    except ValueError as error:
        raise Refusal(f"The body is not JSON: {error}.") from None
    if too_deep:
        raise Refusal(f"The body is nested deeper than {DEEPEST_NESTING} levels.")
    if not isinstance(value, dict):
        raise Refusal("The body must be a JSON object.")
    return value


def canonical(value: Any) -> str:
    """One text for all spellings of the same JSON value: member order and white space do not matter, 1 is not true."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def json_bytes(value: Any) -> bytes:
    return json.dumps(value).encode("ascii")


def require_text(body: dict[str, Any], member: str) -> None:
    """The member is a text with something in it."""
    value = _present(body, member)
    if not isinstance(value, str) or not value.strip():
        raise Refusal(f"The member {member} must be a text that is not empty.")


def require_text_or_null(body: dict[str, Any], member: str) -> None:
    if _present(body, member) is not None:
        require_text(body, member)


def require_currency(body: dict[str, Any], member: str) -> None:
    """The member is three capital letters."""
    value = _present(body, member)
    if not isinstance(value, str) or not re.fullmatch(r"[A-Z]{3}", value):
        raise Refusal(f"The member {member} must be three capital letters, such as USD.")


def require_amount(body: dict[str, Any], member: str, *, least: int) -> None:
    """The member is an integer number of minor units (cents), not below `least`."""
    value = _present(body, member)
    if type(value) is not int or not least <= value <= LARGEST_AMOUNT:
        raise Refusal(f"The member {member} must be an integer from {least} to {LARGEST_AMOUNT}, in minor units.")


def require_amount_or_null(body: dict[str, Any], member: str) -> None:
    if _present(body, member) is not None:
        require_amount(body, member, least=0)


def require_number_or_null(body: dict[str, Any], member: str) -> None:
    value = _present(body, member)
    if value is not None and type(value) not in (int, float):
        raise Refusal(f"The member {member} must be a number or null.")


def require_number(body: dict[str, Any], member: str, *, least: float, most: float) -> None:
    value = _present(body, member)
    if type(value) not in (int, float) or not least <= value <= most:
        raise Refusal(f"The member {member} must be a number from {least} to {most}.")


def idempotency_key(headers: list[str]) -> str:
    """The one key among the values of the header, sent bare or as a structured-field string."""
    if not headers:
        raise KeyMissing
    if len(headers) > 1:
        raise KeyInvalid("was sent more than once")
    key = _unquoted(headers[0].strip(" \t"))
    if not key:
        raise KeyInvalid("is empty")
    if len(key) > LONGEST_KEY:
        raise KeyInvalid(f"is longer than {LONGEST_KEY} characters")
    return key


def readable_key(headers: list[str]) -> str | None:
    """The key, where one is not needed: None when there is none, or none that can be read."""
    try:
        return idempotency_key(headers)
    except Refusal:
        return None


def query_values(query: str, allowed: Iterable[str]) -> dict[str, str]:
    """The query's values by name. Unknown and repeated names are refused: a mistyped filter would match everything."""
    values: dict[str, str] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
    except ValueError:
        raise Refusal("The query is not valid text in UTF-8.") from None
    for name, value in pairs:
        if name not in allowed:
            raise Refusal(f"The query has an unknown parameter {name}; known are {', '.join(allowed)}.")
        if name in values:
            raise Refusal(f"The query names {name} more than once.")
        values[name] = value
    return values


def whole_number(text: str, name: str, *, least: int, most: int) -> int:
    """The query parameter `name` as an integer within its bounds."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise Refusal(f"The parameter {name} must be a number from {least} to {most}.")
    return int(text)


def required_value(values: dict[str, str], name: str) -> str:
    if not values.get(name):
        raise Refusal(f"The parameter {name} is missing.")
    return values[name]


def instant(text: str, name: str) -> datetime:
    """The query parameter `name` as an instant: ISO 8601 with an offset, or Z."""
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return at.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise Refusal(f"The parameter {name} must be an instant such as 2026-11-28T09:14:00Z, with its offset from UTC.")


def _present(body: dict[str, Any], member: str) -> Any:
    if member not in body:
        raise Refusal(f"The member {member} is missing.")
    return body[member]


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise Refusal(f"The member {name} appears more than once.")
        members[name] = value
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise Refusal(f"The body is not JSON: {name} is not a JSON number.")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise Refusal("The body holds a number that is too large.")
    return number


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        if text and not PRINTABLE_ASCII.fullmatch(text):
            raise KeyInvalid("must consist of printable ASCII characters")
        return text
    quoted = QUOTED_STRING.fullmatch(text)
    if quoted is None:
        raise KeyInvalid("starts with a quotation mark but is not a structured-field string")
    return re.sub(r"\\(.)", r"\1", quoted[1])
