"""A real runner with its workers, as a process of its own, and what it takes of the machine while nothing happens."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil

from .database import Database, Meter

PROJECT = Path(__file__).resolve().parents[2]


class Cluster:
    """`manage.py runner` on a database. Use as a context manager; it is up when its queue has acknowledged a canary."""

    def __init__(self, database: Database, workers: int) -> None:
        self._environment = database.environment | {"WORKERS": str(workers), "LOG_LEVEL": "ERROR"}
        self._database = database

    def __enter__(self) -> "Cluster":
        self._log = tempfile.TemporaryFile()
        command = [sys.executable, "manage.py", "runner"]
        self._process = subprocess.Popen(
            command,
            cwd=PROJECT,
            env=self._environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._await_canary()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _await_canary(self) -> None:
        until = time.monotonic() + 60
        with self._database.connect() as connection:
            while not connection.execute("SELECT FROM runs_beat WHERE canary_at IS NOT NULL").rowcount:
                if self._process.poll() is not None or time.monotonic() > until:
                    self._log.seek(0)
                    raise RuntimeError(f"The cluster did not start:\n{self._log.read().decode(errors='replace')}")
                time.sleep(0.05)

    def _end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()

    def memory(self) -> float:
        """MB that the whole family holds for itself and shares only within it (PSS), now."""
        runner = psutil.Process(self._process.pid)
        return sum(process.memory_full_info().pss for process in [runner, *runner.children(recursive=True)]) / 1e6

    def idle_statements(self, meter: Meter, seconds: float) -> float:
        """Transactions a second in its database while it has nothing to do: the median of windows of two seconds, since
        one in which autovacuum came by counts its transactions too."""
        return median(self._statements_in(meter, 2) for _ in range(max(1, round(seconds / 2))))

    def _statements_in(self, meter: Meter, seconds: float) -> float:
        before, began = meter.transactions(), time.monotonic()
        time.sleep(seconds)
        return (meter.transactions() - before) / (time.monotonic() - began)
