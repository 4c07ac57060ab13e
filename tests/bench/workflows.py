"""What is measured: workflows whose steps do nothing but say when they began. May import what authors may."""

import random
import time
from datetime import timedelta

from runs.waits import event
from runs.workflows import Caps, Goto, Workflow, goto

STEPS = 9
STEPS_BEFORE_PARKING = 4
MESSAGES, MESSAGE_BYTES = 40, 20_000
LONG = timedelta(days=30)
GO = "go"
"""The event that parked runs wait for."""

plain = Workflow("bench-plain")
parked = Workflow("bench-parked")
history = Workflow("bench-history", caps=Caps(steps=10_000))
chat = Workflow("bench-chat", appends=["messages"])


def instant() -> float:
    """Seconds on a clock that every process of this machine shares."""
    return time.monotonic()


def _noting(number: int):
    def step(ctx):
        return {"step": number, "at": instant()}

    step.__name__ = f"step_{number}"
    return step


for number in range(1, STEPS + 1):
    plain.step(_noting(number))
for number in range(1, STEPS_BEFORE_PARKING + 1):
    parked.step(_noting(number))


@parked.step
def wait_for_go(ctx):
    return event(GO, expires_in=LONG)


@parked.step
def gone(ctx):
    return {"at": instant()}


@history.step
def turn(ctx) -> Goto:
    return goto("turn" if ctx.position < ctx.input["turns"] else "rest", {"turn": ctx.position})


@history.step
def rest(ctx):
    return event(GO, expires_in=LONG)


@history.step
def resumed(ctx):
    """Says when it began, and when it had read everything that the run did before."""
    began = instant()
    return {"at": began, "read": ctx.state["turn"], "read_at": instant()}


@chat.step
def say(ctx) -> Goto | dict:
    message = {"role": "agent", "text": prose(ctx.position, MESSAGE_BYTES)}
    return goto("say", {"messages": [message]}) if ctx.position < MESSAGES else {"messages": [message]}


_WORDS = random.Random(1)
VOCABULARY = ["".join(_WORDS.choices("etaoinshrdlucmfwypvbgk", k=_WORDS.randint(2, 9))) for _ in range(3000)]


def prose(seed: int, size: int) -> str:
    """Text of that many bytes that compresses about as English does: few words often, many words seldom."""
    words = random.Random(seed)
    text = " ".join(VOCABULARY[int(words.paretovariate(0.15)) % len(VOCABULARY)] for _ in range(size // 3))
    return text[:size]
