"""`manage.py seed_runs`: very many made-up runs, to try the pages among them.

May import seeding.
"""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection
from tqdm import tqdm

from runs import seeding
from runs.seeding import Amount

REFUSED = (
    "{why} What is made cannot be taken out again: checkpoints and moves are append-only. Nothing was made. Use a "
    "database of its own for it (its name should begin with test_), or say --yes-really."
)


class Command(BaseCommand):
    help = "Makes very many made-up runs of workflows that no code knows. Called again it makes what is missing."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--finished", type=_number, default=1_000_000, metavar="N", help="(1000000)")
        parser.add_argument("--live", type=_number, default=100_000, metavar="N", help="(100000)")
        parser.add_argument("--days", type=_number, default=60, metavar="N", help="over which they were started (60)")
        parser.add_argument("--no-tallies", action="store_true", help="leave counting them to the runner")
        parser.add_argument("--yes-really", action="store_true", help="also where a site may be in use")
        parser.add_argument("--quiet", action="store_true", help="show no progress bar")

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["yes_really"]:
            _refuse()
        amount = Amount(options["finished"], options["live"], options["days"])
        silent = options["quiet"] or not sys.stderr.isatty()
        with _bar("runs", amount.runs, silent) as bar:
            seeding.seed(amount, lambda made: _advance(bar, made))
        if not options["no_tallies"]:
            with _bar("counted, %", 100, silent) as bar:
                seeding.count_up(lambda share: _advance(bar, round(100 * share)))
        self.stdout.write(f"There are {amount.runs:,} seeded runs, and {seeding.LONG} with very many steps.")


def _number(word: str) -> int:
    if not word.isascii() or not word.isdecimal() or not 0 < int(word) <= 100_000_000:
        raise ValueError(word)
    return int(word)


def _refuse() -> None:
    name = connection.settings_dict["NAME"]
    if not seeding.is_known_as_test():
        raise CommandError(REFUSED.format(why=f"DEBUG is off, and {name} does not look like a database for trying."))
    if seeding.holds_real_runs():
        raise CommandError(REFUSED.format(why=f"The database {name} holds runs of workflows of its own."))


def _bar(unit: str, total: int, silent: bool) -> Any:
    return tqdm(total=total, unit=f" {unit}", file=sys.stderr, disable=silent)


def _advance(bar: Any, to: int) -> None:
    bar.update(to - bar.n)
