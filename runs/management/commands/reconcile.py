"""`manage.py reconcile`: look up what is unknown, compare providers' lists with our effects, print figures.

The work is that of the built-in workflows. May import comparison, reconciliation, figures, console and told.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandParser
from tqdm import tqdm

from runs import figures, reconciliation, tools
from runs.findings import FindingQuerySet
from runs.management import console
from runs.management.console import Answer, Console, Refused, Usage, columns
from runs.management.told import lines, told
from runs.models import Finding, database_clock
from runs.reconciliation import Comparison, Tally
from runs.templatetags import show
from runs.tools import Tool

BACK = timedelta(days=1, hours=1)
"""How far back a comparison goes unless --since says so."""
MOST = 1000
"""Findings that one answer holds."""
EXIT_CODES = (
    "Exit code 0: no finding is open; 1: some are, or it was refused; 2: the command line is wrong. "
    "With --json standard output holds one JSON value."
)


class Command(Console):
    help = "Finds out what became of unknown effects, and compares what providers list with what is recorded here."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = EXIT_CODES
        console.add_json_option(parser)
        parser.add_argument("--tool", metavar="T", type=console.text, help="this tool's provider only")
        parser.add_argument("--since", metavar="TIME", type=_instant, help="compare from here on (25 hours ago)")
        parser.add_argument("--until", metavar="TIME", type=_instant, help="compare what was done before this (now)")
        parser.add_argument("--unknown", action="store_true", help="only find out what is unknown; compare nothing")
        parser.add_argument("--figures", action="store_true", help="only print the figures of each tool's effects")
        parser.add_argument("--quiet", action="store_true", help="show no progress bar")
        parser.set_defaults(act=self._reconcile, words=_words)

    def handle(self, *args: Any, **options: Any) -> None:
        self.open = 0
        if options["figures"]:
            options |= {"act": lambda options: figures.of_effects(), "words": _figures}
        super().handle(*args, **options)
        if self.open:
            raise Refused(f"Findings that are open: {self.open}. `manage.py findings list` shows them.")

    def _reconcile(self, options: dict[str, Any]) -> Answer:
        silent = options["quiet"] or options["as_json"] or not sys.stderr.isatty()
        compared = [] if options["unknown"] else _chosen(options["tool"])
        until = options["until"] or database_clock()
        since = options["since"] or until - BACK
        if since >= until:
            raise Usage("--since must be before --until.")
        unknown = _settled(silent)
        comparisons = [_compared(tool, since, until, silent) for tool in compared]
        return self._answer(asdict(unknown), comparisons, options["tool"])

    def _answer(self, unknown: dict[str, Any], comparisons: list[dict[str, Any]], tool: str | None) -> Answer:
        findings: FindingQuerySet = Finding.objects.open()
        if tool:
            findings = findings.filter(tool=tool)
        self.open = findings.count()
        shown = [told(finding) for finding in findings.select_related("run", "team", "resolved_by")[:MOST]]
        answer = {"unknown": unknown, "comparisons": comparisons, "open": self.open}
        return answer | {"left_off": self.open - len(shown), "findings": shown}


# What is typed


def _chosen(name: str | None) -> list[Tool]:
    if name is None:
        return tools.with_listing()
    chosen = [tool for tool in tools.with_listing() if tool.name == name]
    if not chosen:
        known = ", ".join(tool.name for tool in tools.with_listing()) or "none"
        raise Usage(f"{name} has no list to compare with. Tools that have one: {known}.")
    return chosen


def _instant(word: str) -> datetime:
    try:
        at = datetime.fromisoformat(word)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise argparse.ArgumentTypeError("give a time with its zone, such as 2026-11-28T09:00:00Z")
    return at


# The work, with a bar


def _settled(silent: bool) -> Tally:
    with _bar("unknown effects", " looked up", silent) as bar:
        return reconciliation.settle_unknown(lambda tally: bar.update(tally.looked_at - bar.n))


def _compared(tool: Tool, since: datetime, until: datetime, silent: bool) -> dict[str, Any]:
    with _bar(tool.name, " records", silent) as bar:

        def tell(progress: Comparison) -> None:
            bar.update(progress.listed - bar.n)

        return {"since": since, "until": until} | asdict(reconciliation.compare(tool, since, until, tell))


def _bar(what: str, unit: str, silent: bool) -> Any:
    return tqdm(desc=what, unit=unit, file=sys.stderr, disable=silent)


# Words


def _words(answer: dict[str, Any]) -> Iterator[str]:
    unknown = answer["unknown"]
    yield f"unknown effects: {unknown['looked_at']} looked at, {unknown['confirmed']} confirmed"
    yield from (f"{tool}: its provider cannot be asked" for tool in unknown["down"])
    for done in answer["comparisons"]:
        why = f"; the provider cannot be asked: {done['down']}" if done["down"] else ""
        yield f"{done['tool']}: {done['listed']} listed, {done['found']} new findings, {done['gone']} gone{why}"
    yield ""
    yield from lines(answer["findings"])
    if answer["left_off"]:
        yield f"Not shown: {answer['left_off']} more."


def _figures(answer: list[dict[str, Any]]) -> Iterator[str]:
    head = ("TOOL", "EFFECTS", "CONFIRMED", "REFUSED", "UNKNOWN", "OLDEST", "REPLAYS", "KEY REUSED", "FINDINGS")
    yield from columns((*head, "RESOLVED BY"), map(_cells, answer))


def _cells(row: dict[str, Any]) -> tuple[Any, ...]:
    counts = (row["effects"], row["confirmed"], row["refused"], row["unknown_now"])
    resolved = ", ".join(f"{how.removeprefix('by_').replace('_', ' ')} {n}" for how, n in row["resolved"].items() if n)
    oldest = show.duration(row["oldest_unknown_seconds"])
    alarms = (row["key_replays"], row["key_reused_with_another_request"], row["open_findings"])
    return row["tool"], *counts, oldest, *alarms, resolved or "-"
