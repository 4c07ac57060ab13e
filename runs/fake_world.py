"""The test kit's outside world, for authors too: tools that play a script instead of reaching anybody.

Plays what matters about a receiver: it honours idempotency keys, and an answer can be lost although the effect
happened. docs/testing.md shows it at work. May import errors, states and tools.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .errors import KeyConflict
from .states import CallKind
from .tools import Tool, registered

Act = Callable[..., Any] | BaseException | dict[str, Any]


@dataclass(frozen=True)
class lost:
    """In a script: the effect happens, and its answer gets lost on the way back."""

    answer: dict[str, Any]


class Unscripted(AssertionError):
    def __init__(self, tool: str) -> None:
        super().__init__(f"{tool} was called, and the test says nothing about it: world.answers({tool}, {{…}}).")


@dataclass(frozen=True)
class Received:
    """One call that reached the far side. `key`: its idempotency key, empty for a read or a model."""

    tool: str
    key: str
    arguments: dict[str, Any]


@dataclass
class FakeWorld:
    """What every tool reaches in the block. `received`: every call, in order. `made`: each effect that happened, once
    per idempotency key, as a receiver's own journal would show it."""

    received: list[Received] = field(default_factory=list)
    made: list[Received] = field(default_factory=list)
    _scripts: dict[str, list[Any]] = field(default_factory=dict)
    _answers: dict[str, tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)

    def answers(self, tool: Tool, *script: Act | lost) -> None:
        """What the next calls of this tool come to, one entry each; the last one stands for all that follow.

        A dict is the answer, an exception is raised (nothing happened there), `lost(answer)` happens and times out, a
        callable gets the arguments and returns one of these. Where the tool's receiver honours keys, the same key gets
        its first answer again, marked as replayed, whatever the script says, and a KeyConflict with other arguments.
        """
        self._scripts[tool.name] = list(script)

    def receive(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        key = arguments.pop("idempotency_key", "")
        call = Received(tool.name, key, arguments)
        self.received.append(call)
        if key in self._answers and tool.delivery == "keyed":
            return self._replay(key, arguments)
        act = self._next(tool, arguments)
        if isinstance(act, BaseException):
            raise act
        answer = act.answer if isinstance(act, lost) else act
        if tool.kind == CallKind.EFFECT:
            self.made.append(call)
            self._answers[key] = (arguments, answer)
        if isinstance(act, lost):
            raise TimeoutError(f"{tool.name}: the answer was lost")
        return answer

    def look_up(self, key: str) -> dict[str, Any] | None:
        return self._answers[key][1] if key in self._answers else None

    def _replay(self, key: str, arguments: dict[str, Any]) -> dict[str, Any]:
        first, answer = self._answers[key]
        if arguments != first:
            raise KeyConflict(f"{key} was used with other arguments")
        return answer | {"replayed": True}

    def _next(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        script = self._scripts.get(tool.name)
        if not script:
            raise Unscripted(tool.name)
        act = script.pop(0) if len(script) > 1 else script[0]
        return act(**arguments) if callable(act) else act


@contextmanager
def fake_world() -> Iterator[FakeWorld]:
    """No tool reaches anybody in the block: each plays what the world was told, or fails the test. A lookup
    finds what was made."""
    world = FakeWorld()
    before = [(tool, tool.function, tool.lookup_function) for tool in registered()]

    def far_side(tool: Tool) -> Callable[..., Any]:
        return lambda **arguments: world.receive(tool, arguments)

    def look_up(*, idempotency_key: str) -> dict[str, Any] | None:
        return world.look_up(idempotency_key)

    try:
        for tool, _, lookup in before:
            tool.function, tool.lookup_function = far_side(tool), lookup and look_up
        yield world
    finally:
        for tool, function, lookup in before:
            tool.function, tool.lookup_function = function, lookup
