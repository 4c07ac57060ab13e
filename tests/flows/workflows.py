"""Workflows for tests: one with everything in it, a plain one, a slow one, and those that hurt their worker."""

import ctypes
import itertools
import os
import signal
import time
from datetime import timedelta
from typing import Any

from django.db import connection

from runs.waits import event, timer
from runs.workflows import Goto, Retry, Workflow, goto

from .tools import pay, write

SOON = timedelta(seconds=0.01)

ENTRIES = "CREATE TABLE flows_entry (run text, position integer)"
"""What `book` writes to. No key guards it: a step that took effect twice is seen."""

everything = Workflow("fault-walk", appends=["rounds"], retry=Retry(attempts=5, base=0.01, cap=0.01))


@everything.step
def go_round(ctx: Any) -> dict[str, Any] | Goto:
    """Three rounds of a loop."""
    rounds = len(ctx.state.get("rounds", [])) + 1
    return goto(go_round, {"rounds": [rounds]}) if rounds < 3 else {"rounds": [rounds]}


@everything.step
def nap(ctx: Any) -> Any:
    return timer(after=SOON, output={"slept": True})


@everything.step
def hear(ctx: Any) -> Any:
    return event("papers", expires_in=timedelta(hours=1))


@everything.step(timeout=timedelta(seconds=5))
def stumble(ctx: Any) -> dict[str, Any]:
    """Fails at its first attempt."""
    if ctx.attempt == 1:
        raise OSError("not at the first attempt")
    return {"stumbled": True}


@everything.step(atomic=True)
def book(ctx: Any) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO flows_entry VALUES (%s, %s)", [ctx.run_key, ctx.position])
    return {"booked": ctx.position}


@everything.step
def settle(ctx: Any) -> dict[str, Any]:
    """The step's one unnamed effect."""
    return {"payment": ctx.call(pay, amount_minor=184_000, claim=ctx.run_key)["payment"]}


@everything.step
def tell(ctx: Any) -> dict[str, Any]:
    """Two named effects: one under a key, one that can only be made at most once."""
    fee = ctx.call(pay, "fee", amount_minor=100, claim=ctx.run_key)["payment"]
    ctx.call(write, "letter", to="the claimant")
    return {"fee": fee}


@everything.step
def close(ctx: Any) -> dict[str, Any]:
    return {"rounds_made": ctx.state["rounds"], "heard": ctx.state["event"]}


plain = Workflow("plain")


@plain.step
def one(ctx: Any) -> dict[str, Any]:
    return {"one": True}


@plain.step
def two(ctx: Any) -> dict[str, Any]:
    return {"two": ctx.state["one"]}


@plain.step
def three(ctx: Any) -> dict[str, Any]:
    return {"payment": ctx.call(pay, amount_minor=1, claim=ctx.run_key)["payment"]}


slow = Workflow("slow", retry=Retry(attempts=5, base=0.1, cap=0.1))


@slow.step
def work(ctx: Any) -> dict[str, Any]:
    """Takes as many seconds as the input says."""
    time.sleep(ctx.input["seconds"])
    return {"worked": ctx.input["seconds"]}


@slow.step
def pay_off(ctx: Any) -> dict[str, Any]:
    return {"payment": ctx.call(pay, amount_minor=2, claim=ctx.run_key)["payment"]}


long_step = Workflow("long-step")


@long_step.step(timeout=timedelta(seconds=20))
def work_long(ctx: Any) -> dict[str, Any]:
    """Has a time limit of its own, whatever the site's is, and takes as many seconds as the input says."""
    time.sleep(ctx.input["seconds"])
    return {"worked": ctx.input["seconds"]}


@long_step.step
def pay_for_it(ctx: Any) -> dict[str, Any]:
    return {"payment": ctx.call(pay, amount_minor=2, claim=ctx.run_key)["payment"]}


parks = Workflow("parks")


@parks.step
def park(ctx: Any) -> Any:
    """Sleeps, or waits for papers, as many seconds as the input says."""
    until = timedelta(seconds=ctx.input["seconds"])
    return timer(after=until) if ctx.input["sleeps"] else event("papers", expires_in=until)


def exit_at_once() -> None:
    os._exit(3)


def read_address_0() -> None:
    ctypes.string_at(0)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def eat_memory() -> None:
    eaten = []
    while True:
        eaten.append(bytearray(64 * 2**20))


def loop_for_ever() -> None:
    while True:
        pass


def sleep_in_c() -> None:
    time.sleep(10**6)


def compute_in_c() -> None:
    """A call that no alarm gets into: Python's handlers run only when it returns."""
    sum(itertools.repeat(0))


POISONS = {
    poison.__name__: poison
    for poison in (exit_at_once, read_address_0, kill_itself, eat_memory, loop_for_ever, sleep_in_c, compute_in_c)
}

poison = Workflow("poison", retry=Retry(attempts=2, base=0.1, cap=0.1))


@poison.step
def swallow(ctx: Any) -> dict[str, Any]:
    return {"well": True}


@poison.step(timeout=timedelta(seconds=1))
def suffer(ctx: Any) -> dict[str, Any]:
    POISONS[ctx.input["poison"]]()
    return {"survived": True}
