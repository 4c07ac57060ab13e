"""Canonical bytes and facts as a person reads them: every member listed, in words, nothing left out.

Pure: text in, lines out; made from the very bytes that are signed and executed. May import runs' filters, and facts.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from runs.templatetags.show import in_words, money, unseen_in

from .facts import compare

_OURS = {"null": "none", "true": "yes", "false": "no", '""': "empty text", "[]": "empty list", "{}": "empty object"}
"""Values that have no text of their own, in our words."""

LONG, BEGINNING = 600, 300
"""A text of more characters than LONG shows so many of them, and the rest folded."""
MANY = 40
"""Of more lines than so many the others are folded."""
NEVER_FOLDED = re.compile(r"\b(amount|currency|payees?|claim|tool)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Line:
    """One value. `raw` is how it stands in the bytes where the words do not show that; `plain` marks words of ours."""

    label: str
    text: str
    raw: str = ""
    plain: bool = False

    @property
    def shown(self) -> str:
        """What stands outside the fold."""
        whole = len(self.text) <= LONG or NEVER_FOLDED.search(self.label)
        return self.text if whole else self.text[:BEGINNING]

    @property
    def folded(self) -> str:
        """What stands inside the fold, to the last character; the fold says how much that is."""
        return self.text[len(self.shown) :]


@dataclass(frozen=True)
class Action:
    """The proposed action in words. What decides most (money, payee, claim) is never among the `folded` lines."""

    lines: list[Line]
    folded: list[Line]


@dataclass(frozen=True)
class Comparison:
    """One fact then and now, as lines."""

    label: str
    then: Line
    now: Line
    change: str


def payload_lines(payload: str) -> list[Line]:
    """The proposed action in words: its arguments first, then whatever else the bytes say. None once it is withheld."""
    action = json.loads(payload or "{}")
    if not action:
        return []
    arguments = action.pop("arguments", {})
    lines = list(_lines(arguments, "" if arguments else "Arguments"))
    return lines + (list(_lines(action, "")) if action else [])


def action_in_words(payload: str) -> Action:
    """All lines of the action, those that may be folded apart."""
    lines = payload_lines(payload)
    ahead = [line for number, line in enumerate(lines) if number < MANY or line.raw or NEVER_FOLDED.search(line.label)]
    kept = {id(line) for line in ahead}
    return Action(ahead, [line for line in lines if id(line) not in kept])


def comparisons(then: str, now: str) -> list[Comparison]:
    """Each fact at asking beside the one now, differences first. None of what was withheld."""
    before, after = json.loads(then or "{}"), json.loads(now or "{}")
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


def look_alikes(*texts: str) -> list[str]:
    """Words that mix letters of Latin with letters of another alphabet: one may be there to be taken for the other."""
    words = (word for text in texts for word in re.findall(r"[^\W\d_]+", text) if not word.isascii())
    return [word for word in dict.fromkeys(words) if len(_alphabets(word)) > 1]


def _alphabets(word: str) -> set[str]:
    return {unicodedata.name(letter, "").split(" ")[0] for letter in word} & {"LATIN", "CYRILLIC", "GREEK", "ARMENIAN"}


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
