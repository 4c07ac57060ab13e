"""Asks a tool's receiver what it did, and keeps one finding for as long as it cannot be asked.

Nothing here is asked within a transaction. May import tools, findings, models, errors.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import Group

from . import tools
from .errors import PermanentError, ProviderDown
from .findings import Difference
from .models import Call, Finding, database_clock
from .states import EffectState
from .tools import ProviderRecord, Tool

TEAM = "ops"
"""Sees the findings that belong to no run."""

PATIENCE = timedelta(minutes=5)
"""Nothing younger is called missing or put to a person, however soon the provider's own records would show it."""

ANSWERS_AGAIN = "The provider answers again."


def find(tool: Tool, key: str) -> dict[str, Any] | None:
    """What the receiver knows of the effect under this key; None when it knows none, or cannot be asked by key. Raises
    ProviderDown."""
    try:
        return tool.look_up(key)
    except Exception as error:
        raise ProviderDown(tool.name, "lookup", error) from error


def records(tool: Tool, since: datetime, until: datetime) -> Iterator[ProviderRecord]:
    """What the receiver lists from `since` until before `until`, one by one. Raises ProviderDown, also midway."""
    if tool.listing_function is None:
        raise PermanentError(f"{tool.name} has no list to compare with.")
    try:
        yield from tool.listing_function(since, until)
    except Exception as error:
        raise ProviderDown(tool.name, "list", error) from error


def went_down(down: ProviderDown) -> None:
    """One finding, however often and by whatever question it was noticed."""
    told = [{"asked": down.asked, "error": down.why}]
    Finding.objects.note(down.tool, [Difference(Finding.Kind.PROVIDER_DOWN, down.tool, "", theirs=told)], team())


def answers(tool: str, asked: str) -> None:
    """The question was answered: the finding that it could not be, if there is one, closes by itself."""
    for finding in Finding.objects.open().filter(kind=Finding.Kind.PROVIDER_DOWN, tool=tool, key=""):
        if finding.theirs[0]["asked"] == asked:
            Finding.objects.filter(pk=finding.pk).close(ANSWERS_AGAIN)


def ask_those_down() -> list[str]:
    """Ask each provider that is down what it did not answer; the names of the tools that are still without answer."""
    down = []
    for finding in Finding.objects.open().filter(kind=Finding.Kind.PROVIDER_DOWN):
        try:
            _ask_again(finding)
        except ProviderDown as still:
            went_down(still)
            down.append(finding.tool)
    return down


def patience(tool: Tool) -> timedelta:
    """How long after it was last heard of an effect may be neither found there nor a difference."""
    return max(tool.settle_delay, PATIENCE)


def team() -> Group:
    return Group.objects.get_or_create(name=TEAM)[0]


def _ask_again(finding: Finding) -> None:
    tool, asked = tools.get(finding.tool), finding.theirs[0]["asked"]
    question = tool and _question(tool, asked)
    if question:
        question()
        answers(finding.tool, asked)


def _question(tool: Tool, asked: str) -> Callable[[], Any] | None:
    """A small question of the kind that was not answered; None when there is none to ask."""
    if asked == "list":
        now = database_clock()
        return tool.listing_function and (lambda: next(records(tool, now - timedelta(minutes=1), now), None))
    effects = Call.objects.effects().filter(tool=tool.name)
    known = effects.filter(state=EffectState.CONFIRMED).order_by("-settled_at").first()
    effect = known or Call.objects.unresolved().filter(tool=tool.name).first()
    return (lambda: find(tool, effect.key)) if effect and tool.lookup_function else None
