"""Fixtures of the long series: a runner with short leases, and the table of measured recovery times.

Collected only with FAULTS=1 (`make faults`): they take an hour and every core there is.
"""

import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from runner_process import RunnerProcess
from traffic import SHORT, Traffic

collect_ignore_glob = [] if os.environ.get("FAULTS") == "1" else ["test_*.py"]

TABLE = Path(__file__).resolve().parents[2] / "var" / "faults.txt"

_measured: dict[str, list[float]] = defaultdict(list)
_counted: list[str] = []


@pytest.fixture
def measured() -> Callable[[str, float, float], None]:
    """Note how long a recovery took, and fail when that was too long: measured(fault, seconds, most)."""

    def note(fault: str, seconds: float, most: float) -> None:
        _measured[f"{fault} (at most {most:g})"].append(seconds)
        assert seconds <= most, f"{fault}: work went on after {seconds:.1f} s only"

    return note


@pytest.fixture
def counted() -> Callable[[str, Counter, float], None]:
    """Note how often what came of something that was tried very often, and how long that took in seconds."""

    def note(what: str, times: Counter, seconds: float) -> None:
        came = "; ".join(f"{outcome} {count}" for outcome, count in sorted(times.items()))
        _counted.append(f"{what}, {times.total()} times in {seconds:.0f} s: {came}")

    return note


@pytest.fixture
def traffic(people, flows_world) -> Traffic:
    return Traffic(people, flows_world)


@pytest.fixture
def launch(database, flows_world, tmp_path):
    """Start runners that know tests.flows; WITHOUT names the cures that one does without."""
    started: list[RunnerProcess] = []

    def start(**environment: str) -> RunnerProcess:
        log = tmp_path / f"runner-{len(started)}.log"
        runner = RunnerProcess(database, log, flows=True, **SHORT | environment)
        started.append(runner)
        return runner.__enter__()

    yield start
    for runner in started:
        runner.__exit__()


@pytest.fixture
def runner(launch) -> RunnerProcess:
    return launch()


def pytest_terminal_summary(terminalreporter) -> None:
    lines = list(_counted)
    if _measured:
        lines += _recoveries()
    if not lines:
        return
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text("\n".join(lines) + "\n")
    terminalreporter.section("recovery and races")
    for line in lines:
        terminalreporter.write_line(line)


def _recoveries() -> list[str]:
    lines = [f"{'seconds until work went on after':56}{'times':>6}{'median':>8}{'max':>8}"]
    lines += [
        f"{fault:56}{len(times):6}{statistics.median(times):8.2f}{max(times):8.2f}"
        for fault, times in _measured.items()
    ]
    return lines
