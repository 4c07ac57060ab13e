"""The dates by which a long list of the admin is narrowed: years, months, days between its first and its last row.

Django's own asks for the least, the greatest and every distinct date of the whole table, each time; here a date may
lead to an empty list. Imports Django only.
"""

from calendar import monthrange
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any


@dataclass(frozen=True)
class Choice:
    title: str
    link: str = ""


@dataclass(frozen=True)
class Dates:
    back: Choice | None = None
    choices: list[Choice] = field(default_factory=list)


def dates_of(shown: Any) -> Dates:
    """What a list offers: where it stands, the years, the months of its year, or the days of its month."""
    span = _span(shown)
    if span is None:
        return Dates()
    year, month, day = (_number(shown, part) for part in ("year", "month", "day"))
    if year and month and day:
        return Dates(_choice(shown, f"{date(year, month, 1):%B %Y}", year, month), [Choice(f"{day}")])
    if year and month:
        days = [date(year, month, number) for number in range(1, monthrange(year, month)[1] + 1)]
        choices = [_choice(shown, f"{day:%-d %B}", year, month, day.day) for day in days if span[0] <= day <= span[1]]
        return Dates(_choice(shown, f"{year}", year), choices)
    if year:
        months = [date(year, number, 1) for number in range(1, 13)]
        within = [first for first in months if _month(span[0]) <= _month(first) <= _month(span[1])]
        return Dates(
            _choice(shown, "All dates"), [_choice(shown, f"{first:%B %Y}", year, first.month) for first in within]
        )
    return Dates(None, [_choice(shown, f"{year}", year) for year in range(span[0].year, span[1].year + 1)])


def _span(shown: Any) -> tuple[date, date] | None:
    """When the first row was written and when the last: ids grow with time."""
    rows = shown.root_queryset.order_by("pk").values_list(shown.date_hierarchy, flat=True)
    first, last = rows.first(), rows.last()
    if first is None or last is None:
        return None
    days = sorted(at.astimezone(UTC).date() if isinstance(at, datetime) else at for at in (first, last))
    return days[0], days[1]


def _number(shown: Any, part: str) -> int:
    word = shown.params.get(f"{shown.date_hierarchy}__{part}", "")
    return int(word) if word.isascii() and word.isdecimal() else 0


def _choice(shown: Any, title: str, year: int = 0, month: int = 0, day: int = 0) -> Choice:
    named = {"year": year, "month": month, "day": day}
    asked = {f"{shown.date_hierarchy}__{name}": value for name, value in named.items() if value}
    return Choice(title, shown.get_query_string(asked, [f"{shown.date_hierarchy}__"]))


def _month(day: date) -> tuple[int, int]:
    return day.year, day.month
