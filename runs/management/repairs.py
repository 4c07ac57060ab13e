"""The operators' verbs of `manage.py runs`: pause, resume, retry, extend, raise-cap, redrive, discard, fork, deliver.

Each does what the page's button does, with the same rights and refusals. May import engine, repair, console and
standing.
"""

import argparse
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import CommandParser

from runs import engine, repair
from runs.management import console
from runs.management.console import ACTOR, Answer, Verbs, columns
from runs.management.standing import line, say_key, say_why, summary
from runs.models import Call, Run
from runs.money import Money
from runs.states import EffectState

Options = dict[str, Any]

MOST = 2**31 - 1
"""Steps, and seconds, that a cap may be raised to."""

SIMPLE: dict[str, tuple[Callable[..., Run], str]] = {
    "pause": (repair.pause, "hold a run where it is; its deadlines go on"),
    "resume": (repair.resume, "let a paused run go on"),
    "retry": (repair.retry_now, "try a run that backs off, or waits to be mended, again now"),
    "redrive": (repair.redrive, "try the unfinished step of a dead run again"),
    "discard": (repair.discard, "give a dead run up: it ends as cancelled"),
}


def add_to(verbs: Verbs) -> None:
    """Add these verbs to the command."""
    for name, (verb, words) in SIMPLE.items():
        _say_why(verbs.add(name, _simple(verb), line, words))
    _say_until(verbs.add("extend", _extend, line, "let a run wait for longer before its wait is closed"))
    _say_caps(verbs.add("raise-cap", _raise_cap, line, "give one run more steps, working time, age or money"))
    _say_fork(verbs.add("fork", _fork, _forked, "do a run that has ended, or is dead, again as a new run"))
    _say_event(verbs.add("deliver", _deliver, _delivered, "bring a run the event it waits for, or will wait for"))


# What is typed


def _say_why(parser: CommandParser) -> None:
    say_key(parser)
    say_why(parser)


def _say_until(parser: CommandParser) -> None:
    _say_why(parser)
    until = "when its wait is due from then on, as 2026-12-31T12:00; UTC unless it says otherwise"
    parser.add_argument("--until", metavar="TIME", type=_moment, required=True, help=until)


def _say_caps(parser: CommandParser) -> None:
    _say_why(parser)
    parser.add_argument("--steps", metavar="N", type=_count, help="so many steps in all")
    parser.add_argument("--working-time", metavar="SECONDS", type=_span, help="so much work in all; waiting is none")
    parser.add_argument("--age", metavar="SECONDS", type=_span, help="so long since its start, waits included")
    parser.add_argument("--spend", metavar="MINOR:CURRENCY", type=_money, help="so much in all: 2500:USD is 25.00 USD")


def _say_fork(parser: CommandParser) -> None:
    say_key(parser)
    parser.add_argument("new_key", metavar="NEW_KEY", type=console.text)
    say_why(parser)
    parser.add_argument(
        "--from", dest="position", metavar="POSITION", type=_count, default=1, help="its first step (1)"
    )
    parser.add_argument("--input", metavar="JSON|@FILE|-", help="another input; the same when it is left out")
    repeat = "the idempotency keys of all effects that will happen again"
    parser.add_argument(
        "--repeat", metavar="KEY", nargs="+", action="extend", type=console.text, default=[], help=repeat
    )
    parser.add_argument("--preview", action="store_true", help="only list the effects that would happen again")


def _say_event(parser: CommandParser) -> None:
    say_key(parser)
    parser.add_argument("name", metavar="NAME", type=console.text, help="the event's name")
    parser.add_argument("--body", metavar="JSON|@FILE|-", required=True, help="a JSON object; - reads standard input")


def _count(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and 1 <= int(word) <= MOST):
        raise argparse.ArgumentTypeError(f"give a whole number from 1 to {MOST:,}")
    return int(word)


def _span(word: str) -> timedelta:
    return timedelta(seconds=_count(word))


def _moment(word: str) -> datetime:
    try:
        at = datetime.fromisoformat(word)
    except ValueError:
        raise argparse.ArgumentTypeError("give a date and a time, such as 2026-12-31T12:00") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _money(word: str) -> Money:
    minor, _, currency = word.partition(":")
    try:
        return Money(int(minor) if minor.isascii() and minor.isdecimal() else -1, currency)
    except ValueError:
        raise argparse.ArgumentTypeError("give minor units and a currency, such as 2500:USD for 25.00 USD") from None


# What is done


def _simple(verb: Callable[..., Run]) -> console.Act:
    def act(options: Options) -> Answer:
        user = console.person(options["user"])
        verb(options["key"], by=user, why=options["why"], actor=ACTOR)
        return _standing(options["key"], user)

    return act


def _extend(options: Options) -> Answer:
    user = console.person(options["user"])
    repair.extend(options["key"], until=options["until"], by=user, why=options["why"], actor=ACTOR)
    return _standing(options["key"], user)


def _raise_cap(options: Options) -> Answer:
    user = console.person(options["user"])
    caps = {name: options[name] for name in ("steps", "working_time", "age", "spend")}
    repair.raise_cap(options["key"], by=user, why=options["why"], actor=ACTOR, **caps)
    return _standing(options["key"], user)


def _fork(options: Options) -> Answer:
    user, position = console.person(options["user"]), options["position"]
    if options["preview"]:
        run = engine.find(options["key"], user)
        again = repair.repeated_by_fork(run, position)
        return {"key": run.key, "position": position, "repeats": [_repeated(call) for call in again]}
    given = None if options["input"] is None else console.json_from(options["input"], where="input")
    made = repair.fork(
        options["key"],
        options["new_key"],
        position=position,
        input=given,
        repeating=options["repeat"],
        by=user,
        why=options["why"],
        actor=ACTOR,
    )
    return _standing(made.key, user) | {"forked_from": options["key"]}


def _deliver(options: Options) -> Answer:
    user = console.person(options["user"])
    body = console.json_from(options["body"], where="body")
    delivery = engine.deliver(options["key"], options["name"], body, by=user, actor=ACTOR)
    told = {"name": delivery.name, "delivered_at": delivery.delivered_at, "taken_at_position": delivery.position}
    return _standing(options["key"], user) | {"event": told}


def _standing(key: str, user: Any) -> dict[str, Any]:
    # Read anew: the row knows best what came of it.
    return summary(engine.find(key, user))


def _repeated(call: Call) -> dict[str, Any]:
    named = ("key", "position", "step", "tool", "state", "once_per", "settled_at")
    return {name: getattr(call, name) for name in named} | {"blocks": call.state != EffectState.CONFIRMED}


# Words


def _forked(answer: dict[str, Any]) -> Iterator[str]:
    if "repeats" not in answer:
        yield from line(answer)
        return
    where = f"A fork of {answer['key']} from step {answer['position']}"
    if not answer["repeats"]:
        yield f"{where} makes no effect again."
        return
    yield f"{where} makes these effects again:"
    yield from columns(("KEY", "TOOL", "STATE", ""), map(_repeated_cells, answer["repeats"]))


def _repeated_cells(call: dict[str, Any]) -> tuple[Any, ...]:
    what = "blocks the fork: it must be settled first" if call["blocks"] else "name it with --repeat"
    return call["key"], call["tool"], call["state"], what


def _delivered(answer: dict[str, Any]) -> Iterator[str]:
    name, taken = answer["event"]["name"], answer["event"]["taken_at_position"]
    yield f"Step {taken} takes the event {name}." if taken else f"No step waits for the event {name} now: it is kept."
    yield from line(answer)
