"""A worker as a process of its own, forked from the test: it works off whatever is ready until it is told to stop or
dies. Real SIGKILL, real connections; no queue in between, so that a test can have forty of them a minute."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from django.db import connections

from runs import failpoints
from runs.identity import started
from runs.models import Run
from runs.states import FINAL
from runs.testing import drain


class WorkerProcess:
    """Use as a context manager; leaving it kills the process."""

    def __init__(self, failpoint_folder: Path | None = None) -> None:
        self._folder = failpoint_folder
        # Closed before the fork: two processes on one socket would read each other's answers.
        connections.close_all()
        self._process = multiprocessing.get_context("fork").Process(target=self._work, daemon=True)
        self._process.start()

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def was_killed(self) -> bool:
        """Has it died of SIGKILL? Looking also reaps it, so that the sweep sees it gone."""
        return self._process.exitcode == -signal.SIGKILL

    @property
    def is_frozen(self) -> bool:
        return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED

    @property
    def start(self) -> str:
        """When it began, as its leases name it."""
        return started(self.pid)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def _work(self) -> None:
        failpoints.switch(str(self._folder or ""))
        while True:
            drain()
            time.sleep(0.01)


def finish_with_a_kill_at(run: Run, point: str, folder: Path, meanwhile: Callable[[Run], object]) -> bool:
    """Work the run to its end with one worker after the other; was one of them killed on the way? `meanwhile` is called
    with the run again and again, to play whoever answers it."""
    folder.mkdir()
    (folder / "kill").write_text(point)
    until, killed = time.monotonic() + 30, False
    while not killed or run.status not in FINAL:
        with WorkerProcess(folder) as worker:
            while not worker.was_killed and run.status not in FINAL:
                assert time.monotonic() < until, f"{run.key} is {run.status} at {run.position}: {run.reason}"
                time.sleep(0.01)
                run.refresh_from_db()
                meanwhile(run)
            if not worker.was_killed:
                return killed
            killed = True
    return killed


def killed_in(verb: Callable[[], object], point: str, folder: Path) -> bool:
    """Do this in a process of its own that is killed at that point; did it come there?"""
    folder.mkdir()
    (folder / "kill").write_text(point)

    def act() -> None:
        failpoints.switch(str(folder))
        verb()

    connections.close_all()
    process = multiprocessing.get_context("fork").Process(target=act)
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL
