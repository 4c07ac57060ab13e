"""`manage.py findings VERB …`: what reconciliation found, and what people say to it.

The verbs are those of the page. May import reconciliation, console and told.
"""

import argparse
from collections.abc import Iterator
from typing import Any, ClassVar

from django.core.management.base import CommandParser

from runs import reconciliation
from runs.errors import NoSuchEffect, NoSuchFinding
from runs.management import console
from runs.management.console import ACTOR, Answer, Console, Verbs
from runs.management.standing import say_why
from runs.management.told import lines, told, whole
from runs.models import Call, Finding
from runs.states import EffectState

MOST = 100_000
"""Findings that one list may hold."""


class Command(Console):
    help = "Lists, shows and resolves findings; settles effects whose outcome only a person knows."
    missing: ClassVar[tuple[type[Exception], ...]] = (NoSuchFinding, NoSuchEffect)

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = Verbs(parser)
        _say_which(verbs.add("list", self._list, lines, "list findings, the newest first"))
        _say_id(verbs.add("show", self._show, whole, "show one finding with both evidences"))
        resolve = verbs.add("resolve", self._resolve, whole, "close a finding, and nothing else", needs_person=True)
        _say_id(resolve)
        say_why(resolve)
        settle = verbs.add("settle", self._settle, _settled, "say what became of an unknown effect", needs_person=True)
        _say_outcome(settle)
        say_why(settle)

    def _list(self, options: dict[str, Any]) -> Answer:
        user, limit = console.person(options["user"]), options["limit"]
        findings = Finding.objects.all() if user is None else Finding.objects.visible_to(user)
        findings = findings.closed() if options["closed"] else findings.open()
        wanted = {"kind": options["kind"], "tool": options["tool"]}
        findings = findings.filter(**{column: value for column, value in wanted.items() if value is not None})
        found = list(findings.select_related("run", "team", "resolved_by")[: limit + 1])
        if len(found) > limit:
            self.stderr.write(f"There are more than {limit} findings; --limit N lists more of them.")
        return [told(finding) for finding in found[:limit]]

    def _show(self, options: dict[str, Any]) -> Answer:
        return told(reconciliation.find(options["id"], console.person(options["user"])))

    def _resolve(self, options: dict[str, Any]) -> Answer:
        user = console.person(options["user"])
        return told(reconciliation.resolve(options["id"], by=user, why=options["why"], actor=ACTOR))

    def _settle(self, options: dict[str, Any]) -> Answer:
        answer = None if options["answer"] is None else console.json_from(options["answer"], where="answer")
        user = console.person(options["user"])
        call = reconciliation.settle_by_hand(
            options["key"], outcome=options["outcome"], by=user, why=options["why"], answer=answer, actor=ACTOR
        )
        return _effect(call)


# What is typed


def _say_which(parser: CommandParser) -> None:
    parser.add_argument("--closed", action="store_true", help="those that are closed, instead of the open ones")
    parser.add_argument("--kind", choices=Finding.Kind.values)
    parser.add_argument("--tool", metavar="T", type=console.text)
    parser.add_argument("--limit", metavar="N", type=_number, default=50, help="at most so many findings (50)")


def _say_id(parser: CommandParser) -> None:
    parser.add_argument("id", metavar="ID", type=int)


def _say_outcome(parser: CommandParser) -> None:
    parser.add_argument("key", metavar="KEY", type=console.text, help="the idempotency key")
    parser.add_argument("--outcome", choices=[EffectState.CONFIRMED, EffectState.REFUSED], required=True)
    parser.add_argument("--answer", metavar="JSON|@FILE|-", help="what later steps read as the tool's answer")


def _number(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and 1 <= int(word) <= MOST):
        raise argparse.ArgumentTypeError(f"give a number from 1 to {MOST:,}")
    return int(word)


# Data and words


def _effect(call: Call) -> dict[str, Any]:
    return {"key": call.key, "run": call.run.key, "tool": call.tool, "state": call.state, "answer": call.answer}


def _settled(effect: dict[str, Any]) -> Iterator[str]:
    yield f"{effect['key']} is {effect['state']}. Its run {effect['run']} can be redriven if it is dead."
