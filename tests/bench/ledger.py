"""Appends to the ledger by eight writers at once, each in a process and a transaction of its own, as decisions are.

The head's lock is held until the commit is on disk, so that this is a chain of commits: what more writers add is only
what they do before the lock.
"""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from .figures import Figures, Goal

if TYPE_CHECKING:
    from .database import Database

WRITERS = 8

WRITER = """
import sys
import django
django.setup()
from django.db import connection, transaction
from approvals import ledger
from runs.models import database_clock
members = {"run": "claim-0042", "approval": 1, "verdict": "approve", "comment": "photos agree", "signer_name": "ada",
           "statement": "Pay 1,840.00 USD to p-1", "payload_digest": "0" * 64, "facts_digest": "1" * 64}
connection.ensure_connection()
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[1])):
    with transaction.atomic():
        ledger.append("note", members, at=database_clock())
"""


def measure_appends(database: "Database", figures: Figures, appends: int) -> None:
    """Appends a second over all writers; the chain they leave has no gap."""
    from approvals.models import LedgerEntry, LedgerHead

    before = LedgerHead.objects.get().sequence
    with ExitStack() as stack:
        writers = [stack.enter_context(_writer(database, appends // WRITERS)) for _ in range(WRITERS)]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        began = time.perf_counter()
        for writer in writers:
            writer.communicate("go\n")
        took = time.perf_counter() - began
    made = LedgerHead.objects.get().sequence - before
    assert made == appends // WRITERS * WRITERS
    assert LedgerEntry.objects.count() == before + made, "there is a gap"
    figures.add(f"appends/s to the ledger, {WRITERS} writers: engine", made / took, goal=Goal(least=200))


def _writer(database: "Database", appends: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(appends)]
    environment = dict(os.environ) | database.environment
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
