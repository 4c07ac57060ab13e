"""Bells lost, doubled, delayed, forged, delivered to two workers at once: the same result, one execution per position.
Nothing but plain JSON is in the queue's table."""

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from django.db import connection, transaction
from django_q.signing import SignedPackage
from django_q.tasks import async_task
from runner_process import RunnerProcess, eventually
from stage import holding

from runs import engine
from runs.doorbell import FUNCTION, NotABell, ring
from runs.models import Run
from tests.flows.tools import lines
from tests.flows.workflows import plain, slow

pytestmark = pytest.mark.faults

OS_SYSTEM = {"func": "os.system", "args": ("true",), "kwargs": {}, "name": "x", "id": "0" * 32}
FORGED = [
    "os.system",
    "[]",
    '"1"',
    "1",
    "{}",
    '{"run": "1"}',
    '{"run": true}',
    '{"run": 1.0}',
    '{"run": null}',
    '{"run": -1}',
    '{"run": 1000000000000000000000000000000}',
    '{"run": 1, "func": "os.system"}',
]


def begin(people, key: str, flow=plain, **input) -> Run:
    return engine.start(flow, key=key, input=input, team=people.team)


def completed(runs: list[Run]) -> bool:
    return Run.objects.filter(pk__in=[run.pk for run in runs], status="completed").count() == len(runs)


def bell(run_id: int) -> str:
    return json.dumps({"run": run_id}, separators=(", ", " : "))


def waiting(database) -> list[str]:
    """The bells in the table, as they are written there."""
    return [text for (text,) in database.query("SELECT payload FROM django_q_ormq WHERE key = 'runs' ORDER BY id")]


def put(database, payload: str) -> None:
    database.query(
        "INSERT INTO django_q_ormq (key, payload, lock) VALUES ('runs', %s, clock_timestamp()) RETURNING id", payload
    )


def executions(folder: Path) -> Counter[str]:
    """How often each position of each run was entered."""
    reached = [line.split(" ")[1] for line in (folder / "reached").read_text().splitlines()]
    return Counter(point for point in reached if point.endswith(":entered"))


def assert_each_position_once(runs: list[Run], folder: Path, steps: int) -> None:
    once = {f"{run.key}:step{position}:entered": 1 for run in runs for position in range(1, steps + 1)}
    assert executions(folder) == once


@pytest.fixture
def failpoints(tmp_path) -> Path:
    folder = tmp_path / "failpoints"
    folder.mkdir()
    return folder


def test_what_rings_commits_with_what_it_rings_for_or_not_at_all(people, database):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        begin(people, "gone")
        ring(77)
        raise ZeroDivisionError
    assert waiting(database) == []
    with transaction.atomic():
        run = begin(people, "there")
        assert waiting(database) == []
    assert waiting(database) == [bell(run.pk)]


def test_whoever_calls_async_task_may_ring_and_do_nothing_else(people, database):
    for function, arguments in [("os.system", ["true"]), (print, []), (FUNCTION, []), (FUNCTION, [1, 2])]:
        with pytest.raises(NotABell):
            async_task(function, *arguments)
    with pytest.raises(NotABell):
        async_task(FUNCTION, run_id=1)
    assert database.query("SELECT * FROM django_q_ormq") == []
    async_task(FUNCTION, 12)
    assert waiting(database) == [bell(12)]


def test_doubled_and_forged_bells_change_nothing(people, database, flows_world, failpoints):
    run = begin(people, "doubled")
    for _ in range(20):
        ring(run.pk)
    ring(run.pk + 1000)
    for payload in [*FORGED, SignedPackage.dumps(OS_SYSTEM)]:
        put(database, payload)
    with RunnerProcess(database, failpoints / "log", flows=True, FAILPOINTS=str(failpoints)):
        eventually(lambda: completed([run]))
        eventually(lambda: waiting(database) == [])
    assert_each_position_once([run], failpoints, steps=3)
    assert len(lines(flows_world, "requests")) == 1
    assert database.query("SELECT * FROM django_q_task") == []


def test_a_bell_that_is_lost_or_comes_much_too_late_is_rung_again(people, database, flows_world, failpoints):
    later = "UPDATE django_q_ormq SET lock = lock + interval '1 hour'"
    with RunnerProcess(database, failpoints / "log", flows=True, FAILPOINTS=str(failpoints)):
        with transaction.atomic(), connection.cursor() as cursor:
            lost = begin(people, "lost")
            cursor.execute("DELETE FROM django_q_ormq WHERE key = 'runs'")
            delayed = begin(people, "delayed")
            cursor.execute(f"{later} WHERE key = 'runs'")
        eventually(lambda: completed([lost, delayed]))
        eventually(lambda: waiting(database) == [bell(delayed.pk)])
        database.query("UPDATE django_q_ormq SET lock = now() RETURNING id")
        ring(delayed.pk)
        eventually(lambda: waiting(database) == [])
    assert_each_position_once([lost, delayed], failpoints, steps=3)
    assert len(lines(flows_world, "requests")) == 2


def test_bells_that_wait_while_the_secret_key_changes_are_answered_by_two_clusters_once(
    people, database, flows_world, failpoints
):
    runs = [begin(people, f"waits-{number}", slow, seconds=0.1) for number in range(40)]
    for run in runs:
        ring(run.pk)
    environment = {"FAILPOINTS": str(failpoints), "SECRET_KEY": "another-one-than-the-bells-were-rung-under" * 2}
    log = failpoints / "log"
    one, two = (RunnerProcess(database, log, flows=True, **environment) for _ in range(2))
    with ExitStack() as both:
        # The bells cannot be read before both clusters are there: the first would answer them all.
        with holding(database, "LOCK TABLE django_q_ormq"):
            clusters = [{process.pid for process in both.enter_context(runner).workers()} for runner in (one, two)]
        eventually(lambda: completed(runs))
        eventually(lambda: waiting(database) == [])
    assert_each_position_once(runs, failpoints, steps=2)
    assert len(lines(flows_world, "requests")) == len(runs)
    claims = database.query("SELECT actor FROM runs_transition WHERE to_status = 'running'")
    workers = {int(actor.split(":")[1]) for (actor,) in claims}
    assert all(workers & cluster for cluster in clusters)
