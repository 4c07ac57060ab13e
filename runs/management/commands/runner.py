"""manage.py runner: the background process. Starts the queue's workers, sweeps each second, restarts what died.

The cluster is a child in a process group of its own: a SIGTERM to our group must not reach its workers, which would
die in the midst of a step and leave its main process hanging. The sweep runs here, outside the queue: a wedged queue is
still swept.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import InterfaceError, OperationalError, connection

from runs.doorbell import run_cluster
from runs.sweep import sweep

logger = logging.getLogger("runs.runner")

RESTART_AFTER = (0.5, 1, 2, 5, 10)
"""Seconds before the cluster is started again, by how often it died in the last minute."""


class Command(BaseCommand):
    help = "Run the background workers until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--cluster", type=int, metavar="PID", help="(used by the runner itself) be the queue's main process"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["cluster"]:
            run_cluster(options["cluster"])
        else:
            sys.exit(Runner().run())


class Runner:
    """Supervises one cluster and sweeps. Ends when it is told to; a cluster that ends by itself is started again."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.deaths: list[float] = []
        self.cluster: subprocess.Popen | None = None

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop.set())
        logger.info("The runner starts with %s workers.", settings.WORKERS)
        try:
            while not self.stop.wait(self._until_next_second()):
                self._keep_cluster()
                self._sweep()
        finally:
            clean = self._end_cluster()
        logger.info(
            "The runner has stopped%s.", "" if clean else "; a step had to be killed and will be taken up again"
        )
        return 0 if clean else 1

    def _until_next_second(self) -> float:
        return 1 - time.time() % 1 if self.cluster else 0

    def _keep_cluster(self) -> None:
        if self.cluster is None:
            self.cluster = self._start_cluster()
        elif (code := self.cluster.poll()) is not None:
            # Exit code 0 without a stop request is a crash too: the sentinel died and main ended quietly.
            self._kill_group(self.cluster.pid)
            self.cluster = None
            logger.error("The queue's cluster ended by itself (exit code %s); starting it again.", code)
            self._wait_before_restart()

    def _start_cluster(self) -> subprocess.Popen:
        command = [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), "runner", "--cluster", str(os.getpid())]
        return subprocess.Popen(command, start_new_session=True)

    def _wait_before_restart(self) -> None:
        now = time.monotonic()
        self.deaths = [*(death for death in self.deaths if death > now - 60), now]
        self.stop.wait(RESTART_AFTER[min(len(self.deaths), len(RESTART_AFTER)) - 1])

    def _sweep(self) -> None:
        try:
            sweep()
        except (OperationalError, InterfaceError) as error:
            logger.error("The sweep cannot reach the database (%s); it tries again in a second.", type(error).__name__)
            connection.close()

    def _end_cluster(self) -> bool:
        """SIGTERM to main alone: running steps come to their checkpoint. What is left after the grace is killed."""
        if self.cluster is None:
            return True
        self.cluster.terminate()
        try:
            self.cluster.wait(settings.STOP_GRACE)
        except subprocess.TimeoutExpired:
            return False
        else:
            return True
        finally:
            self._kill_group(self.cluster.pid)

    def _kill_group(self, group: int) -> None:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return
