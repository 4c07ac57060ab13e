"""W1 and W2: plain steps per second of one worker and of two, their processor time and their writing transactions."""

import time

from django.contrib.auth.models import Group
from django.db import connections, transaction

from runs.advance import advance
from runs.engine import start

from . import floor
from .database import Database, Meter
from .figures import Figures, Goal
from .workflows import STEPS, instant, plain

CONCURRENCIES = (2, 4, 8)


def team() -> Group:
    return Group.objects.get_or_create(name="bench")[0]


def started(prefix: str, runs: int, workflow=plain, **input: object) -> list[int]:
    """The ids of new runs, all ready at once."""
    group = team()
    with transaction.atomic():
        return [start(workflow, key=f"{prefix}-{n}", input=dict(input), team=group).pk for n in range(runs)]


def work_off(runs: list[int]) -> None:
    """What one worker does with one bell per run: the first bell drains what is ready, the others find nothing."""
    for run in runs:
        advance(run)


def measure_one_worker(database: Database, figures: Figures, tag: str, runs: int) -> None:
    """W1 in this process: bare psycopg twice, then the engine, claim and end included."""
    meter = Meter(database)
    for kind, work in floor.WORK.items():
        with database.connect() as connection:
            rows = floor.new_runs(connection, runs)
            _measure(figures, kind, runs, meter, lambda: work(connection, rows))  # noqa: B023 (called at once)
    rows = started(tag, runs)
    _measure(figures, "engine", runs, meter, lambda: work_off(rows))
    meter.close()


def _measure(figures: Figures, kind: str, runs: int, meter: Meter, work) -> None:
    steps, cpu, server, began = runs * STEPS, time.process_time(), meter.server_cpu(), instant()
    work()
    seconds = instant() - began
    cpu, server = time.process_time() - cpu, meter.server_cpu() - server
    goals = (Goal(least=0.6, times="floor:cas"), Goal(most=0.7)) if kind == "engine" else (None, None)
    figures.add(f"W1 steps/s of one worker: {kind}", steps / seconds, goal=goals[0])
    figures.add(f"W1 CPU ms a step, worker + server: {kind}", 1000 * (cpu + server) / steps, goal=goals[1])
    figures.add(f"W1 CPU ms a step, worker alone: {kind}", 1000 * cpu / steps)


def measure_two_processes(database: Database, figures: Figures, runs: int) -> None:
    """W2 for the baselines, at the concurrency that suits them best."""
    connections["default"].close()
    for kind in floor.WORK:
        with database.connect() as connection:
            shares = [floor.new_runs(connection, runs) for _ in CONCURRENCIES]
        seconds = [
            floor.seconds_with(workers, kind, database, share)
            for workers, share in zip(CONCURRENCIES, shares, strict=True)
        ]
        figures.add(f"W2 steps/s, {runs} runs at once: {kind}", runs * STEPS / min(seconds))
        figures.add(f"W2 steps/s, {runs} runs at once: {kind}, two processes", runs * STEPS / seconds[0])


def measure_cluster(database: Database, figures: Figures, tag: str, runs: int, workers: int) -> None:
    """W1 and W2 through the real queue: from the commit that makes all runs ready to the last one's end."""
    meter = Meter(database)
    before = meter.transaction_ids()
    rows = started(tag, runs)
    began = instant()
    while meter.value("SELECT count(*) FROM runs_run WHERE id = ANY(%s) AND status <> 'completed'", rows):
        time.sleep(0.005)
    rate = runs * STEPS / (instant() - began)
    while meter.value("SELECT count(*) FROM django_q_ormq WHERE key = 'runs'"):
        time.sleep(0.005)
    emptied = instant() - began
    if workers == 1:
        figures.add("W1 steps/s of one worker: engine, through the queue", rate)
        # They were all started in one transaction; outside a benchmark each start is one of its own.
        ids = (meter.transaction_ids() - before + runs) / (runs * STEPS)
        figures.add("W1 writing transactions a step: engine, through the queue", ids, goal=Goal(most=1.5))
    else:
        figures.add(f"W2 steps/s, {runs} runs at once: engine", rate, goal=Goal(least=0.5, times="floor:cas"))
        figures.add("W2 seconds until every bell is answered: engine", emptied)
    meter.close()
