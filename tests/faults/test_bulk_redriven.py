"""Ten thousand dead runs are redriven in bulk while the runner is killed twice: each once, and the bar is truthful."""

import re
import time

import pytest
from browsing import browser
from django.utils import timezone
from traffic import seconds_until

from runs import bulk
from runs.models import Batch, Run, Transition
from tests.flows.workflows import parks

pytestmark = pytest.mark.faults_long

RUNS = 10_000
KILLED_AT = (RUNS // 4, RUNS * 2 // 3)
"""Treated runs at which the runner is killed."""
LONGEST = 1200
"""Seconds."""


def dead_runs(people) -> None:
    """As a step that failed for good leaves them: made, since ten thousand failures take minutes."""
    given = {"seconds": 1_000_000, "sleeps": False}
    broken = {"status": "dead", "reason": "The provider is away.", "next_step": "park", "input": given, "tags": {}}
    Run.objects.bulk_create(
        Run(key=f"dead-{number}", workflow=parks.name, version=1, team=people.team, **broken) for number in range(RUNS)
    )
    at, why = timezone.now(), {"why": "made so", "actor": "test", "position": 1, "step": "park"}
    moves = (("", "ready"), ("ready", "running"), ("running", "dead"))
    Transition.objects.bulk_create(
        Transition(run_id=pk, at=at, from_status=left, to_status=reached, **why)
        for pk in Run.objects.values_list("pk", flat=True)
        for left, reached in moves
    )


def redriven(batch: Batch) -> int:
    """By the moves themselves, which the bar does not look at."""
    return Transition.objects.filter(actor=f"batch {batch.pk}", to_status="ready").count()


def told(batch: Batch, person) -> int:
    """How many are treated, as the bar says."""
    page = browser(person).get(f"/runs/bulk/{batch.pk}/").content.decode()
    [(value, words)] = re.findall(r'<progress max="10000" value="(\d+)" aria-label="(\d+) of 10000 treated"', page)
    assert value == words
    assert f"{value} of {RUNS} treated, {int(value) * 100 // RUNS} %" in page
    return int(value)


def truthfully_told(batch: Batch, person) -> int:
    before, shown, after = redriven(batch), told(batch, person), redriven(batch)
    assert before <= shown <= after
    return shown


def test_ten_thousand_dead_runs_are_each_redriven_once_though_the_runner_is_killed_twice(people, launch, measured):
    dead_runs(people)
    dead, words = Run.objects.filter(status="dead"), {"why": "the provider is back", "chosen": "all dead"}
    batch = bulk.begin("redrive", dead, shown=RUNS, token="0" * 16, by=people.ops, **words)
    runner, began, looks = launch(), time.monotonic(), 0
    for least in (*KILLED_AT, RUNS):
        while (shown := truthfully_told(batch, people.ops)) < least:
            looks += 1
            assert time.monotonic() < began + LONGEST, f"{shown} treated"
            time.sleep(1)
        if least < RUNS:
            runner.kill()
            truthfully_told(batch, people.ops)
            runner.start()
    seconds_until(lambda: Batch.objects.filter(run__status="completed").exists(), LONGEST)
    measured("10,000 dead runs: all redriven, two kills", time.monotonic() - began, LONGEST)
    assert looks > 0
    assert batch.tally() == {"": 0, "done": RUNS, "refused": 0}
    moves = Transition.objects.filter(actor=f"batch {batch.pk}", to_status="ready")
    assert (moves.count(), moves.values("run").distinct().count()) == (RUNS, RUNS)
    assert batch.run.transitions.filter(why__contains="was lost").count() <= 2
    assert Run.objects.get(pk=batch.run_id).outcome == f"{RUNS} redriven, 0 refused"
    seconds_until(lambda: Run.objects.filter(workflow=parks.name, status="waiting").count() == RUNS, LONGEST)
