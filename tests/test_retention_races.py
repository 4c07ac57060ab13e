"""Retention beside others: two at once, killed, hindered, forked and redriven meanwhile; and files that others keep."""

import json
import threading
from datetime import timedelta

import pytest
from old_runs import DAYS, SECRET, ended, secret_run, take_all, tells_secrets, withheld
from racing import uncommitted
from stage import Party, Stage, fresh, holding_ledger, wait_until_blocked, withhold
from test_artefacts import files, keep_in
from worker_process import killed_in

from approvals import ledger
from approvals.models import LedgerEntry
from runs import artefacts, engine, failpoints, lightening, pruning, repair, retention
from runs.errors import AlreadyStarted, PermanentError, RunError
from runs.models import Artefact, AuditEvent, Run
from runs.retention import Rule
from runs.storage import DurableFiles
from runs.testing import drain, move_clock
from runs.waits import event


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    return keep_in(settings, tmp_path / "artefacts")


# Two at once, killed, hindered


def test_two_at_once_share_the_runs_and_each_is_withheld_once(stage, people):
    keys = [f"run-{number:03}" for number in range(60)]
    ended(*keys, team=people.team, age=2 * DAYS)
    first = Party(lambda: take_all(Rule(30), size=5))
    second = Party(lambda: take_all(Rule(30), size=5))
    assert first.outcome().runs + second.outcome().runs == 60
    assert withheld() == keys
    assert AuditEvent.objects.filter(kind="withheld").count() == 60
    told = [json.loads(entry.record)["runs"] for entry in LedgerEntry.objects.filter(kind="withholding")]
    assert sum(told) == 60
    assert ledger.verify().problems == []


def state_of(database):
    """What is left, whoever did it and in however many batches."""
    rows = database.query("SELECT key, withholding_id IS NULL, input FROM runs_run ORDER BY key")
    rows += database.query("SELECT run_id, position, output FROM runs_checkpoint ORDER BY run_id, position")
    return rows + database.query("SELECT sha256, removed_at IS NULL FROM runs_artefact ORDER BY id")


@pytest.mark.parametrize("point", ["emptied", "withheld", "file-removed"])
def test_killed_anywhere_and_repeated_it_comes_to_the_same_end(stage, database, folder, tmp_path, point):
    tells_secrets(stage)
    secret_run(stage)
    ended("run-2", "run-3", team=stage.people.team, age=2 * DAYS)
    move_clock(DAYS + timedelta(hours=1))

    def all_of_it():
        take_all(Rule(30), size=1)
        pruning.remove_files()

    assert killed_in(all_of_it, f"retention:step0:{point}", tmp_path / "points")
    assert ledger.verify().problems == []
    all_of_it()
    assert withheld() == ["run-1", "run-2", "run-3"]
    assert {output for _, _, output in database.query("SELECT 1, 1, output FROM runs_checkpoint")} == {"{}"}
    assert (files(folder), Artefact.objects.filter(removed_at=None).count()) == ([], 0)
    assert AuditEvent.objects.filter(kind="withheld").count() == 3
    assert ledger.verify().problems == []
    end = state_of(database)
    all_of_it()
    assert state_of(database) == end


def test_it_waits_for_nobody_s_run_and_gives_up_soon_behind_the_ledger(stage, people, database, monkeypatch):
    ended("run-1", "run-2", team=people.team, age=2 * DAYS)
    monkeypatch.setattr(retention, "LOCK_TIMEOUT", "200ms")
    with holding_ledger(database):
        assert take_all(Rule(30)).left == 1
        assert withheld() == []
    assert take_all(Rule(30)).runs == 2


def test_a_run_that_is_being_forked_stays_and_once_withheld_it_cannot_be_forked(stage, people):
    tamper_steps(stage, "only")
    stage.begin("run-1")
    stage.begin("run-2")
    move_clock(DAYS + timedelta(hours=1))

    def forking():
        return repair.fork("run-1", "fork", position=1, by=None, why="again")

    with uncommitted(forking):
        take_all(Rule(30))
        assert withheld() == ["run-2"]
    take_all(Rule(30))
    assert withheld() == ["run-2"]
    with pytest.raises(RunError, match="withheld by retention on"):
        repair.fork("run-2", "fork-2", position=1, by=None, why="again")
    engine.cancel("fork", why="no longer")
    take_all(Rule(30))
    assert withheld() == ["run-1", "run-2"]


def tamper_steps(stage, name):
    def done(ctx):
        return {}

    done.__name__ = name
    stage.flow.step(done)


def test_a_dead_run_is_not_old_and_its_redrive_finds_everything(stage, people):
    broken = [True]

    @stage.flow.step
    def first(ctx):
        return {"found": SECRET}

    @stage.flow.step
    def second(ctx):
        if broken[0]:
            raise PermanentError("broken")
        return {"seen": ctx.state["found"]}

    run = stage.begin()
    assert run.status == "dead"
    assert withhold().runs == 0
    broken[0] = False
    repair.redrive("run-1", why="mended")
    drain()
    assert fresh(run).checkpoints.get(position=2).output == {"seen": SECRET}


def test_starting_it_again_says_why_it_cannot_be_compared(stage, people):
    tamper_steps(stage, "only")
    stage.begin("run-1", a=1)
    withhold()
    with pytest.raises(AlreadyStarted, match="retention withheld it"):
        engine.start(stage.flow, key="run-1", input={"a": 1}, team=people.team)


# Files that others keep


def keeps(stage, content=b"the same bytes"):
    @stage.flow.step
    def keep(ctx):
        return {"letter": ctx.artefact(content, media_type="text/plain")}

    @stage.flow.step
    def hear(ctx):
        return event("papers", expires_in=timedelta(days=300)) if ctx.input.get("waits") else {}

    @stage.flow.step
    def read(ctx):
        return {"read": ctx.read_artefact(ctx.state["letter"]).decode()}


def test_a_file_that_a_live_run_names_too_stays_until_that_is_withheld(stage, folder):
    keeps(stage)
    stage.begin("old")
    live = stage.begin("live", waits=True)
    withhold()
    assert (withheld(), len(files(folder))) == (["old"], 1)
    engine.deliver("live", "papers", {})
    drain()
    assert fresh(live).checkpoints.get(position=3).output == {"read": "the same bytes"}
    move_clock(timedelta(days=70))
    take_all(Rule(30))
    pruning.remove_files()
    assert (withheld(), files(folder)) == (["live", "old"], [])


def test_a_file_that_is_removed_just_before_it_is_named_is_stored_again(stage, folder):
    """The worker found it stored already; before it writes its row the file goes."""
    report = {"report": "x" * 40_000}
    stage.flow.step(named("keep", lambda ctx: report))
    stage.flow.step(named("use", lambda ctx: {"size": len(ctx.state["report"])}))
    stage.begin("old")
    take_all(Rule(30))
    move_clock(DAYS + timedelta(hours=1))
    take_all(Rule(30))
    met = []

    def sweep(point):
        if point == "artefacts:step1:stored" and not met:
            met.append(pruning.remove_files())

    failpoints.listen(sweep)
    try:
        run = stage.begin("new")
    finally:
        failpoints.listen(None)
    assert met[0].removed == 1
    assert (run.status, run.checkpoints.get(position=2).output) == ("completed", {"size": 40_000})
    assert len(files(folder)) == 1


def named(name, step):
    step.__name__ = name
    return step


def test_a_file_that_is_being_named_is_left_alone(stage, folder, people):
    """The worker's row is written and not yet committed: the sweep cannot see it, and must not take the file."""
    keeps(stage)
    stage.begin("old")
    move_clock(DAYS + timedelta(hours=1))
    take_all(Rule(30))
    run = Run.objects.get(key=ended("new", team=people.team)[0].key)
    about = Artefact.objects.get()

    def name_it():
        kept = artefacts.keep(b"the same bytes", media_type="text/plain")
        assert kept.sha256 == about.sha256
        lightening.keep_by_hand(run.pk, 1, kept)

    with uncommitted(name_it):
        assert pruning.remove_files().shared == 1
    assert pruning.remove_files().shared == 1
    assert len(files(folder)) == 1


def test_whoever_names_a_file_waits_for_its_removal_and_stores_it_again(stage, folder, people, database):
    keeps(stage)
    stage.begin("old")
    move_clock(DAYS + timedelta(hours=1))
    take_all(Rule(30))
    reached, go = threading.Event(), threading.Event()

    def removing():
        def halt(point):
            if point == "retention:step0:file-removed":
                reached.set()
                assert go.wait(20)

        failpoints.listen(halt)
        return pruning.remove_files()

    sweeping = Party(removing)
    assert reached.wait(20)
    failpoints.listen(None)
    beginning = Party(lambda: stage.begin("new"))
    wait_until_blocked(database)
    go.set()
    assert sweeping.outcome().removed == 1
    # Its step found the file gone under the lock: it is tried again, and stores it.
    beginning.outcome()
    run = Run.objects.get(key="new")
    stage.later(DAYS + timedelta(hours=2))
    run.refresh_from_db()
    assert (run.status, run.checkpoints.get(position=3).output) == ("completed", {"read": "the same bytes"})
    assert len(files(folder)) == 1


class NeverRemoved(DurableFiles):
    def delete(self, name):
        raise OSError("read-only")


def test_a_storage_that_is_away_hinders_only_the_files(stage, settings, folder):
    keeps(stage)
    stage.begin("old")
    away = {"BACKEND": "tests.test_retention_races.NeverRemoved"}
    whole = settings.STORAGES
    settings.STORAGES = whole | {"artefacts": whole["artefacts"] | away}
    move_clock(DAYS + timedelta(hours=1))
    assert (take_all(Rule(30)).runs, pruning.remove_files().away) == (1, 1)
    settings.STORAGES = whole
    assert (pruning.remove_files().removed, files(folder)) == (1, [])
