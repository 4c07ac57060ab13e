"""A worker as a process of its own, forked from the test: it works off whatever is ready until it is told to stop or
dies. Real SIGKILL, real connections; no queue in between, so that a test can have forty of them a minute."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

from django.db import connections

from runs import failpoints
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
