"""Scripted faults: rules that say which of the next requests go wrong, and how. Imports `messages`, `refusals` and
`store`.

A rule is used up before its fault acts, and that is on the disk: a sandbox that is killed in the middle of a fault does
not commit it twice.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from durable_site.sandbox.messages import require_number, require_text
from durable_site.sandbox.refusals import Failure, KeyInProgress, Refusal, TooManyRequests
from durable_site.sandbox.store import Database

FAULTS = {
    "delay": "carried out; the answer comes after `seconds`",
    "lost_answer": "carried out; the connection ends without an answer",
    "garbage": "carried out; the answer cannot be read",
    "other_amount": "paid as asked; the answer tells an amount that is one minor unit higher",
    "409": "nothing is done; the answer is that of a key still in progress",
    "429": "nothing is done; Retry-After is `seconds`, or 1",
    "500": "nothing is done, or all of it with `effect`; the answer is a 500 that is not saved under the key",
    "500_stored": "no payment, or one with `effect`; the answer is a 500, saved as far as the profile saves failures",
    "402_stored": "no payment; the answer is a 402, saved as far as the profile saves failures",
    "reset": "nothing is done, or all of it with `effect`; the connection is reset",
    "down": "the connection ends before the body is read; with `seconds`, for that long from now in real time",
}
PAYMENTS_ONLY = {"other_amount", "500_stored", "402_stored"}
PAYING_PATHS = {"/payments", "/v1/transfers"}
SAVED = {
    "500_stored": (500, "internal_error", "The provider failed while it carried out the request."),
    "402_stored": (402, "insufficient_funds", "The account does not hold enough money for this payment."),
}
GARBAGE = b'{"payment": "pay_'
MOST_TIMES = 1_000_000


class CutOff(Exception):
    """The connection ends without an answer: closed in order, or reset."""

    def __init__(self, *, reset: bool) -> None:
        super().__init__("reset" if reset else "closed")
        self.reset = reset


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request. `effect`: it goes wrong only after the request was carried out."""

    name: str = ""
    seconds: float = 0.0
    effect: bool = False

    @property
    def delay_seconds(self) -> float:
        return self.seconds if self.name == "delay" else 0.0

    def saved_failure(self) -> Failure | None:
        return Failure(*SAVED[self.name]) if self.name in SAVED else None

    def before_reading(self) -> None:
        """Raises CutOff when the rest of the request is not even read."""
        if self.name == "down":
            raise CutOff(reset=False)

    def before_acting(self) -> None:
        """Raises what keeps the request from being carried out: a Refusal or CutOff."""
        if self.name == "409":
            raise KeyInProgress
        if self.name == "429":
            raise TooManyRequests(math.ceil(self.seconds) or 1)
        if not self.effect:
            self._break_off()

    def after_acting(self) -> None:
        """Raises what is told instead of the answer: a Refusal or CutOff."""
        if self.name == "lost_answer":
            raise CutOff(reset=False)
        self._break_off()

    def on_the_way(self, answer: bytes) -> bytes:
        """The answer as it arrives."""
        if self.name == "garbage":
            return GARBAGE
        return _with_other_amount(answer) if self.name == "other_amount" else answer

    def _break_off(self) -> None:
        if self.name == "500":
            raise Failure(500, "internal_error", "The provider failed; it does not say at which point.")
        if self.name == "reset":
            raise CutOff(reset=True)


NO_FAULT = Fault()


class FaultScript:
    """The rules that are not used up. The first one that fits a request acts, and only that one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, rule: dict[str, Any]) -> None:
        """Raises Refusal when the rule has members that it cannot have."""
        for member, check in CHECKS.items():
            if member in rule:
                check(rule, member)
        if unknown := set(rule) - set(CHECKS) or set(rule.get("match", {})) - MATCHED:
            raise Refusal(f"A rule has no member {min(unknown)}.")
        if "fault" not in rule or (rule["fault"] == "delay" and "seconds" not in rule):
            raise Refusal("A rule needs the member fault, and seconds if that is delay.")
        if rule["fault"] == "down" and "seconds" in rule:
            rule = rule | {"until": (_real_now() + timedelta(seconds=rule["seconds"])).isoformat()}
        row = (json.dumps(rule), rule.get("times", 1))
        self._database.write("INSERT INTO faults (rule, times_left) VALUES (?, ?)", row)

    def clear(self) -> None:
        self._database.write("DELETE FROM faults", ())

    def listed(self) -> list[dict[str, Any]]:
        """Every rule, with how often it will still act; null means until it is removed."""
        return [json.loads(rule) | {"times": left} for _, rule, left in self._rows()]

    def draw(self, method: str, path: str, key: str | None) -> Fault:
        """What is to go wrong with this request; NO_FAULT mostly."""
        with self._database.lock:
            for n, text, left in self._rows():
                rule = json.loads(text)
                if _fits(rule, method, path, key):
                    self._use(n, left)
                    return Fault(rule["fault"], float(rule.get("seconds", 0)), rule.get("effect", False))
        return NO_FAULT

    def _rows(self) -> list[tuple[int, str, int | None]]:
        return self._database.rows("SELECT n, rule, times_left FROM faults ORDER BY n")

    def _use(self, n: int, left: int | None) -> None:
        if left == 1:
            self._database.write("DELETE FROM faults WHERE n = ?", (n,))
        elif left is not None:
            self._database.write("UPDATE faults SET times_left = times_left - 1 WHERE n = ?", (n,))


def is_payment(method: str, path: str) -> bool:
    return method == "POST" and path in PAYING_PATHS


def _fits(rule: dict[str, Any], method: str, path: str, key: str | None) -> bool:
    match = rule.get("match", {})
    under = match.get("path", path)
    return (
        match.get("key", key) == key
        and match.get("method", method) == method
        and (path == under or path.startswith(f"{under}/"))
        and (rule["fault"] not in PAYMENTS_ONLY or is_payment(method, path))
        and ("until" not in rule or _real_now() < datetime.fromisoformat(rule["until"]))
    )


def _with_other_amount(answer: bytes) -> bytes:
    told = json.loads(answer)
    for member in ("amount_minor", "amount"):
        if isinstance(told.get(member), int):
            told[member] += 1
    return json.dumps(told).encode("ascii")


def _real_now() -> datetime:
    return datetime.now(UTC)


def _require_fault(rule: dict[str, Any], member: str) -> None:
    if not isinstance(rule[member], str) or rule[member] not in FAULTS:
        raise Refusal(f"The member fault must be one of {', '.join(FAULTS)}.")


def _require_match(rule: dict[str, Any], member: str) -> None:
    if not isinstance(rule[member], dict):
        raise Refusal("The member match must be an object with any of key, method and path.")
    for matched in rule[member]:
        require_text(rule[member], matched)


def _require_times(rule: dict[str, Any], member: str) -> None:
    times = rule[member]
    if times is not None and not (type(times) is int and 1 <= times <= MOST_TIMES):
        raise Refusal(f"The member times must be a number from 1 to {MOST_TIMES}, or null for always.")


def _require_effect(rule: dict[str, Any], member: str) -> None:
    if type(rule[member]) is not bool or rule.get("fault") not in ("500", "500_stored", "reset"):
        raise Refusal("The member effect must be true or false, and goes with 500, 500_stored and reset only.")


def _require_seconds(rule: dict[str, Any], member: str) -> None:
    require_number(rule, member, least=0, most=86_400)


MATCHED = {"key", "method", "path"}
CHECKS: dict[str, Callable[[dict[str, Any], str], None]] = {
    "match": _require_match,
    "fault": _require_fault,
    "times": _require_times,
    "seconds": _require_seconds,
    "effect": _require_effect,
}
