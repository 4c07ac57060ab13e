"""The background process: keeps a cluster of workers alive and proves that it is, beats, and sweeps each second.

The cluster is a child in a session of its own: a SIGTERM to our group must not reach its workers, which would die in
the midst of a step and leave its main process hanging. The sweep runs here, outside the queue: a wedged queue is still
swept. Notices of alarms are carried by threads beside it, which hold it up in nothing. May import doorbell, sweep,
notices, lease, advance, models.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection
from django.db.models import Case, F, When

from . import notices
from .advance import Stretch
from .doorbell import Canary
from .identity import children, host
from .lease import Lease
from .models import Beat, DatabaseNow, Run, Sending, database_clock
from .states import Status
from .sweep import sweep

logger = logging.getLogger(__name__)

RESTART_AFTER = (0.5, 1, 2, 5, 10)
"""Seconds before the cluster is started again, by how often it died in the last minute."""
SILENCE = timedelta(seconds=10)
"""Longer than that between two beats of a host is kept: the one that beat last cannot have noticed it."""
WHOLE_WITHIN = 10
"""Seconds within which the queue replaces a process of its own that died."""


class Runner:
    """Supervises one cluster. Ends when it is told to; a cluster that ends or hangs is started again."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.deaths: list[float] = []
        self.cluster: subprocess.Popen | None = None
        self.canary = Canary(host())
        self.whole_at = 0.0
        self.restarts = 0

    def run(self) -> int:
        """Work until SIGTERM or SIGINT; 0 when every step came to its checkpoint, 1 when one had to be killed."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop.set())
        logger.info("The runner starts with %s workers.", settings.WORKERS)
        for channel in Sending.Channel.values:
            threading.Thread(target=notices.carry, args=[channel, self.stop], daemon=True).start()
        try:
            while not self.stop.wait(self._until_next_second()):
                self._keep_cluster()
                self._with_database(self._look)
        finally:
            clean = self._end_cluster()
            self._with_database(self._say_goodbye)
        logger.info("The runner has stopped%s.", "" if clean else "; a killed step will be taken up again")
        return 0 if clean else 1

    def _until_next_second(self) -> float:
        return 1 - time.time() % 1 if self.cluster else 0

    def _look(self) -> None:
        self._beat()
        sweep()
        self._watch_canary()

    def _with_database(self, look) -> None:
        try:
            look()
        except (OperationalError, InterfaceError) as error:
            logger.error("The runner cannot reach the database (%s); it tries again in a second.", type(error).__name__)
            connection.close()
            self.canary.excuse()

    # The cluster

    def _keep_cluster(self) -> None:
        if self.cluster is None:
            self.cluster = self._start_cluster()
        elif (code := self.cluster.poll()) is not None:
            # Exit code 0 without a stop request is a crash too: the sentinel died and main ended quietly.
            self._replace_cluster(f"ended by itself (exit code {code})")
        elif self._is_whole():
            self.whole_at = time.monotonic()
        elif (lacking := time.monotonic() - self.whole_at) > WHOLE_WITHIN:
            # Its sentinel is frozen, or waits for a lock that a killed worker took along.
            self._replace_cluster(f"has lacked a process for {lacking:.0f} s and does not replace it")

    def _is_whole(self) -> bool:
        """Does the cluster have its workers, its monitor and its pusher?"""
        sentinel = children(self.cluster.pid) if self.cluster else None
        guarded = children(sentinel[0]) if sentinel else None
        return guarded is None or len(guarded) >= settings.WORKERS + 2

    def _replace_cluster(self, why: str) -> None:
        logger.error("The queue's cluster %s; starting another.", why)
        self._kill_cluster()
        self.restarts += 1
        now = time.monotonic()
        self.deaths = [*(death for death in self.deaths if death > now - 60), now]
        self.stop.wait(RESTART_AFTER[min(len(self.deaths), len(RESTART_AFTER)) - 1])

    def _start_cluster(self) -> subprocess.Popen:
        command = [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), "runner", "--cluster", str(os.getpid())]
        self.canary.begin()
        self.whole_at = time.monotonic() + Canary.STARTING
        return subprocess.Popen(command, start_new_session=True)

    def _end_cluster(self) -> bool:
        """SIGTERM to main alone: running steps come to their checkpoint. What is left after the grace is killed."""
        if self.cluster is None:
            return True
        self.cluster.terminate()
        try:
            code = self.cluster.wait(settings.STOP_GRACE)
        except subprocess.TimeoutExpired:
            return False
        else:
            return code == 0
        finally:
            self._kill_cluster()

    def _kill_cluster(self) -> None:
        if self.cluster is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.cluster.pid, signal.SIGKILL)
            self.cluster.wait()
            self.cluster = None

    # What others can see of it

    def _beat(self) -> None:
        was_silent = {"beat_at__lt": DatabaseNow() - SILENCE}
        Beat.objects.update_or_create(
            host=host(),
            defaults={
                "pid": os.getpid(),
                "cluster_pid": self.cluster.pid if self.cluster else None,
                "workers": settings.WORKERS,
                "beat_at": DatabaseNow(),
                "canary_at": self.canary.acknowledged_at,
                "restarts": self.restarts,
                "silent_from": Case(When(**was_silent, then=F("beat_at")), default=F("silent_from")),
                "back_at": Case(When(**was_silent, then=DatabaseNow()), default=F("back_at")),
            },
            create_defaults={
                "pid": os.getpid(),
                "workers": settings.WORKERS,
                "started_at": DatabaseNow(),
                "beat_at": DatabaseNow(),
            },
        )

    def _say_goodbye(self) -> None:
        Beat.objects.filter(host=host(), pid=os.getpid()).delete()

    def _watch_canary(self) -> None:
        """A cluster that takes bells but acknowledges none hangs, and looks alive from outside: only this shows it."""
        silent_for = self.canary.silent_for(settings.CANARY_EVERY, busy=self._all_busy())
        if silent_for > settings.CANARY_EVERY:
            self._replace_cluster(f"acknowledged nothing for {silent_for:.0f} s: it hangs")

    def _all_busy(self) -> bool:
        at_work = Run.objects.filter(status=Status.RUNNING, worker__startswith=f"{host()}:")
        return at_work.values("worker").distinct().count() >= settings.WORKERS


def work_off() -> int:
    """Do in this process what is ready and due, until nothing is left; how many stretches. Needs no queue."""
    worked = 0
    while True:
        sweep()
        lease = Lease.take_any()
        if lease is None:
            notices.send_due()
            return worked
        Stretch(lease, time.monotonic() + settings.STRETCH).work()
        worked += 1


def status() -> dict:
    """The runners that have beaten, the queue and what waits for a worker, for people and monitors."""
    now = database_clock()
    return {
        "at": now,
        "runners": [
            {
                "host": beat.host,
                "pid": beat.pid,
                "workers": beat.workers,
                "started_at": beat.started_at,
                "silent_for": (now - beat.beat_at).total_seconds(),
                "alive": now - beat.beat_at < timedelta(seconds=10),
                "queue_answered_at": beat.canary_at,
                "restarts": beat.restarts,
            }
            for beat in Beat.objects.order_by("host")
        ],
        "queue": Canary.queue(),
        "ready": Run.objects.filter(status=Status.READY).count(),
        "running": Run.objects.filter(status=Status.RUNNING).count(),
    }
