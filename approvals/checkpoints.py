"""Signed checkpoints: how large the ledger was at a moment, and the Merkle root over its entries.

Whoever keeps one elsewhere sees later whether the end was cut off or the beginning rewritten. Made each hour by the
workflow ledger-checkpoint, and for each export. May import models, merkle, rows, ledger, signing, verifier.
"""

import fcntl
import json
import logging
import os
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.mail import send_mail

from runs.models import database_clock
from runs.values import canonical, from_json

from . import ledger
from .merkle import Frontier
from .models import LedgerCheckpoint, LedgerEntry, LedgerHead
from .rows import instant
from .verifier import CHECKPOINT

logger = logging.getLogger(__name__)

SCHEMA = "durable-runs/checkpoint/1"


def make() -> LedgerCheckpoint:
    """Sign what the ledger is now, in the caller's transaction. Raises ledger.CannotSign."""
    head = LedgerHead.objects.get()
    if not head.key_id:
        head = LedgerHead.objects.select_for_update().get()
    key = ledger.key_for(head)
    frontier, at = _grown_to(head.sequence), database_clock()
    members = {
        "schema": SCHEMA,
        "size": head.sequence,
        "root": frontier.root,
        "head_hash": head.entry_hash,
        "signed_at": instant(at),
        "key_id": key.key_id,
    }
    record = canonical(members, where="checkpoint")
    return LedgerCheckpoint.objects.create(
        size=head.sequence,
        record=record,
        signature=key.sign(record, domain=CHECKPOINT),
        key_id=key.key_id,
        frontier=" ".join(frontier.parts),
        at=at,
    )


def line(checkpoint: LedgerCheckpoint) -> str:
    """The checkpoint as a file keeps it: one line of JSON."""
    return json.dumps({"record": checkpoint.record, "signature": checkpoint.signature}, sort_keys=True)


def noted(path: Path) -> list[dict[str, str]]:
    """The lines of a file of checkpoints. Raises ValueError, OSError."""
    lines = [from_json(text) for text in path.read_text().splitlines() if text.strip()]
    for number, one in enumerate(lines, start=1):
        record = from_json(one["record"]) if isinstance(one, dict) and isinstance(one.get("record"), str) else None
        if not isinstance(record, dict) or type(record.get("size")) is not int or "signature" not in one:
            raise ValueError(f"line {number} is no checkpoint")
    return lines


def write_to_file(checkpoint: LedgerCheckpoint) -> str:
    """Append its line to the file of the setting, once, and say where. Raises OSError."""
    path = Path(settings.LEDGER_CHECKPOINT_FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        # A worker that died behind its line comes again: the lock keeps two of them from writing both.
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(max(0, file.tell() - 100_000))
        if line(checkpoint) not in file.read().splitlines():
            file.write(f"{line(checkpoint)}\n")
            file.flush()
            os.fsync(file.fileno())
    return str(path)


def mail(checkpoint: LedgerCheckpoint) -> int:
    """Mail it to the addresses of the setting; to how many."""
    addresses = settings.LEDGER_CHECKPOINT_MAIL
    if addresses:
        subject = f"Ledger checkpoint: {checkpoint.size} entries at {instant(checkpoint.at)}"
        send_mail(subject, f"{WORDS}\n\n{line(checkpoint)}\n", None, addresses)
    return len(addresses)


WORDS = (
    "Keep this where the site cannot reach it. The line below signs how many entries the ledger has and what they are. "
    "Later `manage.py verify_ledger --checkpoints FILE`, with the line in FILE, tells whether any were cut or altered."
)


def last() -> LedgerCheckpoint | None:
    return LedgerCheckpoint.objects.order_by("-pk").first()


def _grown_to(size: int) -> Frontier:
    """The tree of so many entries, grown on from the last checkpoint: what it adds is read, and nothing again."""
    before = LedgerCheckpoint.objects.filter(size__lte=size).order_by("-size", "-pk").first()
    frontier = Frontier(before.size, before.frontier.split()) if before else Frontier()
    added = LedgerEntry.objects.filter(sequence__gt=frontier.size, sequence__lte=size).order_by("sequence")
    for entry_hash in added.values_list("entry_hash", flat=True).iterator(chunk_size=10_000):
        frontier.add(entry_hash)
    return frontier


def as_trusted(checkpoint: LedgerCheckpoint) -> dict[str, Any]:
    """As a trust file holds it."""
    return {"record": checkpoint.record, "signature": checkpoint.signature}
