"""Line charts as numbers for one SVG template: where lines, axes and words stand. Pure; imports nothing of ours.

The chart, its sentence and the table behind it are made from the same points, so they always agree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

LEFT, RIGHT, TOP, BOTTOM, FLOOR = 40.0, 356.0, 14.0, 92.0, 108.0
"""Of a view box of 360 by 112, as in the blueprint; FLOOR is where the words under the axis stand."""

Value = float | None


@dataclass(frozen=True)
class Line:
    """`css`: how it is drawn. `label`: what it is called beside its last point, `label_y` where."""

    css: str
    label: str
    path: str
    label_y: float


@dataclass(frozen=True)
class Mark:
    y: float
    text_y: float
    text: str


@dataclass(frozen=True)
class Series:
    name: str
    values: Sequence[Value]


@dataclass(frozen=True)
class Chart:
    """What the template draws. `rows`: the table behind it, the newest first: a time and what each line says there."""

    sentence: str
    lines: list[Line]
    marks: list[Mark]
    limit: Mark | None
    ticks: list[tuple[float, str, str]]
    names: list[str]
    rows: list[tuple[datetime, list[str]]]


def draw(
    what: str,
    parts: Sequence[datetime],
    series: Sequence[Series],
    words: Callable[[float], str],
    *,
    limit: float | None = None,
) -> Chart:
    """A chart of one or two series over the parts of a window. A part without a value is a gap."""
    most = _rounded_up(max([*(value for one in series for value in one.values if value is not None), limit or 0]))
    scale = _Scale(len(parts), most)
    return Chart(
        sentence=_sentence(what, series, words, limit),
        lines=[_line(scale, one, number, len(series)) for number, one in enumerate(series)],
        # Half of one run is none: an axis of whole numbers has no such mark.
        marks=[scale.mark(value, words) for value in (0, *([most / 2] if _is_told(most / 2, words) else []), most)],
        limit=scale.mark(limit, words) if limit is not None else None,
        ticks=_ticks(parts),
        names=[one.name for one in series],
        rows=[(part, [_in_words(one.values[at], words) for one in series]) for at, part in enumerate(parts)][::-1],
    )


class _Scale:
    def __init__(self, parts: int, most: float) -> None:
        self.step, self.most = (RIGHT - LEFT) / max(1, parts - 1), most

    def x(self, at: int) -> float:
        return round(LEFT + at * self.step, 1)

    def y(self, value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * value / self.most, 1)

    def mark(self, value: float, words: Callable[[float], str]) -> Mark:
        return Mark(self.y(value), self.y(value) + 4, words(value))


def _is_told(value: float, words: Callable[[float], str]) -> bool:
    return words(value) not in (words(0), words(2 * value))


def _line(scale: _Scale, one: Series, number: int, of: int) -> Line:
    path, draws = "", False
    for at, value in enumerate(one.values):
        if value is None:
            draws = False
            continue
        # A single point between two gaps would be a line without length, which shows as nothing.
        y = scale.y(value)
        path += f"L{scale.x(at)} {y}" if draws else f"M{round(scale.x(at) - 2, 1)} {y}h2"
        draws = True
    last = next((value for value in reversed(one.values) if value is not None), 0)
    label = one.name if of > 1 else ""
    return Line("line" if number == 0 else "line-2", label, path, round(max(TOP - 2, scale.y(last) - 5), 1))


def _rounded_up(most: float) -> float:
    """A round number at or above the greatest value, so that the axis ends well."""
    if most <= 0:
        return 1.0
    power = 10.0 ** (len(f"{most:.0f}") - 1) if most >= 1 else 10.0 ** -len(f"{1 / most:.0f}")
    return next(factor * power for factor in (1, 2, 4, 5, 10, 20) if factor * power >= most)


def _ticks(parts: Sequence[datetime]) -> list[tuple[float, str, str]]:
    """x, anchor and words of the first, the middle and the last part."""
    form = "%-d %b" if parts[-1] - parts[0] > timedelta(days=3) else "%H:%M"
    first, middle = (f"{part.astimezone(UTC):{form}}" for part in (parts[0], parts[len(parts) // 2]))
    return [(LEFT, "start", first), ((LEFT + RIGHT) / 2, "middle", middle), (RIGHT, "end", "now")]


def _sentence(what: str, series: Sequence[Series], words: Callable[[float], str], limit: float | None) -> str:
    said = []
    for one in series:
        known = [value for value in one.values if value is not None]
        name = f"{one.name}: " if len(series) > 1 else ""
        said.append(f"{name}last {words(known[-1])}, most {words(max(known))}" if known else f"{name}no values")
    limits = f"; limit {words(limit)}" if limit is not None else ""
    return f"{what}: {'; '.join(said)}{limits}"


def _in_words(value: Value, words: Callable[[float], str]) -> str:
    return "none" if value is None else words(value)
