"""The test kit, for authors too: work off everything at once, move the clock, crash at a point.

docs/testing.md shows it at work. Only in a database whose name begins with `test_`. May import failpoints, lease,
advance, sweep, models.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.db import connection

from . import failpoints
from .advance import Stretch
from .lease import Lease
from .models import Run, database_clock
from .states import Status
from .sweep import sweep

LONG = 1e12
"""Until when a drained stretch may go on: for ever."""


class NotATestDatabase(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(f"The test kit works only in a database whose name begins with test_, not in {name}.")


def drain(limit: int = 10_000) -> int:
    """Work in this process until no run is ready and nothing is due; the number of stretches. No queue is needed."""
    refuse_elsewhere()
    for worked in range(limit):
        sweep()
        lease = Lease.take_any()
        if lease is None:
            return worked
        Stretch(lease, LONG).work()
    raise AssertionError(f"After {limit} stretches there was still work: does a workflow loop for ever?")


def move_clock(by: timedelta) -> None:
    """Move the database's clock for everybody who uses this database, from where it really is."""
    refuse_elsewhere()
    shift = f"interval ''{by.total_seconds()} seconds''"
    with connection.cursor() as cursor:
        for function, volatility, clock in (("runs_clock", "VOLATILE", "clock"), ("runs_now", "STABLE", "statement")):
            cursor.execute(
                f"CREATE OR REPLACE FUNCTION {function}() RETURNS timestamptz LANGUAGE sql {volatility} "
                f"AS 'SELECT {clock}_timestamp() + {shift}'"
            )


class Crashed(BaseException):
    """The worker of this test has died. Nothing may catch it but `crash_at`."""


class NeverReached(AssertionError):
    def __init__(self, point: str, reached: list[str]) -> None:
        known = "\n  ".join(reached) or "none"
        super().__init__(f"The point {point} was never reached, so nothing crashed. These were:\n  {known}")


@contextmanager
def crash_at(point: str) -> Iterator[None]:
    """Let the worker die where it reaches this point in the block, such as `claim-1:step6:payments.transfer-answered`:
    what is not committed is gone, and the next `drain()` finds the run as a sweep does after its lease.

    Raises NeverReached, which lists the points that were.
    """
    refuse_elsewhere()
    reached: list[str] = []

    def die(here: str) -> None:
        reached.append(here)
        if here == point:
            raise Crashed

    failpoints.listen(die)
    try:
        yield
    except Crashed:
        Run.objects.filter(status=Status.RUNNING).update(lease_until=database_clock())
    else:
        raise NeverReached(point, reached)
    finally:
        failpoints.listen(None)


def refuse_elsewhere() -> None:
    name = str(connection.settings_dict["NAME"])
    if not name.startswith("test_"):
        raise NotATestDatabase(name)
