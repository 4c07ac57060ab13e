"""What a run did, step by step, as pages tell it: made from its rows, without a query and without a clock of its own.

Lives here: which position was worked when, what was lost, what failed, what was waited for. How that is drawn is in
waterfall. May import models, states, workflows, alarms and waterfall.

How the story is read from the rows: the moves of a run cut its life into spans of one status. Within a span of
`running`, checkpoints say which positions were finished when; what is left at its end was lost when another than the
worker ended the span, and failed when the worker itself sent it to sleep or to the dead letters.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Literal

from .alarms import Alarm
from .models import Artefact, Call, Checkpoint, Run, Transition
from .states import Status, WaitKind
from .waterfall import Bar, Scale, Tick
from .workflows import Workflow

Kind = Literal["work", "lost", "failed", "wait"]


@dataclass(frozen=True)
class Segment:
    """A part of a step's life. `open`: it still goes on. `why`: what the move that ended it (a wait: began it) said."""

    kind: Kind
    start: datetime
    end: datetime
    why: str = ""
    open: bool = False
    resumed: bool = False

    @property
    def took(self) -> timedelta:
        return self.end - self.start


@dataclass
class Step:
    """One position. `state`: done, closed (it did not go through), the run's own status while current, or todo."""

    position: int
    name: str
    title: str
    state: str = "todo"
    segments: list[Segment] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    calls: list[Call] = field(default_factory=list)
    artefacts: list[Artefact] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    @property
    def took(self) -> timedelta | None:
        return self.segments[-1].end - self.segments[0].start if self.segments else None

    @property
    def begun_at(self) -> datetime | None:
        return self.segments[0].start if self.segments else None

    @property
    def waits(self) -> list[Segment]:
        return self._of_kind("wait")

    @property
    def crashes(self) -> list[Segment]:
        return self._of_kind("lost")

    @property
    def failures(self) -> list[Segment]:
        return self._of_kind("failed")

    @property
    def replays(self) -> int:
        return sum(1 for call in self.calls if call.replayed)

    def _of_kind(self, kind: Kind) -> list[Segment]:
        return [segment for segment in self.segments if segment.kind == kind]


@dataclass(frozen=True)
class Timeline:
    """`total`: how many steps there will be, as far as can be known now."""

    steps: list[Step]
    ticks: list[Tick]
    total: int

    @property
    def done(self) -> int:
        return sum(1 for step in self.steps if step.checkpoint is not None)

    @property
    def crashes(self) -> int:
        return sum(len(step.crashes) for step in self.steps)

    @property
    def failures(self) -> int:
        return sum(len(step.failures) for step in self.steps)

    @property
    def replays(self) -> int:
        return sum(step.replays for step in self.steps)

    @property
    def is_cut(self) -> bool:
        return any(bar.cut for step in self.steps for bar in step.bars)


def tell(
    run: Run,
    *,
    transitions: Sequence[Transition],
    checkpoints: Sequence[Checkpoint],
    calls: Iterable[Call] = (),
    artefacts: Iterable[Artefact] = (),
    alarms: Iterable[Alarm] = (),
    workflow: Workflow | None,
    now: datetime,
) -> Timeline:
    """The run's story until `now` (the database's clock). Rows come in the order of their ids."""
    story = _Story(run, workflow)
    story.finish(checkpoints)
    story.live(transitions, checkpoints, now)
    story.use(calls)
    story.sound(alarms)
    story.look_ahead()
    story.keep(artefacts)
    steps = [story.steps[position] for position in sorted(story.steps)]
    return Timeline(steps, _draw(steps), place(run, workflow)[1])


def place(run: Run, workflow: Workflow | None) -> tuple[int, int, str]:
    """Where a run is, or ended: its step's number, how many there would be as far as can be known, the step's title."""
    if run.status == Status.COMPLETED:
        return run.position, run.position, _title(run.next_step, workflow)
    number = run.position + 1
    ahead = len(_following(run.next_step, workflow))
    return number, number + ahead, _title(run.next_step, workflow)


def _title(name: str, workflow: Workflow | None) -> str:
    step = workflow.steps.get(name) if workflow else None
    return step.title if step else name.replace("_", " ").capitalize()


def _following(name: str, workflow: Workflow | None) -> list[str]:
    """The steps behind `name`, if each goes through; none where this code does not know the step."""
    names = list(workflow.steps) if workflow else []
    return names[names.index(name) + 1 :] if name in names else []


def _draw(steps: list[Step]) -> list[Tick]:
    """Give each step its bars, and return the axis."""
    segments = [segment for step in steps for segment in step.segments]
    if not segments:
        return []
    scale = Scale(segments)
    for step in steps:
        step.bars = [scale.bar(segment) for segment in step.segments]
    return scale.ticks()


@dataclass(frozen=True)
class _Span:
    """From one move to the next; `ended` is None for the one that goes on."""

    begun: Transition
    ended: Transition | None
    until: datetime

    @property
    def taken_away(self) -> bool:
        """Whether something else than the worker ended it, and no person did."""
        return self.ended is not None and self.ended.actor != self.begun.actor and self.ended.user_id is None


def _spans(transitions: Sequence[Transition], now: datetime) -> list[_Span]:
    spans = [_Span(begun, ended, ended.at) for begun, ended in pairwise(transitions)]
    return spans + [_Span(last, None, max(now, last.at)) for last in transitions[-1:]]


class _Story:
    """The steps of one run while they are put together."""

    def __init__(self, run: Run, workflow: Workflow | None) -> None:
        self.run, self.workflow = run, workflow
        self.steps: dict[int, Step] = {}

    def step(self, position: int, name: str) -> Step:
        return self.steps.setdefault(position, Step(position, name, _title(name, self.workflow)))

    def finish(self, checkpoints: Sequence[Checkpoint]) -> None:
        for checkpoint in checkpoints:
            step = self.step(checkpoint.position, checkpoint.step)
            step.checkpoint, step.state = checkpoint, "closed" if checkpoint.closed_as else "done"

    def use(self, calls: Iterable[Call]) -> None:
        for call in calls:
            self.step(call.position, call.step).calls.append(call)

    def keep(self, artefacts: Iterable[Artefact]) -> None:
        for artefact in artefacts:
            if artefact.position in self.steps:
                self.steps[artefact.position].artefacts.append(artefact)

    def sound(self, alarms: Iterable[Alarm]) -> None:
        for alarm in alarms:
            self.step(alarm.call.position, alarm.call.step).alarms.append(alarm)

    def look_ahead(self) -> None:
        if self.run.status == Status.COMPLETED:
            return
        self.step(self.run.position + 1, self.run.next_step).state = self.run.status
        if self.run.is_final:
            return
        for offset, name in enumerate(_following(self.run.next_step, self.workflow), start=2):
            self.step(self.run.position + offset, name)

    def live(self, transitions: Sequence[Transition], checkpoints: Sequence[Checkpoint], now: datetime) -> None:
        """Cut the run's life into segments of its steps."""
        timers = self._timers(transitions, checkpoints)
        left = list(checkpoints)
        for span in _spans(transitions, now):
            if span.begun.to_status == Status.RUNNING:
                self._work(span, _finished_in(span, left), timers)
            elif span.begun.to_status in (Status.WAITING, Status.SLEEPING):
                wait = Segment("wait", span.begun.at, span.until, span.begun.why, open=span.ended is None)
                self.step(span.begun.position, span.begun.step).segments.append(wait)

    def _work(self, span: _Span, finished: list[Checkpoint], timers: set[int]) -> None:
        at = span.begun.at
        for checkpoint in finished:
            step, end = self.steps[checkpoint.position], max(at, checkpoint.committed_at)
            step.segments.append(Segment("work", at, end, resumed=_was_lost(step)))
            at = end
        kind = _kind_of_rest(span, {checkpoint.position for checkpoint in finished}, timers)
        if kind is None:
            return
        step = self.step(*self._where(span))
        why = span.ended.why if span.ended else ""
        rest = Segment(kind, at, max(at, span.until), why, open=span.ended is None, resumed=_was_lost(step))
        step.segments.append(rest)

    def _where(self, span: _Span) -> tuple[int, str]:
        return (span.ended.position, span.ended.step) if span.ended else (self.run.position + 1, self.run.next_step)

    def _timers(self, transitions: Sequence[Transition], checkpoints: Sequence[Checkpoint]) -> set[int]:
        """The moves to sleep that a timer asked for: the last of each position that waited for one. Any other sleep is
        the back-off after a failed attempt."""
        positions = {checkpoint.position for checkpoint in checkpoints if checkpoint.wait_kind == WaitKind.TIMER}
        if self.run.asked == WaitKind.TIMER:
            positions.add(self.run.position + 1)
        last = {move.position: move.pk for move in transitions if move.to_status == Status.SLEEPING}
        return {last[position] for position in positions & last.keys()}


def _finished_in(span: _Span, left: list[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints committed in this span, taken from `left`. A span's last commit and its end are one statement, in
    which the clock is read twice: hence the millisecond."""
    finished = []
    while left and (span.ended is None or left[0].committed_at <= span.until + timedelta(milliseconds=1)):
        finished.append(left.pop(0))
    return finished


def _was_lost(step: Step) -> bool:
    return bool(step.segments) and step.segments[-1].kind == "lost"


def _kind_of_rest(span: _Span, finished: set[int], timers: set[int]) -> Kind | None:
    """What became of the position that was unfinished when the span ended; None when there was none."""
    if span.ended is None:
        return "work"
    following = span.ended.to_status
    if following in (Status.READY, Status.DEAD) and span.taken_away:
        return "lost"
    if following == Status.DEAD or (following == Status.SLEEPING and span.ended.pk not in timers):
        return "failed"
    return "work" if following != Status.READY and span.ended.position not in finished else None
