"""What an author writes: Workflow, step, goto, finish, Retry; and the registry they end in.

Public. Knows nothing of rows: a workflow is a name, a version and an ordered set of named functions. Imports money.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, overload

from django.core.exceptions import ImproperlyConfigured

from .money import Money

StepFunction = Callable[[Any], Any]

_registry: dict[tuple[str, int], "Workflow"] = {}


@dataclass(frozen=True)
class Retry:
    """How often a step is tried, and how long to wait between: `base` to `cap` seconds, exponential, with jitter."""

    attempts: int = 5
    base: float = 2
    cap: float = 600

    def delay(self, attempt: int) -> float:
        """Seconds until the try after `attempt` (1, 2, …): between half and all of the exponential step."""
        ceiling = min(self.cap, self.base * 2 ** (attempt - 1))
        return ceiling * random.uniform(0.5, 1)  # noqa: S311 (spreads load; guards nothing)


@dataclass(frozen=True)
class Caps:
    """What a run may use up before a person is asked: it then waits, and loses nothing of what it did.

    `steps`: positions. `working_time`: time its steps were at work. `age`: time since its start, waits included.
    `spend`: what its priced calls may cost, those included whose outcome is not known yet; None is no cap.
    """

    steps: int = 1000
    working_time: timedelta = timedelta(hours=12)
    age: timedelta = timedelta(days=365)
    spend: Money | None = None


@dataclass(frozen=True)
class Goto:
    """Go on at another step. `closed_as` says how this position was closed when it did not go through."""

    step: str
    output: dict[str, Any] = field(default_factory=dict)
    closed_as: str = ""


@dataclass(frozen=True)
class Finish:
    """End the run here with `outcome`, a few words that lists show."""

    outcome: str
    output: dict[str, Any] = field(default_factory=dict)
    closed_as: str = ""


def goto(step: "str | Step", output: dict[str, Any] | None = None) -> Goto:
    """Return this from a step to go on at `step` (a step of the same workflow, or its name) instead of the next one."""
    return Goto(step if isinstance(step, str) else step.name, output or {})


def finish(outcome: str, output: dict[str, Any] | None = None) -> Finish:
    """Return this from a step to end the run as completed with `outcome`."""
    return Finish(outcome, output or {})


@dataclass(frozen=True)
class Step:
    """One function of a workflow. `atomic`: its writes to our own tables commit together with its checkpoint."""

    name: str
    function: StepFunction
    timeout: timedelta | None = None
    atomic: bool = False
    retry: Retry | None = None

    @property
    def title(self) -> str:
        """Its docstring's first line, else its name in words."""
        words = (self.function.__doc__ or "").strip().split("\n")[0].rstrip(".")
        return words or self.name.replace("_", " ").capitalize()

    def __call__(self, ctx: Any) -> Any:
        return self.function(ctx)


class Workflow:
    """A named, versioned, ordered set of steps. Defining one registers it; defining it twice is an error at start-up.

    `appends` names the members of the state whose lists are appended to by each step's output, not overwritten.
    """

    def __init__(
        self,
        name: str,
        *,
        version: int = 1,
        appends: list[str] | None = None,
        retry: Retry | None = None,
        caps: Caps | None = None,
        title: str = "",
    ) -> None:
        self.name, self.version, self.title = name, version, title or name.replace("-", " ").capitalize()
        self.appends = frozenset(appends or ())
        self.retry, self.caps = retry or Retry(), caps or Caps()
        self.steps: dict[str, Step] = {}
        if (name, version) in _registry:
            raise ImproperlyConfigured(
                f"Workflow {name} version {version} is defined twice; give one of them another version."
            )
        _registry[name, version] = self

    @overload
    def step(self, function: StepFunction) -> Step: ...
    @overload
    def step(
        self, *, timeout: timedelta | None = None, atomic: bool = False, retry: Retry | None = None
    ) -> Callable[[StepFunction], Step]: ...

    def step(
        self,
        function: StepFunction | None = None,
        *,
        timeout: timedelta | None = None,
        atomic: bool = False,
        retry: Retry | None = None,
    ) -> Step | Callable[[StepFunction], Step]:
        """Add a function as the next step. It takes `ctx` and returns a dict, goto(…), finish(…) or a wait."""

        def add(function: StepFunction) -> Step:
            name = function.__name__
            if name in self.steps:
                raise ImproperlyConfigured(f"Workflow {self.name} has two steps called {name}.")
            self.steps[name] = Step(name, function, timeout, atomic, retry)
            return self.steps[name]

        return add(function) if function else add

    @property
    def first(self) -> str:
        return next(iter(self.steps))

    def after(self, step: str) -> str | None:
        """The name of the step behind `step`; None behind the last."""
        names = list(self.steps)
        following = names.index(step) + 1
        return names[following] if following < len(names) else None

    def retry_of(self, step: Step) -> Retry:
        return step.retry or self.retry

    def __repr__(self) -> str:
        return f"<Workflow {self.name} v{self.version}>"


def get(name: str, version: int | None = None) -> Workflow | None:
    """The workflow of that name and version (the newest when None); None when this code does not know it."""
    if version is not None:
        return _registry.get((name, version))
    versions = [workflow for (known, _), workflow in _registry.items() if known == name]
    return max(versions, key=lambda workflow: workflow.version, default=None)


def registered() -> list[Workflow]:
    return [_registry[key] for key in sorted(_registry)]
