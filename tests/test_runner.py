"""The runner keeps working whoever is killed, leaves no orphan, and stops cleanly. Real processes, real signals; the
long series of the same are elsewhere."""

import os
import signal
import time
from datetime import timedelta

import pytest
from blocked_port import BlockedPort
from runner_process import RunnerProcess, eventually
from sandbox_process import SandboxProcess

from approvals.testing import answer_all
from durable_site.claims.testing import made_up_claim
from durable_site.claims.workflows import claim_payout
from runs.doorbell import ring
from runs.engine import start
from runs.lease import Lease
from runs.models import AuditEvent, Beat, DatabaseNow, Run
from runs.sweep import sweep
from tests.flows.tools import lines
from tests.flows.workflows import long_step, plain, poison, slow

pytestmark = pytest.mark.faults


@pytest.fixture
def sandbox(tmp_path, settings):
    with SandboxProcess(tmp_path / "sandbox") as process:
        settings.SANDBOX_URL = process.url
        yield process


@pytest.fixture
def runner(database, sandbox, tmp_path):
    with RunnerProcess(
        database, tmp_path / "runner.log", SANDBOX_URL=sandbox.url, EMAIL_FILE_PATH=str(tmp_path / "mail")
    ) as process:
        yield process


def begin(people, reference: str, amount_minor: int = 50_000) -> Run:
    claim = made_up_claim(reference, amount_minor=amount_minor)
    return start(claim_payout, key=claim.run_key, input={"claim": reference}, team=people.team)


def completed(run: Run) -> bool:
    run.refresh_from_db()
    return run.status == "completed"


def assert_works(people, runner, sandbox, reference: str) -> None:
    run = begin(people, reference)
    eventually(lambda: completed(run))
    assert [line["key"] for line in sandbox.payments() if line["reference"] == reference] == [f"{run.key}:step6"]


def test_a_claim_goes_through_the_queue_waits_and_goes_on_when_it_is_approved(people, runner, sandbox):
    run = begin(people, "big", 184_000)
    eventually(lambda: Run.objects.get(pk=run.pk).status == "waiting")
    assert answer_all(people.adjuster) == 1
    eventually(lambda: completed(run))
    assert len(sandbox.payments()) == 1
    actors = set(run.transitions.values_list("actor", flat=True))
    workers = {process.pid for process in runner.workers()}
    assert {int(actor.split(":")[1]) for actor in actors if actor.count(":") == 2} <= workers


def test_sigterm_stops_everything_and_exits_0(people, runner, sandbox):
    assert_works(people, runner, sandbox, "one")
    assert len(runner.family()) == 7
    assert runner.terminate() == 0
    eventually(lambda: not runner.family(), 5)


@pytest.mark.parametrize("victim", ["idle worker", "monitor", "pusher", "sentinel", "main"])
def test_whoever_is_killed_work_goes_on_and_nobody_is_orphaned(people, runner, sandbox, victim):
    assert_works(people, runner, sandbox, "before")
    family = {
        "idle worker": runner.workers()[0],
        "monitor": runner.monitor(),
        "pusher": runner.pusher(),
        "sentinel": runner.sentinel(),
        "main": runner.main(),
    }
    for round_number in range(3 if victim == "idle worker" else 1):
        victim_now = runner.workers()[0] if victim == "idle worker" else family[victim]
        victim_now.kill()
        assert_works(people, runner, sandbox, f"after-{round_number}")
        eventually(lambda: len(runner.workers()) == 2)
    eventually(lambda: len(runner.family()) == 7, 10)


def test_a_killed_runner_takes_its_whole_family_along_and_the_next_one_goes_on(people, runner, sandbox):
    assert_works(people, runner, sandbox, "first")
    runner.kill()
    eventually(lambda: not runner.family(), 10)
    run = begin(people, "second")
    assert not completed(run)
    runner.start()
    eventually(lambda: completed(run))


def test_a_signal_to_the_whole_group_of_the_runner_stops_it_as_cleanly(people, runner, sandbox):
    assert_works(people, runner, sandbox, "one")
    os.killpg(runner.pid, signal.SIGTERM)
    assert runner.terminate() == 0
    eventually(lambda: not runner.family(), 5)


def test_a_database_that_throws_everybody_out_is_found_again(people, runner, sandbox, database):
    assert_works(people, runner, sandbox, "before")
    database.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    from django.db import connection

    connection.close()
    assert_works(people, runner, sandbox, "after")


# With the workflows of tests.flows


@pytest.fixture
def watched(database, flows_world, tmp_path):
    """A runner that is quick to see that its cluster hangs, and has seen once that it does not."""
    with RunnerProcess(database, tmp_path / "runner.log", flows=True, CANARY_EVERY="1") as process:
        eventually(lambda: Beat.objects.filter(canary_at__isnull=False).exists())
        yield process


def begin_flow(people, flow, key: str, **input) -> Run:
    return start(flow, key=key, input=input, team=people.team)


def at_work(run: Run) -> bool:
    run.refresh_from_db()
    return run.status == "running"


def assert_paid_once(world, runs: list[Run]) -> None:
    assert sorted(line["claim"] for line in lines(world, "payments")) == sorted(run.key for run in runs)


def test_a_worker_killed_at_work_costs_its_run_a_second_and_not_its_lease(people, watched, flows_world):
    run = begin_flow(people, slow, "busy", seconds=2)
    eventually(lambda: at_work(run))
    victim = int(run.worker.split(":")[1])
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: completed(run), 10)
    assert list(run.checkpoints.values_list("position", "attempt")) == [(1, 2), (2, 1)]
    assert_paid_once(flows_world, [run])
    eventually(lambda: len(watched.family()) == 7, 10)


def test_a_step_that_kills_its_worker_ends_in_the_dead_letters_and_disturbs_no_neighbour(people, watched, flows_world):
    poisoned = begin_flow(people, poison, "poisoned", poison="exit_at_once")
    neighbours = [begin_flow(people, plain, f"neighbour-{number}") for number in range(10)]
    eventually(lambda: all(completed(run) for run in neighbours))
    eventually(lambda: poisoned.refresh_from_db() or poisoned.status == "dead")
    assert poisoned.reason.startswith("Step suffer was begun 2 times and never ended")
    assert_paid_once(flows_world, neighbours)
    eventually(lambda: len(watched.family()) == 7, 10)


def test_a_step_at_work_comes_to_its_checkpoint_when_the_whole_group_is_told_to_stop(people, watched, flows_world):
    run = begin_flow(people, slow, "leaving", seconds=2)
    eventually(lambda: at_work(run))
    os.killpg(watched.pid, signal.SIGTERM)
    assert watched.terminate() == 0
    assert watched.family() == []
    run.refresh_from_db()
    # On a slow machine the stop may come behind the step.
    assert (run.status, run.position) in {("ready", 1), ("completed", 2)}
    assert set(run.checkpoints.values_list("attempt", flat=True)) == {1}
    assert not Beat.objects.exists()


def test_a_step_that_takes_three_times_the_lease_is_entered_once_however_often_its_bell_rings(
    people, database, flows_world, tmp_path
):
    """C11: its own time limit is longer, so its lease is; whoever answers a bell more sees that and steps aside."""
    short = {"STEP_TIMEOUT": "1", "LEASE_SLACK": "0"}
    with RunnerProcess(database, tmp_path / "runner.log", flows=True, **short):
        run = begin_flow(people, long_step, "long", seconds=3.5)
        eventually(lambda: at_work(run))
        while at_work(run):
            ring(run.pk)
            time.sleep(0.05)
        eventually(lambda: completed(run))
    assert list(run.checkpoints.values_list("position", "attempt")) == [(1, 1), (2, 1)]
    assert_paid_once(flows_world, [run])
    assert not AuditEvent.objects.exists()


def test_a_port_that_is_blocked_longer_than_the_leases_loses_no_run_and_doubles_none(
    people, database, flows_world, tmp_path
):
    """C13"""
    short = {"STEP_TIMEOUT": "2", "LEASE_SLACK": "1"}
    with (
        BlockedPort(database.url) as port,
        RunnerProcess(database, tmp_path / "runner.log", flows=True, **short | {"DATABASE_URL": port.url}),
    ):
        runs = [begin_flow(people, slow, f"blocked-{number}", seconds=0.5) for number in range(6)]
        eventually(lambda: at_work(runs[0]))
        with port.blocked():
            time.sleep(5)
        eventually(lambda: all(completed(run) for run in runs), 60)
    for run in runs:
        assert list(run.checkpoints.values_list("position", flat=True)) == [1, 2]
    assert_paid_once(flows_world, runs)


@pytest.mark.parametrize("victim", ["monitor", "pusher"])
def test_a_cluster_that_hangs_is_seen_by_its_missing_canary_and_replaced(people, watched, flows_world, victim):
    frozen = getattr(watched, victim)()
    frozen.suspend()
    eventually(lambda: Beat.objects.get().restarts == 1)
    assert "acknowledged nothing" in watched.log()
    eventually(lambda: len(watched.workers()) == 2)
    assert frozen not in watched.family()
    run = begin_flow(people, plain, "after")
    eventually(lambda: completed(run))


def test_a_long_queue_is_not_taken_for_one_that_hangs(people, watched, flows_world):
    runs = [begin_flow(people, slow, f"long-{number}", seconds=1.5) for number in range(6)]
    eventually(lambda: all(completed(run) for run in runs))
    assert Beat.objects.get().restarts == 0
    assert_paid_once(flows_world, runs)


def test_a_host_that_fell_silent_loses_its_leases_and_one_that_still_beats_does_not(people, database):
    for host, silent in [("gone", 31), ("there", 20)]:
        beat_at = DatabaseNow() - timedelta(seconds=silent)
        Beat.objects.create(host=host, pid=1, workers=2, started_at=DatabaseNow(), beat_at=beat_at)
        run = begin_flow(people, plain, host)
        assert Lease.take(run.pk) is not None
        Run.objects.filter(pk=run.pk).update(worker=f"{host}:12:34")
    assert sweep()["reclaimed"] == 1
    gone, there = Run.objects.get(key="gone"), Run.objects.get(key="there")
    assert (gone.status, there.status) == ("ready", "running")
    assert gone.transitions.last().why == "worker gone:12:34 was lost: its host fell silent"
    assert database.query("SELECT (payload::json->>'run')::int FROM django_q_ormq ORDER BY id DESC LIMIT 1") == [
        (gone.pk,)
    ]
