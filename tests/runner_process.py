"""The runner as a real process for tests, with its whole family of workers in view.

It knows the site's workflows and, with `flows=True`, those of tests.flows.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

PROJECT = Path(__file__).resolve().parent.parent
SECONDS_TO_START = 30


def eventually(condition: Callable[[], object], seconds: float = 30) -> None:
    """Look again and again until the condition holds; fails when it does not in time."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)


class RunnerProcess:
    """Use as a context manager; leaving it kills whatever is left of the family."""

    def __init__(self, database, log: Path, *, flows: bool = False, **environment: str) -> None:
        self._log = log
        settings = "tests.settings" if flows else "durable_site.settings"
        chosen = {"WORKERS": "2", "DJANGO_SETTINGS_MODULE": settings} | environment
        self._environment = database.environment | chosen
        self._seen: set[psutil.Process] = set()

    def __enter__(self) -> "RunnerProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.family()
        for process in self._seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "manage.py", "runner"],
                cwd=PROJECT,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        eventually(lambda: len(self.workers()) == 2, SECONDS_TO_START)

    @property
    def pid(self) -> int:
        return self._process.pid

    def family(self) -> list[psutil.Process]:
        """The runner and everything it started, that lives."""
        try:
            runner = psutil.Process(self.pid)
            living = [runner, *runner.children(recursive=True)]
        except psutil.NoSuchProcess:
            living = []
        self._seen.update(living)
        return [process for process in self._seen if _lives(process)]

    def main(self) -> psutil.Process:
        """The queue's main process."""
        return psutil.Process(self.pid).children()[0]

    def sentinel(self) -> psutil.Process:
        return self.main().children()[0]

    def workers(self) -> list[psutil.Process]:
        """The two workers: the sentinel's first children. The monitor and the pusher come behind them."""
        return self.guarded()[:2]

    def monitor(self) -> psutil.Process:
        """Of a cluster none of whose processes was replaced yet."""
        return self.guarded()[2]

    def pusher(self) -> psutil.Process:
        """Of a cluster none of whose processes was replaced yet."""
        return self.guarded()[3]

    def guarded(self) -> list[psutil.Process]:
        """The sentinel's children, the eldest first; none while one is missing."""
        try:
            children = sorted(filter(_lives, self.sentinel().children()), key=lambda process: process.pid)
        except (psutil.NoSuchProcess, IndexError):
            return []
        self.family()
        return children if len(children) == 4 else []

    def terminate(self) -> int:
        """SIGTERM to the runner alone; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(90)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait()

    def log(self) -> str:
        return self._log.read_text()


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
