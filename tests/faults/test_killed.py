"""Every process of the runner killed again and again: work goes on within a lease and five seconds, nobody is orphaned,
every run ends right and pays once."""

import os
import random
import signal
import time

import pytest
from traffic import BOUND, at_work, is_whole, restarts, seconds_until, worker_of

from runs.models import Beat, Run
from tests.flows.workflows import plain, slow

pytestmark = pytest.mark.faults_long

IDLE = 0.3
"""Seconds after which a worker has surely done with its last bell, and holds nothing."""
APART = 20.0
"""Seconds between two deaths of a cluster: one that dies more often is started again later and later."""


def test_an_idle_worker_is_killed_30_times(traffic, runner, measured):
    for _ in range(30):
        seconds_until(lambda: is_whole(runner))
        time.sleep(IDLE)
        random.choice(runner.workers()).kill()
        measured("an idle worker is killed", traffic.probe(), BOUND)
    assert restarts() == 0
    traffic.assert_all_came_out_right()


def test_a_worker_is_killed_20_times_at_any_moment(traffic, runner, measured):
    """Also while it holds a lock of the queue's, which it takes along: then the whole cluster is replaced."""
    for _ in range(20):
        seconds_until(lambda: is_whole(runner))
        for _ in range(5):
            traffic.begin(plain)
        time.sleep(random.uniform(0, 0.1))
        random.choice(runner.workers()).kill()
        measured("a worker is killed at any moment", traffic.probe(), BOUND)
    traffic.assert_all_came_out_right()


def test_a_busy_worker_is_killed_10_times(traffic, runner, measured):
    for _ in range(10):
        seconds_until(lambda: is_whole(runner))
        run = traffic.begin(slow, seconds=2)
        measured("a busy worker is killed", seconds_to_replace_the_worker_of(run), BOUND)
    assert restarts() == 0
    traffic.assert_all_came_out_right()
    assert {run.checkpoints.get(position=1).attempt for run in traffic.runs} == {2}


def seconds_to_replace_the_worker_of(run: Run) -> float:
    seconds_until(lambda: at_work(run))
    time.sleep(random.random())
    fence = run.fence
    worker_of(run).kill()
    return seconds_until(lambda: at_work(run) and run.fence > fence)


@pytest.mark.parametrize("role", ["monitor", "pusher"])
def test_the_monitor_or_pusher_is_killed_10_times(traffic, runner, measured, role):
    """A pusher that is killed while it puts a bell into the pipe takes its only place along: the canary tells."""
    victim = getattr(runner, role)()
    for _ in range(10):
        cluster, others = runner.main(), set(runner.guarded()) - {victim}
        traffic.add(2)
        victim.kill()
        measured(f"the {role} is killed", traffic.probe(), BOUND)
        seconds_until(lambda: is_whole(runner))
        same = runner.main() == cluster
        victim = (set(runner.guarded()) - others).pop() if same else getattr(runner, role)()
    traffic.assert_all_came_out_right()


def test_the_sentinel_is_killed_10_times(traffic, runner, measured):
    for number in range(1, 11):
        seconds_until(lambda: is_whole(runner))
        began = time.monotonic()
        traffic.add(2)
        runner.sentinel().kill()
        measured("the sentinel is killed", traffic.probe(), BOUND)
        seconds_until(lambda: is_whole(runner))
        assert restarts() == number
        time.sleep(max(0.0, began + APART - time.monotonic()))
    traffic.assert_all_came_out_right()


def test_everything_but_postgresql_is_killed_5_times(traffic, runner, measured):
    for _ in range(5):
        traffic.add(10)
        time.sleep(random.uniform(0.2, 1.5))
        for process in runner.family():
            process.kill()
        seconds_until(lambda: runner.family() == [])
        began = time.monotonic()
        runner.start()
        traffic.seconds_to_the_next_checkpoint()
        measured("everything is killed and started again", time.monotonic() - began, BOUND)
        traffic.wait_for_all()
    traffic.assert_all_came_out_right()
    assert is_whole(runner)


def test_the_runner_alone_is_killed_5_times(traffic, runner, measured):
    for _ in range(5):
        traffic.add(4)
        time.sleep(random.uniform(0.2, 1.0))
        runner.kill()
        seconds_until(lambda: runner.family() == [], 5)
        began = time.monotonic()
        runner.start()
        traffic.seconds_to_the_next_checkpoint()
        measured("the runner is killed and started again", time.monotonic() - began, BOUND)
        traffic.wait_for_all()
    traffic.assert_all_came_out_right()


def test_its_group_is_told_to_stop_5_times_and_no_step_is_cut_short(traffic, runner, measured):
    for _ in range(5):
        traffic.add(10)
        time.sleep(random.uniform(0.2, 1.5))
        began = time.monotonic()
        os.killpg(runner.pid, signal.SIGTERM)
        assert runner.terminate() == 0
        assert runner.family() == []
        measured("SIGTERM to the group: all have stopped", time.monotonic() - began, BOUND)
        runner.start()
    traffic.assert_all_came_out_right()
    for run in traffic.runs:
        attempts = dict(run.checkpoints.values_list("step", "attempt"))
        assert {attempt for step, attempt in attempts.items() if step != "stumble"} == {1}, run.key


@pytest.mark.parametrize("victim", ["monitor", "pusher"])
@pytest.mark.parametrize("every", [5, 15])
def test_a_frozen_process_of_the_queue_is_found_out_by_the_missing_canary(traffic, launch, measured, victim, every):
    runner = launch(CANARY_EVERY=str(every))
    traffic.probe()
    seconds_until(lambda: Beat.objects.get().canary_at)
    getattr(runner, victim)().suspend()
    began = time.monotonic()
    traffic.probe()
    seconds_until(lambda: restarts() == 1)
    measured(f"the {victim} is frozen, CANARY_EVERY={every}", time.monotonic() - began, every * 4 / 3 + 5)
    seconds_until(lambda: is_whole(runner))
    traffic.probe()
    traffic.assert_all_came_out_right()


def test_a_frozen_sentinel_is_found_out_when_it_does_not_replace_a_worker(traffic, runner, measured):
    traffic.probe()
    runner.sentinel().suspend()
    runner.workers()[0].kill()
    seconds = seconds_until(lambda: restarts() == 1)
    measured("the sentinel is frozen and a worker is killed", seconds, 15)
    traffic.probe()
    seconds_until(lambda: is_whole(runner))
    traffic.assert_all_came_out_right()
