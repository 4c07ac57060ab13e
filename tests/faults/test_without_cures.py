"""Each fault hurts when its cure is switched off: without these tests nobody would know what the cures are for.

Not the product is changed: tests.flows, which only tests install, replaces one function in the runner's processes.
"""

import os
import signal
import time
from collections.abc import Callable

import pytest
from django.db import connection, transaction
from traffic import BOUND, FOUND_OUT, at_work, ended, is_whole, restarts, seconds_until, worker_of

from runs.engine import start
from runs.models import Run
from tests.flows.workflows import plain, poison, slow

pytestmark = pytest.mark.faults_long

MOST_TRIALS = 12
SOON = 5.0
"""Seconds within which all of these are over when the cure is on, by far."""


def happens(condition: Callable[[], object], seconds: float = SOON) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return False


def begin(people, key: str, flow=plain, **input) -> Run:
    return start(flow, key=key, input=input, team=people.team)


def waiting_bells(database) -> int:
    return database.query("SELECT count(*) FROM django_q_ormq WHERE key = 'runs'")[0][0]


def hangs_after_an_idle_worker_is_killed(launch, people, number: int, **environment: str):
    """A runner that does no work any more; None when this one was lucky."""
    runner = launch(WITHOUT="queue,canary", **environment)
    run = begin(people, f"before-{number}")
    seconds_until(lambda: ended(run))
    time.sleep(0.5)
    runner.workers()[number % 2].kill()
    run = begin(people, f"after-{number}")
    if happens(lambda: ended(run)):
        runner.__exit__()
        return None
    return runner


def test_the_stock_queue_hangs_when_an_idle_worker_is_killed(launch, people):
    """It held the pipe's lock, or the other one did: every second time nobody gets at the queue again."""
    for number in range(MOST_TRIALS):
        if runner := hangs_after_an_idle_worker_is_killed(launch, people, number):
            assert restarts() == 0
            assert "ERROR" not in runner.log()
            assert not happens(lambda: ended(Run.objects.get(key=f"after-{number}")), BOUND)  # noqa: B023
            return
    raise AssertionError(f"The stock queue hung in none of {MOST_TRIALS} trials: is the cure still needed?")


def test_the_canary_finds_a_hung_queue_and_has_it_started_again(launch, people, measured):
    runner, number = launch(WITHOUT="queue"), 0
    while restarts() == 0:
        assert number < MOST_TRIALS
        seconds_until(lambda: is_whole(runner))
        run = begin(people, f"run-{number}")
        seconds_until(lambda: ended(run))  # noqa: B023
        time.sleep(0.5)
        runner.workers()[number % 2].kill()
        run = begin(people, f"after-{number}")
        seconds = seconds_until(lambda: ended(run))  # noqa: B023
        number += 1
    measured("the stock queue hangs, and the canary is missed", seconds, FOUND_OUT)


def test_the_stock_queue_acknowledges_nothing_after_its_monitor_is_killed(launch, people, database):
    runner = launch(WITHOUT="queue,canary")
    run = begin(people, "before")
    seconds_until(lambda: ended(run) and waiting_bells(database) == 0)
    time.sleep(0.5)
    runner.monitor().kill()
    seconds_until(lambda: is_whole(runner))
    after = begin(people, "after")
    seconds_until(lambda: ended(after))
    assert not happens(lambda: waiting_bells(database) == 0)


@pytest.mark.parametrize("victim", ["monitor", "pusher"])
def test_without_a_canary_a_frozen_process_of_the_queue_stays_unseen(launch, people, database, victim):
    runner = launch(WITHOUT="canary", CANARY_EVERY="1")
    run = begin(people, "before")
    seconds_until(lambda: ended(run) and waiting_bells(database) == 0)
    getattr(runner, victim)().suspend()
    begin(people, "after")
    assert not happens(lambda: waiting_bells(database) == 0, 3 * SOON)
    assert restarts() == 0


def test_children_that_outlive_their_parent_go_on_pulling_bells(launch, people):
    runner = launch(WITHOUT="parent")
    runner.kill()
    run = begin(people, "orphaned")
    seconds_until(lambda: ended(run))
    assert len(runner.family()) == 6


def test_a_killed_sentinel_leaves_orphans_that_work_beside_the_next_cluster(launch, people):
    """Without the tie to their parent, and without the session by which the runner gets rid of them all."""
    runner = launch(WITHOUT="parent,session")
    orphans = runner.guarded()
    runner.sentinel().kill()
    seconds_until(lambda: restarts() == 1 and len(runner.workers()) == 2)
    assert set(orphans) < set(runner.family())
    assert set(orphans).isdisjoint(runner.guarded())


def test_a_stop_of_the_runners_group_cuts_steps_short_when_the_cluster_shares_it(launch, people):
    runner = launch(WITHOUT="session")
    run = begin(people, "cut", slow, seconds=2)
    seconds_until(lambda: at_work(run))
    os.killpg(runner.pid, signal.SIGTERM)
    runner.terminate()
    run.refresh_from_db()
    assert (run.status, run.position) == ("running", 0)


def test_a_run_whose_worker_died_waits_for_its_lease_when_nobody_looks_for_the_dead(launch, people):
    launch(WITHOUT="liveness")
    run = begin(people, "busy", slow, seconds=1)
    seconds_until(lambda: at_work(run))
    worker_of(run).kill()
    fence = run.fence
    assert not happens(lambda: run.refresh_from_db() or run.fence > fence, SOON - 1)
    assert happens(lambda: ended(run), BOUND)


def test_a_run_whose_worker_died_and_one_whose_bell_was_lost_stay_there_for_ever_without_the_sweep(launch, people):
    launch(WITHOUT="sweep")
    run = begin(people, "busy", slow, seconds=1)
    seconds_until(lambda: at_work(run))
    worker_of(run).kill()
    assert not happens(lambda: run.refresh_from_db() or run.status != "running", BOUND)
    with transaction.atomic(), connection.cursor() as cursor:
        lost = begin(people, "lost")
        cursor.execute("DELETE FROM django_q_ormq WHERE key = 'runs'")
    assert not happens(lambda: ended(lost), BOUND)


def test_a_broken_connection_costs_ten_seconds_when_it_reaches_the_stock_pusher(launch, people, database):
    runner = launch(WITHOUT="calm,canary")
    run = begin(people, "before")
    seconds_until(lambda: ended(run))
    database.query(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    connection.close()
    run = begin(people, "after")
    assert not happens(lambda: ended(run), SOON)
    assert "Failed to pull task from broker" in runner.log()
    assert happens(lambda: ended(run), 4 * SOON)


def test_a_step_that_kills_its_worker_does_so_for_ever_when_attempts_are_not_counted(launch, people):
    launch(WITHOUT="count")
    run = begin(people, "poisoned", poison, poison="exit_at_once")
    assert happens(lambda: run.refresh_from_db() or run.attempt > 6, 6 * SOON)
    assert run.status != "dead"
