"""Stuck is what has something to do and nobody doing it: each kind at its limit, and made really, with real processes.
The list, the count in the bar, `runs why` and the page tell the same."""

import signal
from datetime import timedelta

import pytest
from browsing import browser, text
from runner_process import RunnerProcess, eventually
from stage import freeze_clock

from runs import engine, stuck
from runs.engine import explain, start
from runs.lease import Lease
from runs.models import Beat, Run, StepTime, Transition, database_clock
from runs.waits import WaitKind
from tests.flows.workflows import parks, plain, slow

SECOND = timedelta(seconds=1)
MICRO = timedelta(microseconds=1)


def begin(people, flow=plain, key="run-1", **input) -> Run:
    return start(flow, key=key, input=input, team=people.team)


def listed() -> list[str]:
    return list(Run.objects.stuck().order_by("key").values_list("key", flat=True))


def beats(silent_for: float = 0, acknowledged: float | None = 0, workers: int = 2, host: str = "here") -> None:
    """A runner that beat and whose queue acknowledged a canary so many seconds ago."""
    now = database_clock()
    Beat.objects.create(
        host=host,
        pid=1,
        workers=workers,
        started_at=now - timedelta(hours=1),
        beat_at=now - timedelta(seconds=silent_for),
        canary_at=None if acknowledged is None else now - timedelta(seconds=acknowledged),
    )


# Running without a checkpoint


def at_work(people, p95: float | None = None) -> tuple[Run, object]:
    """A run at its first step, and since when."""
    if p95 is not None:
        StepTime.objects.create(workflow="plain", version=1, step="one", number=20, p95=timedelta(seconds=p95))
    run = begin(people)
    Lease.take(run.pk)
    run.refresh_from_db()
    return run, Transition.objects.filter(run=run).last().at


@pytest.mark.parametrize(("p95", "limit"), [(0.1, 30), (2.9, 30), (3, 30), (3.5, 35), (4, 40)])
def test_a_step_is_stuck_beyond_ten_times_its_p95_and_never_within_30_seconds(people, p95, limit):
    run, began = at_work(people, p95)
    for after, expected in ((limit * SECOND - MICRO, []), (limit * SECOND, []), (limit * SECOND + MICRO, ["run-1"])):
        freeze_clock(began + after)
        assert listed() == expected, after
    assert f"at step 1 (one) since {began:%-d %b %Y, %H:%M:%S} UTC without a checkpoint" in explain(run)
    assert f"95 of 100 times it takes {p95:.3g} s at most" in explain(run)


def test_a_step_nothing_is_known_of_is_stuck_beyond_its_own_time_limit(people, settings):
    run, _ = at_work(people)
    limit = run.lease_until - timedelta(seconds=settings.LEASE_SLACK)
    for at, expected in ((limit, []), (limit + MICRO, ["run-1"])):
        freeze_clock(at)
        assert listed() == expected
    assert "without a checkpoint; it may take no longer" in explain(run)


def test_another_version_of_a_step_is_measured_by_itself(people):
    StepTime.objects.create(workflow="plain", version=2, step="one", number=20, p95=timedelta(hours=1))
    run, _ = at_work(people, p95=0.1)
    freeze_clock(Transition.objects.filter(run=run).last().at + 31 * SECOND)
    assert listed() == ["run-1"]


def test_a_checkpoint_starts_the_time_anew(people):
    run, _ = at_work(people, p95=0.1)
    lease = Lease(run, run.worker, database_clock())
    freeze_clock(lease.began + 29 * SECOND)
    lease.commit("{}", next_step="two", timeout=300)
    freeze_clock(lease.began + 29 * SECOND)
    assert listed() == []


def test_a_lease_that_ended_and_that_no_sweep_takes_back_is_stuck_however_slow_its_step(people):
    run, _ = at_work(people, p95=600)
    freeze_clock(run.lease_until + stuck.GRACE * SECOND)
    assert listed() == []
    freeze_clock(run.lease_until + stuck.GRACE * SECOND + MICRO)
    assert listed() == ["run-1"]
    assert "its worker was lost at step 1 (one)" in explain(run)


# Waiting, sleeping, ready


@pytest.mark.parametrize(
    ("sleeps", "words"),
    [(False, "its wait at step 1 (park) for papers fell due"), (True, "it should have woken for step 1 (park) at")],
)
def test_a_wait_is_stuck_once_it_is_past_its_due_time_and_no_sweep_came(people, sleeps, words):
    run = begin(people, parks, seconds=60, sleeps=sleeps)
    from runs.testing import drain

    drain()
    run.refresh_from_db()
    freeze_clock(run.due_at + stuck.GRACE * SECOND - MICRO)
    assert listed() == []
    assert not explain(run).startswith("Stuck")
    freeze_clock(run.due_at + stuck.GRACE * SECOND)
    assert listed() == ["run-1"]
    assert explain(run).startswith(f"Stuck: {words}")
    assert f"{run.due_at:%-d %b %Y, %H:%M:%S} UTC" in explain(run)


def at_rest_for(people, seconds: float) -> Run:
    run = begin(people)
    freeze_clock(Transition.objects.filter(run=run).last().at + seconds * SECOND)
    return run


def test_ready_is_stuck_when_no_runner_beats(people):
    run = at_rest_for(people, stuck.GRACE - 0.001)
    assert listed() == []
    at = Transition.objects.filter(run=run).last().at
    freeze_clock(at + stuck.GRACE * SECOND)
    assert listed() == ["run-1"]
    assert explain(run).startswith("Stuck: ready for step 1 (one) since")
    assert "no runner answers" in explain(run)


@pytest.mark.parametrize(
    ("beat", "expected"),
    [
        ({"silent_for": 9.9}, []),
        ({"silent_for": 10}, ["run-1"]),
        ({"acknowledged": 14.9}, []),
        ({"acknowledged": 15}, ["run-1"]),
        ({"acknowledged": None}, ["run-1"]),
    ],
)
def test_a_runner_that_is_silent_or_whose_queue_hangs_is_nobody(people, settings, beat, expected):
    settings.CANARY_EVERY = 15
    at_rest_for(people, 60)
    beats(**beat)
    assert listed() == expected


def test_a_runner_whose_workers_are_all_at_work_will_come_though_its_queue_is_silent(people, settings):
    settings.CANARY_EVERY = 15
    busy, _ = at_work(people)
    Run.objects.filter(pk=busy.pk).update(worker="here:1:2")
    begin(people, key="run-2")
    freeze_clock(Transition.objects.last().at + 20 * SECOND)
    beats(acknowledged=20, workers=1)
    assert listed() == []
    Beat.objects.update(workers=2)
    assert listed() == ["run-2"]


def test_one_runner_that_answers_is_enough(people):
    at_rest_for(people, 60)
    beats(silent_for=100, host="gone")
    beats(host="there")
    assert listed() == []


# What is not


def test_neither_a_dead_letter_nor_a_paused_nor_a_final_run_is_stuck(people):
    for number, status in enumerate(("dead", "paused", "cancelled")):
        run = begin(people, key=f"run-{number}")
        if status == "dead":
            Lease.take(run.pk).leave("dead", why="broken", reason="broken")
        elif status == "paused":
            run.move("paused", why="halt", actor="test")
        else:
            engine.cancel(run.key, why="not needed")
    freeze_clock(database_clock() + timedelta(days=9))
    assert listed() == []


# Pages and commands agree, and a list costs one query


def test_list_bar_page_and_sentence_agree_and_other_teams_see_nothing(people):
    run = at_rest_for(people, 60)
    sentence = explain(run)
    page = text(browser(people.ops).get("/runs/?status=stuck"))
    assert sentence in page
    assert "1 stuck" in page
    assert sentence in text(browser(people.ops).get(f"/runs/{run.key}/"))
    assert "run-1" not in text(browser(people.stranger).get("/runs/?status=stuck"))
    assert engine.explained([run])[run.pk] == sentence


def test_all_rows_of_a_list_are_explained_by_one_query(people):
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    runs = [begin(people, key=f"run-{number}") for number in range(30)]
    with CaptureQueriesContext(
        connection,
    ) as asked:
        engine.explained(runs)
    assert len(asked) == 1


def test_the_look_for_stuck_runs_reads_no_final_run(people, database):
    """Whatever the planner knows: each arm has an index of the live runs."""
    database.query("SELECT 1")
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        cursor.execute(f"EXPLAIN {Run.objects.stuck().values('pk').query}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
        cursor.execute("RESET enable_seqscan")
    assert "Seq Scan on runs_run" not in plan
    assert plan.count("run_by_status") + plan.count("run_due") + plan.count("run_ready") >= 3


# Made really


@pytest.mark.faults
def test_whatever_a_killed_runner_leaves_behind_is_listed_in_time_and_clear_once_another_is_there(
    people, flows_world, database, tmp_path
):
    with RunnerProcess(database, tmp_path / "runner.log", flows=True, STEP_TIMEOUT="4") as runner:
        begin(people, slow, "at-work", seconds=3)
        begin(people, parks, "asleep", seconds=4, sleeps=True)
        begin(people, parks, "waiting", seconds=4, sleeps=False)
        eventually(lambda: set(Run.objects.values_list("status", flat=True)) == {"running", "sleeping", "waiting"})
        runner.kill()
        eventually(lambda: not runner.family())
        begin(people, plain, "ready")
        eventually(lambda: "at-work" in listed(), 10)
        eventually(lambda: listed() == ["asleep", "at-work", "ready", "waiting"], 20)
        runs = {run.pk: run for run in Run.objects.all()}
        kinds = {runs[pk].key: still.kind for pk, still in stuck.among(runs.values()).items()}
        assert kinds.pop("at-work") in ("running", "lease")
        assert kinds == {"asleep": "sleeping", "ready": "ready", "waiting": "waiting"}
        assert all(explain(run).startswith("Stuck: ") for run in runs.values())
        runner.start()
        eventually(lambda: listed() == [])
        eventually(lambda: Run.objects.filter(status="completed").count() >= 3)


@pytest.mark.faults
def test_a_queue_that_lives_and_hangs_leaves_runs_stuck_until_it_is_replaced(people, flows_world, database, tmp_path):
    # The runner takes its time to replace it, so that the fault can be seen.
    with RunnerProcess(database, tmp_path / "runner.log", flows=True, CANARY_EVERY="30") as runner:
        eventually(lambda: Beat.objects.filter(canary_at__isnull=False).exists())
        for process in runner.guarded():
            process.send_signal(signal.SIGSTOP)
        run = begin(people, plain, "unheard")
        eventually(lambda: listed() == ["unheard"], 25)
        assert "no runner answers" in explain(run)
        eventually(lambda: Run.objects.get().status == "completed", 60)
        assert listed() == []


def test_every_parked_kind_has_a_sentence(people):
    """None is forgotten when a wait kind is added."""
    for kind in WaitKind:
        still = stuck.Standstill("waiting", database_clock(), None, None)
        run = Run(key="x", position=0, next_step="one", wait_kind=kind, wait_name="")
        assert kind in still.sentence(run)
