"""The health page's figures: windows of time, cards, and how tallies become values and words.

The cards themselves are in health_cards; other apps add theirs. May import tallies, charts, models.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from . import tallies
from .charts import Chart
from .models import database_clock
from .tallies import Bucket

State = Literal["ok", "warn", "bad", "none"]

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Window:
    """`stride`: how long one part of a chart is."""

    name: str
    title: str
    length: timedelta
    stride: timedelta


WINDOWS = (
    Window("1h", "1 hour", timedelta(hours=1), timedelta(minutes=5)),
    Window("24h", "24 hours", DAY, timedelta(hours=1)),
    Window("7d", "7 days", 7 * DAY, timedelta(hours=6)),
    Window("30d", "30 days", 30 * DAY, DAY),
)


@dataclass(frozen=True)
class Cell:
    """One cell of a card's table; `share` of 1 draws a bar instead of the words, which stand beside it."""

    text: str
    is_number: bool = False
    share: float | None = None


@dataclass(frozen=True)
class Card:
    id: str
    title: str
    state: State = "none"
    state_words: str = ""
    value: str = ""
    note: str = ""
    chart: Chart | None = None
    head: tuple[str, ...] = ()
    rows: list[list[Cell]] = field(default_factory=list)
    empty: str = ""
    link: tuple[str, str] | None = None
    is_wide: bool = False
    details: list[tuple[str, str]] = field(default_factory=list)

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """The head's words, each with whether numbers stand below it."""
        return [(name, cell.is_number) for name, cell in zip(self.head, self.rows[0], strict=True)]


@dataclass(frozen=True)
class Period:
    """A window that ends now: its parts begin at whole strides."""

    window: Window
    now: datetime
    parts: list[datetime]

    @property
    def since(self) -> datetime:
        return self.parts[0]

    @property
    def until(self) -> datetime:
        return self.parts[-1] + self.window.stride

    def read(self, figure: str) -> list[Bucket]:
        return tallies.read(figure, self.since, self.until, self.window.stride)

    def sums(self, figure: str) -> tuple[list[Bucket], list[Bucket]]:
        """Of each part, whatever the name; and of each name, over the whole window."""
        return tallies.read_sums(figure, self.since, self.until, self.window.stride)

    def before(self, figure: str) -> list[Bucket]:
        """Of each name, over the window before."""
        return tallies.read_sums(figure, self.since - self.window.length, self.since, self.window.stride)[1]


CardSource = Callable[[Period], Iterable[Card]]

_sources: list[CardSource] = []


def source(function: CardSource) -> CardSource:
    """Register a function whose cards are shown behind those before it."""
    _sources.append(function)
    return function


def window_of(name: str | None) -> Window:
    return next((window for window in WINDOWS if window.name == name), WINDOWS[1])


def period(window: Window, now: datetime | None = None) -> Period:
    """The window that ends now, or then."""
    now = now or database_clock()
    last = tallies.floor(now, window.stride)
    number = window.length // window.stride
    return Period(window, now, [last - back * window.stride for back in range(number, -1, -1)])


def cards(window: Window) -> list[Card]:
    """Every card, as of now."""
    over = period(window)
    return [card for function in _sources for card in function(over)]


# Words


def number(value: float) -> str:
    return f"{value:,.0f}"


def ratio(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if value else "0"


def seconds(value: float) -> str:
    """A time span, short enough for an axis."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1000:.3g} ms" if value else "0"


def size(value: float) -> str:
    for unit, least in (("MB", 1_000_000), ("kB", 1_000)):
        if value >= least:
            return f"{value / least:.3g} {unit}"
    return f"{value:.0f} B"


# Putting buckets together


def by_part(over: Period, buckets: Iterable[Bucket], tell: Callable[[list[Bucket]], float | None]) -> list[Any]:
    """What `tell` says of each part's buckets; None for a part without any."""
    found: dict[datetime, list[Bucket]] = defaultdict(list)
    for bucket in buckets:
        found[bucket.part].append(bucket)
    return [tell(found[part]) if part in found else None for part in over.parts]


def by_name(buckets: Iterable[Bucket]) -> dict[str, list[Bucket]]:
    found: dict[str, list[Bucket]] = defaultdict(list)
    for bucket in buckets:
        found[bucket.name].append(bucket)
    return dict(sorted(found.items()))


def counted(buckets: Iterable[Bucket]) -> int:
    return sum(bucket.number for bucket in buckets)


def greatest(buckets: Iterable[Bucket]) -> float:
    return max(bucket.most for bucket in buckets)


def median(buckets: list[Bucket]) -> float | None:
    return tallies.quantile(buckets, 0.5)


def p95(buckets: list[Bucket]) -> float | None:
    return tallies.quantile(buckets, 0.95)


def step_in_words(name: str) -> str:
    workflow, version, step = name.split("/")
    return f"{workflow} v{version}: {step.replace('_', ' ')}"
