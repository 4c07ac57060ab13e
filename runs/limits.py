"""How near a run is to each of its caps, and which of them were raised for it alone. May import spending, workflows."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from . import spending, workflows
from .models import Run
from .templatetags.show import duration, money
from .workflows import Caps


@dataclass(frozen=True)
class Limit:
    """One cap. `used` and `cap` in its own unit (steps, seconds, minor units), `words` for people."""

    title: str
    used: float
    cap: float
    words: str
    is_raised: bool

    @property
    def near(self) -> float:
        """From here on it is near."""
        return self.cap * 0.8


def of(run: Run, now: datetime) -> list[Limit]:
    """Every cap that holds for this run."""
    known = workflows.get(run.workflow, run.version)
    caps, raised = known.caps if known else Caps(), run.caps or {}
    age = ((run.finished_at or now) - run.created_at).total_seconds()
    steps = raised.get("steps", caps.steps)
    found = [Limit("Steps", run.position, steps, f"{run.position:,} of {steps:,}", "steps" in raised)]
    found.append(_span("Work", run.worked.total_seconds(), raised, "working_time", caps))
    found.append(_span("Age with waits", age, raised, "age", caps))
    for spend in spending.of(run):
        if spend.cap is not None:
            words = f"{money(spend.taken, spend.currency)} of {money(spend.cap, spend.currency)}"
            found.append(Limit("Spend", spend.taken, spend.cap, words, "spend" in raised))
    return found


def _span(title: str, used: float, raised: dict[str, Any], name: str, caps: Caps) -> Limit:
    cap = raised.get(name, getattr(caps, name).total_seconds())
    return Limit(title, used, cap, f"{duration(used)} of {duration(cap)}", name in raised)
