"""python -m tests.bench [--quick] [--only W1 W3 …]: measure everything in one run, print a table, keep it as JSON."""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .database import Database
    from .figures import Figures

PARTS = ("W1", "W2", "W3", "W4", "W5", "W6", "W7", "pages", "ledger", "console")


@dataclass(frozen=True)
class Size:
    """How much is measured. `races` are the rounds of W1 and W2, `rounds` those of the rest, all interleaved."""

    races: int = 5
    rounds: int = 3
    alone: int = 100
    together: int = 200
    latencies: int = 40
    parked: int = 10_000
    idle_seconds: float = 10
    approvals: int = 100_000
    appends: int = 800
    finished: int = 1_000_000
    live: int = 100_000
    histories: tuple[int, ...] = (10, 100, 1000)


QUICK = Size(
    races=2,
    rounds=1,
    alone=50,
    latencies=20,
    parked=500,
    idle_seconds=3,
    approvals=5_000,
    appends=400,
    finished=20_000,
    live=5_000,
)


@dataclass
class Bench:
    template: "Database"
    figures: "Figures"
    size: Size
    parts: set[str] = field(default_factory=lambda: set(PARTS))

    def run(self) -> None:
        for part, measure in self._measures():
            if part & self.parts:
                began = time.monotonic()
                measure()
                print(f"  {'/'.join(sorted(part & self.parts))} measured in {time.monotonic() - began:.0f} s")

    def _measures(self) -> Iterator[tuple[set[str], Callable[[], None]]]:
        yield {"W1", "W2"}, self._throughput
        yield {"W1", "W3", "W7"}, self._latency
        yield {"W4"}, self._parked
        yield {"W5"}, self._history
        yield {"W6"}, self._conversation
        yield {"pages"}, self._pages
        yield {"ledger"}, self._ledger
        yield {"console"}, self._console

    def _throughput(self) -> None:
        from .cluster import Cluster
        from .database import copied

        with (
            copied(self.template, "one") as one,
            copied(self.template, "two") as two,
            copied(self.template, "own") as own,
        ):
            with Cluster(one, workers=1), Cluster(two, workers=2):
                self._race(type(self.figures)(), "warm", own, one, two)
                for number in range(self.size.races):
                    self._race(self.figures, f"race-{number}", own, one, two)

    def _race(self, figures: "Figures", tag: str, own: "Database", one: "Database", two: "Database") -> None:
        from . import throughput

        own.point_django_here()
        throughput.measure_one_worker(own, figures, tag, self.size.alone)
        throughput.measure_two_processes(own, figures, self.size.together)
        for database, workers in ((one, 1), (two, 2)):
            database.point_django_here()
            throughput.measure_cluster(database, figures, tag, self.size.together, workers)

    def _latency(self) -> None:
        from . import latency
        from .cluster import Cluster
        from .database import copied
        from .floor import Hop

        with copied(self.template, "latency") as database, Hop(database) as hop, Cluster(database, workers=2):
            latency.measure_start(type(self.figures)(), "warm", 10)
            for number in range(self.size.rounds):
                latency.measure_hop(hop, self.figures, self.size.latencies)
                latency.measure_start(self.figures, f"start-{number}", self.size.latencies)
                latency.measure_deliver(self.figures, f"deliver-{number}", self.size.latencies)

    def _parked(self) -> None:
        from . import storage
        from .database import copied

        with copied(self.template, "parked") as database:
            storage.measure_idle(database, self.figures, 0, self.size.idle_seconds)
            storage.measure_parked(database, self.figures, self.size.parked)
            storage.measure_idle(database, self.figures, self.size.parked, self.size.idle_seconds)

    def _history(self) -> None:
        from . import history
        from .database import copied

        with copied(self.template, "history") as database:
            made = {steps: history.make(database, steps, 2 * self.size.rounds + 3) for steps in self.size.histories}
            for steps, runs in made.items():
                history.measure(type(self.figures)(), steps, runs[:3])
            for number in range(self.size.rounds):
                for steps, runs in made.items():
                    history.measure(self.figures, steps, runs[3 + 2 * number : 5 + 2 * number])

    def _conversation(self) -> None:
        from . import storage
        from .database import copied

        with copied(self.template, "chat") as database:
            for number in range(self.size.rounds):
                storage.measure_conversation(database, self.figures, f"chat-{number}", runs=8)

    def _pages(self) -> None:
        from . import pages
        from .database import copied

        with copied(self.template, "pages"):
            pages.measure_inbox(self.figures, self.size.approvals, self.size.rounds)

    def _ledger(self) -> None:
        from . import ledger
        from .database import copied

        with copied(self.template, "ledger") as database:
            ledger.measure_appends(database, type(self.figures)(), self.size.appends // 4)
            for _ in range(self.size.rounds):
                ledger.measure_appends(database, self.figures, self.size.appends)

    def _console(self) -> None:
        from . import console
        from .database import copied

        with copied(self.template, "console"):
            console.measure_console(self.figures, self.size.finished, self.size.live, self.size.rounds)


@contextmanager
def loads(figures: "Figures") -> Iterator[None]:
    """The machine's load before and after: without it a figure says little."""
    figures.add("load of the machine", os.getloadavg()[0])
    yield
    figures.add("load of the machine", os.getloadavg()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute instead of three, and less sure")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts alone")
    options = parser.parse_args()
    os.environ.update(DJANGO_SETTINGS_MODULE="tests.bench.settings", DEBUG="1", LOG_LEVEL="ERROR")
    import django
    from django.conf import settings

    django.setup()
    from .database import migrated
    from .figures import Figures

    figures, size = Figures(), QUICK if options.quick else Size()
    began = time.monotonic()
    with migrated() as template, loads(figures):
        Bench(template, figures, size, set(options.only)).run()
    print(f"\n{figures.table()}\n\nMeasured in {time.monotonic() - began:.0f} s on {os.cpu_count()} cores.")
    kept = Path(settings.VAR_DIR) / "bench.json"
    kept.write_text(json.dumps(figures.as_json(), indent=1))
    print(f"Kept in {kept}.")


if __name__ == "__main__":
    main()
