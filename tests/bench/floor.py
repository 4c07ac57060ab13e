"""The baselines: what bare psycopg reaches on the same server. Imports nothing of ours but the benchmark's database.

`floor` inserts and commits a row per step. `floor:cas` makes the guarded move of the run and the checkpoint in one
statement: the least that an engine which keeps its promises must do. `Hop` is the least way from one process that has
committed something to another that works on it.
"""

import multiprocessing
from contextlib import suppress
from functools import partial

import psycopg

from .database import Database
from .workflows import STEPS, instant

TABLES = """
CREATE TABLE IF NOT EXISTS floor_run (
  id bigserial PRIMARY KEY, pos int NOT NULL DEFAULT 0, version int NOT NULL DEFAULT 0, state text NOT NULL DEFAULT '',
  owner text NOT NULL DEFAULT 'me', lease timestamptz) WITH (fillfactor = 75);
CREATE TABLE IF NOT EXISTS floor_step (
  run bigint NOT NULL, pos int NOT NULL, name text NOT NULL, out text NOT NULL, PRIMARY KEY (run, pos));
"""
INSERT = "INSERT INTO floor_step (run, pos, name, out) VALUES (%s, %s, %s, %s)"
CAS = """
WITH moved AS (
  UPDATE floor_run SET pos = pos + 1, version = version + 1, state = %s, lease = now() + interval '55 seconds'
   WHERE id = %s AND version = %s AND owner = %s RETURNING id, pos)
INSERT INTO floor_step (run, pos, name, out) SELECT id, pos, %s, %s FROM moved
"""
OUTPUT = '{"step":1,"at":12345.678901234}'


def new_runs(connection: psycopg.Connection, runs: int) -> list[int]:
    connection.execute(TABLES)
    made = "INSERT INTO floor_run (state) SELECT '' FROM generate_series(1, %s) RETURNING id"
    return [run for (run,) in connection.execute(made, [runs])]


def work_inserting(connection: psycopg.Connection, runs: list[int], steps: int = STEPS, output: str = OUTPUT) -> None:
    for run in runs:
        for position in range(1, steps + 1):
            connection.execute(INSERT, [run, position, "step", output])


def work_guarded(connection: psycopg.Connection, runs: list[int], steps: int = STEPS, output: str = OUTPUT) -> None:
    for run in runs:
        for version in range(steps):
            connection.execute(CAS, ["next", run, version, "me", "step", output])


WORK = {"floor": work_inserting, "floor:cas": work_guarded}


def seconds_with(workers: int, kind: str, database: Database, runs: list[int]) -> float:
    """How long so many processes need for the runs, from a common start to the last one's end."""
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(workers + 1)
    work = partial(_share, kind, database, ready)
    processes = [context.Process(target=work, args=(runs[number::workers],)) for number in range(workers)]
    for process in processes:
        process.start()
    ready.wait()
    began = instant()
    for process in processes:
        process.join()
    return instant() - began


def _share(kind: str, database: Database, ready, runs: list[int]) -> None:
    with database.connect() as connection:
        WORK[kind](connection, runs[:1], steps=0)
        ready.wait()
        WORK[kind](connection, runs)


class Hop:
    """A process that listens and notes when it holds what was rung for. Use as a context manager."""

    def __init__(self, database: Database) -> None:
        self._database = database
        with database.connect() as connection:
            connection.execute("CREATE TABLE floor_hop (id bigserial PRIMARY KEY, status text NOT NULL)")
        context = multiprocessing.get_context("fork")
        self._answers, answering = context.Pipe(duplex=False)
        self._process = context.Process(target=self._listen, args=(answering,), daemon=True)

    def __enter__(self) -> "Hop":
        self._process.start()
        self._answers.recv()
        self._connection = self._database.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()

    def seconds(self) -> float:
        """From the call's begin to the moment the other process holds the row."""
        began = instant()
        self._connection.execute(
            "WITH made AS (INSERT INTO floor_hop (status) VALUES ('ready') RETURNING id)"
            " SELECT pg_notify('floor_hop', id::text) FROM made"
        )
        assert self._answers.poll(20), "nobody heard the notification"
        return self._answers.recv() - began

    def _listen(self, answering) -> None:
        with suppress(KeyboardInterrupt), self._database.connect() as connection:
            connection.execute("LISTEN floor_hop")
            answering.send(0)
            while True:
                # A list: the generator holds the connection's lock until it is exhausted.
                for notice in list(connection.notifies(stop_after=1)):
                    connection.execute(
                        "UPDATE floor_hop SET status = 'running' WHERE id = %s AND status = 'ready'", [notice.payload]
                    )
                    answering.send(instant())
