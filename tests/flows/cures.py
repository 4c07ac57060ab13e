"""Switches a cure off in a real runner process, to show that its fault hurts without it. No part of the product.

WITHOUT names the cures, comma-separated. Each is taken away by replacing one function of ours in that process.
"""

import os
from collections.abc import Callable


def switch_off() -> None:
    for name in filter(None, os.environ.get("WITHOUT", "").split(",")):
        CURES[name]()


def _queue() -> None:
    """The stock Queue.get, which waits while it holds the pipe's read lock."""
    from runs import doorbell

    doorbell.cure_queue = lambda: None


def _parent() -> None:
    """Children outlive their parent."""
    from runs import doorbell

    doorbell._end_with_parent = lambda: None


def _canary() -> None:
    """Nobody sees that a cluster hangs."""
    from runs.runner import Runner

    Runner._watch_canary = lambda self: None


def _session() -> None:
    """The cluster shares the runner's process group, and so its signals."""
    import subprocess

    from runs import runner

    class InOurGroup(subprocess.Popen):
        def __init__(self, command: list[str], **options: object) -> None:
            super().__init__(command)

    runner.subprocess = type("subprocess", (), {"Popen": InOurGroup, "TimeoutExpired": subprocess.TimeoutExpired})


def _liveness() -> None:
    """Leases of dead processes run out by themselves only."""
    from runs import sweep

    sweep._dead_workers = list


def _sweep() -> None:
    """Nobody looks for what lost its bell or its worker."""
    from runs import runner

    runner.sweep = dict


def _calm() -> None:
    """A broken connection goes up to django-q2's pusher, which sleeps ten seconds."""
    from runs import doorbell

    doorbell.OperationalError = doorbell.InterfaceError = ZeroDivisionError


def _count() -> None:
    """Attempts that never came to an end are not counted."""
    from runs.advance import Stretch

    Stretch._tried_too_often = lambda self, step: False


CURES: dict[str, Callable[[], None]] = {
    "queue": _queue,
    "parent": _parent,
    "canary": _canary,
    "session": _session,
    "liveness": _liveness,
    "sweep": _sweep,
    "calm": _calm,
    "count": _count,
}
