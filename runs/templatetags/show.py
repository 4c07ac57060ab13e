"""How values are shown: money, times, durations, countdowns, icons, and characters that would otherwise not be seen.

Template tags and filters, pure; the same functions serve views that build sentences. May import money.
"""

import json
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from django import template
from django.utils.html import conditional_escape, format_html, format_html_join
from django.utils.safestring import SafeString

from runs.money import amount

register = template.Library()

URGENT = 2 * 3600
"""Seconds: from here on a countdown is urgent. static/ui.js has the same rule."""

MARK = "\u2039U+{:04X}\u203a"
"""How an unseen character is spelled: its code point between single angle quotation marks."""


@register.filter
def money(minor: int | None, currency: str = "") -> str:
    """Integer minor units as money: `$1,840.00`, or `1,840.00 EUR`; empty when there is no amount."""
    if minor is None:
        return ""
    sign, spelled_out = "\u2212" if minor < 0 else "", amount(abs(minor), currency)
    return f"{sign}${spelled_out}" if currency == "USD" else f"{sign}{spelled_out} {currency}".rstrip()


# Times. Always UTC and always said, whatever the zone of the server or the reader.


def moment(at: datetime, seconds: bool = False) -> str:
    """`29 Nov 2026, 09:14 UTC`"""
    return f"{at.astimezone(UTC):{'%-d %b %Y, %H:%M:%S UTC' if seconds else '%-d %b %Y, %H:%M UTC'}}"


def _time(at: datetime, text: str) -> SafeString:
    return format_html('<time datetime="{}">{}</time>', iso(at), text)


@register.filter
def iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@register.filter
def when(at: datetime | None) -> str:
    return _time(at, moment(at)) if at else ""


@register.filter
def when_exactly(at: datetime | None) -> str:
    return _time(at, moment(at, seconds=True)) if at else ""


@register.filter
def day_and_time(at: datetime | None) -> str:
    """`29 Nov, 09:14`, for lists whose page says that times are UTC."""
    return _time(at, f"{at.astimezone(UTC):%-d %b, %H:%M}") if at else ""


@register.filter
def day_and_clock(at: datetime | None) -> str:
    return _time(at, f"{at.astimezone(UTC):%-d %b %H:%M:%S}") if at else ""


@register.filter
def clock(at: datetime | None) -> str:
    return _time(at, f"{at.astimezone(UTC):%H:%M:%S}") if at else ""


@register.filter
def hour_and_minute(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M}"


@register.filter
def plain_clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S}"


@register.filter
def day_and_second(at: datetime) -> str:
    return f"{at.astimezone(UTC):%-d %b %H:%M:%S}"


@register.filter
def duration(span: timedelta | float | None) -> str:
    """A time span, timedelta or seconds, in the two largest units that matter."""
    if span is None:
        return ""
    seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
    if seconds < 172_800 and seconds >= 3600 and seconds % 3600 == 0:
        return f"{int(seconds) // 3600} h"
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))} ms"
    return f"{seconds:.1f} s" if seconds < 10 else whole_duration(int(seconds))


def whole_duration(seconds: int) -> str:
    if seconds >= 172_800:
        return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h"
    if seconds >= 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    return f"{seconds // 60} min {seconds % 60:02d} s" if seconds >= 60 else f"{seconds} s"


@register.inclusion_tag("partials/countdown.html")
def countdown(due_at: datetime, since: datetime, now: datetime, announce: str = "", size: str = "") -> dict[str, Any]:
    """Time left until `due_at` as icon, words and bar. `announce`: the name under which the last minutes are spoken."""
    total = max(1, round((due_at - since).total_seconds()))
    left = round((due_at - now).total_seconds())
    text = f"{whole_duration(left)} left" if left > 0 else "Expired"
    state = countdown_state(left, total)
    words = {"state": state, "text": text, "announce": announce, "size": size}
    return words | {"due_at": due_at, "total": total, "left": max(0, left)}


def countdown_state(left: int, total: int) -> str:
    if left <= 0:
        return "over"
    if left <= URGENT:
        return "urgent"
    return "soon" if left <= total / 4 else "ok"


# Characters. What cannot be seen, or changes the direction of what is seen, is spelled out.

_UNSEEN_CATEGORIES = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"}
_UNSEEN_OTHERS = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0}
_VARIATION_SELECTORS = (range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))


def is_unseen(character: str) -> bool:
    """Whether a reader could not see it, could take it for a plain space, or would read its neighbours reordered."""
    if character.isascii():
        return character < " " or character == "\x7f"
    point = ord(character)
    return (
        unicodedata.category(character) in _UNSEEN_CATEGORIES
        or point in _UNSEEN_OTHERS
        or any(point in selectors for selectors in _VARIATION_SELECTORS)
    )


def unseen_in(text: str) -> list[str]:
    """The different unseen characters of a text, as `U+202E RIGHT-TO-LEFT OVERRIDE`, in order of first appearance."""
    found = dict.fromkeys(character for character in text if is_unseen(character))
    return [f"U+{ord(character):04X} {unicodedata.name(character, 'control character')}" for character in found]


@register.filter
def spelled(text: object) -> str:
    """The text with each unseen character spelled as MARK, for places that take no markup."""
    return "".join(MARK.format(ord(character)) if is_unseen(character) else character for character in str(text))


@register.filter
def revealed(text: object, keep: str = "") -> SafeString:
    """As `spelled`, with the marks set apart. `keep="lines"` leaves line ends alone, for text that a person typed."""
    shown, kept = str(text), "\r\n\t" if keep == "lines" else ""
    if shown.isascii() and shown.isprintable():
        return conditional_escape(shown)
    parts: list[str] = []
    for hidden, characters in groupby(shown, key=lambda character: is_unseen(character) and character not in kept):
        run = "".join(characters)
        parts.append(_marks(run) if hidden else conditional_escape(run))
    return format_html_join("", "{}", ((part,) for part in parts))


def _marks(characters: str) -> SafeString:
    marks = ((MARK.format(ord(character)),) for character in characters)
    return format_html_join("", '<mark class="unseen">{}</mark>', marks)


@register.filter
def size(text: str) -> int:
    """Bytes of the text in UTF-8."""
    return len(text.encode())


@register.filter
def pretty(value: Any) -> str:
    """A JSON value, indented; nothing is left out."""
    return json.dumps(value, indent=2, ensure_ascii=False)


@register.filter
def pretty_text(text: str) -> str:
    """JSON text, indented; as it is when it is not JSON."""
    try:
        return pretty(json.loads(text))
    except ValueError:
        return text


@register.filter
def short_digest(digest: str) -> str:
    return f"{digest[:8]}…{digest[-4:]}" if len(digest) > 16 else digest


@register.filter
def in_words(name: str) -> str:
    """`approve_payout` as `Approve payout`."""
    words = name.replace("_", " ").replace("-", " ").strip()
    return words[:1].upper() + words[1:]


@register.filter
def capped(count: int) -> str:
    """A count that was not taken further than 1,000."""
    return "999+" if count >= 1000 else f"{count}"


@register.filter
def up_to(count: int, limit: int) -> str:
    """A count that was not taken further than the limit: `9,999`, or `10,000+`."""
    return f"{limit:,}+" if count >= limit else f"{count:,}"


@register.simple_tag
def icon(name: str, tone: str = "") -> SafeString:
    """An icon of partials/icons.html; decoration, so a word always stands beside it."""
    classes = f"icon {tone}".strip()
    return format_html('<svg class="{}" aria-hidden="true"><use href="#i-{}"/></svg>', classes, name)


@register.simple_tag
def address_of(choice: Any, **changes: Any) -> str:
    """The query string of what a list shows, with some changes."""
    return choice.address(**changes)


@register.filter
def differing(comparisons: Iterable[Any]) -> int:
    """How many of these differ."""
    return sum(1 for comparison in comparisons if comparison.change != "same")
