"""Retention takes out the values of old final runs, touches no other, and leaves a ledger and exports that verify."""

import gc
import json
import tracemalloc
from datetime import timedelta
from io import StringIO

import psycopg
import pytest
from django.contrib.auth.models import Group
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.core.management.base import CommandError
from django_q.models import Task
from old_runs import DAYS, SECRET, case, ended, places_of, secret_run, take_all, tells_secrets, withheld
from stage import Stage, fresh, question, withhold
from test_artefacts import files, keep_in
from test_verifier import trust_now

from approvals import ledger, verifier
from approvals.models import Approval, Decision, LedgerEntry
from approvals.testing import answer
from runs import builtin, engine, repair, retention
from runs.errors import RunError
from runs.models import AuditEvent, Call, Finding, Listed, Recurring, Run, Withholding, database_clock
from runs.recurring import start_due
from runs.retention import Done, Rule
from runs.testing import drain, move_clock


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    return keep_in(settings, tmp_path / "artefacts")


# What goes, and what stays


def test_no_word_of_a_withheld_run_is_left_in_any_table_or_file(stage, database, folder):
    tells_secrets(stage)
    run = secret_run(stage)
    assert len(places_of(database, SECRET)) > 10
    assert len(files(folder)) == 2
    done = withhold()
    assert (done.runs, done.left) == (1, 0)
    assert places_of(database, SECRET) == []
    assert files(folder) == []
    assert fresh(run).input == {}
    assert not run.artefacts.filter(removed_at=None).exists()


def digests(run):
    calls = Call.objects.values_list("key", "digest").order_by("pk")
    return [Approval.objects.get().payload_digest, list(calls), run.transitions.count(), Decision.objects.count()]


def test_digests_decisions_moves_and_the_ledger_stay_and_verify_before_and_after(stage, database):
    tells_secrets(stage)
    run = secret_run(stage)
    before = case()
    assert ledger.verify().problems == []
    assert verifier.check(before, trust_now()) == ([], [])
    kept = [Approval.objects.get().payload_digest, *Call.objects.values_list("key", "digest"), run.transitions.count()]
    withhold()
    assert [
        Approval.objects.get().payload_digest,
        *Call.objects.values_list("key", "digest"),
        run.transitions.count(),
    ] == kept
    assert (ledger.verify().problems, ledger.verify().withheld) == ([], 1)
    assert all(ledger.check_entry(entry) for entry in LedgerEntry.objects.filter(kind="decision"))
    found, notes = verifier.check(case(), trust_now())
    assert (found, len(notes)) == ([], 3)
    assert verifier.check(before, trust_now()) == ([], [])
    assert SECRET.encode() not in case()


def test_each_batch_is_one_signed_entry_that_tells_the_rule_and_how_many_and_no_key(stage, people):
    ended("a", "b", "c", team=people.team, age=2 * DAYS)
    take_all(Rule(30), size=2, by=people.ops)
    records = [
        json.loads(entry.record) for entry in LedgerEntry.objects.filter(kind="withholding").order_by("sequence")
    ]
    assert [(record["runs"], record["rule"], record["by"]) for record in records] == [
        (2, "kept 30 days after their end", people.ops.pk),
        (1, "kept 30 days after their end", people.ops.pk),
    ]
    assert [record["withholding"] for record in records] == list(Withholding.objects.values_list("pk", flat=True))
    events = AuditEvent.objects.filter(kind="withheld").values_list("run__key", "detail", "user")
    assert [key for key, *_ in events] == ["a", "b", "c"]
    assert ledger.verify().problems == []


# Which runs


A_BIT = timedelta(seconds=2)


@pytest.mark.parametrize(("more", "goes"), [(-A_BIT, False), (timedelta(), True), (A_BIT, True)])
def test_a_run_goes_at_its_age_and_not_below(stage, people, more, goes):
    ended("run-1", team=people.team)
    Run.objects.update(finished_at=database_clock() - DAYS - more)
    take_all(Rule(30))
    assert withheld() == (["run-1"] if goes else [])


def test_nothing_of_a_live_run_is_ever_touched(stage, people, database):
    """Ready, running, sleeping, waiting, paused and dead, all older than any limit."""
    tells_secrets(stage)
    secret_run(stage, "final")
    engine.start(stage.flow, key="ready", input={"whom": SECRET}, team=people.team)
    waiting = stage.begin("waiting", whom=SECRET)
    stage.begin("paused", whom=SECRET)
    repair.pause("paused", why="a look")
    Run.objects.filter(key="ready").update(created_at=database_clock() - 10 * DAYS)
    tables = ("runs_run", "runs_checkpoint", "runs_call", "runs_transition", "runs_artefact", "approvals_approval")

    def live():
        final = "(SELECT id FROM runs_run WHERE key = 'final')"
        return [
            database.query(f"SELECT * FROM {table} WHERE {'id' if table == 'runs_run' else 'run_id'} <> {final}")
            for table in tables
        ]

    before = live()
    assert withhold(days=1).runs == 1
    assert live() == before
    move_clock(timedelta())
    answer(question(waiting), people.adjuster)
    drain()
    assert fresh(waiting).position == 3


def kept_by_an_unknown_effect(run, people):
    Call.objects.create(
        run=run, position=1, step="pay", tool="t", kind="effect", key="k", request="{}", digest="d", state="unknown",
        prepared_at=database_clock(),
    )  # fmt: skip


def kept_by_a_finding(run, people):
    Finding.objects.create(kind="missing-there", tool="t", key="k", run=run, team=people.team)


def kept_by_a_hold(run, people):
    retention.hold(run.key, by=people.ops, why="a law suit")


def kept_by_a_fork(run, people):
    Run.objects.create(key="fork", workflow="w", version=1, team=people.team, input={}, next_step="s", forked_from=run)


@pytest.mark.parametrize("open_end", [kept_by_an_unknown_effect, kept_by_a_finding, kept_by_a_hold, kept_by_a_fork])
def test_a_run_with_an_open_end_stays(stage, people, database, open_end):
    run, _ = ended("run-1", "run-2", team=people.team, age=2 * DAYS)
    open_end(run, people)
    take_all(Rule(30))
    assert withheld() == ["run-2"]
    if open_end is not kept_by_a_fork:
        with psycopg.connect(database.url) as other, pytest.raises(psycopg.errors.IntegrityConstraintViolation):
            other.execute("UPDATE runs_run SET input = '{}', withholding_id = 1 WHERE key = 'run-1'")


def test_a_hold_ends_with_its_release_and_both_are_told(stage, people):
    ended("run-1", team=people.team, age=2 * DAYS)
    retention.hold("run-1", by=people.ops, why="a law suit")
    retention.release("run-1", by=people.ops, why="it was settled")
    take_all(Rule(30))
    assert withheld() == ["run-1"]
    told = AuditEvent.objects.filter(kind__in=["held", "released"]).values_list("kind", "detail", "user__username")
    assert list(told) == [("held", "a law suit", "olga"), ("released", "it was settled", "olga")]
    with pytest.raises(RunError, match="nothing is left to hold"):
        retention.hold("run-1", by=people.ops, why="too late")


def test_a_team_s_time_goes_before_its_workflow_s_and_that_before_all(stage, people, settings):
    other = Group.objects.get(name="other-claims")
    ended("plain", team=people.team, age=timedelta(days=10))
    ended("long", team=people.team, age=timedelta(days=10), flow="long")
    ended("never", team=people.team, age=timedelta(days=9999), flow="never")
    ended("team", team=other, age=timedelta(days=10), flow="never")
    settings.RETENTION_DAYS_BY_WORKFLOW = {"long": 20, "never": 0}
    settings.RETENTION_DAYS_BY_TEAM = {"other-claims": 5}
    rule = retention.configured(7)
    assert str(rule) == "kept 7 days after their end; long 20 days; never for ever; other-claims 5 days"
    take_all(rule)
    assert withheld() == ["plain", "team"]


@pytest.fixture
def quick_collector():
    """What was there before is no garbage, so looking for it after each batch takes no time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_memory_stays_flat_however_many_runs_there_are(stage, people, quick_collector):
    def peak(count, beginning):
        ended(*(f"{beginning}-{number}" for number in range(count)), team=people.team, age=2 * DAYS)
        done = Done()
        tracemalloc.start()
        while retention.withhold(Rule(30), done, actor="test", size=10):
            gc.collect()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert done.runs == count
        return found

    # Until it holds a hundred statements, psycopg's cache of prepared ones grows.
    peak(300, "warm")
    few, many = peak(100, "few"), peak(1000, "many")
    assert many - few < 900 * 50


# The command and the built-in workflow


def told(*arguments):
    out = StringIO()
    call_command("retention", *arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


def test_a_dry_run_changes_nothing_and_tells_what_applying_takes_out(stage, database):
    tells_secrets(stage)
    secret_run(stage)
    move_clock(DAYS + timedelta(hours=1))
    places = places_of(database, SECRET)
    looked = told("--days", "30")
    assert (looked["applied"], looked["runs"]) == (False, [{"team": "claims", "workflow": "under-test", "runs": 1}])
    assert places_of(database, SECRET) == places
    would = {part["kind"]: (part["rows"], part["bytes"]) for part in looked["values"]}
    assert {"inputs", "outputs", "calls", "events", "words", "artefacts", "approvals"} == would.keys()
    done = told("--days", "30", "--apply")
    assert {part["kind"]: (part["rows"], part["bytes"]) for part in done["values"]} == would
    assert (done["runs"], done["files"]["removed"]) == (1, 2)
    assert places_of(database, SECRET) == []
    assert told("--days", "30", "--apply")["runs"] == 0
    assert told("--days", "30")["values"] == []


def test_the_command_says_it_in_words_and_refuses_to_guess_how_long(stage, people):
    ended("run-1", team=people.team, age=2 * DAYS)
    out = StringIO()
    call_command("retention", "--days", "30", stdout=out)
    assert "Runs whose values would go: 1" in out.getvalue()
    assert "Nothing was changed. --apply does it." in out.getvalue()
    for wrong in ([], ["--days", "0"], ["--days", "-3"], ["--days", "1", "--batch", "0"]):
        with pytest.raises(CommandError) as refused:
            call_command("retention", *wrong, "--apply", stdout=out)
        assert refused.value.returncode == 2
    call_command("retention", "--hold", "run-1", "--why", "a law suit", "--as", "olga", stdout=out)
    call_command("retention", "--days", "30", "--apply", stdout=out)
    assert withheld() == []
    call_command("retention", "--release", "run-1", "--why", "settled", stdout=out)
    call_command("retention", "--days", "30", "--apply", stdout=out)
    assert "Runs whose values were taken out: 1" in out.getvalue()
    assert withheld() == ["run-1"]


def test_the_built_in_workflow_does_it_once_a_setting_says_how_long(stage, people, settings):
    ended(*(f"run-{number}" for number in range(5)), team=people.team, age=2 * DAYS)
    day = timedelta(days=1)
    due = {"every": day, "due_at": database_clock(), "team": people.team}
    Recurring.objects.create(name="retention", workflow="retention", **due)
    assert (start_due(), withheld()) == (0, [])
    settings.RETENTION_DAYS = 30
    move_clock(day)
    assert start_due() == 1
    drain()
    run = Run.objects.get(workflow=builtin.keep_only_so_long.name)
    assert (run.status, run.outcome) == ("completed", "5 runs withheld, 0 files removed")
    assert len(withheld()) == 5


def test_records_of_providers_sessions_and_failed_tasks_grow_old_too(stage, people, database):
    now = database_clock()
    for name, age in (("old", 31), ("new", 29), ("disputed", 31)):
        Listed.objects.create(tool="t", record=name, reference=name, created_at=now - timedelta(days=age), seen_at=now)
        Task.objects.create(id=name, func="f", started=now, stopped=now - timedelta(days=age), success=False)
    Finding.objects.create(kind="missing-here", tool="t", key="disputed", team=people.team)
    Session.objects.create(session_key="old", session_data="", expire_date=now - timedelta(days=1))
    Session.objects.create(session_key="new", session_data="", expire_date=now + timedelta(days=1))
    done = told("--days", "30", "--apply")
    assert (done["listed"], done["sessions"], done["failures"]) == (1, 1, 2)
    assert set(Listed.objects.values_list("record", flat=True)) == {"new", "disputed"}
    assert list(Session.objects.values_list("session_key", flat=True)) == ["new"]
