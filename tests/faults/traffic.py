"""Runs under way while something is killed: how long work takes to go on, and whether all came out right."""

import itertools
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from django.db import InterfaceError, OperationalError, connection

from runs import engine
from runs.models import Beat, Checkpoint, Run
from tests.flows.tools import lines
from tests.flows.workflows import everything, plain, slow

SHORT = {"STEP_TIMEOUT": "5", "LEASE_SLACK": "1", "CANARY_EVERY": "5"}
"""What the runners here are started with."""
BOUND = 5 + 1 + 5
"""A lease and five seconds: within them work goes on."""
FOUND_OUT = 5 * 4 / 3 + 5
"""A canary's time, its third when it had just been there, and five seconds to start another cluster."""
PATIENCE = 60.0
"""Seconds until something that ought to happen is given up."""
PAYS_AT = {"fault-walk": ["step8", "step9:fee"], "slow": ["step2"], "plain": ["step3"]}


def seconds_until(condition: Callable[[], object], patience: float = PATIENCE) -> float:
    """How long it takes until the condition holds; fails when it does not in time. A lost database counts as "no"."""
    began = time.monotonic()
    while not _holds(condition):
        assert time.monotonic() < began + patience, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - began


def _holds(condition: Callable[[], object]) -> bool:
    try:
        return bool(condition())
    except (OperationalError, InterfaceError):
        connection.close()
        return False


class Traffic:
    """Runs of every kind, started with keys of their own."""

    def __init__(self, people: Any, world: Path) -> None:
        self._team, self._world = people.team, world
        self._numbers = itertools.count(1)
        self.runs: list[Run] = []

    def add(self, count: int) -> None:
        """So many runs: half of them with everything in it, half with a step that takes a second."""
        for number in range(count):
            if number % 2:
                self.begin(slow, seconds=1)
            else:
                run = self.begin(everything)
                engine.deliver(run.key, "papers", {"pages": 3})

    def begin(self, flow: Any, **input: Any) -> Run:
        run = engine.start(flow, key=f"{flow.name}-{next(self._numbers)}", input=input, team=self._team)
        self.runs.append(run)
        return run

    def probe(self) -> float:
        """Seconds that a run of three plain steps takes from its start to its end, starting now."""
        began, run = time.monotonic(), None
        while run is None:
            try:
                run = self.begin(plain)
            except (OperationalError, InterfaceError):
                connection.close()
                assert time.monotonic() < began + PATIENCE, "no run can be started"
                time.sleep(0.01)
        seconds_until(lambda: ended(run))
        return time.monotonic() - began

    def seconds_to_the_next_checkpoint(self) -> float:
        """Of whatever run is under way; there must be some."""
        began = time.monotonic()
        seconds_until(Run.objects.exists)
        before = Checkpoint.objects.count()
        seconds_until(lambda: Checkpoint.objects.count() > before)
        return time.monotonic() - began

    def wait_for_all(self) -> None:
        seconds_until(lambda: all(ended(run) for run in self.runs), 3 * PATIENCE)

    def assert_all_came_out_right(self) -> None:
        self.wait_for_all()
        for run in self.runs:
            assert (run.status, run.outcome) == ("completed", "completed"), f"{run.key}: {run.reason}"
            positions = list(Checkpoint.objects.filter(run=run).values_list("position", flat=True))
            assert positions == list(range(1, run.position + 1)), run.key
        paid = Counter(line["key"] for line in lines(self._world, "payments"))
        assert paid == {f"{run.key}:{place}": 1 for run in self.runs for place in PAYS_AT[run.workflow]}


def ended(run: Run) -> bool:
    run.refresh_from_db()
    return run.is_final or run.status == "dead"


def at_work(run: Run) -> bool:
    run.refresh_from_db()
    return run.status == "running"


def worker_of(run: Run) -> psutil.Process:
    return psutil.Process(int(run.worker.split(":")[1]))


def restarts() -> int:
    """How often the runner has started its cluster again."""
    return Beat.objects.get().restarts


def is_whole(runner: Any) -> bool:
    """The runner, main, the sentinel, two workers, monitor and pusher; nobody else is left of the family."""
    return len(runner.workers()) == 2 and len(runner.family()) == 7
