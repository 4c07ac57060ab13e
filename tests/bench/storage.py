"""W4 and W6: what a parked run and a growing conversation take of the disk, and what 10,000 parked runs cost while
nothing happens to them."""

import multiprocessing
import time
from statistics import median

from django.db import connections

from runs.models import Checkpoint, Run
from runs.sweep import sweep

from . import floor
from .cluster import Cluster
from .database import Database, Meter
from .figures import Figures, Goal
from .throughput import started, work_off
from .workflows import MESSAGE_BYTES, MESSAGES, STEPS_BEFORE_PARKING, chat, parked, prose

TABLES = ("runs_run", "runs_checkpoint")
FLOOR_RUNS = 1000


def park(database: Database, runs: int) -> None:
    """So many runs, each parked by the engine itself behind its four steps."""
    with database.committing_without_waiting():
        rows = started("parked", runs, workflow=parked)
        connections["default"].close()
        halves = [multiprocessing.get_context("fork").Process(target=work_off, args=(rows[n::2],)) for n in (0, 1)]
        for half in halves:
            half.start()
        for half in halves:
            half.join()
    assert Run.objects.filter(status="waiting").count() == runs
    with database.connect() as connection:
        # Their bells have no work any more; a cluster that starts here is not to be busy with them.
        connection.execute("DELETE FROM django_q_ormq")


def measure_parked(database: Database, figures: Figures, runs: int) -> None:
    """W4: bytes per parked run, beside the baseline's row and its checkpoints; the sweep among them."""
    meter = Meter(database)
    with database.connect() as connection:
        rows = floor.new_runs(connection, FLOOR_RUNS)
        floor.work_guarded(connection, rows, steps=STEPS_BEFORE_PARKING)
    floor_bytes = meter.stored_bytes("floor_run", "floor_step") / FLOOR_RUNS
    before, moves = meter.stored_bytes(*TABLES), meter.stored_bytes("runs_transition")
    park(database, runs)
    name = "W4 bytes a parked run, 4 checkpoints"
    figures.add(f"{name}: floor:cas", floor_bytes)
    figures.add(f"{name}: engine", (meter.stored_bytes(*TABLES) - before) / runs, goal=Goal(most=930))
    figures.add("W4 of that the run's own row: engine", meter.stored_bytes("runs_run") / runs)
    figures.add("W4 bytes of its transitions: engine", (meter.stored_bytes("runs_transition") - moves) / runs)
    _measure_sweep(figures, runs)
    meter.close()


def _measure_sweep(figures: Figures, runs: int) -> None:
    def once() -> float:
        began = time.perf_counter()
        sweep()
        return 1000 * (time.perf_counter() - began)

    once()
    figures.add(
        f"W4 ms, sweep among {runs:,} parked runs: engine", median(once() for _ in range(15)), goal=Goal(most=50)
    )


def measure_idle(database: Database, figures: Figures, runs: int, seconds: float) -> None:
    """W4: a fresh cluster with so many parked runs: memory, and what it asks the database while nothing happens."""
    meter = Meter(database)
    # What autovacuum would do meanwhile counts as transactions of this database.
    meter.run("VACUUM (ANALYZE)")
    meter.run("SELECT pg_stat_force_next_flush()")
    with Cluster(database, workers=2) as cluster:
        time.sleep(1)
        figures.add(f"W4 idle statements/s, {runs:,} parked: engine", cluster.idle_statements(meter, seconds))
        figures.add(f"W4 MB of runner and workers, {runs:,} parked: engine", cluster.memory())
    meter.close()


def measure_conversation(database: Database, figures: Figures, tag: str, runs: int) -> None:
    """W6: stored bytes and WAL of 40 steps with 20 kB of new messages each, per byte of text."""
    meter, new = Meter(database), runs * MESSAGES * MESSAGE_BYTES
    with database.connect() as connection:
        rows = floor.new_runs(connection, runs)
        meter.run("CHECKPOINT")
        stored, wal = meter.stored_bytes("floor_run", "floor_step"), meter.wal_bytes()
        for position in range(1, MESSAGES + 1):
            text = prose(position, MESSAGE_BYTES)
            for run in rows:
                connection.execute(floor.INSERT, [run, position, "say", text])
        figures.add("W6 stored bytes x input: floor", (meter.stored_bytes("floor_run", "floor_step") - stored) / new)
        figures.add("W6 WAL bytes x input: floor", (meter.wal_bytes() - wal) / new)
    meter.run("CHECKPOINT")
    stored, wal = meter.stored_bytes(*TABLES), meter.wal_bytes()
    began = time.perf_counter()
    work_off(started(tag, runs, workflow=chat))
    figures.add("W6 ms a step: engine", 1000 * (time.perf_counter() - began) / (runs * MESSAGES))
    figures.add("W6 stored bytes x input: engine", (meter.stored_bytes(*TABLES) - stored) / new, goal=Goal(most=0.65))
    figures.add("W6 WAL bytes x input: engine", (meter.wal_bytes() - wal) / new, goal=Goal(most=0.56))
    assert Checkpoint.objects.filter(run__key=f"{tag}-0").count() == MESSAGES
    meter.close()
