"""The cards of the health page: what each one shows, from tallies or from indexes of what is live.

Registered at start-up, in the order of the page. May import health, metrics, tallies, charts, stuck, models.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from django.db.models import Count, Min, Q

from . import stuck
from .charts import Series, draw
from .doorbell import Canary
from .health import (
    DAY,
    Card,
    Cell,
    Period,
    by_name,
    by_part,
    counted,
    greatest,
    median,
    number,
    p95,
    ratio,
    seconds,
    size,
    source,
    step_in_words,
)
from .metrics import ALIVE_WITHIN
from .models import Beat, Call, Run
from .states import Status
from .tallies import Bucket

RESUME_LIMIT = 0.1
"""Resumes per completed run beyond which workers die too often."""
JUMP, JUMP_BYTES = 2.0, 1024
"""A step whose checkpoints are that many times as large as before, and no longer tiny, has jumped."""
KIND_WORDS = {
    "running": "at one step too long",
    "lease": "without their worker",
    "waiting": "past their due time",
    "sleeping": "not woken",
    "ready": "not fetched",
}
"""What each kind of standstill is, behind a number of runs."""


def _bars(rows: Sequence[tuple[str, float, str]]) -> list[list[Cell]]:
    most = max((value for _, value, _ in rows), default=0) or 1
    return [[Cell(name), Cell("", share=value / most), Cell(text, is_number=True)] for name, value, text in rows]


# Keys and effects


@source
def _reused(over: Period) -> Iterator[Card]:
    names = by_name(over.read("key-reused"))
    total = counted(bucket for found in names.values() for bucket in found)
    yield Card(
        "reused",
        "Key reused with another request",
        *(("bad", "Alarm") if total else ("ok", "None")),
        value=number(total),
        note="should always be 0",
        head=("Tool", "", "Times"),
        rows=_bars([(name or "unnamed", counted(found), number(counted(found))) for name, found in names.items()]),
        empty="No key came back with another request.",
    )


@source
def _replays(over: Period) -> Iterator[Card]:
    replayed, confirmed = by_name(over.read("replayed")), by_name(over.read("confirmed"))
    rows = [
        (name, counted(replayed.get(name, [])), f"{counted(replayed.get(name, [])):,} of {counted(found):,}")
        for name, found in confirmed.items()
    ]
    yield Card(
        "replays",
        "Key replays per tool",
        head=("Tool", "", "Replays of effects"),
        rows=_bars(rows),
        note="A replay is an effect that its receiver had done before: it was asked again, and did nothing twice.",
        empty="No effect was confirmed in this time.",
    )


@source
def _unknown(over: Period) -> Iterator[Card]:
    rows = Call.objects.unresolved().order_by("tool").values("tool").annotate(number=Count("*"), since=Min("sent_at"))
    found = [(row["tool"], row["number"], row["since"]) for row in rows]
    total = sum(number for _, number, _ in found)
    cells = [
        [Cell(tool), Cell(number(many), is_number=True), Cell(_age(over.now, since), is_number=True)]
        for tool, many, since in found
    ]
    yield Card(
        "unknown",
        "Effects unknown",
        *(("warn", f"{total} now") if total else ("ok", "None")),
        value=number(total),
        note="may have happened",
        head=("Tool", "Effects", "Oldest"),
        rows=cells,
        empty="The outcome of every effect is known.",
    )


def _age(now: datetime, since: datetime | None) -> str:
    return seconds((now - since).total_seconds()) if since else "not sent"


# Runs


@source
def _resumes(over: Period) -> Iterator[Card]:
    resumed = over.read("resumed")
    completed = [bucket for bucket in over.read("ended") if bucket.name == "completed"]
    died, done = (by_part(over, buckets, counted) for buckets in (resumed, completed))
    rates = [(lost or 0) / ended if ended else None for lost, ended in zip(died, done, strict=True)]
    total, of = counted(resumed), counted(completed)
    rate = total / of if of else None
    is_high = (rate or 0) > RESUME_LIMIT or (not of and total)
    yield Card(
        "resumes",
        "Resume rate",
        *(("bad", f"Over {RESUME_LIMIT}") if is_high else ("ok", f"Up to {RESUME_LIMIT}")),
        value=ratio(rate) if rate is not None else "none",
        note=f"resumes per completed run: {total:,} of {of:,}",
        chart=draw("Resumes per completed run", over.parts, [Series("Rate", rates)], ratio, limit=RESUME_LIMIT),
    )


@source
def _stuck(over: Period) -> Iterator[Card]:
    kinds = stuck.counted()
    total = sum(kinds.values())
    values = by_part(over, over.read("stuck"), greatest)
    told = ", ".join(f"{many} {KIND_WORDS[kind]}" for kind, many in kinds.items() if many)
    yield Card(
        "stuck",
        "Stuck runs",
        *(("bad", f"{total} now") if total else ("ok", "None")),
        value=number(total),
        note=told or "nothing waits for somebody who does not come",
        chart=draw("Stuck runs", over.parts, [Series("Stuck", values)], number),
        link=("runs:list", "?status=stuck"),
    )


@source
def _waits(over: Period) -> Iterator[Card]:
    waiting, now = Run.objects.filter(status=Status.WAITING), over.now
    soon, day = now + timedelta(hours=2), now + DAY
    counts = waiting.aggregate(
        past=Count("due_at", filter=Q(due_at__lte=now)),
        soon=Count("due_at", filter=Q(due_at__gt=now, due_at__lte=soon)),
        day=Count("due_at", filter=Q(due_at__gt=soon, due_at__lte=day)),
        later=Count("due_at", filter=Q(due_at__gt=day)),
        oldest=Min("due_at"),
    )
    oldest = f", oldest {_age(over.now, counts['oldest'])}" if counts["past"] else ""
    names = (("later", "Over 24 h left"), ("day", "2 h to 24 h left"), ("soon", "Under 2 h left"), ("past", "Past due"))
    yield Card(
        "waits",
        "Waits past their due time",
        *(("bad", f"{counts['past']} now") if counts["past"] else ("ok", "None")),
        value=number(counts["past"]),
        note=f"of {sum(counts[name] for name, _ in names):,} waiting{oldest}",
        head=("Time left", "", "Runs"),
        rows=_bars([(title, counts[name], number(counts[name])) for name, title in names]),
    )


@source
def _endings(over: Period) -> Iterator[Card]:
    dead, ended = by_name(over.read("dead")), by_name(over.read("ended"))
    total = counted(bucket for found in dead.values() for bucket in found)
    now = Run.objects.filter(status=Status.DEAD).count()
    rows = [(_reason(name), counted(found), number(counted(found))) for name, found in dead.items()]
    rows += [(f"Ended {name}", counted(found), number(counted(found))) for name, found in ended.items()]
    yield Card(
        "endings",
        "Dead letters and endings",
        *(("warn", f"{now} wait for repair") if now else ("ok", "None waits")),
        value=number(total),
        note="went to the dead letters in this time",
        head=("What became of it", "", "Runs"),
        rows=_bars(rows),
        empty="No run ended in this time.",
        link=("runs:list", "?status=dead"),
    )


def _reason(name: str) -> str:
    return f"Dead: {name.replace('-', ' ')}"


# Steps


@source
def _step_time(over: Period) -> Iterator[Card]:
    of_parts, of_steps = over.sums("step-time")
    half, most = median(of_steps), p95(of_steps)
    lines = [Series("p95", by_part(over, of_parts, p95)), Series("p50", by_part(over, of_parts, median))]
    slowest = sorted(by_name(of_steps).items(), key=lambda item: -(p95(item[1]) or 0))[:5]
    yield Card(
        "step-time",
        "Step time",
        value=seconds(half) if half is not None else "none",
        note=f"p50, {seconds(most)} p95" if most is not None else "no step ended in this time",
        chart=draw("Step time", over.parts, lines, seconds),
        head=("Slowest steps", "p50", "p95"),
        rows=[
            [Cell(step_in_words(name)), *(Cell(seconds(tell(each) or 0), is_number=True) for tell in (median, p95))]
            for name, each in slowest
        ],
    )


@source
def _checkpoint_size(over: Period) -> Iterator[Card]:
    (of_parts, of_steps), before = over.sums("step-size"), by_name(over.before("step-size"))
    half, most = median(of_steps), p95(of_steps)
    lines = [Series("p95", by_part(over, of_parts, p95)), Series("p50", by_part(over, of_parts, median))]
    grown = sorted((_grown(name, each, before.get(name, [])) for name, each in by_name(of_steps).items()), reverse=True)
    jumped = [name for growth, now, name, _ in grown if growth >= JUMP and now >= JUMP_BYTES]
    yield Card(
        "step-size",
        "Checkpoint size",
        *(("warn", "Growing") if jumped else ("ok", "Steady")),
        value=size(most) if most is not None else "none",
        note=_size_words(half, of_steps, jumped),
        chart=draw("Checkpoint size", over.parts, lines, size),
        head=("Largest growth", "p95 before", "p95 now"),
        rows=[
            [
                Cell(step_in_words(name)),
                Cell(size(was) if was else "none", is_number=True),
                Cell(size(now), is_number=True),
            ]
            for _, now, name, was in grown[:5]
        ],
    )


def _grown(name: str, now: list[Bucket], before: list[Bucket]) -> tuple[float, float, str, float]:
    """How many times as large as in the window before, first; a step that is new has not grown."""
    is_at, was = p95(now) or 0, p95(before) or 0
    return (is_at / was if was else 0, is_at, name, was)


def _size_words(half: float | None, found: list[Bucket], jumped: list[str]) -> str:
    if half is None:
        return "no step ended in this time"
    words = f"p95, {size(half)} p50, {size(greatest(found))} at most"
    return f"{words}. Grew: {', '.join(map(step_in_words, jumped))}" if jumped else words


# Who works


@source
def _queue(over: Period) -> Iterator[Card]:
    queue, answers = Canary.queue(), stuck.is_answered()
    bells = by_part(over, over.read("bells"), greatest)
    ready = Run.objects.filter(status=Status.READY).count()
    yield Card(
        "queue",
        "Queue depth",
        *(("ok", "Answering") if answers else ("bad", "Nobody answers")),
        value=number(queue["bells"]),
        note=f"bells, oldest {seconds(max(0, queue['oldest']))}; {ready:,} runs ready",
        chart=draw("Bells in the queue", over.parts, [Series("Bells", bells)], number),
    )


@source
def _runners(over: Period) -> Iterator[Card]:
    beats = list(Beat.objects.order_by("host"))
    ages = [(beat, (over.now - beat.beat_at).total_seconds()) for beat in beats]
    alive = sum(age < ALIVE_WITHIN for _, age in ages)
    rows = [
        [
            Cell(beat.host),
            Cell("Alive" if age < ALIVE_WITHIN else "Silent"),
            Cell(number(beat.workers), is_number=True),
            Cell(seconds(max(0, age)), is_number=True),
        ]
        for beat, age in ages
    ]
    yield Card(
        "runners",
        "Runners alive",
        *(("ok", f"{alive} of {len(beats)}") if beats and alive == len(beats) else ("bad", f"{alive} of {len(beats)}")),
        head=("Host", "State", "Workers", "Last beat"),
        rows=rows,
        empty="No runner has beaten: nothing is worked off.",
    )


@source
def _decisions(over: Period) -> Iterator[Card]:
    found = over.read("decided")
    half, most = median(found), p95(found)
    lines = [Series("p95", by_part(over, found, p95)), Series("p50", by_part(over, found, median))]
    yield Card(
        "decisions",
        "Decision time",
        value=seconds(half) if half is not None else "none",
        note=f"p50, {seconds(most)} p95, {counted(found):,} decisions" if most is not None else "nobody decided",
        chart=draw("From asking to a person's answer", over.parts, lines, seconds),
    )
