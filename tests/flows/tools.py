"""What the workflows for tests do to the outside world: payments and letters, which are lines of two files.

FLOWS_WORLD names the folder. A payment is a line that is on disk before it is answered; its key is remembered, so that
the same key is answered again and not paid again. A letter has no key: each sending is another line.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from runs.errors import OutcomeUnknown
from runs.tools import tool


@tool("flows.pay", effect=True, statement="Pay {amount_minor} for {claim}")
def pay(*, idempotency_key: str, amount_minor: int, claim: str) -> dict[str, Any]:
    order = {"key": idempotency_key, "amount_minor": amount_minor, "claim": claim}
    with _held("payments") as file:
        _add(_world() / "requests", order)
        made = [payment for payment in map(json.loads, file) if payment["key"] == idempotency_key]
        if made and made[0] != order:
            raise OutcomeUnknown("this key is known with another payment")
        if not made:
            file.write(f"{json.dumps(order)}\n")
            file.flush()
            os.fsync(file.fileno())
    return {"payment": idempotency_key.partition(":")[2], "replayed": bool(made)}


@tool("flows.write", effect=True, delivery="at-most-once", statement="Write to {to}")
def write(*, idempotency_key: str, to: str) -> dict[str, Any]:
    _add(_world() / "letters", {"key": idempotency_key, "to": to})
    return {"sent": to}


def lines(world: Path, name: str) -> list[dict[str, Any]]:
    """The payments, requests or letters of that world, in order."""
    path = world / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _world() -> Path:
    return Path(os.environ["FLOWS_WORLD"])


@contextmanager
def _held(name: str) -> Iterator[TextIO]:
    with (_world() / name).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file


def _add(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(f"{json.dumps(line)}\n")
