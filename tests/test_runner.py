"""The runner keeps working whoever is killed, leaves no orphan, and stops cleanly. Real processes, real signals; the
long series of the same are elsewhere."""

import os
import signal

import pytest
from runner_process import RunnerProcess, eventually
from sandbox_process import SandboxProcess

from approvals.testing import answer_all
from durable_site.claims.testing import made_up_claim
from durable_site.claims.workflows import claim_payout
from runs.doorbell import ring
from runs.engine import start
from runs.models import Run

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
    sentinel = runner.sentinel()
    family = {
        "idle worker": runner.workers()[0],
        "monitor": sorted(sentinel.children(), key=lambda process: process.pid)[2],
        "pusher": sorted(sentinel.children(), key=lambda process: process.pid)[3],
        "sentinel": sentinel,
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


def test_bells_that_are_lost_doubled_or_forged_change_nothing(people, runner, sandbox, database):
    run = begin(people, "rung")
    for _ in range(20):
        ring(run.pk)
    ring(run.pk + 1000)
    database.query("INSERT INTO django_q_ormq (key, payload, lock) VALUES ('runs', 'os.system', now()) RETURNING id")
    eventually(lambda: completed(run))
    assert run.checkpoints.count() == 9
    assert len(sandbox.payments()) == 1
    silent = begin(people, "silent")
    database.query("DELETE FROM django_q_ormq RETURNING id")
    eventually(lambda: completed(silent), 40)
    eventually(lambda: database.query("SELECT count(*) FROM django_q_ormq") == [(0,)])


def test_a_database_that_throws_everybody_out_is_found_again(people, runner, sandbox, database):
    assert_works(people, runner, sandbox, "before")
    database.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    from django.db import connection

    connection.close()
    assert_works(people, runner, sandbox, "after")
