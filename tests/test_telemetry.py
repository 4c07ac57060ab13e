"""Traces: one a run, across processes, kills and waits, without a gap, each span once; and a collector hurts nobody."""

import subprocess
import sys
from datetime import timedelta
from itertools import pairwise

import pytest
from django.db import connection
from old_runs import SECRET, secret_run, tells_secrets
from otlp_receiver import Receiver, hung
from racing import uncommitted
from sandbox_process import wait_until
from stage import Stage, fresh
from worker_process import WorkerProcess

from runs import engine, otlp, repair, telemetry, upkeep
from runs.models import Run, Upkeep, database_clock
from runs.testing import drain
from runs.waits import event


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        # Looked at when the test says so, never by a worker's own sweep.
        Upkeep.objects.create(name="telemetry", every=timedelta(days=9), due_at=database_clock() + timedelta(days=9))
        look()
        yield stage


@pytest.fixture
def receiver(monkeypatch):
    with Receiver() as receiver:
        send_to(receiver.url, monkeypatch)
        yield receiver
    otlp._processor.cache_clear()


def send_to(url, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    otlp._processor.cache_clear()


def look():
    """As the runner's sweep does, until all that is committed now was looked at. Transactions of other databases of the
    server, such as those of tests beside this one, hold it back for as long as they last."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        now = cursor.fetchone()[0]
    wait_until(lambda: look_once()["until"] is None and look_once()["since"] >= now)


def look_once():
    assert upkeep.do("telemetry", now=True) == 1
    return Upkeep.objects.get(name="telemetry").state


def told(receiver):
    """What was received so far, by name."""
    assert otlp.flush(20)
    ids = [span.span_id for span in receiver.spans]
    assert len(set(ids)) == len(ids), "a span was sent twice"
    return {span.name: span for span in receiver.spans}


def about(span):
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


def three_steps(stage):
    pay = stage.tool()

    @stage.flow.step
    def settle(ctx):
        return {"payment": ctx.call(pay, amount_minor=100)}

    @stage.flow.step
    def hear(ctx):
        return event("papers", expires_in=timedelta(days=3))

    @stage.flow.step
    def end(ctx):
        return {}


def test_a_run_that_is_killed_waits_and_goes_on_elsewhere_has_one_trace_without_a_gap(stage, receiver, tmp_path):
    three_steps(stage)
    run = engine.start(stage.flow, key="run-1", input={}, team=stage.people.team)
    points = tmp_path / "points"
    points.mkdir()
    (points / "kill").write_text("run-1:step2:entered")
    with WorkerProcess(points) as first:
        wait_until(lambda: first.was_killed)
    look()
    with WorkerProcess() as second:
        wait_until(lambda: fresh(run).status == "waiting")
        look()
        engine.deliver("run-1", "papers", {})
        wait_until(lambda: fresh(run).status == "completed")
        assert second.pid != first.pid
    look()
    spans = told(receiver)
    assert set(spans) == {"under-test", "settle", "test.pay", "hear", "waiting: hear", "end"}
    assert {span.trace_id for span in spans.values()} == {telemetry.trace_of("run-1", run.created_at).to_bytes(16)}
    root, steps = spans["under-test"], [spans[name] for name in ("settle", "hear", "end")]
    assert root.parent_span_id == b""
    assert {step.parent_span_id for step in steps} == {root.span_id}
    assert spans["test.pay"].parent_span_id == spans["settle"].span_id
    assert spans["waiting: hear"].parent_span_id == spans["hear"].span_id
    assert [earlier.end_time_unix_nano - later.start_time_unix_nano for earlier, later in pairwise(steps)] == [0, 0]
    for step in steps:
        assert root.start_time_unix_nano <= step.start_time_unix_nano <= step.end_time_unix_nano
    assert abs(root.end_time_unix_nano - steps[-1].end_time_unix_nano) < 1_000_000
    moves = {move.to_status: move for move in run.transitions.all()}
    wait = spans["waiting: hear"]
    assert wait.start_time_unix_nano == otlp._nanoseconds(moves["waiting"].at)
    assert spans["hear"].start_time_unix_nano < wait.start_time_unix_nano < wait.end_time_unix_nano
    assert about(spans["hear"])["durable.attempt"] == 1
    assert "running to ready" in [each.name for each in spans["hear"].events]
    assert about(spans["settle"]) == {
        "durable.run": "run-1",
        "durable.workflow": "under-test",
        "durable.version": 1,
        "durable.step": "settle",
        "durable.position": 1,
        "durable.attempt": 1,
        "durable.outcome": "done",
    }
    assert receiver.paths == {"/v1/traces"}
    look()
    assert len(told(receiver)) == 6


def test_a_move_that_is_committed_after_later_ones_is_told_too_and_once(stage, receiver):
    three_steps(stage)
    stage.begin("late")
    stage.begin("early")
    with uncommitted(lambda: engine.cancel("late", why="no")):
        engine.cancel("early", why="no")
        look_once()
        look_once()
    look()
    told(receiver)
    roots = [about(span)["durable.run"] for span in receiver.spans if span.name == "under-test"]
    assert sorted(roots) == ["early", "late"]


def test_however_few_moves_a_look_takes_it_tells_the_same(stage, receiver, monkeypatch):
    monkeypatch.setattr(telemetry, "AT_ONCE", 2)
    three_steps(stage)
    for number in range(4):
        stage.begin(f"run-{number}")
        engine.deliver(f"run-{number}", "papers", {})
    drain()
    look()
    told(receiver)
    assert len(receiver.spans) == 4 * 6
    assert len({span.trace_id for span in receiver.spans}) == 4


def test_nothing_of_before_the_first_look_is_told_and_nothing_uncommitted(stage, receiver):
    three_steps(stage)
    stage.begin("old")
    Upkeep.objects.update(state={})
    look()
    assert told(receiver) == {}


def test_in_a_restored_database_that_counts_anew_it_goes_on(stage, receiver):
    """Numbers of transactions begin anew with the server; what is committed from then on is told."""
    far = 2**40
    Upkeep.objects.update(state={"since": far, "until": None, "floor": 0, "noted": [far, 0]})
    look()
    three_steps(stage)
    stage.begin()
    look()
    assert "settle" in told(receiver)


def test_a_run_that_ends_without_its_step_s_checkpoint_has_that_step_with_how_it_ended(stage, receiver):
    three_steps(stage)
    stage.begin()
    engine.cancel("run-1", why="no")
    look()
    spans = told(receiver)
    assert about(spans["hear"])["durable.outcome"] == "cancelled"
    assert (about(spans["under-test"])["durable.status"], "end" in spans) == ("cancelled", False)


def test_attempts_that_failed_are_waits_and_events_of_one_step(stage, receiver):
    tries = [OSError("not yet"), OSError("not yet")]

    @stage.flow.step
    def flaky(ctx):
        if tries:
            raise tries.pop()
        return {}

    stage.begin()
    stage.later(times=2)
    look()
    told(receiver)
    flaky_spans = [span for span in receiver.spans if span.name == "flaky"]
    waits = [span for span in receiver.spans if span.name == "sleeping: flaky"]
    assert (len(flaky_spans), len(waits), about(flaky_spans[0])["durable.attempt"]) == (1, 2, 3)
    assert {wait.parent_span_id for wait in waits} == {flaky_spans[0].span_id}
    assert flaky_spans[0].start_time_unix_nano < min(wait.start_time_unix_nano for wait in waits)


def test_a_fork_has_a_trace_of_its_own_with_a_link(stage, receiver):
    three_steps(stage)
    stage.begin()
    engine.cancel("run-1", why="no")
    fork = repair.fork("run-1", "run-2", position=2, why="again")
    drain()
    engine.deliver("run-2", "papers", {})
    drain()
    look()
    told(receiver)
    trace = telemetry.trace_of("run-2", fork.created_at).to_bytes(16)
    of_fork = {span.name: span for span in receiver.spans if span.trace_id == trace}
    assert set(of_fork) == {"under-test", "hear", "waiting: hear", "end"}
    origin = Run.objects.get(key="run-1")
    assert [link.trace_id for link in of_fork["under-test"].links] == [
        telemetry.trace_of("run-1", origin.created_at).to_bytes(16)
    ]


def test_no_value_and_no_person_is_told(stage, receiver, settings, tmp_path):
    tells_secrets(stage)
    secret_run(stage)
    look()
    names = set(told(receiver))
    assert names >= {"look", "approve", "waiting: approve", "settle", "test.pay", "hear"}
    for word in (SECRET, "ada", "claims", "184000"):
        assert word.encode() not in receiver.raw, word


def test_a_collector_that_is_down_or_hangs_hinders_nobody(stage, monkeypatch):
    three_steps(stage)
    with hung() as address:
        for number, url in enumerate((address, "http://127.0.0.1:9")):
            send_to(url, monkeypatch)
            run = stage.begin(f"run-{number}")
            look()
            engine.deliver(run.key, "papers", {})
            drain()
            look()
            assert fresh(run).status == "completed"
            assert otlp.send([]) is None
    otlp._processor.cache_clear()


def test_while_it_is_off_nothing_of_it_is_loaded(database):
    code = (
        "import sys, django; django.setup(); from runs import advance, sweep, upkeep; "
        "print([name for name in sys.modules if 'opentelemetry' in name or name == 'runs.telemetry'], "
        "'telemetry' in upkeep._jobs)"
    )
    for setting, expected in (("0", "[] False"), ("1", "['runs.telemetry'] True")):
        environment = database.environment | {"TELEMETRY": setting}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected
