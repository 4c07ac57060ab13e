"""W3, W7 and a run alone: how long from a call to the first line of the step it causes, through the real queue. All
from the call's begin; clocks are the machine's monotonic one, which the workers share."""

import random
import time

from runs.engine import deliver, start
from runs.models import Checkpoint, Run

from .figures import Figures, Goal
from .floor import Hop
from .throughput import started, team
from .workflows import GO, STEPS, instant, parked, plain


def settle() -> None:
    """Between two latencies: what the last one caused is over, and the next one meets no beat of ours."""
    time.sleep(random.uniform(0.02, 0.04))


def measure_hop(hop: Hop, figures: Figures, times: int) -> None:
    latencies = []
    for _ in range(times):
        latencies.append(1000 * hop.seconds())
        settle()
    figures.add_latencies("hop ms, insert + notify to a claim elsewhere: floor", latencies, p50=None, p95=None)


def measure_start(figures: Figures, tag: str, times: int) -> None:
    """W7 from start() to the first step's first line, and the whole run of nine steps to its end."""
    group, first, whole = team(), [], []
    for number in range(times):
        began = instant()
        run = start(plain, key=f"{tag}-{number}", input={}, team=group)
        finished = _await_end(run)
        first.append(1000 * (_noted(run, 1) - began))
        whole.append(1000 * (finished - began))
        settle()
    figures.add_latencies("W7 ms, start to first step: engine", first, p50=Goal(most=5), p95=Goal(most=8))
    figures.add_latencies(f"W1 ms, {STEPS} steps of a run alone: engine", whole, p50=Goal(most=10), p95=None)


def measure_deliver(figures: Figures, tag: str, times: int) -> None:
    """W3 from deliver() to the first line of the step behind the wait; from its return, too."""
    keys = [f"{tag}-{number}" for number in range(times)]
    rows = started(tag, times, workflow=parked)
    while Run.objects.filter(pk__in=rows, status="waiting").count() < times:
        time.sleep(0.01)
    from_call, from_commit = [], []
    for key in keys:
        settle()
        began = instant()
        deliver(key, GO, {})
        committed = instant()
        run = Run.objects.get(key=key)
        _await_end(run)
        at = _noted(run, 6)
        from_call.append(1000 * (at - began))
        from_commit.append(1000 * (at - committed))
    figures.add_latencies("W3 ms, deliver called to next step: engine", from_call, p50=None, p95=None)
    goals = {"p50": Goal(most=6), "p95": Goal(most=10)}
    figures.add_latencies("W3 ms, delivery committed to next step: engine", from_commit, **goals)


def _noted(run: Run, position: int) -> float:
    return Checkpoint.objects.get(run=run, position=position).output["at"]


def _await_end(run: Run) -> float:
    """When the run's end was seen: a look each half millisecond, from a moment when it cannot have ended yet."""
    until = instant() + 20
    time.sleep(0.004)
    while not Run.objects.filter(pk=run.pk, status="completed").exists():
        assert instant() < until, f"{run.key} did not end"
        time.sleep(0.0005)
    return instant()
