"""A step's time limit: an alarm that ends it wherever it is. Imports nothing of ours."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class TimeIsUp(KeyboardInterrupt):
    """The step took longer than it may. Not an Exception: an author's `except Exception` must not swallow it. An
    interrupt: psycopg cancels the query that one of those cuts short, and the connection stays usable."""


@contextmanager
def unhurried() -> Iterator[None]:
    """Let no alarm cut this block short; one that comes in it strikes behind it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def limited(seconds: float, error: type[TimeIsUp] = TimeIsUp) -> Iterator[None]:
    """Raise `error` in the block once `seconds` are over. Without effect outside the main thread, which gets no
    signals; the queue's own alarm, if one is set, goes on behind ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    armed = True

    def expire(*_: object) -> None:
        if armed:
            raise error

    before, began = signal.signal(signal.SIGALRM, expire), time.monotonic()
    outer, every = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            yield
        finally:
            # Disarmed first: an alarm that comes from here on must not cut the restoring short.
            armed = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if outer:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, outer - (time.monotonic() - began)), every)


@contextmanager
def limited_within(seconds: float, error: type[TimeIsUp]) -> Iterator[None]:
    """As `limited`, inside a block that has a limit of its own: what is left of that comes first where it is less."""
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    if 0 < left <= seconds:
        yield
    else:
        with limited(seconds, error):
            yield
