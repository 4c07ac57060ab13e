"""A verb and the sweep at once: whoever comes second finds what the first left, and nothing is moved twice."""

from datetime import timedelta

import pytest
from racing import DONE, VERBS, is_whole, parts, told, uncommitted
from stage import Party, Stage, fresh, holding_run, wait_until_blocked

from runs import sweep
from runs.errors import IllegalMove
from runs.models import Delivery, Run
from runs.testing import move_clock


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


def overdue(stage, part: str) -> Run:
    parts(stage)
    run = stage.begin(part=part)
    move_clock(timedelta(days=8))
    return run


@pytest.mark.parametrize(
    ("part", "verb", "status"),
    [("sleeping", "retry", "ready"), ("capped", "raise a cap", "ready")]
    + [(part, "cancel", "cancelled") for part in ("sleeping", "waiting", "capped")]
    + [(part, "pause", "paused") for part in ("sleeping", "waiting", "capped")]
    + [("dead", "redrive", "ready"), ("dead", "discard", "cancelled")],
)
def test_the_sweep_steps_aside_for_a_verb_that_is_not_committed_yet_and_finds_nothing_to_do_after(
    stage, part, verb, status
):
    run = overdue(stage, part)
    with uncommitted(VERBS[verb]):
        assert sum(sweep.sweep().values()) == 0
    assert sum(sweep.sweep().values()) == 0
    assert fresh(run).status == status
    assert is_whole(run)


@pytest.mark.parametrize(
    "race",
    [
        ("sleeping", "retry", "is ready, so it cannot be tried again now", "ready"),
        ("sleeping", "pause", DONE, "paused"),
        ("sleeping", "cancel", DONE, "cancelled"),
        ("waiting", "deliver", "is expired, so it cannot be given the event papers", "expired"),
        ("waiting", "cancel", "is expired, so it cannot be cancelled", "expired"),
        ("capped", "redrive", DONE, "ready"),
        ("capped", "raise a cap", DONE, "dead"),
        ("capped", "discard", DONE, "cancelled"),
    ],
    ids=" ".join,
)
def test_a_verb_that_comes_while_the_sweep_moves_the_run_finds_it_moved(stage, database, race):
    part, verb, said, status = race
    run = overdue(stage, part)
    look = sweep.wake_sleepers if part == "sleeping" else sweep.close_overdue_waits
    with uncommitted(look) as swept:
        person = Party(VERBS[verb])
        wait_until_blocked(database)
    assert swept.outcome() == 1
    assert said in told(person) if said else isinstance(told(person), Run)
    assert fresh(run).status == status
    assert Delivery.objects.count() == 0
    assert is_whole(run)


def test_a_redrive_of_a_run_that_the_sweep_has_not_buried_yet_is_refused(stage, database):
    run = overdue(stage, "capped")
    with holding_run(database, run.pk):
        person = Party(VERBS["redrive"])
        wait_until_blocked(database)
        assert sweep.close_overdue_waits() == 0
    with pytest.raises(IllegalMove, match=r"is waiting \(cap\), so it cannot be redriven"):
        person.outcome()
    assert sweep.close_overdue_waits() == 1
    assert VERBS["redrive"]().status == "ready"
    assert is_whole(run)
