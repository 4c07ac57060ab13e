"""The doorbell: a queue message that says "look at run N". Losing, doubling or delaying one is harmless.

The only module that imports django_q. A bell is plain JSON, inserted in the caller's transaction, so that it appears
with the move that makes it needed, or not at all. The queue's own pickles never touch the table: what is taken out is
checked against the one function that may run, and packed in memory for django-q2's pusher.
"""

import contextlib
import ctypes
import json
import logging
import math
import mmap
import os
import queue
import resource
import select
import signal
import time
import uuid
from datetime import datetime, timedelta
from typing import Any

import psycopg
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, connections
from django.utils import timezone
from django_q.brokers.orm import ORM
from django_q.cluster import Cluster
from django_q.conf import Conf
from django_q.models import Task
from django_q.queues import Queue
from django_q.signing import SignedPackage

from . import workflows
from .identity import host
from .models import database_clock

logger = logging.getLogger(__name__)

CHANNEL = "runs_bell"
NO_RUN = 0
"""What a canary rings for: no run has this id."""
FUNCTION = "runs.tasks.advance_run"
FALLBACK = 1.0
"""Seconds the broker waits for a notification before it looks at the table anyway; also the most it delays a stop."""

RING = """
INSERT INTO django_q_ormq (key, payload, lock)
SELECT 'runs', json_build_object('run', id)::text, clock_timestamp() FROM {source} WHERE {when} RETURNING id
"""
"""A bell for each row of a common table expression; use with NOTIFY in the same statement's final SELECT."""

NOTIFY = f"SELECT pg_notify('{CHANNEL}', '')"
_RING_ONE = f"""
WITH bell AS (SELECT %s::bigint AS id), rung AS ({RING.format(source="bell", when="true")})
{NOTIFY} FROM rung
"""
_RUN_OF_BELL = r"""substring(payload from '^\{"run" ?: ([0-9]{1,18})\}$')::bigint"""
_LOCK_NEXT = f"""
UPDATE django_q_ormq SET lock = clock_timestamp() + make_interval(secs => %(retry)s) WHERE id IN (
  SELECT id FROM django_q_ormq WHERE key = ANY(%(keys)s) AND lock <= clock_timestamp()
   ORDER BY lock, id LIMIT %(bulk)s FOR UPDATE SKIP LOCKED)
RETURNING id, payload, NOT EXISTS (SELECT FROM runs_run WHERE id = {_RUN_OF_BELL} AND status <> 'ready')
"""
_DROP_NEEDLESS = f"""
DELETE FROM django_q_ormq WHERE id = ANY(%(known)s) OR id IN (
  SELECT bell.id FROM (
    SELECT id, {_RUN_OF_BELL} AS run FROM django_q_ormq WHERE key = %(key)s AND lock <= clock_timestamp()
     ORDER BY lock, id LIMIT 500 FOR UPDATE SKIP LOCKED) AS bell
    JOIN runs_run ON runs_run.id = bell.run WHERE status <> 'ready')
"""


def ring(run_id: int) -> None:
    """Ring for a run, in the caller's transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            _RING_ONE,
            [run_id],
        )


class Canary:
    """A bell that carries no work, for one host's cluster alone: taken, executed and acknowledged, it proves that the
    whole chain of pusher, worker and monitor lives. Unacknowledged it is the only sign of a cluster that hangs."""

    STARTING = 30
    """Seconds more that a cluster gets for its first one."""

    def __init__(self, host: str) -> None:
        self.key = f"canary {host}"
        self.acknowledged_at: datetime | None = None
        self.begin()

    def begin(self) -> None:
        """A new cluster starts."""
        self._row: int | None = None
        self._sent = self._rung = -math.inf
        self._excused = time.monotonic() + self.STARTING

    def excuse(self) -> None:
        """Nobody could answer it until now."""
        self._excused = max(self._excused, time.monotonic())

    def silent_for(self, every: float, *, busy: bool) -> float:
        """Seconds that a canary has been missing while a worker was free to answer it; sends three in `every` seconds.
        `busy`: all workers are at work now. That is an excuse for as long as each may have two bells before it."""
        now = time.monotonic()
        if self._row is not None and not self._waits():
            self._row, self.acknowledged_at, self._excused = None, database_clock(), now
        if self._row is None:
            if now - self._sent >= every / 3:
                self._send()
            return 0
        if busy and now - self._sent < 3 * longest_bell():
            self.excuse()
        if now - self._rung >= every / 3:
            self._ring()
        return max(0.0, now - max(self._sent, self._excused))

    def _waits(self) -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT EXISTS (SELECT FROM django_q_ormq WHERE id = %s)", [self._row])
            return cursor.fetchone()[0]

    def _send(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM django_q_ormq WHERE key = %s", [self.key])
            cursor.execute(
                "INSERT INTO django_q_ormq (key, payload, lock) VALUES (%s, %s, clock_timestamp()) RETURNING id",
                [self.key, json.dumps({"run": NO_RUN})],
            )
            self._row = cursor.fetchone()[0]
        self._sent = time.monotonic()
        self._ring()

    def _ring(self) -> None:
        # Before all bells, so that a long queue does not look like a hung one; and again, since whoever had it in hand
        # may have been killed.
        with connection.cursor() as cursor:
            cursor.execute("UPDATE django_q_ormq SET lock = to_timestamp(0) WHERE id = %s", [self._row])
            cursor.execute(NOTIFY)
        self._rung = time.monotonic()

    @staticmethod
    def queue() -> dict[str, float]:
        """Bells that nobody has taken, and the age of the oldest in seconds."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(lock)), 0) FROM django_q_ormq"
                " WHERE key = 'runs' AND lock <= clock_timestamp()"
            )
            bells, oldest = cursor.fetchone()
        return {"bells": bells, "oldest": float(oldest)}


class NotABell(ValueError):
    def __init__(self, payload: str) -> None:
        super().__init__(f"Only bells may enter this queue: {FUNCTION} with one run id, not {payload[:80]!r}.")


class WakeBroker(ORM):
    """django-q2's ORM broker, woken by NOTIFY, with JSON bells; polls each second when it cannot listen."""

    _ears: tuple[int, psycopg.Connection | None] = (0, None)

    def enqueue(self, task: str) -> int:
        """Only reached by async_task(): accept a bell, refuse every other function."""
        package = SignedPackage.loads(task)
        if package["func"] != FUNCTION or len(package["args"]) != 1 or package["kwargs"]:
            raise NotABell(str(package["func"]))
        ring(int(package["args"][0]))
        return 0

    def dequeue(self) -> list[tuple[int, str]] | None:
        try:
            # Listen first, look second, wait third: a bell that rings in between is heard.
            ears = self._listen()
            if bells := self._take():
                return bells
            self._wait(ears)
            return self._take() or None
        except (OperationalError, InterfaceError) as error:
            # Letting it out would cost ten seconds: django-q2's pusher sleeps that long and is forked anew.
            self._let_go(error)
            time.sleep(FALLBACK)
            return None

    def acknowledge(self, task_id: int) -> None:
        try:
            super().acknowledge(task_id)
        except (OperationalError, InterfaceError) as error:
            # Letting it out would end the monitor. The bell is rung once more, later, and finds nothing to do.
            self._let_go(error)

    def _let_go(self, error: Exception) -> None:
        logger.error("The doorbell cannot reach the database: %s", type(error).__name__)
        connections[Conf.ORM].close()

    def _take(self) -> list[tuple[int, str]]:
        """The bells that are next; rows that are none, and bells that nobody needs any more, are dropped on the way."""
        while rows := self._lock_next():
            if needless := [bell_id for bell_id, _, is_needed in rows if not is_needed]:
                self._drop_needless(needless)
            needed = [(bell_id, payload) for bell_id, payload, is_needed in rows if is_needed]
            if bells := [
                (bell_id, package) for bell_id, payload in needed if (package := self._pack(bell_id, payload))
            ]:
                return bells
        return []

    def _lock_next(self) -> list[tuple[int, str, bool]]:
        keys = [self.list_key, Canary(host()).key]
        with connections[Conf.ORM].cursor() as cursor:
            cursor.execute(_LOCK_NEXT, {"retry": Conf.RETRY, "keys": keys, "bulk": Conf.BULK})
            return cursor.fetchall()

    def _drop_needless(self, known: list[int]) -> None:
        """Drop these, and those behind them whose runs are not ready: a worker that answered another bell was quicker,
        and whatever makes a run ready again rings again. A bell costs milliseconds of four processes, this does not."""
        with connections[Conf.ORM].cursor() as cursor:
            cursor.execute(_DROP_NEEDLESS, {"known": known, "key": self.list_key})

    def _pack(self, bell_id: int, payload: str) -> str | None:
        try:
            run_id = _run_of(payload)
        except NotABell as refusal:
            logger.error("Dropped row %s of the queue. %s", bell_id, refusal)
            self.delete(bell_id)
            return None
        return SignedPackage.dumps(
            {
                "id": uuid.uuid4().hex,
                "name": f"bell {bell_id}",
                "func": FUNCTION,
                "args": (run_id,),
                "kwargs": {},
                "started": timezone.now(),
                "ack_failure": True,
            }
        )

    def _listen(self) -> psycopg.Connection | None:
        if settings.DATABASE_POOLER:
            return None
        pid, ears = self._ears
        if pid == os.getpid() and ears is not None and not ears.closed:
            return ears
        # Made lazily and keyed by pid: the broker is built before the pusher is forked.
        try:
            ears = psycopg.connect(**connections[Conf.ORM].get_connection_params() | {"autocommit": True})
            ears.execute(f"LISTEN {CHANNEL}")
        except psycopg.Error:
            ears = None
        self._ears = (os.getpid(), ears)
        return ears

    def _wait(self, ears: psycopg.Connection | None) -> None:
        if ears is None:
            time.sleep(Conf.POLL)
            return
        try:
            for _ in ears.notifies(timeout=FALLBACK, stop_after=1):
                pass
        except psycopg.Error:
            # The connection is gone, nothing else: poll until there is another.
            self._ears = (os.getpid(), None)
            with contextlib.suppress(psycopg.Error):
                ears.close()


def _run_of(payload: str) -> int:
    try:
        bell = json.loads(payload)
    except ValueError:
        raise NotABell(payload) from None
    if not isinstance(bell, dict) or set(bell) != {"run"} or type(bell["run"]) is not int:
        raise NotABell(payload)
    if not 0 <= bell["run"] < 2**63:
        raise NotABell(payload)
    return bell["run"]


# What the runner starts: django-q2's cluster with the cures that docs/queue.md explains.

_stop = mmap.mmap(-1, 1)
"""One byte shared by main and everything it forks: set when a stop was asked for."""


def stopping() -> bool:
    """Was this cluster asked to stop? A stretch ends after its next commit then."""
    return _stop[0] == 1


class TiedCluster(Cluster):
    """A cluster whose signal handler only raises a flag: stopping inside a handler can deadlock (django-q2 #346)."""

    def sig_handler(self, signum: int, frame: Any) -> None:
        _stop[0] = 1


def forget_failures(older_than: timedelta) -> int:
    """Delete what the queue kept of tasks that failed in it so long ago; how many. It keeps no successes."""
    return int(Task.objects.filter(stopped__lt=database_clock() - older_than).delete()[0])


def longest_bell() -> int:
    """Seconds that one bell may take: the longest step that is registered here, and a margin."""
    steps = [step.timeout for flow in workflows.registered() for step in flow.steps.values() if step.timeout]
    longest = max([settings.STEP_TIMEOUT, *(timeout.total_seconds() for timeout in steps)])
    return math.ceil(longest) + 15


def run_cluster(runner: int) -> None:
    """Run a cluster until SIGTERM or SIGINT, or until the process `runner` that started it is gone. Raises RuntimeError
    when its sentinel died: exit code 0 means that a stop was asked for."""
    # Known only now that all workflows are: the queue's own alarm is the last resort, behind every step's.
    Conf.TIMEOUT = longest_bell()
    Conf.RETRY = 2 * Conf.TIMEOUT + 60
    cure_queue()
    _end_with_parent()
    if os.getppid() != runner:
        raise RuntimeError("The runner that started this cluster is gone.")
    os.register_at_fork(after_in_child=_end_with_parent)
    _limit_memory()
    cluster = TiedCluster()
    cluster.timeout = Conf.TIMEOUT
    cluster.start()
    while cluster.sentinel.is_alive() and not stopping():
        cluster.sentinel.join(0.1)
    if not stopping():
        raise RuntimeError("The queue's sentinel died without a stop being asked for.")
    cluster.stop()


def cure_queue() -> None:
    """Let a process wait for work without holding the pipe's read lock.

    multiprocessing.Queue.get blocks while it holds the lock; a worker that is killed then takes the lock with it, and
    its successors wait for ever. Waiting comes first here, and the lock is held only to take what is there.
    """
    Queue.get = _get_without_waiting_locked


def _get_without_waiting_locked(self: Any, block: bool = True, timeout: float | None = None) -> Any:
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = 0.0 if not block else 1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if select.select([self._reader], [], [], left)[0] and self._rlock.acquire(timeout=0.05):
            try:
                if self._poll():
                    packed = self._recv_bytes()
                    self._sem.release()
                    self.size.increment(-1)
                    return _unpickle(packed)
            finally:
                self._rlock.release()
        if not block or (deadline is not None and time.monotonic() >= deadline):
            raise queue.Empty


def _limit_memory() -> None:
    # A step that eats memory gets a MemoryError of its own, before the kernel kills a neighbour for it.
    if settings.WORKER_MEMORY:
        most = settings.WORKER_MEMORY * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _unpickle(packed: bytes) -> Any:
    from multiprocessing.reduction import ForkingPickler

    return ForkingPickler.loads(packed)


def _end_with_parent() -> None:
    # PR_SET_PDEATHSIG: the kernel kills this child when its parent dies, so that no orphan goes on pulling bells.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
