"""`manage.py export_case RUN`: one run with everything that proves what was decided in it, as one archive. May import
export, checkpoints and runs' console."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from approvals import checkpoints, export
from approvals.ledger import CannotSign
from runs.errors import NoSuchRun
from runs.management import console
from runs.management.console import NotFound, Refused, Usage


class Command(BaseCommand):
    help = (
        "Writes a run's timeline, payloads, facts, decisions, effects, ledger entries with the proof of their place, "
        "templates and keys into one archive, which approvals/verifier.py verifies elsewhere. The export is recorded "
        "in the audit table. Whoever runs this reads every team's runs."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("run", metavar="RUN", type=console.text, help="the run's key")
        parser.add_argument("--output", metavar="FILE", type=Path, help="a new file (RUN.zip); one that exists stays")
        parser.add_argument("--as", dest="user", metavar="USER", type=console.text, help="who exports it")
        noted = "checkpoints that an auditor noted, one JSON line each: the archive proves that it goes on from them"
        parser.add_argument("--noted", metavar="FILE", type=Path, help=noted)

    def handle(self, *args: Any, **options: Any) -> None:
        path = options["output"] or Path(f"{options['run']}.zip")
        user = console.person(options["user"])
        if path.exists():
            raise Usage(f"{path} exists already, and is not overwritten.")
        try:
            noted = checkpoints.noted(options["noted"]) if options["noted"] else []
            packed = export.of_run(options["run"], by=user, actor=console.ACTOR, noted=noted)
            with path.open("xb") as file:
                file.write(packed)
        except NoSuchRun as refusal:
            raise NotFound(str(refusal)) from None
        except CannotSign as refusal:
            raise Refused(str(refusal)) from None
        except (OSError, ValueError) as problem:
            raise Usage(f"Nothing was exported: {problem}.") from None
        self.stdout.write(f"{path}: {len(packed):,} bytes. Verify it with approvals/verifier.py {path} TRUST.")
