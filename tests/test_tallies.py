"""What the health page and /metrics count equals a slow exact count of the same rows; counting twice, late or on two
hosts changes nothing."""

import math
import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from django.db import connection
from prometheus_client.parser import text_string_to_metric_families
from stage import Party, Stage, freeze_clock, holding

from approvals.testing import answer
from runs import health, metrics, tallies, upkeep
from runs.models import Run, StepTime, Tally, Upkeep
from runs.tallies import HOUR, SLOT

NOW = datetime(2026, 12, 1, 14, 3, 20, tzinfo=UTC)
BUCKET = 2 ** (1 / 8)
STEPS = ("assess", "approve", "pay")


@pytest.fixture
def kept(people):
    """The job's row, as a site has it, and the clock stopped."""
    freeze_clock(NOW)
    return Upkeep.objects.create(name="tallies", every=timedelta(minutes=1), due_at=NOW)


@pytest.fixture
def past(people, kept):
    """Two days of made-up history: runs, steps of every length, losses, endings, effects and reused keys."""
    chance = random.Random(7)
    team, rows = people.team.pk, []
    with connection.cursor() as cursor:
        for number in range(200):
            at = NOW - timedelta(hours=49) * chance.random()
            workflow = chance.choice(("claim", "refund"))
            cursor.execute(
                "INSERT INTO runs_run (key, workflow, version, team_id, input, tags, status, outcome, reason, position,"
                " next_step, attempt, fence, worker, asked, wait_kind, wait_name, finished_at)"
                " VALUES (%s, %s, 1, %s, '{}', '{}', 'completed', 'done', '', 3, 'pay', 1, 1, '', '', '', '', %s)"
                " RETURNING id",
                [f"old-{number}", workflow, team, at],
            )
            rows.append((cursor.fetchone()[0], at))
        for run, at in sorted(rows, key=lambda row: row[1]):
            _live(cursor, run, at, chance)
    return len(rows)


def _live(cursor, run, at, chance):
    def moved(was, to, why="claimed", actor="w"):
        cursor.execute(
            "INSERT INTO runs_transition (run_id, at, from_status, to_status, position, step, why, actor)"
            " VALUES (%s, %s, %s, %s, 1, 'assess', %s, %s)",
            [run, at, was, to, why, actor],
        )

    moved("", "ready", "started")
    moved("ready", "running")
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        moved("running", "ready", "worker w was lost: its process ended", "sweep")
        moved("ready", "running")
    if chance.random() < 0.2:
        # A retry and its claim are no resume.
        moved("running", "sleeping", "attempt 1 of 5")
        moved("sleeping", "ready", "time to try again", "sweep")
        moved("ready", "running")
    for position, step in enumerate(STEPS, start=1):
        took = timedelta(seconds=chance.lognormvariate(-1, 2))
        cursor.execute(
            "INSERT INTO runs_checkpoint (run_id, position, step, output, wait_kind, closed_as, attempt, started_at,"
            " committed_at) VALUES (%s, %s, %s, %s, %s, '', 1, %s, %s)",
            [
                run,
                position,
                step,
                '{"x":"' + "é" * chance.randrange(2000) + '"}',
                "event" if step == "approve" else "",
                at - took,
                at,
            ],
        )
    cursor.execute(
        "INSERT INTO runs_call (run_id, position, step, tool, kind, key, request, digest, state, replayed, error, "
        "sends, prepared_at, settled_at)"
        " VALUES (%s, 3, 'pay', %s, 'effect', %s, '{}', '', 'confirmed', %s, '', 1, %s, %s) RETURNING id",
        [run, chance.choice(("bank", "mail")), f"{run}:step3", chance.random() < 0.3, at, at],
    )
    call = cursor.fetchone()[0]
    if chance.random() < 0.05:
        cursor.execute(
            "INSERT INTO runs_auditevent (at, kind, run_id, call_id, detail, actor) VALUES (%s, 'key-reused', %s, %s,"
            " 'reused', '')",
            [at, run, call],
        )
    ending = chance.choice(("completed", "completed", "completed", "expired", "dead"))
    moved("running", ending, "Step pay failed for good: no" if ending == "dead" else "it ended")


def count_all() -> None:
    """Every look until nothing is left behind."""
    while True:
        assert upkeep.do("tallies", now=True) == 1
        if Upkeep.objects.get(name="tallies").due_at > NOW:
            return


def rows(statement, *values):
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall()


def exact(since: datetime, until: datetime) -> dict[str, dict]:
    """The same figures, by reading every row once more and counting in Python."""
    moves = rows("SELECT run_id, at, from_status, to_status, actor, why FROM runs_transition ORDER BY run_id, id")
    resumed = sum(
        1
        for before, move in pairwise(moves)
        if move[0] == before[0]
        and move[3] == "running"
        and since <= move[1] < until
        and (before[2], before[4]) == ("running", "sweep")
    )
    ended: dict[str, int] = {}
    for _, at, _, to, _, _ in moves:
        if since <= at < until and to in ("completed", "expired", "dead"):
            ended[to] = ended.get(to, 0) + 1
    return {"resumed": resumed, "ended": ended}


def quantile_of(values: list[float], share: float) -> float:
    """The value at that rank, in a sorted list of all of them."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


WINDOWS = [window for window in health.WINDOWS if window.name != "30d"]


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.name)
def test_counts_are_exact_and_quantiles_are_off_by_less_than_a_bucket(past, window):
    count_all()
    over = health.period(window, NOW)
    truth = exact(over.since, over.until)
    assert health.counted(over.read("resumed")) == truth["resumed"]
    ended = health.by_name(over.read("ended"))
    assert {name: health.counted(found) for name, found in ended.items()} == {
        name: number for name, number in truth["ended"].items() if name != "dead"
    }
    assert health.counted(over.read("dead")) == truth["ended"].get("dead", 0)
    for figure, measured in (
        ("step-time", "extract(epoch FROM committed_at - started_at)::float8"),
        ("step-size", "octet_length(output)::float8"),
    ):
        waits = "AND wait_kind = ''" if figure == "step-time" else ""
        values = [
            row[0]
            for row in rows(
                f"SELECT {measured} FROM runs_checkpoint WHERE committed_at >= %s AND committed_at < %s {waits}",
                over.since,
                over.until,
            )
        ]
        found = over.read(figure)
        assert health.counted(found) == len(values)
        if values:
            assert health.greatest(found) == max(values)
            for share in (0.5, 0.95):
                assert 1 / BUCKET < tallies.quantile(found, share) / quantile_of(values, share) < BUCKET


def test_the_counters_of_metrics_equal_an_exact_count_of_all_rows(past):
    count_all()
    told = scrape()
    assert told["durable_runs_resumes_total", ()] == exact(datetime(2000, 1, 1, tzinfo=UTC), NOW)["resumed"]
    for tool, confirmed, replayed in rows(
        "SELECT tool, count(*), count(*) FILTER (WHERE replayed) FROM runs_call GROUP BY tool"
    ):
        assert told["durable_runs_effects_confirmed_total", (("tool", tool),)] == confirmed
        assert told["durable_runs_key_replays_total", (("tool", tool),)] == replayed
    reused = rows("SELECT count(*) FROM runs_auditevent WHERE kind = 'key-reused'")[0][0]
    assert sum(value for (name, _), value in told.items() if name == "durable_runs_keys_reused_total") == reused > 0
    dead = rows("SELECT count(*) FROM runs_transition WHERE to_status = 'dead'")[0][0]
    assert told["durable_runs_dead_letters_total", (("reason", "failed-for-good"),)] == dead > 0


def scrape() -> dict:
    """What /metrics tells, read by the library's own parser."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def everything() -> list[tuple]:
    return sorted(
        Tally.objects.exclude(figure__in=tallies.SAMPLES).values_list(
            "figure", "width", "slot", "name", "bucket", "number", "total", "most"
        )
    )


def test_counting_again_from_the_beginning_changes_nothing(past):
    count_all()
    before = everything()
    Upkeep.objects.update(state={}, due_at=NOW)
    count_all()
    assert everything() == before


def test_after_days_without_a_runner_no_hour_lacks_its_beginning(past):
    """The first look after the pause begins in the midst of an hour, and forgets the old slots at its end."""
    count_all()
    before = {name: number for name, number in tallies.totals().items() if number}
    long_ago = tallies.floor(NOW - timedelta(hours=48, minutes=25), SLOT)
    Upkeep.objects.update(state={"from": long_ago.isoformat()}, due_at=NOW)
    count_all()
    assert tallies.totals() == before


def test_a_row_that_is_committed_late_is_counted_once_it_is_there(past):
    count_all()
    run = Run.objects.first()
    at = NOW - tallies.LATE + SLOT
    total = rows("SELECT count(*) FROM runs_transition WHERE to_status = 'expired'")[0][0]
    rows_before = health.counted(health.period(health.WINDOWS[2], NOW).read("ended"))
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs_transition (run_id, at, from_status, to_status, position, step, why, actor)"
            " VALUES (%s, %s, 'waiting', 'expired', 1, 'x', 'late', 'sweep')",
            [run.pk, at],
        )
    count_all()
    assert health.counted(health.period(health.WINDOWS[2], NOW).read("ended")) == rows_before + 1
    assert total + 1 == rows("SELECT count(*) FROM runs_transition WHERE to_status = 'expired'")[0][0]


def test_two_hosts_at_once_count_once(past, database):
    """One holds the job's row: the other passes by and counts nothing."""
    with holding(database, "SELECT FROM runs_upkeep FOR NO KEY UPDATE"):
        assert Party(upkeep.do_due).outcome() == 0
    assert Tally.objects.count() == 0
    assert upkeep.do_due() == 1
    assert Tally.objects.exists()


def test_a_job_that_fails_is_tried_again_later_and_leaves_nothing_half_written(kept):
    upkeep._jobs["broken"] = lambda state: (
        Tally.objects.create(figure="x", width="m", slot=NOW, name="", bucket=0, number=1, total=0, most=0) and 1 / 0
    )
    try:
        Upkeep.objects.create(name="broken", every=timedelta(minutes=1), due_at=NOW)
        assert upkeep.do("broken") == 1
        assert not Tally.objects.filter(figure="x").exists()
        assert Upkeep.objects.get(name="broken").due_at == NOW + timedelta(minutes=1)
    finally:
        del upkeep._jobs["broken"]


def test_who_is_behind_catches_up_over_many_looks_none_of_which_is_long(past):
    assert upkeep.do("tallies") == 1
    slots = Tally.objects.filter(width="m").exclude(figure__in=tallies.SAMPLES).values("slot").distinct().count()
    assert 0 < slots <= tallies.AT_ONCE // SLOT
    assert Upkeep.objects.get(name="tallies").due_at == NOW


def test_the_usual_time_of_a_step_is_learned_from_the_last_days(past):
    count_all()
    values = rows(
        "SELECT r.workflow, c.step, array_agg(extract(epoch FROM committed_at - started_at)::float8)"
        " FROM runs_checkpoint AS c JOIN runs_run AS r ON r.id = c.run_id WHERE c.wait_kind = '' GROUP BY 1, 2"
    )
    assert StepTime.objects.count() == len(values) == 4
    for workflow, step, took in values:
        learned = StepTime.objects.get(workflow=workflow, version=1, step=step)
        assert learned.number == len(took)
        assert 1 / BUCKET < learned.p95.total_seconds() / quantile_of(took, 0.95) < BUCKET


def test_old_slots_go_and_counts_stay_for_ever(past):
    count_all()
    counted = tallies.totals()
    later = NOW + timedelta(days=90)
    freeze_clock(later)
    Upkeep.objects.update(state={"from": tallies.floor(later, SLOT).isoformat()})
    upkeep.do("tallies", now=True)
    assert tallies.totals() == counted
    assert not Tally.objects.filter(figure="step-time").exists()
    assert not Tally.objects.filter(width="m", slot__lt=later - timedelta(days=2)).exists()


def test_people_are_measured_from_asking_to_their_answer(people, kept):
    with Stage(people) as stage:
        freeze_clock(NOW)
        stage.asks_then_pays()
        asked = stage.asked()
        freeze_clock(NOW + timedelta(minutes=2))
        answer(asked, people.adjuster)
    upkeep.do("tallies", now=True)
    found = tallies.read("decided", tallies.floor(NOW, HOUR), NOW + HOUR, SLOT)
    assert [(bucket.number, round(bucket.total)) for bucket in found] == [(1, 120)]


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("Step pay, attempt 5 of 5: broken. No attempt is left.", "attempts"),
        ("Step pay was begun 5 times and never ended: it killed its worker or outlived its lease.", "worker-killed"),
        ("Nobody mended it in time: cap", "not-mended"),
        (
            "Step pay failed for good: bank refused x. Nothing happened; going on means asking anew.",
            "effect-refused",
        ),
        ("Step pay failed for good: It is not known whether bank (x) happened, its key is too old", "effect-unknown"),
        ("Step pay failed for good: The idempotency key x already stands for another request (sha256", "key-reused"),
        ("Step pay failed for good: there is no such claim", "failed-for-good"),
    ],
)
def test_each_dead_letter_has_one_of_few_reasons(database, why, reason):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {tallies.WHY_DEAD} FROM (SELECT %s AS why) AS moved", [why])
        assert cursor.fetchone()[0] == reason
