"""Steps that hurt their worker: each ends in the dead letters after its attempts, its neighbours finish meanwhile, and
the runner is whole afterwards."""

import pytest
from traffic import is_whole, restarts, seconds_until

from tests.flows.workflows import POISONS, plain, poison, slow

pytestmark = pytest.mark.faults_long

NEVER_ENDED = "was begun 2 times and never ended"
TOO_LONG = "it took longer than its 1 s"
SAYS = {
    "exit_at_once": NEVER_ENDED,
    "read_address_0": NEVER_ENDED,
    "kill_itself": NEVER_ENDED,
    "eat_memory": "attempt 2 of 2",
    "loop_for_ever": TOO_LONG,
    "sleep_in_c": TOO_LONG,
    "compute_in_c": NEVER_ENDED,
}
STUCK = 60
"""Seconds: a worker that no alarm reaches is killed by the queue, when its longest step (5 s) is over by 18 s."""


@pytest.mark.parametrize("name", POISONS)
def test_a_poisoned_step_ends_in_the_dead_letters_while_19_neighbours_finish(traffic, runner, measured, name):
    sick = traffic.begin(poison, poison=name)
    traffic.runs.remove(sick)
    for number in range(19):
        traffic.begin(slow, seconds=0.2) if number % 2 else traffic.begin(plain)
    seconds = seconds_until(lambda: sick.refresh_from_db() or sick.status == "dead", STUCK)
    measured(f"{name}: a dead letter", seconds, STUCK)
    assert SAYS[name] in sick.reason
    assert list(sick.checkpoints.values_list("position", flat=True)) == [1]
    claims = sick.transitions.filter(to_status="running", position=2).count()
    assert claims <= 3
    traffic.assert_all_came_out_right()
    seconds_until(lambda: is_whole(runner))
    # A worker that no alarm reaches is got rid of by the queue's own guard, or with its cluster when none is left.
    assert restarts() <= (name == "compute_in_c")
