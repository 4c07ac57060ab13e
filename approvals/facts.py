"""Facts: what a proposed action rests on. Read at asking, shown and signed at deciding, read again before acting.

A source of facts is a registered function from the action's arguments to a flat dict. It is looked up by name, so that
the web process, the worker and a later deploy read the same facts. May import approvals.models and runs.values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from runs.values import canonical, digest, from_json

from .models import Approval

Source = Callable[[dict[str, Any]], dict[str, Any]]

_sources: dict[str, "FactSource"] = {}


@dataclass(frozen=True)
class FactSource:
    name: str
    function: Source


@dataclass(frozen=True)
class Facts:
    """Facts as they were at one moment. `problem` says why they could not be read, and then there are none."""

    values: dict[str, Any]
    text: str
    digest: str
    problem: str = ""


@dataclass(frozen=True)
class Difference:
    """One fact then and now. `change`: same, changed, added or removed."""

    name: str
    then: Any
    now: Any
    change: str


def facts(name: str) -> Callable[[Source], FactSource]:
    """Register a function from an action's arguments to the facts it rests on (a flat dict of JSON values)."""

    def register(function: Source) -> FactSource:
        if name in _sources:
            raise ImproperlyConfigured(f"Two sources of facts are called {name}.")
        _sources[name] = FactSource(name, function)
        return _sources[name]

    return register


def read(source: str, arguments: dict[str, Any]) -> Facts:
    """The facts now. Raises whatever the source raises: a step is tried again then."""
    values = _sources[source].function(arguments) if source else {}
    text = canonical(values, where="facts")
    return Facts(from_json(text), text, digest(text))


class FactsFailed(Exception):
    """The facts could not be read."""


def read_for(source: str, arguments: dict[str, Any]) -> Facts:
    """The facts of a proposal. Raises FactsFailed whatever its source raises."""
    try:
        return read(source, arguments)
    except Exception as error:
        raise FactsFailed(
            f"The facts of what you propose could not be read ({type(error).__name__}), so it was not asked."
        ) from error


def current(approval: Approval) -> Facts:
    """The facts of an approval now, for a page: a source that fails is told, not raised."""
    if approval.facts_source and approval.facts_source not in _sources:
        return _unreadable(f"This code does not know the source of facts {approval.facts_source}.")
    try:
        return read(approval.facts_source, from_json(approval.payload)["arguments"])
    except Exception as error:  # noqa: BLE001 (a source is its author's code: whatever it raises, the page is shown)
        return _unreadable(
            f"The facts could not be read now ({type(error).__name__}); until they can, nothing is decided."
        )


def _unreadable(problem: str) -> Facts:
    return Facts({}, "", "", problem)


def compare(then: dict[str, Any], now: dict[str, Any]) -> list[Difference]:
    """Each fact of either side, differences first, then by name."""
    differences = [
        Difference(name, then.get(name), now.get(name), _change(name, then, now))
        for name in sorted(then.keys() | now.keys())
    ]
    return sorted(differences, key=lambda difference: difference.change == "same")


def _change(name: str, then: dict[str, Any], now: dict[str, Any]) -> str:
    if name not in then:
        return "added"
    if name not in now:
        return "removed"
    return "same" if then[name] == now[name] else "changed"
