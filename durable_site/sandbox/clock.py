"""The sandbox's clock: real time plus what tests have moved it forward by. Imports `refusals` and `store`.

Key life, the visibility of tickets and every date in the journal go by it; time limits of faults and delays are real.
"""

from datetime import UTC, datetime, timedelta

from durable_site.sandbox.refusals import Refusal
from durable_site.sandbox.store import Database

FURTHEST_AHEAD = 1_000_000_000  # seconds, some 31 years: far from what a date can hold


class Clock:
    """Moves forward only, and stays moved when the process is killed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        stored = database.rows("SELECT ahead_seconds FROM clock")
        self._ahead_seconds = float(stored[0][0]) if stored else 0.0

    @property
    def ahead_seconds(self) -> float:
        return self._ahead_seconds

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._ahead_seconds)

    def advance(self, seconds: float) -> None:
        """Raises Refusal when that leads too far ahead."""
        with self._database.lock:
            ahead = self._ahead_seconds + seconds
            if ahead > FURTHEST_AHEAD:
                raise Refusal(f"The clock cannot be moved more than {FURTHEST_AHEAD} seconds ahead of real time.")
            self._database.write("INSERT OR REPLACE INTO clock VALUES (1, ?)", (ahead,))
            self._ahead_seconds = ahead


def stamp(at: datetime) -> str:
    """UTC with microseconds and a Z: texts of one length, whose order is the order of the instants."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
