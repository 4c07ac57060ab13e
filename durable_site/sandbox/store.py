"""The folder a sandbox owns: its lock, its append-only files, its database. Imports the standard library only.

lock              held by the one process that may use the folder
url               where that process listens
journal.jsonl     one line per payment made: the truth
tickets.jsonl     one line per ticket opened
requests.jsonl    one line per request that could be read, with the status it was answered with, if it was
sandbox.sqlite3   an index of the journal; and what is kept nowhere else: the documents of the registers, the failures
                  saved under keys, how far the clock was moved, the faults that are still to happen
"""

import fcntl
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any, NoReturn

EXIT_STORAGE_FAILED = 74  # EX_IOERR

INDEX_VERSION = 1
DROP_INDEX = "DROP TABLE IF EXISTS payments;"  # it is made anew from the journal
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS payments (
    n INTEGER PRIMARY KEY, payment TEXT NOT NULL UNIQUE, key TEXT, reference TEXT NOT NULL, payee TEXT NOT NULL,
    at TEXT NOT NULL, transfer_group TEXT, line TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS payments_by_key ON payments (key, n);
CREATE INDEX IF NOT EXISTS payments_by_reference ON payments (reference, n);
CREATE INDEX IF NOT EXISTS payments_by_group ON payments (transfer_group, n);
CREATE INDEX IF NOT EXISTS payments_by_time ON payments (at);
CREATE TABLE IF NOT EXISTS failures (
    key TEXT PRIMARY KEY, at TEXT NOT NULL, request TEXT NOT NULL, status INTEGER NOT NULL, kind TEXT NOT NULL,
    sentence TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS documents (
    register TEXT NOT NULL, name TEXT NOT NULL, document TEXT NOT NULL, PRIMARY KEY (register, name)
) STRICT;
CREATE TABLE IF NOT EXISTS clock (only INTEGER PRIMARY KEY CHECK (only = 1), ahead_seconds REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS faults (n INTEGER PRIMARY KEY, rule TEXT NOT NULL, times_left INTEGER) STRICT;
PRAGMA user_version = {INDEX_VERSION};
"""


class StoreInUse(Exception):
    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(
            f"The store {folder} is in use by another sandbox (pid {holder}); stop that one or name another folder."
        )


class StoreDamaged(Exception):
    """The journal and the database contradict each other, or the journal itself: only a person can say what is true."""

    def __init__(self, folder: Path, what: str) -> None:
        super().__init__(
            f"The store {folder} cannot be trusted: {what}. Restore it from a copy or name another folder."
        )


class AppendOnlyFile:
    """Lines that are on the disk when `append` returns. Safe for threads. A killed writer leaves a torn tail."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        _sync_folder(path.parent)
        self._cut_torn_tail()

    def append(self, line: str) -> None:
        """Write the line and its newline and wait for the disk; ends the process when the disk refuses."""
        rest = line.encode("utf-8") + b"\n"
        try:
            with self._lock:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
                os.fsync(self._descriptor)
        except OSError as error:
            stop_at_once(error)

    def lines(self) -> list[str]:
        return self._path.read_text("utf-8", errors="replace").split("\n")[:-1]

    def _cut_torn_tail(self) -> None:
        """A last line without newline was being written when the writer died: nobody was told of it."""
        content = self._path.read_bytes()
        os.ftruncate(self._descriptor, content.rfind(b"\n") + 1)
        os.fsync(self._descriptor)


class Database:
    """One SQLite connection for all threads: hold `lock` from a question to the write that rests on its answer."""

    def __init__(self, path: Path) -> None:
        self.lock = threading.RLock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        ((version,),) = self.rows("PRAGMA user_version")
        self._connection.executescript(SCHEMA if version == INDEX_VERSION else DROP_INDEX + SCHEMA)

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self.lock:
            return self._connection.execute(sql, values).fetchall()

    def write(self, sql: str, *rows: tuple[object, ...]) -> None:
        """Run the statement once for each row; all of them are on the disk when it returns, or none is."""
        with self.lock, self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(sql, rows)

    def close(self) -> None:
        with self.lock:
            self._connection.close()


class Store:
    """The opened folder. Raises StoreInUse when another sandbox has it, StoreDamaged when its database is broken."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lock_descriptor = _lock(folder)
        self.journal = AppendOnlyFile(folder / "journal.jsonl")
        self.tickets = AppendOnlyFile(folder / "tickets.jsonl")
        self.requests = AppendOnlyFile(folder / "requests.jsonl")
        try:
            self.database = Database(folder / "sandbox.sqlite3")
        except sqlite3.DatabaseError as error:
            raise StoreDamaged(folder, f"sandbox.sqlite3 cannot be opened ({error})") from None

    def publish_url(self, url: str) -> None:
        """Readers of the file see the old address or the new one, never a part."""
        draft = self.folder / "url.draft"
        draft.write_text(url + "\n", "utf-8")
        draft.replace(self.folder / "url")


def stop_at_once(error: Exception) -> NoReturn:
    """End the process without a word to any client: after a failed write only a new start can tell what is stored."""
    sentence = f"The sandbox stopped: its store could not be written ({error}). Make room and start it again.\n"
    os.write(2, sentence.encode("utf-8", "replace"))
    os._exit(EXIT_STORAGE_FAILED)


def _lock(folder: Path) -> int:
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise StoreInUse(folder, holder or "unknown") from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode("ascii"))
    return descriptor


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
