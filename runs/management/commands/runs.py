"""`manage.py runs VERB …`: what runs there are, what each does and why it does not move; starting and cancelling them.

The verbs are those of the pages; those that repair are in repairs. May import engine, history, models, states, errors,
console, repairs and standing.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from runs import engine, history, spending
from runs.history import History
from runs.management import console, repairs
from runs.management.console import ACTOR, Answer, Console, Verbs, columns, moment, name_of, shortened
from runs.management.standing import line, say_key, say_why, summary
from runs.models import Artefact, Call, Run, Transition, database_clock
from runs.spending import Spend
from runs.states import Status
from runs.templatetags import show
from runs.timeline import Step

MOST = 100_000
"""Runs that one list may hold."""


class Command(Console):
    help = "Lists, shows, explains, starts, repairs and cancels runs."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = Verbs(parser)
        _say_which(verbs.add("list", self._list, _table, "list runs, the newest first"))
        say_key(verbs.add("show", self._show, _whole_story, "show one run: its steps, calls and moves"))
        say_key(verbs.add("why", self._why, _sentence, "say in one sentence why a run does not move"))
        _say_what(verbs.add("start", self._start, line, "start a run; the same input again is the same run"))
        cancel = verbs.add("cancel", self._cancel, line, "end a run for good")
        say_key(cancel)
        say_why(cancel)
        repairs.add_to(verbs)

    def _list(self, options: dict[str, Any]) -> Answer:
        user, limit = console.person(options["user"]), options["limit"]
        runs = Run.objects.all() if user is None else Run.objects.visible_to(user)
        wanted = {"status": options["status"], "workflow": options["workflow"], "team__name": options["team"]}
        runs = runs.filter(**{column: value for column, value in wanted.items() if value is not None})
        runs = runs.select_related("team", "requested_by").defer("input", "wait_terms").order_by("-pk")
        found = list(runs[: limit + 1])
        if len(found) > limit:
            self.stderr.write(f"There are more than {limit} runs; --limit N lists more of them.")
        return [summary(run) for run in found[:limit]]

    def _show(self, options: dict[str, Any]) -> Answer:
        run = engine.find(options["key"], console.person(options["user"]))
        past = history.of(run, database_clock())
        return summary(run) | {
            "withheld_at": run.withholding.at if run.withholding else None,
            "input": run.input,
            "spend": [asdict(spend) for spend in spending.of(run)],
            "steps": [_step(step, run) for step in past.timeline.steps],
            "calls": [_call(call) for call in _calls(past)],
            "artefacts": [_artefact(artefact) for step in past.timeline.steps for artefact in step.artefacts],
            "transitions": [_transition(move) for move in past.moves],
            "earlier_positions": past.earlier,
        }

    def _why(self, options: dict[str, Any]) -> Answer:
        run = engine.find(options["key"], console.person(options["user"]))
        return {"key": run.key, "status": run.status, "why": engine.explain(run)}

    def _start(self, options: dict[str, Any]) -> Answer:
        user = console.person(options["user"])
        given = console.json_from(options["input"], where="input")
        run = engine.start(
            options["workflow"], key=options["key"], input=given, team=options["team"], by=user, actor=ACTOR
        )
        return summary(run)

    def _cancel(self, options: dict[str, Any]) -> Answer:
        user = console.person(options["user"])
        engine.cancel(options["key"], by=user, why=options["why"], actor=ACTOR)
        # Read anew: only the row knows by now when the run ended.
        return summary(engine.find(options["key"], user))


# What is typed


def _say_which(parser: CommandParser) -> None:
    parser.add_argument("--status", choices=Status.values)
    parser.add_argument("--workflow", metavar="W", type=console.text)
    parser.add_argument("--team", metavar="T", type=console.text)
    parser.add_argument("--limit", metavar="N", type=_limit, default=50, help="at most so many runs (50)")


def _say_what(parser: CommandParser) -> None:
    parser.add_argument("workflow", metavar="WORKFLOW", type=console.text)
    say_key(parser)
    parser.add_argument("--input", metavar="JSON|@FILE|-", required=True, help="a JSON object; - reads standard input")
    parser.add_argument("--team", metavar="NAME", type=console.text, required=True, help="the team that sees the run")


def _limit(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and 1 <= int(word) <= MOST):
        raise argparse.ArgumentTypeError(f"give a number from 1 to {MOST:,}")
    return int(word)


# Data


def _step(step: Step, run: Run) -> dict[str, Any]:
    checkpoint = step.checkpoint
    current = run.attempt if step.position == run.position + 1 else 0
    return {
        "position": step.position,
        "step": step.name,
        "title": step.title,
        "state": step.state,
        "closed_as": checkpoint.closed_as if checkpoint else "",
        "attempts": checkpoint.attempt if checkpoint else current,
        "began_at": step.begun_at,
        "took": step.took,
        "output": checkpoint.output if checkpoint else None,
    }


def _calls(past: History) -> Iterator[Call]:
    for step in past.timeline.steps:
        yield from step.calls


def _call(call: Call) -> dict[str, Any]:
    named = ("position", "step", "tool", "kind", "key", "digest", "once_per", "state", "replayed", "sends", "error")
    money = ("price_minor", "cost_minor", "currency")
    timed = ("prepared_at", "sent_at", "settled_at")
    return {name: getattr(call, name) for name in named + money + timed}


def _artefact(artefact: Artefact) -> dict[str, Any]:
    named = ("position", "place", "sha256", "size", "media_type", "kept_at")
    return {name: getattr(artefact, name) for name in named}


def _transition(move: Transition) -> dict[str, Any]:
    where = {"from": move.from_status, "to": move.to_status, "position": move.position, "step": move.step}
    return {"at": move.at} | where | {"why": move.why, "actor": move.actor, "user": name_of(move.user)}


# Words


def _table(runs: list[dict[str, Any]]) -> Iterator[str]:
    if not runs:
        yield "No runs."
        return
    yield from columns(("RUN", "STATUS", "WORKFLOW", "TEAM", "STARTED", "WHY"), map(_cells, runs))


def _cells(run: dict[str, Any]) -> tuple[Any, ...]:
    started, why = moment(run["created_at"]), shortened(run["why"])
    return run["key"], run["status"], run["workflow"], run["team"], started, why


def _sentence(run: dict[str, Any]) -> Iterator[str]:
    yield run["why"]


def _whole_story(run: dict[str, Any]) -> Iterator[str]:
    yield from line(run)
    yield f"{run['workflow']} version {run['version']}, team {run['team']}"
    yield f"started {moment(run['created_at'])} by {run['requested_by'] or 'the system'}"
    if run["finished_at"]:
        yield f"ended {moment(run['finished_at'])}"
    yield from (str(Spend(**spend)) for spend in run["spend"])
    if run["withheld_at"]:
        yield f"body withheld by retention on {moment(run['withheld_at'])}"
    yield f"input {_short_json(run['input'])}"
    if run["earlier_positions"]:
        yield f"Not shown: the first {run['earlier_positions']} positions; the admin has them all."
    yield from _section("STEP", ("NAME", "STATE", "ATTEMPTS", "TOOK", "OUTPUT"), map(_step_cells, run["steps"]))
    yield from _section("CALL", ("TOOL", "STATE", "ERROR"), map(_call_cells, run["calls"]))
    yield from _section("ARTEFACT", ("STEP", "VALUE", "BYTES", "MEDIA TYPE"), map(_artefact_cells, run["artefacts"]))
    yield from _section("MOVE", ("FROM", "TO", "STEP", "BY", "WHY"), map(_move_cells, run["transitions"]))


def _section(first: str, others: tuple[str, ...], rows: Iterator[tuple[Any, ...]]) -> Iterator[str]:
    cells = list(rows)
    if cells:
        yield ""
        yield from columns((first, *others), cells)


def _step_cells(step: dict[str, Any]) -> tuple[Any, ...]:
    state = step["closed_as"] or step["state"]
    output = "" if step["output"] is None else _short_json(step["output"])
    return step["position"], step["step"], state, step["attempts"] or "", show.duration(step["took"]), output


def _call_cells(call: dict[str, Any]) -> tuple[Any, ...]:
    state = call["state"] + (", replayed" if call["replayed"] else "")
    return call["key"], call["tool"], state, shortened(call["error"])


def _artefact_cells(artefact: dict[str, Any]) -> tuple[Any, ...]:
    return artefact["sha256"], artefact["position"], artefact["place"], artefact["size"], artefact["media_type"]


def _move_cells(move: dict[str, Any]) -> tuple[Any, ...]:
    step, who = f"{move['position']} {move['step']}", move["user"] or move["actor"]
    return moment(move["at"]), move["from"] or "-", move["to"], step, who, shortened(move["why"])


def _short_json(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False))
