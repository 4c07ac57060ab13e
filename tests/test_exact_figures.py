"""What the health page, /metrics and the tabs tell of seeded runs equals a slow, exact computation on the same rows,
also after the process that counts was killed in the midst of it."""

import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from browsing import browser
from django.db import connection
from prometheus_client.parser import text_string_to_metric_families
from runner_process import PROJECT, eventually
from stage import freeze_clock, holding, wait_until_blocked

from runs import health, metrics, seeding, tallies
from runs.models import Run, StepTime, Tally
from runs.seeding import Amount
from runs.states import LIVE

NOW = datetime(2026, 12, 1, 14, 3, 20, tzinfo=UTC)
BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
BUCKET = 2 ** (1 / 8)
COUNT = "import django; django.setup(); from runs import seeding; seeding.count_up(lambda share: None)"


def rows(statement: str, *values):
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall()


@pytest.fixture
def seeded(database, people):
    """Runs of 25 days, counted by a process that was killed twice: at a look's beginning and in the midst of one."""
    freeze_clock(NOW)
    seeding.seed(Amount(finished=2500, live=500, days=25, teams=4, long_steps=60), lambda made: None)
    for table in ("runs_upkeep", "runs_call"):
        _count_and_be_killed(database, table)
    for _ in seeding._looks():
        pass
    return people


def _count_and_be_killed(database, table: str) -> None:
    """The table is what the look needs next: it has deleted and counted anew some figures, and waits for it."""
    process = subprocess.Popen([sys.executable, "-c", COUNT], cwd=PROJECT, env=database.environment)
    try:
        eventually(lambda: Tally.objects.filter(width="d").exists(), 60)
        with holding(database, f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"):
            wait_until_blocked(database, 1)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    finally:
        process.kill()
        process.wait()


def exact(since: datetime, until: datetime) -> dict[str, dict[str, list[float]]]:
    """Each figure's values by name, from the rows themselves."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def keep(figure: str, name: str, at: datetime, value: float = 0) -> None:
        if at is not None and since <= at < until:
            found[figure][name].append(value)

    for workflow, version, step, took, size, at in rows(
        "SELECT r.workflow, r.version, c.step, extract(epoch FROM c.committed_at - c.started_at)::float8,"
        " octet_length(c.output), c.committed_at FROM runs_checkpoint AS c JOIN runs_run AS r ON r.id = c.run_id"
    ):
        keep("step-time", f"{workflow}/{version}/{step}", at, took)
        keep("step-size", f"{workflow}/{version}/{step}", at, size)
    moves = rows("SELECT run_id, at, from_status, to_status, actor, why FROM runs_transition ORDER BY run_id, id")
    for before, move in pairwise(moves):
        if move[0] == before[0] and (before[2], before[4], move[3]) == ("running", "sweep", "running"):
            keep("resumed", "", move[1])
    for _, at, _, to, _, why in moves:
        if to in ("completed", "expired", "cancelled"):
            keep("ended", to, at)
        if to == "dead":
            keep("dead", _reason(why), at)
    for tool, replayed, at in rows(
        "SELECT tool, replayed, settled_at FROM runs_call WHERE kind = 'effect' AND state = 'confirmed'"
    ):
        keep("confirmed", tool, at)
        if replayed:
            keep("replayed", tool, at)
    for tool, at in rows("SELECT c.tool, e.at FROM runs_auditevent AS e JOIN runs_call AS c ON c.id = e.call_id"):
        keep("key-reused", tool, at)
    return found


def _reason(why: str) -> str:
    for words, reason in (
        ("No attempt is left.", "attempts"),
        ("Nothing happened", "effect-refused"),
        ("not known", "effect-unknown"),
        ("killed its worker", "worker-killed"),
    ):
        if words in why:
            return reason
    return "failed-for-good"


def stuck_now() -> dict[str, set[int]]:
    """By the definition's words, run by run; no runner beats."""
    usual = {(one.workflow, one.version, one.step): one.p95 for one in StepTime.objects.all()}
    found: dict[str, set[int]] = defaultdict(set)
    for run in Run.objects.live():
        if run.status in ("waiting", "sleeping") and run.due_at <= NOW - timedelta(seconds=10):
            found[run.status].add(run.pk)
        last = run.transitions.latest("at").at
        if run.status == "ready" and last <= NOW - timedelta(seconds=10):
            found["ready"].add(run.pk)
        if run.status == "running":
            p95 = usual.get((run.workflow, run.version, run.next_step))
            begun = max(last, run.checkpoints.get(position=run.position).committed_at)
            slow = begun + max(10 * p95, timedelta(seconds=30)) if p95 else run.lease_until - timedelta(seconds=10)
            if min(slow, run.lease_until + timedelta(seconds=10)) < NOW:
                found["lease" if run.lease_until <= NOW else "running"].add(run.pk)
    return found


def by_name(over: health.Period, figure: str) -> dict[str, int]:
    found = health.by_name(over.read(figure))
    return {name: health.counted(buckets) for name, buckets in found.items()}


def quantile_of(values: list[float], share: float) -> float:
    return sorted(values)[max(0, -(-len(values) * int(100 * share) // 100) - 1)]


def assert_same(told: list[tallies.Bucket], values: list[float]) -> None:
    """Counts, sums and the greatest to the last; quantiles within a bucket."""
    assert health.counted(told) == len(values)
    assert sum(bucket.total for bucket in told) == pytest.approx(sum(values))
    if values:
        assert health.greatest(told) == max(values)
        for share in (0.5, 0.95):
            assert 1 / BUCKET < tallies.quantile(told, share) / quantile_of(values, share) < BUCKET


def test_every_figure_equals_a_slow_exact_computation_also_after_kills(seeded):
    check_tallies()
    check_cards()
    check_metrics()
    check_tabs(seeded)


def check_tallies() -> None:
    for window in health.WINDOWS:
        over = health.period(window, NOW)
        truth = exact(over.since, over.until)
        for figure in ("resumed", "ended", "dead", "confirmed", "replayed", "key-reused"):
            assert by_name(over, figure) == {name: len(found) for name, found in truth[figure].items()}, figure
        for figure in ("step-time", "step-size"):
            told = health.by_name(over.read(figure))
            assert set(told) == set(truth[figure])
            for name, buckets in told.items():
                assert_same(buckets, truth[figure][name])


def check_cards() -> None:
    kinds = stuck_now()
    for window in health.WINDOWS:
        over = health.period(window, NOW)
        truth = exact(over.since, over.until)
        cards = {card.id: card for card in health.cards(window)}
        resumed, completed = len(truth["resumed"][""]), len(truth["ended"]["completed"])
        assert cards["resumes"].note == f"resumes per completed run: {resumed:,} of {completed:,}"
        assert cards["resumes"].value == (health.ratio(resumed / completed) if completed else "none")
        assert cards["endings"].value == f"{sum(map(len, truth['dead'].values())):,}"
        assert cards["reused"].value == f"{sum(map(len, truth['key-reused'].values())):,}"
        words = {row[0].text: row[-1].text for row in cards["replays"].rows}
        assert words == {
            tool: f"{len(truth['replayed'][tool]):,} of {len(found):,}" for tool, found in truth["confirmed"].items()
        }
        assert cards["stuck"].value == f"{sum(map(len, kinds.values())):,}"
        assert cards["unknown"].value == f"{rows(UNKNOWN)[0][0]:,}"
        assert cards["waits"].value == f"{Run.objects.filter(status='waiting', due_at__lte=NOW).count():,}"
        assert cards["waits"].note.startswith(f"of {Run.objects.filter(status='waiting').count():,} waiting")


UNKNOWN = "SELECT count(*), min(sent_at) FROM runs_call WHERE kind = 'effect' AND state IN ('sent', 'unknown')"


def check_metrics() -> None:
    told = {
        (sample.name.removeprefix("durable_runs_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }
    truth = exact(BEGINNING, NOW + timedelta(days=1))
    for name, figure in (
        ("effects_confirmed_total", "confirmed"),
        ("key_replays_total", "replayed"),
        ("keys_reused_total", "key-reused"),
        ("runs_ended_total", "ended"),
        ("dead_letters_total", "dead"),
    ):
        assert {key[1]: value for key, value in told.items() if key[0] == name} == {
            label: len(found) for label, found in truth[figure].items()
        }, name
    assert told["resumes_total",] == len(truth["resumed"][""])
    statuses = Counter(Run.objects.live().values_list("status", flat=True))
    assert {key[1]: value for key, value in told.items() if key[0] == "runs"} == dict.fromkeys(LIVE, 0) | statuses
    assert {key[1]: value for key, value in told.items() if key[0] == "stuck_runs" and value} == {
        kind: len(found) for kind, found in stuck_now().items()
    }
    number, oldest = rows(UNKNOWN)[0]
    assert sum(value for key, value in told.items() if key[0] == "effects_unknown") == number > 0
    assert max(value for key, value in told.items() if key[0] == "oldest_unknown_effect_seconds") == pytest.approx(
        (NOW - oldest).total_seconds()
    )
    assert told["waits_past_due",] == Run.objects.filter(status="waiting", due_at__lte=NOW).count()
    hour = exact(tallies.floor(NOW - tallies.HOUR, tallies.SLOT), NOW)
    assert hour["step-time"]
    for step, values in hour["step-time"].items():
        # Labels come sorted by their names: quantile, step, version, workflow.
        labels = step.split("/")[::-1]
        assert told["step_seconds", "1", *labels] == max(values)
        assert 1 / BUCKET < told["step_seconds", "0.95", *labels] / quantile_of(values, 0.95) < BUCKET


def check_tabs(people) -> None:
    member = seeding.Group.objects.get(name="seeded-team-2")
    people.ops.groups.add(member)
    for person in (people.ops, people.auditor, people.stranger):
        page = browser(person).get("/runs/")
        told = {tab.name: total for tab, total in page.context["tabs"]}
        seen = set(Run.objects.visible_to(person).values_list("pk", flat=True))
        statuses = Counter(Run.objects.filter(pk__in=seen).values_list("status", flat=True))
        assert told["all"] == len(seen)
        assert told["working"] == statuses["ready"] + statuses["running"]
        for status in ("waiting", "sleeping", "dead", "paused", "completed", "expired", "cancelled"):
            assert told[status] == statuses[status], status
        assert told["stuck"] == len(seen & set().union(*stuck_now().values()))
        assert told["overdue"] == Run.objects.filter(pk__in=seen, status="waiting", due_at__lte=NOW).count()
