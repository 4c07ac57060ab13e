"""Appends to the ledger by eight writers at once, each in a process and a transaction of its own, as decisions are.

The head's lock is held until the commit is on disk, so that this is a chain of commits: what more writers add is only
what they do before the lock. The floor is the same chain by a bare driver: the lock, one statement that writes a row as
long and moves the head, the commit; nothing is hashed or signed, and its tables have neither triggers nor foreign keys.
"""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg

from .figures import Figures, Goal

if TYPE_CHECKING:
    from .database import Database

WRITERS = 8
APPENDS = f"appends/s to the ledger, {WRITERS} writers"
COMMITS = "commits/s of one small row, one writer"

MEMBERS = """
members = {"run": "claim-0042", "approval": 1, "verdict": "approve", "comment": "photos agree", "signer_name": "ada",
           "statement": "Pay 1,840.00 USD to p-1", "payload_digest": "0" * 64, "facts_digest": "1" * 64}
"""
ENGINE = f"""
import sys
import django
django.setup()
from django.db import connection, transaction
from approvals import ledger
from runs.models import database_clock
{MEMBERS}
connection.ensure_connection()
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[1])):
    with transaction.atomic():
        ledger.append("note", members, at=database_clock())
"""
FLOOR = """
import os, sys
import psycopg
connection = psycopg.connect(os.environ["DATABASE_URL"], prepare_threshold=1)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[1])):
    with connection.transaction():
        sequence, _ = connection.execute("SELECT sequence, entry_hash FROM floor_head FOR UPDATE").fetchone()
        connection.execute(
            "WITH entry AS (INSERT INTO floor_entry VALUES (%s, %s, %s) RETURNING sequence, entry_hash) "
            "UPDATE floor_head SET sequence = entry.sequence, entry_hash = entry.entry_hash FROM entry",
            [sequence + 1, f"{sequence + 1:064}", "x" * 1000],
        )
"""
TABLES = """
CREATE TABLE IF NOT EXISTS floor_entry (sequence bigint PRIMARY KEY, entry_hash text NOT NULL UNIQUE, record text);
CREATE TABLE IF NOT EXISTS floor_head (sequence bigint NOT NULL, entry_hash text NOT NULL);
INSERT INTO floor_head SELECT 0, '' WHERE NOT EXISTS (SELECT FROM floor_head)
"""


def measure_appends(database: "Database", figures: Figures, appends: int) -> None:
    """Appends a second over all writers; the chain they leave has no gap."""
    from approvals.models import LedgerEntry, LedgerHead

    _prepare_floor(database)
    figures.add(f"{APPENDS}: floor", _appends_a_second(database, FLOOR, appends))
    before = LedgerHead.objects.get().sequence
    figures.add(f"{APPENDS}: engine", _appends_a_second(database, ENGINE, appends), goal=Goal(least=200))
    made = LedgerHead.objects.get().sequence - before
    assert made == appends // WRITERS * WRITERS
    assert LedgerEntry.objects.count() == before + made, "there is a gap"
    figures.add(COMMITS, _commits_a_second(database, appends // 2))


def _prepare_floor(database: "Database") -> None:
    with database.connect() as connection:
        connection.execute(TABLES)


def _appends_a_second(database: "Database", script: str, appends: int) -> float:
    with ExitStack() as stack:
        writers = [stack.enter_context(_writer(database, script, appends // WRITERS)) for _ in range(WRITERS)]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        began = time.perf_counter()
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        for writer in writers:
            assert writer.wait() == 0
        return appends // WRITERS * WRITERS / (time.perf_counter() - began)


def _writer(database: "Database", script: str, appends: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, str(appends)]
    environment = dict(os.environ) | database.environment
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _commits_a_second(database: "Database", commits: int) -> float:
    """What the disk allows whoever waits for each commit."""
    with psycopg.connect(database.url, autocommit=True, prepare_threshold=1) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS floor_commit (number bigint)")
        began = time.perf_counter()
        for number in range(commits):
            connection.execute("INSERT INTO floor_commit VALUES (%s)", [number])
        return commits / (time.perf_counter() - began)
