"""W5: how long a run that has made 10, 100 or 1,000 steps takes from its claim to the next step's first line."""

from statistics import median

from runs.advance import Stretch
from runs.engine import deliver
from runs.lease import Lease
from runs.models import Checkpoint, Run

from .database import Database
from .figures import Figures, Goal
from .throughput import started
from .workflows import GO, history, instant

EVER = 1e12


def make(database: Database, steps: int, runs: int) -> list[Run]:
    """Parked runs that have made so many steps."""
    with database.committing_without_waiting():
        for run in started(f"history-{steps}", runs, workflow=history, turns=steps):
            lease = Lease.take(run)
            assert lease is not None
            Stretch(lease, EVER).work()
    made = list(Run.objects.filter(key__startswith=f"history-{steps}-"))
    assert all(run.position == steps and run.status == "waiting" for run in made)
    return made


def measure(figures: Figures, steps: int, runs: list[Run]) -> None:
    began, read = [], []
    for run in runs:
        deliver(run.key, GO, {})
        at = instant()
        lease = Lease.take(run.pk)
        assert lease is not None
        Stretch(lease, EVER).work()
        said = Checkpoint.objects.get(run=run, step="resumed").output
        began.append(1000 * (said["at"] - at))
        read.append(1000 * (said["read_at"] - at))
    name = f"W5 ms, resume after {steps:,} steps"
    figures.add(f"{name}: engine", median(began), goal=Goal(most=10))
    figures.add(f"{name}, its state read: engine", median(read))
