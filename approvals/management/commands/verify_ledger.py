"""`manage.py verify_ledger`: is the ledger whole, and do the rows still say what was signed?

May import ledger and measures; runs' upkeep.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from approvals import ledger
from approvals.measures import VERIFIED
from runs.management import console
from runs.management.console import Refused
from runs.upkeep import report

PROBLEMS_KEPT = 20
"""Of a broken ledger, for the health page and the alarm; the command itself names all."""


class Command(BaseCommand):
    help = (
        "Walks the ledger from its first entry: hashes, chain, signatures, and the rows that they speak of. "
        "Exit code 0: it is whole; 1: it is not, and each problem is named."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        console.add_json_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        verdict = ledger.verify()
        answer = {"ok": verdict.ok} | asdict(verdict)
        report(VERIFIED, answer | {"problems": verdict.problems[:PROBLEMS_KEPT]})
        self.stdout.write(console.json_text(answer) if options["as_json"] else console.terminal_text(_lines(verdict)))
        if not verdict.ok:
            raise Refused(f"The ledger is not whole: problems found: {len(verdict.problems)}.")


def _lines(verdict: ledger.Verdict) -> Iterator[str]:
    yield f"entries: {verdict.entries}"
    yield f"head:    {verdict.head_hash}"
    yield from verdict.problems
    if verdict.ok:
        yield "The ledger is whole."
