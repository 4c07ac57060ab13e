"""Who holds a lease: this process, its host, and whether such a holder still lives. Imports nothing of ours."""

import os
import socket
from functools import cache
from pathlib import Path


def identity() -> str:
    """This process as the holder of a lease, host:pid:start; start tells it from a later process of the same pid."""
    return _holder(os.getpid())


@cache
def _holder(pid: int) -> str:
    return f"{host()}:{pid}:{started(pid)}"


def lives(worker: str) -> bool:
    """Does this holder of a lease, a process of this host, still live?"""
    _, pid, began = worker.rsplit(":", 2)
    return started(int(pid)) == began


@cache
def host() -> str:
    """The name of this host, or the one that RUNNER_HOST gives it. No two runners that live at once may share one."""
    return (os.environ.get("RUNNER_HOST") or socket.gethostname())[:40]


def children(pid: int) -> list[int] | None:
    """The living processes that this one started; None where the kernel does not tell."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return [int(child) for child in listed.split() if started(int(child))]


def started(pid: int) -> str:
    """When the process began, in clock ticks since boot; empty when no such process lives here."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if state == "Z" else fields[18]
