"""`manage.py import_claims FILE.csv`: reads the options, shows progress, reports. The work is `intake`'s."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, User
from django.core.management.base import BaseCommand, CommandError, CommandParser
from tqdm import tqdm

from durable_site.claims.fema import ParsedClaim, RefusedRow, read_rows
from durable_site.claims.intake import Intake, Outcome
from durable_site.claims.world import World


class Command(BaseCommand):
    help = (
        "Imports claims from a CSV file with FEMA's columns; starts one run of claim-payout for each row. Repeatable. "
        "Exit code 0: every row is in; 1: some were refused, or the sandbox is down; 2: the file or an option is wrong."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", metavar="FILE.csv", type=Path)
        parser.add_argument("--team", default="claims", metavar="NAME", help="the team that sees the runs (claims)")
        parser.add_argument("--as", dest="user", metavar="USER", help="who starts the runs (the system)")
        parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
        parser.add_argument("--quiet", action="store_true", help="show no progress bar")

    def handle(self, *args: Any, **options: Any) -> None:
        team, user = _team(options["team"]), _user(options["user"])
        is_silent = options["quiet"] or options["as_json"] or not sys.stderr.isatty()
        with _opened(options["file"]) as content, World() as world:
            outcome = Intake(world, team, user).take_all(_with_progress(content, is_silent))
        self.stdout.write(json.dumps(outcome.as_json()) if options["as_json"] else _report(outcome))
        if outcome.exit_code:
            raise CommandError(_why_not_good(outcome), returncode=outcome.exit_code)


def _team(name: str) -> Group:
    team = Group.objects.filter(name=name).first()
    if team is None:
        raise CommandError(f"There is no team {name}. Name one with --team, or add it in the admin.", returncode=2)
    return team


def _user(name: str | None) -> User | None:
    if name is None:
        return None
    user = get_user_model().objects.filter(username=name, is_active=True).first()
    if user is None:
        raise CommandError(f"There is no active user {name}.", returncode=2)
    return user


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}.", returncode=2) from error
    with file:
        yield file


def _with_progress(file: BinaryIO, is_silent: bool) -> Iterator[tuple[int, ParsedClaim | RefusedRow]]:
    """The rows of the file; the bar shows the bytes read, since the number of rows is not known before the end."""
    size = Path(file.name).stat().st_size
    with tqdm(total=size, unit="B", unit_scale=True, desc="claims", file=sys.stderr, disable=is_silent) as bar:
        for row in read_rows(file):
            bar.update(file.tell() - bar.n)
            yield row


def _report(outcome: Outcome) -> str:
    counts = f"started {outcome.started}, unchanged {outcome.unchanged}, refused {len(outcome.refused)}"
    return "\n".join([counts, *(f"  line {row.line}: {row.reason}" for row in outcome.refused)])


def _why_not_good(outcome: Outcome) -> str:
    if outcome.stopped:
        return outcome.stopped
    rows = "One row was" if len(outcome.refused) == 1 else f"{len(outcome.refused)} rows were"
    return f"{rows} refused; the others are in."
