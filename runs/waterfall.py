"""A scale for the life of a run: true to time while there is work; a long stretch without any is cut short, and marked.

Pure geometry, in percent of a track's width. Imports nothing of ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Literal, Protocol

TRACK = 98.0
"""How far the last bar reaches."""
CUT_SHARE = 28.0
"""What all cuts take together."""
LEAST_WIDTH = 0.5
TIME_ROOM, DATE_ROOM = 13, 24
"""How far ticks must be apart for the words at them: a time, or a date and a time."""
CUT_FROM = 10
"""A stretch without work is cut when it is longer than this part of all work: a tenth."""

Stretch = tuple[datetime, datetime]


class Drawable(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def start(self) -> datetime: ...
    @property
    def end(self) -> datetime: ...


@dataclass(frozen=True)
class Bar:
    """A segment on its track. `cut`: the scale was cut inside it."""

    segment: Drawable
    x: float
    width: float
    cut: bool

    @property
    def end(self) -> float:
        return round(self.x + self.width, 2)

    @property
    def middle(self) -> float:
        return round(self.x + self.width / 2, 2)


@dataclass(frozen=True)
class Tick:
    """A place on the axis. `dated`: its words begin with the date."""

    x: float
    at: datetime
    anchor: Literal["start", "middle", "end"]
    dated: bool


@dataclass(frozen=True)
class _Piece:
    """A stretch of time that is drawn at one scale."""

    start: datetime
    end: datetime
    x: float
    width: float
    cut: bool

    def at(self, moment: datetime) -> float:
        share = (moment - self.start) / (self.end - self.start)
        return self.x + self.width * min(1.0, max(0.0, share))


class Scale:
    """From instants to places on the track. `segments` are all that will be drawn; there is at least one."""

    def __init__(self, segments: Sequence[Drawable]) -> None:
        self.begin = min(segment.start for segment in segments)
        self.end = max(*(segment.end for segment in segments), self.begin + timedelta(milliseconds=1))
        busy = _merged([(segment.start, segment.end) for segment in segments if segment.kind in ("work", "failed")])
        worked = sum((stop - start for start, stop in busy), timedelta())
        shortest = max(worked / CUT_FROM, timedelta(milliseconds=1))
        edges = {edge for segment in segments for edge in (segment.start, segment.end)}
        idle = [part for gap in _between(busy, self.begin, self.end) for part in _parted(gap, edges)]
        self.pieces = self._laid_out([part for part in idle if worked and part[1] - part[0] > shortest])

    def bar(self, segment: Drawable) -> Bar:
        x = self._x(segment.start)
        width = max(LEAST_WIDTH, self._x(segment.end) - x)
        cut = any(piece.cut and segment.start <= piece.start and piece.end <= segment.end for piece in self.pieces)
        return Bar(segment, round(min(x, TRACK - width), 2), round(width, 2), cut)

    def ticks(self) -> list[Tick]:
        """The begin, where a cut ends and there is room for the words, and the end."""
        ticks = [Tick(0, self.begin, "start", dated=True)]
        for piece in self.pieces:
            x, dated = round(piece.x + piece.width, 2), _is_another_day(piece.end, ticks[-1])
            room = DATE_ROOM if dated or ticks[-1].dated else TIME_ROOM
            if x - ticks[-1].x >= room and 100 - x >= DATE_ROOM:
                ticks.append(Tick(x, piece.end, "middle", dated))
        return [*ticks, Tick(100, self.end, "end", _is_another_day(self.end, ticks[-1]))]

    def _x(self, moment: datetime) -> float:
        return next((piece.at(moment) for piece in self.pieces if moment <= piece.end), TRACK)

    def _laid_out(self, gaps: list[Stretch]) -> list[_Piece]:
        scaled = (self.end - self.begin) - sum((stop - start for start, stop in gaps), timedelta())
        to_scale = TRACK - (CUT_SHARE if gaps else 0)
        pieces: list[_Piece] = []
        x = 0.0
        for start, stop, cut in _alternating(gaps, self.begin, self.end):
            width = CUT_SHARE / len(gaps) if cut else to_scale * ((stop - start) / scaled)
            pieces.append(_Piece(start, stop, x, width, cut))
            x += width
        return pieces


def _is_another_day(moment: datetime, tick: Tick) -> bool:
    return moment.astimezone(UTC).date() != tick.at.astimezone(UTC).date()


def _merged(stretches: list[Stretch]) -> list[Stretch]:
    merged: list[Stretch] = []
    for start, end in sorted(stretches):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _between(busy: list[Stretch], begin: datetime, end: datetime) -> list[Stretch]:
    edges = [begin, *(edge for stretch in busy for edge in stretch), end]
    return [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if stop > start]


def _parted(gap: Stretch, edges: set[datetime]) -> list[Stretch]:
    """A gap, parted where a wait or a loss begins or ends in it, so that each is cut for itself."""
    return list(pairwise([gap[0], *sorted(edge for edge in edges if gap[0] < edge < gap[1]), gap[1]]))


def _alternating(gaps: list[Stretch], begin: datetime, end: datetime) -> list[tuple[datetime, datetime, bool]]:
    """The whole time as pieces in order: (start, end, whether it is one of the gaps)."""
    pieces, at = [], begin
    for start, stop in gaps:
        if start > at:
            pieces.append((at, start, False))
        pieces.append((start, stop, True))
        at = stop
    return [*pieces, (at, end, False)] if end > at else pieces
