"""The test kit, for authors too: work off everything at once, and move the clock.

Only in a database whose name begins with `test_`. May import lease, advance, sweep.
"""

from datetime import timedelta

from django.db import connection

from .advance import Stretch
from .lease import Lease
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


def refuse_elsewhere() -> None:
    name = str(connection.settings_dict["NAME"])
    if not name.startswith("test_"):
        raise NotATestDatabase(name)
