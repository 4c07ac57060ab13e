"""What a run spends on priced calls: reserved before a call is sent, settled by its answer, held under the run's cap.

The sum is taken under the run's lock, which only the one worker of a run takes here: nothing is reserved twice. What
was refused gives its reservation back; what is sent or unknown keeps it. May import tools, workflows, models, money.
"""

import logging
from dataclasses import dataclass
from typing import Any

from django.db.models import F, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from . import workflows
from .errors import PermanentError
from .models import Call, Run
from .money import Money, amount
from .states import EffectState
from .tools import Tool

logger = logging.getLogger(__name__)


class Capped(BaseException):
    """Sending could go over the run's cap: leave the step at once, and wait for a person. Nothing was sent."""

    def __init__(self, taken: int, cap: Money, tool: str, step: str, price: Money) -> None:
        super().__init__(
            f"It has spent or reserved {amount(taken, cap.currency)} of its {cap}, and {tool} in step {step} may cost "
            f"{price}; raise the cap or cancel it"
        )


@dataclass(frozen=True)
class Spend:
    """What a run has spent in one currency, in minor units. `reserved` is for calls whose outcome is not known yet."""

    currency: str
    settled: int
    reserved: int
    cap: int | None

    @property
    def taken(self) -> int:
        return self.settled + self.reserved

    def __str__(self) -> str:
        of = f" of {amount(self.cap, self.currency)}" if self.cap is not None else ""
        held = f", and {amount(self.reserved, self.currency)} reserved" if self.reserved else ""
        return f"Spent {amount(self.settled, self.currency)}{of} {self.currency}{held}"


def cap_of(run: Run) -> Money | None:
    """The spend cap that holds for this run: the one it was given, else its workflow's."""
    if raised := (run.caps or {}).get("spend"):
        return Money(**raised)
    workflow = workflows.get(run.workflow, run.version)
    return workflow.caps.spend if workflow else None


def of(run: Run) -> list[Spend]:
    """What this run has spent, a line for each currency, the capped one always."""
    cap = cap_of(run)
    sums = {row["currency"]: (int(row["settled"] or 0), int(row["reserved"] or 0)) for row in _sums(run)}
    if cap is not None:
        sums.setdefault(cap.currency, (0, 0))
    return [
        Spend(currency, *sums[currency], cap.minor if cap is not None and cap.currency == currency else None)
        for currency in sorted(sums)
    ]


def reserve(run: Run, step: str, tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """The columns of a call that is about to be sent; the caller holds the run's lock and writes them in the same
    transaction. Raises Capped, and PermanentError for a price in another currency than the cap's."""
    price = tool.price_of(arguments)
    if price is None:
        return {}
    # Read anew: the cap may have been raised while this worker was at it.
    cap = cap_of(Run.objects.only("caps", "workflow", "version").get(pk=run.pk))
    if cap is not None:
        if cap.currency != price.currency:
            raise PermanentError(
                f"{tool.name} is priced in {price.currency}, and the run's spend cap is in {cap.currency}: they cannot "
                "be compared. Nothing was sent."
            )
        taken = next((spend.taken for spend in of(run) if spend.currency == cap.currency), 0)
        if taken + price.minor > cap.minor:
            raise Capped(taken, cap, tool.name, step, price)
    return {"price_minor": price.minor, "currency": price.currency}


def settle(call: Call, tool: Tool, answer: dict[str, Any]) -> dict[str, Any]:
    """The columns of a call that was answered: what it really cost. A cost that cannot be read is the price."""
    if call.price_minor is None:
        return {}
    price = Money(call.price_minor, call.currency)
    try:
        cost = tool.cost_of(answer, price)
    except Exception as error:  # noqa: BLE001 (whatever the author's function stumbles over, the call has happened)
        logger.error("The cost of %s cannot be read from its answer: %s.", call.key, type(error).__name__)
        cost = price
    return {"cost_minor": cost.minor}


def _sums(run: Run) -> QuerySet[Any, Any]:
    priced = Call.objects.filter(run_id=run.pk, price_minor__isnull=False).exclude(state=EffectState.REFUSED)
    confirmed = Q(state=EffectState.CONFIRMED)
    return (
        priced.order_by()
        .values("currency")
        .annotate(
            settled=Sum(Coalesce(F("cost_minor"), F("price_minor")), filter=confirmed),
            reserved=Sum("price_minor", filter=~confirmed),
        )
    )
