"""The results: one list of values per figure, one value or more per round; the table and the JSON made of them."""

from collections import defaultdict
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

WIDTHS = (58, 10, 20, 9, 9)


@dataclass(frozen=True)
class Goal:
    """Reached when the median, or its ratio to the baseline that is named, is at most or at least so much."""

    most: float | None = None
    least: float | None = None
    times: str = ""

    def holds(self, value: float) -> bool:
        return value <= self.most if self.most is not None else value >= (self.least or 0)

    def __str__(self) -> str:
        sign, bound = ("<=", self.most) if self.most is not None else (">=", self.least)
        return f"{sign} {bound:g}" + (f" x {self.times}" if self.times else "")


class Figures:
    """What was measured so far. Names are `W1 steps/s: engine`; what stands before the colon is compared."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = defaultdict(list)
        self.goals: dict[str, Goal] = {}

    def add(self, name: str, *values: float, goal: Goal | None = None) -> None:
        self.values[name].extend(values)
        if goal:
            self.goals[name] = goal

    def add_latencies(self, name: str, milliseconds: list[float], *, p50: Goal | None, p95: Goal | None) -> None:
        """One round's middle and its slow end."""
        self.add(f"{name} p50", median(milliseconds), goal=p50)
        self.add(f"{name} p95", quantiles(milliseconds, n=20)[-1], goal=p95)

    def ratio(self, name: str, baseline: str) -> float | None:
        """To the baseline under the same heading, round by round, the middle one; None where there is none."""
        heading, _, _ = name.partition(": ")
        found = self.values.get(f"{heading}: {baseline}")
        return median(value / base for value, base in zip(self.values[name], found, strict=True)) if found else None

    def table(self) -> str:
        titles = ("", "median", "least .. most", "x floor", "x f:cas")
        lines = [self._line(*titles, "goal"), "-" * 130]
        lines += [self._figure(name) for name in self.values]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            name: {
                "median": median(values),
                "rounds": values,
                "x floor": self.ratio(name, "floor"),
                "x floor:cas": self.ratio(name, "floor:cas"),
                "goal": str(self.goals[name]) if name in self.goals else None,
                "reached": self._reached(name),
            }
            for name, values in self.values.items()
        }

    def _reached(self, name: str) -> bool | None:
        goal = self.goals.get(name)
        if goal is None:
            return None
        value = self.ratio(name, goal.times) if goal.times else median(self.values[name])
        return value is not None and goal.holds(value)

    def _figure(self, name: str) -> str:
        values = self.values[name]
        spread = f"{_short(min(values))} .. {_short(max(values))}" if len(values) > 1 else ""
        ratios = (self.ratio(name, baseline) for baseline in ("floor", "floor:cas"))
        goal, reached = self.goals.get(name), self._reached(name)
        verdict = f"{goal} {'reached' if reached else 'MISSED'}" if goal else ""
        shown = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        return self._line(name, _short(median(values)), spread, *shown, verdict)

    @staticmethod
    def _line(name: str, *cells: str) -> str:
        *columns, last = cells
        aligned = "".join(f"{cell:>{width}}" for cell, width in zip(columns, WIDTHS[1:], strict=True))
        return f"{name:{WIDTHS[0]}}{aligned}  {last}".rstrip()


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
