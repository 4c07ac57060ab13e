"""@tool: a function that reads or changes the outside world, or asks a model; and the registry it ends in.

Public. A tool validates and normalises its arguments, says whether a use of it needs approval, and can put a use of
itself into words. Recording, keys and sending are in calls. May import errors, values and timelimit.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import pydantic
from django.core.exceptions import ImproperlyConfigured

from .errors import PermanentError, Refused, Retryable, ToolError
from .money import Money, amount
from .states import CallKind
from .timelimit import TimeIsUp, limited_within
from .values import canonical, digest

__all__ = [
    "Money",
    "PermanentError",
    "ProposedAction",
    "ProviderRecord",
    "Refused",
    "Retryable",
    "Tool",
    "ToolError",
    "get",
    "over",
    "registered",
    "tool",
    "with_listing",
]

Rule = Callable[[dict[str, Any]], bool]
Price = Money | Callable[[dict[str, Any]], Money]
Cost = Callable[[dict[str, Any]], Money]
Delivery = Literal["keyed", "check-then-act", "at-most-once", "at-least-once"]

_registry: dict[str, "Tool"] = {}


class _CallTimeIsUp(TimeIsUp):
    """The tool's own time is up; the step's may go on."""


class BadArguments(PermanentError):
    """`problems`: what is wrong with which argument. An argument inside another is named by both, with a point."""

    def __init__(self, tool: str, problems: list[tuple[str, str]]) -> None:
        said = "; ".join(f"{path}: {problem}" for path, problem in problems)
        super().__init__(f"{tool} was called with arguments it does not take: {said}. Nothing was sent.")
        self.problems = problems


@dataclass(frozen=True)
class ProposedAction:
    """A use of a tool that was validated and frozen, but not sent. `payload` is canonical JSON (RFC 8785)."""

    tool: "Tool"
    arguments: dict[str, Any]
    payload: str
    digest: str

    @property
    def statement(self) -> str:
        return self.tool.in_words(self.arguments)


@dataclass(frozen=True)
class ProviderRecord:
    """One effect as its receiver lists it. `id`: the receiver's own name of it. `key`: the idempotency key it was made
    under, empty when there was none. `reference`: what it was made for, of which there should be one record; empty when
    records of one reference are no surprise. `amount_minor`: None when it has no amount. `created_at` has a zone."""

    id: str
    key: str
    reference: str
    amount_minor: int | None
    currency: str
    created_at: datetime

    def __post_init__(self) -> None:
        if self.created_at.tzinfo is None:
            raise ValueError(f"The provider's record {self.id} needs a time with a zone.")


Listing = Callable[[datetime, datetime], Iterator[ProviderRecord]]


class Tool:
    """One registered tool. Call it directly only in its own tests: workflows go through ctx.call and ctx.perform."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        kind: CallKind,
        requires_approval: bool | Rule,
        once_per: str,
        key_life: timedelta,
        delivery: Delivery,
        settle_delay: timedelta,
        statement: str,
        price: Price | None = None,
        cost: Cost | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        if cost is not None and price is None:
            raise ImproperlyConfigured(f"Tool {name} has a cost, so it needs a price to reserve before it is used.")
        self.price, self._cost = price, cost
        self.name, self.function, self.kind = name, function, kind
        self.delivery, self.settle_delay = delivery, settle_delay
        self.requires_approval, self.once_per, self.key_life = requires_approval, once_per, key_life
        self.statement, self.timeout = statement, timeout
        self.lookup_function: Callable[..., dict[str, Any] | None] | None = None
        self.listing_function: Listing | None = None
        self._arguments = _model_of(name, function, with_key=kind == CallKind.EFFECT)

    @property
    def statement_version(self) -> str:
        return hashlib.sha256(self.statement.encode()).hexdigest()

    def lookup(self, function: Callable[..., dict[str, Any] | None]) -> Callable[..., dict[str, Any] | None]:
        """Register how to find out whether the effect under an idempotency key happened: its answer, or None."""
        self.lookup_function = function
        return function

    def listing(self, function: Listing) -> Listing:
        """Register how the receiver lists what was made from `since` until before `until`, in whatever order: a
        generator, so that a long list is never held whole. Reconciliation compares it with what is recorded here."""
        self.listing_function = function
        return function

    def use(self, **arguments: Any) -> Any:
        """Call the function, for as long as it may take. Raises whatever it raises, and TimeoutError: then nothing is
        known of what happened outside."""
        return self._in_time(self.function, **arguments)

    def look_up(self, key: str) -> dict[str, Any] | None:
        """What the receiver has under an idempotency key; None for nothing, also for a tool without a lookup."""
        if self.lookup_function is None:
            return None
        found: dict[str, Any] | None = self._in_time(self.lookup_function, idempotency_key=key)
        return found

    def _in_time(self, function: Callable[..., Any], **arguments: Any) -> Any:
        if self.timeout is None:
            return function(**arguments)
        try:
            with limited_within(self.timeout.total_seconds(), _CallTimeIsUp):
                return function(**arguments)
        except _CallTimeIsUp:
            raise TimeoutError(f"{self.name} took longer than its {self.timeout.total_seconds():g} s.") from None

    def proposed(self, **arguments: Any) -> ProposedAction:
        """Freeze a use of this tool without sending it. Raises BadArguments."""
        return self._frozen(self.validate(arguments))

    def proposed_in_json(self, arguments: str) -> ProposedAction:
        """As `proposed`, of JSON text: a date is text there, and is no other than the date. Raises BadArguments."""
        return self._frozen(self._checked(self._arguments.model_validate_json, arguments))

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments, checked against the type hints and normalised to JSON. Raises BadArguments naming each."""
        return self._checked(self._arguments.model_validate, arguments)

    def _checked(self, check: Callable[[Any], pydantic.BaseModel], arguments: Any) -> dict[str, Any]:
        try:
            return check(arguments).model_dump(mode="json")
        except pydantic.ValidationError as error:
            # The offending values stay out of the sentence: they may be personal data, and sentences reach logs.
            found = error.errors(include_input=False)
            raise BadArguments(self.name, [(".".join(map(str, each["loc"])), each["msg"]) for each in found]) from None

    def _frozen(self, clean: dict[str, Any]) -> ProposedAction:
        payload = canonical({"arguments": clean, "tool": self.name}, where=self.name)
        return ProposedAction(self, clean, payload, digest(payload))

    def needs_approval(self, arguments: dict[str, Any]) -> bool:
        """A rule that cannot read the arguments means yes."""
        if not callable(self.requires_approval):
            return self.requires_approval
        try:
            return bool(self.requires_approval(arguments))
        except Exception:  # noqa: BLE001 (whatever a rule stumbles over, a person decides)
            return True

    def price_of(self, arguments: dict[str, Any]) -> Money | None:
        """What a use may cost, to be reserved before it is sent; None: it has no price. Raises PermanentError."""
        price = self.price(arguments) if callable(self.price) else self.price
        if price is not None and not isinstance(price, Money):
            raise PermanentError(f"The price of {self.name} is a {type(price).__name__}; give Money. Nothing was sent.")
        if price is None and self.price is not None:
            raise PermanentError(f"The price of {self.name} cannot be told for these arguments. Nothing was sent.")
        return price

    def cost_of(self, answer: dict[str, Any], price: Money) -> Money:
        """What a use did cost: by its answer, or its price. Raises ValueError for another currency, and whatever the
        author's function raises."""
        cost = self._cost(answer) if self._cost else price
        if not isinstance(cost, Money) or cost.currency != price.currency:
            raise ValueError(f"The cost of {self.name} is to be Money in {price.currency}.")
        return cost

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments, from the type hints."""
        return self._arguments.model_json_schema()

    def in_words(self, arguments: dict[str, Any]) -> str:
        """The statement's template, filled from the arguments; {amount} is amount_minor and currency as money."""
        words = dict(arguments)
        if "amount_minor" in arguments and "currency" in arguments:
            currency = str(arguments["currency"])
            words["amount"] = f"{amount(int(arguments['amount_minor']), currency)} {currency}"
        return self.statement.format_map(words)

    def subject(self, arguments: dict[str, Any]) -> str | None:
        """What this effect may happen once per, across all runs; None when it is not limited so."""
        return f"{self.once_per}={arguments[self.once_per]}" if self.once_per else None

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"


def tool(
    name: str,
    *,
    effect: bool = False,
    model: bool = False,
    requires_approval: bool | Rule = False,
    once_per: str = "",
    key_life: timedelta = timedelta(hours=24),
    delivery: Delivery = "keyed",
    settle_delay: timedelta = timedelta(seconds=10),
    statement: str = "",
    price: Price | None = None,
    cost: Cost | None = None,
    timeout: timedelta | None = None,
) -> Callable[[Callable[..., Any]], Tool]:
    """Register a function as a tool.

    `effect`: it changes the outside world, and must take `idempotency_key`. `requires_approval`: True, or a rule on
    the arguments. `once_per`: the argument of which only one such effect may ever happen. `key_life`: how long the
    receiver remembers a key. `statement`: the action in plain words, with {argument} and {amount} places.

    `delivery` says what the receiver makes of the key. "keyed": it honours it, and the same key is sent again.
    "check-then-act": it has none, but can be searched: looked up before every send, and `settle_delay` after one whose
    outcome is unknown; needs a lookup. "at-most-once" and "at-least-once": it can do neither; an unknown outcome then
    stays unknown, or is sent again. `settle_delay` is how long the receiver's own records may not show an effect yet.

    `price`: what a use may cost at most, as Money or a function of the arguments; it is reserved before sending, and a
    run whose cap (`Caps(spend=…)`) would be exceeded waits for a person. `cost`: a function of the answer that says
    what it did cost; without it, the price.

    `timeout`: how long one send, read or look-up may take; the step's own limit comes first where it is shorter. A read
    that took longer is tried again, an effect's outcome is unknown.
    """

    def register(function: Callable[..., Any]) -> Tool:
        kind = CallKind.EFFECT if effect else CallKind.MODEL if model else CallKind.READ
        made = Tool(
            name,
            function,
            kind=kind,
            requires_approval=requires_approval,
            once_per=once_per,
            key_life=key_life,
            delivery=delivery,
            settle_delay=settle_delay,
            statement=statement or _plain_statement(name, function),
            price=price,
            cost=cost,
            timeout=timeout,
        )
        if name in _registry:
            raise ImproperlyConfigured(f"Two tools are called {name}.")
        _registry[name] = made
        return made

    return register


def get(name: str) -> Tool | None:
    return _registry.get(name)


def registered() -> list[Tool]:
    return [_registry[name] for name in sorted(_registry)]


def with_listing() -> list[Tool]:
    """The tools whose receivers can list what they did."""
    return [known for known in registered() if known.listing_function is not None]


def over(limit_minor: int, argument: str = "amount_minor") -> Rule:
    """A rule: the amount is above `limit_minor` (integer minor units)."""

    def rule(arguments: dict[str, Any]) -> bool:
        return int(arguments[argument]) > limit_minor

    return rule


def _model_of(name: str, function: Callable[..., Any], *, with_key: bool) -> type[pydantic.BaseModel]:
    parameters = dict(inspect.signature(function).parameters)
    if with_key and "idempotency_key" not in parameters:
        raise ImproperlyConfigured(f"Tool {name} has an effect, so its function must take idempotency_key.")
    parameters.pop("idempotency_key", None)
    fields: dict[str, Any] = {}
    for parameter in parameters.values():
        if parameter.annotation is inspect.Parameter.empty:
            raise ImproperlyConfigured(f"Tool {name}: {parameter.name} needs a type hint; arguments are checked by it.")
        if with_key and parameter.annotation in (float, "float"):
            # Refused now rather than at the first payment: what is sent under a key has one spelling.
            raise ImproperlyConfigured(
                f"Tool {name}: {parameter.name} is a float, and no effect takes one. "
                "Use integer minor units for money, text for the rest."
            )
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (parameter.annotation, default)
    config = pydantic.ConfigDict(extra="forbid", strict=True)
    return pydantic.create_model(f"{name} arguments", __config__=config, **fields)


def _plain_statement(name: str, function: Callable[..., Any]) -> str:
    parameters = [parameter for parameter in inspect.signature(function).parameters if parameter != "idempotency_key"]
    return f"{name}: " + ", ".join(f"{parameter} {{{parameter}}}" for parameter in parameters)
