"""Values become JSON before first use, and canonical JSON before anybody signs or sends them.

What a step returns, what a run is started with and what an event brings pass through `as_json`: the text that is stored
reads back equal, type for type, or nothing is written and `BadValue` names the path. What is approved, signed or sent
as an effect passes through `canonical`: RFC 8785 text, so that one value has one spelling and one digest.

A value is accepted only if it is exactly a dict with str names, list, str, int, float, bool or None. A tuple, an Enum
member, an OrderedDict or a `mark_safe` string would be read back as something else: it is refused, not changed.

A sentence of `BadValue` holds names and types, never the values themselves: it may be logged.

May import: the standard library and `rfc8785`.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import rfc8785

LARGEST_INTEGER = 10**30
LARGEST_EXACT_INTEGER = 2**53 - 1
"""Above it two different amounts may be one double, hence one canonical text and one signature."""


class BadValue(ValueError):
    """A value that cannot be stored or signed as it is. `path` says where it stands, `problem` what to do about it."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path} {self.problem}"


def as_json(value: Any, *, where: str = "value", limit: int = 1_000_000) -> str:
    """The JSON text of `value`, from which `from_json` gives back an equal value of the same types.

    `where` is the first word of the path in a refusal ("output"); `limit` is the largest size of the text in bytes of
    UTF-8. Raises BadValue.
    """
    _inspect(value, _STORED, where, limit)
    return _written(_encode, value, where, limit)


def canonical(value: Any, *, where: str = "value", limit: int = 100_000, depth: int = 32, signed: bool = True) -> str:
    """The RFC 8785 text of `value`: what people see, sign and send.

    Refuses all that `as_json` refuses and every float, integers beyond ±(2**53 - 1), and nesting over `depth` levels.
    `limit` is in bytes of UTF-8, smaller than that of `as_json` because a person has to read it. What is neither signed
    nor sent under a key, as a model's temperature, may hold floats: `signed=False`. Raises BadValue.
    """
    _inspect(value, (_SIGNED if signed else _RECORDED)._replace(depth=depth), where, limit)
    return _written(canonical_text, value, where, limit)


def canonical_text(value: Any) -> str:
    """The RFC 8785 serialisation alone, floats included, of a value that `from_json` returned or `canonical` allows."""
    return rfc8785.dumps(value).decode()


def digest(text: str) -> str:
    """SHA-256 of the text's UTF-8 bytes, as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def from_json(text: str, *, where: str = "value") -> Any:
    """The value of a JSON text that obeys I-JSON; whatever it returns, `as_json` accepts.

    Stricter than `json.loads`: a repeated name, NaN, an overflowing number, NUL and half a surrogate pair are refused.
    Raises BadValue with the path, or with the character's position where the text is not JSON at all.
    """
    try:
        value = _decode(text)
    except RecursionError:
        raise BadValue(where, _too_deep(_STORED.depth)) from None
    except _Unreadable as refusal:
        raise BadValue(where, str(refusal)) from None
    except json.JSONDecodeError as error:
        raise BadValue(where, f"is not JSON: {error.msg.removesuffix(' at')} at character {error.pos}") from None
    except ValueError:  # Python's own bound on the digits of one integer
        raise BadValue(where, f"holds {_integer_out_of_range(LARGEST_INTEGER)}") from None
    _inspect(value, _STORED, where, len(text))
    return value


# Writing and reading. The inspection has excluded cycles, so the encoder need not look for them.

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode


def _written(write: Callable[[Any], str], value: Any, where: str, limit: int) -> str:
    try:
        text = write(value)
    except RecursionError:
        raise BadValue(where, "is nested too deeply for what is left of the call stack; flatten it") from None
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit:
        raise BadValue(where, _too_large(f"{size:,}", limit))
    return text


class _Unreadable(ValueError):
    """Raised by the decoder's hooks, which do not know the path."""


def _members_named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise _Unreadable(f"has the name {_quoted(repeated)} twice in one object; send each name once")
    return members


def _refuse_constant(name: str) -> None:
    raise _Unreadable(f"holds {name}, which is not JSON; send null or leave the member out")


_decode = json.JSONDecoder(object_pairs_hook=_members_named_once, parse_constant=_refuse_constant).decode


# The inspection: one pass over the value, without recursion, so that neither a cycle nor a deep value can exhaust
# anything. A place is the linked list of names and indexes that led to a value; it is spelled only for a refusal.

_Place = tuple[Any, str | int] | None
_Pending = tuple[Any, _Place, int]


class _Rules(NamedTuple):
    depth: int
    scalars: Mapping[type, Callable[[Any], str | None]]


def _inspect(value: Any, rules: _Rules, where: str, limit: int) -> None:
    """Raises BadValue for the first thing found that `rules` do not allow.

    Weighs on the way what the text will take at least: shared references could make a small value a huge text.
    """
    pending: list[_Pending] = [(value, None, 1)]
    weight = 0
    while pending:
        value, place, depth = pending.pop()
        kind = type(value)
        if kind is dict or kind is list:
            if depth > rules.depth:
                raise BadValue(_spelled(where, place), _too_deep(rules.depth))
            weight += len(value)
            pending += _members(value, place, depth + 1, where) if kind is dict else _items(value, place, depth + 1)
        else:
            problem = rules.scalars.get(kind, _strange_type)(value)
            if problem:
                raise BadValue(_spelled(where, place), f"is {problem}")
            weight += len(value) if kind is str else 0
        if weight > limit:
            raise BadValue(where, _too_large(f"more than {limit:,}", limit))


def _members(value: dict[Any, Any], place: _Place, depth: int, where: str) -> Iterator[_Pending]:
    for name, member in value.items():
        if type(name) is not str:
            advice = "JSON would turn it into text, so use a plain str"
            raise BadValue(_spelled(where, place), f"has a name of type {type(name).__name__}; {advice}")
        problem = _bad_text(name)
        if problem:
            raise BadValue(_spelled(where, (place, name)), f"has a name that is {problem}")
        yield member, (place, name), depth


def _items(value: list[Any], place: _Place, depth: int) -> Iterator[_Pending]:
    for index, item in enumerate(value):
        yield item, (place, index), depth


def _spelled(where: str, place: _Place) -> str:
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(_step(step))
    steps.reverse()
    return where + "".join(steps[:12]) + ("…" if len(steps) > 12 else "")


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.isascii() and step.isidentifier() and len(step) <= 60 else f"[{_quoted(step)}]"


def _quoted(name: str) -> str:
    """The name as ASCII between quotes, so that a sentence can be written whatever the name holds."""
    return json.dumps(name if len(name) <= 60 else name[:60] + "…")


# What is wrong with one scalar, as the end of the sentence "output.amount is …"; None where nothing is.

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def _bad_text(text: str) -> str | None:
    if "\0" in text:
        return "text with the character NUL (U+0000), which PostgreSQL cannot keep; remove it"
    if not text.isascii() and _LONE_SURROGATE.search(text):
        return "text with half of a surrogate pair, which UTF-8 cannot write; replace it"
    return None


def _unbounded_integer(number: int) -> str | None:
    return None if -LARGEST_INTEGER <= number <= LARGEST_INTEGER else _integer_out_of_range(LARGEST_INTEGER)


def _inexact_integer(number: int) -> str | None:
    if -LARGEST_EXACT_INTEGER <= number <= LARGEST_EXACT_INTEGER:
        return None
    return _integer_out_of_range(LARGEST_EXACT_INTEGER)


def _integer_out_of_range(bound: int) -> str:
    return f"an integer outside ±{bound}; write it as text"


def _endless_float(number: float) -> str | None:
    return None if math.isfinite(number) else "NaN or infinite, which is not JSON; use None or leave the member out"


def _any_float(number: float) -> str:
    return "a float, which nobody may sign; use integer minor units for money, text for the rest"


def _nothing_wrong(value: bool | None) -> None:
    return None


_STORED = _Rules(
    depth=100,
    scalars={
        str: _bad_text,
        int: _unbounded_integer,
        float: _endless_float,
        bool: _nothing_wrong,
        type(None): _nothing_wrong,
    },
)
_RECORDED = _Rules(depth=32, scalars={**_STORED.scalars, int: _inexact_integer})
_SIGNED = _Rules(depth=32, scalars={**_RECORDED.scalars, float: _any_float})

_ADVICE: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (Enum, "use its .value"),
    (Decimal, "turn it into integer minor units or text"),
    ((date, time), "turn it into its isoformat()"),
    (timedelta, "turn it into whole seconds"),
    (UUID, "turn it into text with str()"),
    (tuple, "turn it into a list"),
    ((set, frozenset), "turn it into a sorted list"),
    ((bytes, bytearray, memoryview), "keep it as an artefact or turn it into base64 text"),
    (dict, "turn it into a plain dict"),
    (list, "turn it into a plain list"),
    (str, "turn it into a plain str"),
    (int, "turn it into a plain int"),
    (float, "turn it into a plain float"),
)


def _strange_type(value: object) -> str:
    other = "take the plain values you need from it (of a model instance: its primary key)"
    advice = next((advice for types, advice in _ADVICE if isinstance(value, types)), other)
    return f"of type {type(value).__name__}, which JSON would change or cannot hold; {advice}"


def _too_deep(depth: int) -> str:
    return f"is nested over {depth} levels deep or contains itself; flatten it"


def _too_large(size: str, limit: int) -> str:
    return f"takes {size} bytes as JSON and the limit is {limit:,}; keep the large part as an artefact"
