"""The benchmark's throw-away databases, and the meters that read the server. May import psycopg and the embedded
server; Django only to migrate and to be pointed at one of the databases."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

QUICK_COMMITS = "ALTER DATABASE {name} SET synchronous_commit = off"
SAFE_COMMITS = "ALTER DATABASE {name} RESET synchronous_commit"


def server_url() -> str:
    from durable_site import embedded

    return os.environ.get("DATABASE_URL") or embedded.database_url()


def administer(*statements: str) -> None:
    with psycopg.connect(server_url(), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


@dataclass(frozen=True)
class Database:
    """One database of the benchmark."""

    name: str

    @property
    def url(self) -> str:
        return urlunsplit(urlsplit(server_url())._replace(path=f"/{self.name}"))

    @property
    def environment(self) -> dict[str, str]:
        """What a process of its own needs to work on this database."""
        more = {"DATABASE_URL": self.url, "DEBUG": "1", "DJANGO_SETTINGS_MODULE": "tests.bench.settings"}
        return dict(os.environ) | more

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.url, autocommit=True, prepare_threshold=1)

    def point_django_here(self) -> None:
        from django.db import connections

        connections["default"].close()
        connections.settings["default"]["NAME"] = self.name
        connections["default"].settings_dict["NAME"] = self.name

    @contextmanager
    def committing_without_waiting(self) -> Iterator[None]:
        """For rows that are only made to be there. What is measured always waits for the disk."""
        administer(QUICK_COMMITS.format(name=self.name))
        try:
            yield
        finally:
            administer(SAFE_COMMITS.format(name=self.name))


@contextmanager
def migrated() -> Iterator[Database]:
    """A migrated database that the others are copied from; Django points at it meanwhile."""
    from django.core.management import call_command

    template = Database(f"test_bench_{os.getpid()}")
    administer(f"CREATE DATABASE {template.name}")
    try:
        template.point_django_here()
        call_command("migrate", verbosity=0, skip_checks=True)
        yield template
    finally:
        administer(f"DROP DATABASE {template.name} WITH (FORCE)")


@contextmanager
def copied(template: Database, name: str) -> Iterator[Database]:
    """An empty database of its own, which Django points at from now on."""
    from django.db import connections

    connections["default"].close()
    copy = Database(f"{template.name}_{name}")
    administer(f"CREATE DATABASE {copy.name} TEMPLATE {template.name}")
    try:
        copy.point_django_here()
        yield copy
    finally:
        connections["default"].close()
        administer(f"DROP DATABASE {copy.name} WITH (FORCE)")


class Meter:
    """Reads one database's server: transaction ids, WAL, sizes, and the processor time of its processes."""

    def __init__(self, database: Database) -> None:
        self._connection, self._name = database.connect(), database.name

    def close(self) -> None:
        self._connection.close()

    def value(self, statement: str, *values: object):
        return self._connection.execute(statement, values).fetchone()[0]

    def run(self, statement: str) -> None:
        self._connection.execute(statement)

    def transaction_ids(self) -> int:
        """Ids given out so far. Only writing transactions take one, and so do savepoints that write."""
        return int(self.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))

    def wal_bytes(self) -> int:
        return int(self.value("SELECT pg_current_wal_insert_lsn() - '0/0'"))

    def stored_bytes(self, *tables: str) -> int:
        """In the tables, their indexes and their out-of-line values."""
        return sum(self.value("SELECT pg_total_relation_size(%s::regclass)", table) for table in tables)

    def transactions(self) -> int:
        """Finished in this database, read-only ones too: with autocommit about one a statement."""
        found = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"
        return self.value(found, self._name)

    def server_cpu(self) -> float:
        """Seconds that the server's processes for this database have used, and those that serve all of them; 0 where
        the server runs on another machine."""
        found = "SELECT pid FROM pg_stat_activity WHERE datname IS NULL OR datname = %s"
        pids = [pid for (pid,) in self._connection.execute(found, [self._name])]
        return sum(map(_seconds_of, pids))


def _seconds_of(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except FileNotFoundError:
        return 0
