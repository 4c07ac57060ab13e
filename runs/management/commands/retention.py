"""`manage.py retention`: what goes because it is old, and taking it out; holding a run from it, and releasing it.

The work is that of the built-in workflow. May import retention, pruning and console.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser
from django.db.models import Count
from tqdm import tqdm

from runs import pruning, retention
from runs.management import console
from runs.management.console import Answer, Console, Usage, columns
from runs.models import Run
from runs.retention import Done, Rule

EXIT_CODES = (
    "Exit code 0: done; 1: refused, and the sentence says why; 2: the command line is wrong; 3: there is no such run. "
    "With --json standard output holds one JSON value."
)


class Command(Console):
    help = (
        "Tells what the values of old final runs take, by team, workflow and kind. With --apply it takes them out: "
        "digests, decisions, moves and the ledger stay, and still verify. It may be stopped and repeated at any time."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = EXIT_CODES
        console.add_json_option(parser)
        parser.add_argument("--apply", action="store_true", help="take them out; without it nothing is changed")
        parser.add_argument("--days", metavar="N", type=int, help="instead of RETENTION_DAYS")
        parser.add_argument("--batch", metavar="N", type=int, default=retention.IN_ONE_BATCH, help="most runs at once")
        parser.add_argument("--hold", metavar="RUN", type=console.text, help="keep this run whole, whatever its age")
        parser.add_argument("--release", metavar="RUN", type=console.text, help="end that")
        parser.add_argument("--why", metavar="TEXT", type=console.text, default="", help="why it is held or released")
        parser.add_argument("--as", dest="user", metavar="USER", type=console.text, help="who does it (the system)")
        parser.add_argument("--quiet", action="store_true", help="show no progress bar")

    def handle(self, *args: Any, **options: Any) -> None:
        act, words = _chosen(options)
        super().handle(*args, **options | {"act": act, "words": words})


def _chosen(options: dict[str, Any]) -> tuple[Any, Any]:
    if options["hold"] or options["release"]:
        return _hold, _held_words
    return (_apply, _done_words) if options["apply"] else (_look, _look_words)


def _hold(options: dict[str, Any]) -> Answer:
    person, why = console.person(options["user"]), options["why"]
    if options["hold"]:
        retention.hold(options["hold"], by=person, why=why, actor=console.ACTOR)
        return {"run": options["hold"], "held": True}
    retention.release(options["release"], by=person, why=why, actor=console.ACTOR)
    return {"run": options["release"], "held": False}


def _held_words(answer: dict[str, Any]) -> Iterator[str]:
    yield f"{answer['run']}: {'kept whole until it is released' if answer['held'] else 'kept as long as any other'}"


def _rule(options: dict[str, Any]) -> Rule:
    if options["days"] is not None and options["days"] < 1:
        raise Usage("--days must be 1 or more.")
    if options["batch"] < 1:
        raise Usage("--batch must be 1 or more.")
    rule = retention.configured(options["days"])
    if not rule.shortest:
        raise Usage("Nothing says how long runs are kept: give --days N, or set RETENTION_DAYS.")
    return rule


# What would go


def _look(options: dict[str, Any]) -> Answer:
    rule = _rule(options)
    runs = retention.due(rule)
    by = ("team__name", "workflow")
    counted = runs.order_by().values(*by).annotate(runs=Count("pk")).order_by(*by)
    return {
        "rule": str(rule),
        "applied": False,
        "runs": [{"team": row["team__name"], "workflow": row["workflow"], "runs": row["runs"]} for row in counted],
        "values": [asdict(part) for part in retention.held(Run.objects.filter(pk__in=runs.values("pk")))],
        "files": pruning.removable(),
        "listed": pruning.old_listed(rule).count(),
        "sessions": pruning.old_sessions().count(),
    }


def _look_words(answer: dict[str, Any]) -> Iterator[str]:
    yield f"Rule: {answer['rule']}."
    counts = {(row["team"], row["workflow"]): row["runs"] for row in answer["runs"]}
    yield f"Runs whose values would go: {sum(counts.values())}"
    if answer["values"]:
        head = ("TEAM", "WORKFLOW", "RUNS", "KIND", "ROWS", "BYTES")
        yield from columns(head, (_cells(counts, part) for part in answer["values"]))
    files = answer["files"]
    yield f"Files that withheld runs alone keep now: {files['rows']} ({files['size'] or 0:,} bytes)"
    yield f"Records of providers: {answer['listed']}; expired sessions: {answer['sessions']}"
    yield "Nothing was changed. --apply does it."


def _cells(counts: dict[tuple[str, str], int], part: dict[str, Any]) -> tuple[Any, ...]:
    runs = counts.get((part["team"], part["workflow"]), 0)
    return part["team"], part["workflow"], runs, part["kind"], part["rows"], part["bytes"]


# Taking it out


def _apply(options: dict[str, Any]) -> Answer:
    rule, silent = _rule(options), options["quiet"] or options["as_json"] or not sys.stderr.isatty()
    person, done = console.person(options["user"]), Done()
    with _bar("runs", retention.due(rule).count(), silent) as bar:
        while retention.withhold(rule, done, actor=console.ACTOR, by=person, size=options["batch"]):
            bar.update(done.runs - bar.n)
    with _bar("files", None, silent) as bar:
        files = pruning.remove_files(bar.update)
    with _bar("old rows", None, silent) as bar:
        listed = pruning.delete(pruning.old_listed(rule), bar.update)
        sessions = pruning.delete(pruning.old_sessions(), bar.update)
    return {
        "rule": str(rule),
        "applied": True,
        "runs": done.runs,
        "left": done.left,
        "values": _totals(done.rows, done.bytes),
        "files": asdict(files),
        "listed": listed,
        "sessions": sessions,
        "failures": pruning.forget_failures(rule),
    }


def _totals(rows: Counter[str], size: Counter[str]) -> list[dict[str, Any]]:
    return [{"kind": kind, "rows": rows[kind], "bytes": size[kind]} for kind in rows]


def _done_words(answer: dict[str, Any]) -> Iterator[str]:
    yield f"Rule: {answer['rule']}."
    yield f"Runs whose values were taken out: {answer['runs']}"
    parts = ((part["kind"], part["rows"], part["bytes"]) for part in answer["values"])
    yield from columns(("KIND", "ROWS", "BYTES"), parts)
    files = answer["files"]
    yield f"Files removed: {files['removed']} ({files['bytes']:,} bytes); still kept by others: {files['shared']}"
    yield f"Records of providers: {answer['listed']}; expired sessions: {answer['sessions']}"
    if answer["left"]:
        yield f"Batches left because somebody held a lock: {answer['left']}. Run it again."
    if files["away"]:
        yield f"Files that the storage could not remove now: {files['away']}. Run it again."


def _bar(what: str, total: int | None, silent: bool) -> Any:
    return tqdm(desc=what, total=total, unit=" gone", file=sys.stderr, disable=silent)
