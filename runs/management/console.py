"""What our commands share: verbs with --json and --as, exit codes, people, JSON from outside, and text for a terminal.

A verb of a Console returns plain data, which is printed as one JSON value or put into words: both tell the same. May
import errors, values, and how values are shown.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from runs.errors import NoSuchRun, RunError
from runs.templatetags import show
from runs.values import BadValue, as_json, from_json

EXIT_CODES = (
    "Exit code 0: done; 1: refused, and the sentence says why; 2: the command line is wrong (an option, JSON that "
    "cannot be read, an unknown user, a missing file); 3: there is no such thing, or it is not for --as USER to see. "
    'With --json standard output holds one JSON value; a refusal is {"error": {"type", "message"}}.'
)
ACTOR = "command line"
"""Where the person came in, as moves and audit events name it."""

Answer = dict[str, Any] | list[dict[str, Any]]
Act = Callable[[dict[str, Any]], Answer]
Words = Callable[[Any], Iterable[str]]


class Refused(CommandError):
    """Exit code 1: nothing was changed."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, returncode=1)


class Usage(CommandError):
    """Exit code 2: what was typed cannot be meant."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, returncode=2)


class NotFound(CommandError):
    """Exit code 3: it does not exist, or not for this person."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, returncode=3)


class Verbs:
    """The verbs of a command, each a sub-parser with --json and --as."""

    def __init__(self, parser: CommandParser) -> None:
        parser.epilog = EXIT_CODES
        self._parsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def add(self, name: str, act: Act, words: Words, summary: str, *, needs_person: bool = False) -> CommandParser:
        """A verb that answers with what `act` returns, which `words` turns to lines. `needs_person`: --as is a must."""
        parser = self._parsers.add_parser(name, help=summary, description=f"{summary.capitalize()}.", epilog=EXIT_CODES)
        add_json_option(parser)
        who = "who does it" if needs_person else "with the rights of this person (the system: sees and may do all)"
        parser.add_argument("--as", dest="user", metavar="USER", type=text, required=needs_person, help=who)
        parser.set_defaults(act=act, words=words)
        return parser


class Console(BaseCommand):
    """A command of verbs. `refusals`: how its verbs say no; `missing`: those of them that mean "no such thing"."""

    refusals: ClassVar[tuple[type[Exception], ...]] = (CommandError, RunError)
    missing: ClassVar[tuple[type[Exception], ...]] = (NoSuchRun,)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            answer = options["act"](options)
        except self.refusals as refusal:
            if options["as_json"]:
                self.stdout.write(json_text({"error": self.described(refusal)}))
            raise self._ending(refusal) from None
        self.stdout.write(json_text(answer) if options["as_json"] else terminal_text(options["words"](answer)))

    def described(self, refusal: Exception) -> dict[str, Any]:
        """The refusal as members of a JSON object."""
        return {"type": type(refusal).__name__, "message": str(refusal)}

    def _ending(self, refusal: Exception) -> CommandError:
        sentence = show.spelled(refusal)
        if isinstance(refusal, CommandError):
            return type(refusal)(sentence)
        return NotFound(sentence) if isinstance(refusal, self.missing) else Refused(sentence)


# What is typed


def add_json_option(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON value")


def text(word: str) -> str:
    """An argument that can be stored: argparse refuses bytes that were no UTF-8."""
    try:
        as_json(word, where="this")
    except BadValue as refusal:
        raise argparse.ArgumentTypeError(str(refusal)) from None
    return word


def person(name: str | None) -> User | None:
    """The active user of that name; None, the system, for none. Raises Usage."""
    if name is None:
        return None
    user = get_user_model().objects.filter(username=name, is_active=True).first()
    if user is None:
        raise Usage(f"There is no active user {name}.")
    return user


def json_from(argument: str, *, where: str) -> Any:
    """The value of a JSON text, of @file or of - (standard input). Raises Usage, with the path of what is wrong."""
    given = _content(argument, where)
    try:
        return from_json(given, where=where)
    except BadValue as refusal:
        raise Usage(f"{_with_its_path(given, where) or refusal}.") from None


def _content(argument: str, where: str) -> str:
    try:
        if argument == "-":
            return sys.stdin.buffer.read().decode()
        return Path(argument[1:]).read_bytes().decode() if argument.startswith("@") else argument
    except OSError as error:
        raise Usage(f"{argument[1:]} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise Usage(f"The {where} is not UTF-8.") from None


def _with_its_path(given: str, where: str) -> BadValue | None:
    """The strict reader stops at NaN without knowing where it stands; Python's own lets it through to who does."""
    try:
        as_json(json.loads(given), where=where)
    except BadValue as refusal:
        return refusal
    except (ValueError, RecursionError):
        return None
    return None


# What is printed


def json_text(value: Any) -> str:
    """One line of pure ASCII: no locale can spoil it. Instants are ISO 8601 in UTC, spans are seconds."""
    return json.dumps(value, default=_plain, allow_nan=False)


def terminal_text(lines: Iterable[str]) -> str:
    """Lines in which every unseen character is spelled: no text can hide, reorder or forge what stands beside it."""
    return "\n".join(show.spelled(line) for line in lines)


def columns(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    """The rows under their head, each column as wide as its widest cell; the last one is free."""
    table = [head, *(tuple(show.spelled(cell) for cell in row) for row in rows)]
    widths = [max(len(row[place]) for row in table) for place in range(len(head) - 1)]
    for row in table:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()


def shortened(words: str, most: int = 160) -> str:
    return words if len(words) <= most else f"{words[:most]} … {len(words) - most} more characters"


def moment(at: datetime | None) -> str:
    return show.moment(at, seconds=True) if at else ""


def name_of(user: User | None) -> str | None:
    return user.get_username() if user else None


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} has no JSON form here.")
