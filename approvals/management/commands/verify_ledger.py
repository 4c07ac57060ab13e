"""`manage.py verify_ledger`: is the ledger whole, and do the rows still say what was signed? May import ledger, guards,
checkpoints, measures, merkle and verifier; runs' upkeep."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from approvals import checkpoints, guards, ledger
from approvals.measures import VERIFIED
from approvals.verifier import Fault, exit_code
from runs.management import console
from runs.management.console import Usage
from runs.upkeep import report

CODES = ", ".join(f"{fault.value} {fault.name.lower().replace('_', ' ')}" for fault in Fault)
PROBLEMS_KEPT = 20
"""Of a broken ledger, for the health page and the alarm; the command itself names all."""


class Command(BaseCommand):
    help = (
        "Walks the ledger from its first entry: hashes, chain, keys, signatures, signed checkpoints, the rows that the "
        "entries speak of, and the triggers that guard them. Exit code 0: it is whole. Else each problem is named, "
        f"and the code is that of the one that says the most: {CODES}."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        console.add_json_option(parser)
        parser.add_argument(
            "--checkpoints", metavar="FILE", type=Path, help="signed checkpoints noted earlier, one JSON line each"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        noted = _noted(options["checkpoints"])
        verdict = ledger.verify(noted)
        verdict.note(guards.faults())
        answer = {
            "ok": verdict.ok,
            "entries": verdict.entries,
            "head_hash": verdict.head_hash,
            "withheld": verdict.withheld,
            "checkpoints": verdict.checkpoints,
            "problems": verdict.problems,
            "faults": sorted({one.fault.name.lower() for one in verdict.found}),
        }
        report(VERIFIED, answer | {"problems": verdict.problems[:PROBLEMS_KEPT]})
        self.stdout.write(console.json_text(answer) if options["as_json"] else console.terminal_text(_lines(verdict)))
        if not verdict.ok:
            sentence = f"The ledger is not whole: problems found: {len(verdict.found) + verdict.more}."
            raise CommandError(sentence, returncode=exit_code(verdict.found))


def _noted(path: Path | None) -> list[dict[str, str]]:
    try:
        return checkpoints.noted(path) if path else []
    except (OSError, ValueError) as problem:
        raise Usage(f"{path} is no file of checkpoints: {problem}.") from None


def _lines(verdict: ledger.Verdict) -> Iterator[str]:
    yield f"entries: {verdict.entries}"
    yield f"head:    {verdict.head_hash}"
    yield f"signed checkpoints compared: {verdict.checkpoints}"
    if verdict.withheld:
        yield f"bodies withheld: {verdict.withheld}; their digests are signed"
    for one in verdict.found:
        yield f"{one.fault.name.lower()}: {one.sentence}"
    if verdict.more:
        yield f"{verdict.more} further problems are not listed."
    if verdict.ok:
        yield "The ledger is whole."
