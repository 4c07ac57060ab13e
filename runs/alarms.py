"""A key and a request that do not belong together, as a page shows it: both requests, member by member.

Pure: made from rows that were read already. May import models and values.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from .models import AuditEvent, Call
from .values import digest

Money = tuple[int | None, str]
Change = Literal["same", "changed", "added", "removed"]

LONG = 80
"""Characters from which on only that part of a text which differs is marked, and not all of it."""


@dataclass(frozen=True)
class Value:
    """One member's value as JSON text, cut so that `middle` is what differs. `minor`, `currency`: set for an amount of
    money."""

    head: str
    middle: str
    tail: str
    minor: int | None = None
    currency: str = ""

    @property
    def is_long(self) -> bool:
        return len(self.head) + len(self.middle) + len(self.tail) > 20 * LONG


@dataclass(frozen=True)
class Member:
    """One member of either request; the side that does not have it is None."""

    path: str
    change: Change
    first: Value | None
    now: Value | None


@dataclass(frozen=True)
class Alarm:
    """The newest alarm about one effect. `times`: how many there were."""

    event: AuditEvent
    call: Call
    times: int

    @property
    def second_digest(self) -> str:
        """Of the request that was refused; empty when that is not recorded here."""
        return digest(self.event.request) if self.event.request else ""

    @property
    def stored_digest(self) -> str:
        """Of the stored request's bytes as they are now: the call's own, unless somebody changed them."""
        return digest(self.call.request)

    @property
    def members(self) -> list[Member]:
        """Every member of both requests, differences first, each side in its own order."""
        first = dict(_members(self.call.request))
        now = dict(_members(self.event.request)) if self.event.request else first
        members = [_compared(path, first, now) for path in first | now]
        return sorted(members, key=lambda member: member.change == "same")

    @property
    def differing(self) -> int:
        return sum(1 for member in self.members if member.change != "same")


def of_calls(events: Iterable[AuditEvent]) -> list[Alarm]:
    """One alarm for each effect that these events, in the order of their ids, are about."""
    counted: dict[int, list[AuditEvent]] = {}
    for event in events:
        if event.call_id is not None:
            counted.setdefault(event.call_id, []).append(event)
    return [Alarm(those[-1], those[-1].call, len(those)) for those in counted.values() if those[-1].call]


def _members(request: str) -> Iterator[tuple[str, tuple[str, Money]]]:
    """Path, JSON text and money of every value in a request; the whole text where it is no JSON."""
    try:
        value = json.loads(request)
    except ValueError:
        value = request
    yield from _walk(value, "", {})


def _walk(value: Any, path: str, siblings: dict[str, Any]) -> Iterator[tuple[str, tuple[str, Money]]]:
    if isinstance(value, dict) and value:
        for name, member in value.items():
            yield from _walk(member, f"{path}.{name}" if path else name, value)
    elif isinstance(value, list) and value:
        for number, item in enumerate(value, start=1):
            yield from _walk(item, f"{path}[{number}]", siblings)
    else:
        yield path, (json.dumps(value, ensure_ascii=False), _money(path, value, siblings))


def _money(path: str, value: Any, siblings: dict[str, Any]) -> Money:
    currency = siblings.get("currency")
    is_amount = path.endswith("_minor") and type(value) is int
    return (value, currency if isinstance(currency, str) else "") if is_amount else (None, "")


def _compared(path: str, first: dict[str, tuple[str, Money]], now: dict[str, tuple[str, Money]]) -> Member:
    if path not in now:
        return Member(path, "removed", _whole(first[path]), None)
    if path not in first:
        return Member(path, "added", None, _whole(now[path]))
    if first[path][0] == now[path][0]:
        return Member(path, "same", _whole(first[path]), _whole(now[path]))
    start, end = _common(first[path][0], now[path][0])
    return Member(path, "changed", _cut(first[path], start, end), _cut(now[path], start, end))


def _common(one: str, other: str) -> tuple[int, int]:
    """How many characters of two different texts are the same at their start and at their end; none of short ones."""
    shorter = min(len(one), len(other))
    if shorter < LONG:
        return 0, 0
    start = _same(one, other)
    return start, min(_same(reversed(one), reversed(other)), shorter - start)


def _same(one: Iterable[str], other: Iterable[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _cut(value: tuple[str, Money], start: int, end: int) -> Value:
    text, (minor, currency) = value
    return Value(text[:start], text[start : len(text) - end], text[len(text) - end :], minor, currency)


def _whole(value: tuple[str, Money]) -> Value:
    return _cut(value, 0, 0)
