"""Canonical bytes and facts as a person reads them: every member listed, in words, nothing left out.

Pure: text in, lines out; made from the very bytes that are signed and executed. May import runs' filters, and facts.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from runs.templatetags.show import in_words, money, unseen_in

from .facts import compare

_OURS = {"null": "none", "true": "yes", "false": "no", '""': "empty text", "[]": "empty list", "{}": "empty object"}
"""Values that have no text of their own, in our words."""


@dataclass(frozen=True)
class Line:
    """One value. `raw` is how it stands in the bytes where the words do not show that; `plain` marks words of ours."""

    label: str
    text: str
    raw: str = ""
    plain: bool = False


@dataclass(frozen=True)
class Comparison:
    """One fact then and now, as lines."""

    label: str
    then: Line
    now: Line
    change: str


def payload_lines(payload: str) -> list[Line]:
    """The proposed action in words: its arguments first, then whatever else the bytes say."""
    action = json.loads(payload)
    arguments = action.pop("arguments", {})
    lines = list(_lines(arguments, "" if arguments else "Arguments"))
    return lines + (list(_lines(action, "")) if action else [])


def comparisons(then: str, now: str) -> list[Comparison]:
    """Each fact at asking beside the one now, differences first."""
    before, after = json.loads(then), json.loads(now)
    return [
        Comparison(
            in_words(_bare(difference.name)),
            _line(difference.name, difference.then, before),
            _line(difference.name, difference.now, after),
            difference.change,
        )
        for difference in compare(before, after)
    ]


def hidden_characters(*texts: str) -> list[str]:
    """The characters in these texts that a reader could not see, with their names."""
    return unseen_in("".join(texts))


def _lines(value: Any, label: str, siblings: dict[str, Any] | None = None, name: str = "") -> Iterator[Line]:
    if isinstance(value, dict) and value:
        for key, member in value.items():
            yield from _lines(member, _joined(label, in_words(_bare(key))), value, key)
    elif isinstance(value, list) and value:
        for number, item in enumerate(value, start=1):
            yield from _lines(item, f"{label} {number}", siblings, name)
    else:
        line = _line(name, value, siblings or {})
        yield Line(label, line.text, line.raw, line.plain)


def _line(name: str, value: Any, siblings: dict[str, Any]) -> Line:
    """One value in words. Money is known by its name, as everywhere: …_minor, with the currency beside it."""
    label = in_words(_bare(name))
    currency = siblings.get("currency")
    if name.endswith("_minor") and type(value) is int:
        return Line(label, money(value, currency if isinstance(currency, str) else ""), f"{name} {value}")
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return Line(label, _OURS[json.dumps(value)], plain=True)
    return Line(label, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _bare(name: str) -> str:
    return name.removesuffix("_minor")


def _joined(label: str, name: str) -> str:
    return f"{label}, {name}" if label else name
