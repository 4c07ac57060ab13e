"""The test kit as an author meets it: what docs/testing.md shows is run as it stands, by `manage.py test`."""

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from stage import Stage, fresh

from runs.errors import KeyConflict
from runs.fake_world import Unscripted, fake_world, lost
from runs.models import Run
from runs.testing import NeverReached, NotATestDatabase, crash_at, drain, refuse_elsewhere

PROJECT = Path(__file__).resolve().parents[1]
PAGE = (PROJECT / "docs" / "testing.md").read_text()


@pytest.fixture
def stage(people):
    with Stage(people) as made:
        yield made


def test_the_tests_on_the_documentations_page_pass_as_they_stand(database, tmp_path):
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "test_refund.py").write_text(example)
    environment = database.environment | {"PYTHONPATH": str(PROJECT)}
    ended = subprocess.run(
        [sys.executable, "manage.py", "test", str(tmp_path), "--noinput"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Ran 5 tests" in ended.stderr


def test_the_page_names_every_point_that_a_worker_reaches(stage):
    stage.asks_then_pays()
    stage.begin()
    named = set(re.findall(r"`([a-z<>-]+)`", PAGE.split("## Points")[1]))
    code = "".join(path.read_text() for path in (PROJECT / "runs").glob("*.py") if path.name in WORKERS)
    reached = re.findall(r'reach\([^"]*?f?"([^"]+)"\)', code)
    assert len(reached) > 10
    assert {re.sub(r"\{[a-z.]+\}", "<tool>", boundary) for boundary in reached} - named == {"refused"}


WORKERS = {"advance.py", "calls.py", "effects.py"}


def test_a_crash_leaves_what_was_committed_and_the_next_worker_goes_on(stage):
    stage.calls_then_goes_on(stage.tool())
    with crash_at("run-1:step1:test.pay-answered"):
        stage.begin()
    run = Run.objects.get(key="run-1")
    assert (run.status, run.attempt, run.checkpoints.count()) == ("running", 1, 0)
    drain()
    assert fresh(run).status == "completed"
    assert stage.receiver.keys == ["run-1:step1"] * 2


def test_a_crash_that_never_comes_fails_the_test_and_lists_the_points(stage):
    stage.calls_then_goes_on(stage.tool())
    with pytest.raises(NeverReached, match=r"run-1:step9:entered was never reached(.|\n)*run-1:step1:entered"):
        with crash_at("run-1:step9:entered"):
            stage.begin()
    drain()
    assert Run.objects.get(key="run-1").status == "completed"


def test_the_fake_world_honours_keys_and_refuses_another_request_under_one(stage):
    pay = stage.tool()
    with fake_world() as world:
        world.answers(pay, {"payment": "p-1"}, {"payment": "p-2"})
        assert pay.function(idempotency_key="k", amount_minor=1) == {"payment": "p-1"}
        assert pay.function(idempotency_key="k", amount_minor=1) == {"payment": "p-1", "replayed": True}
        with pytest.raises(KeyConflict):
            pay.function(idempotency_key="k", amount_minor=2)
        assert pay.function(idempotency_key="other", amount_minor=1) == {"payment": "p-2"}
        assert [made.key for made in world.made] == ["k", "other"]
    assert stage.receiver.received == []


def test_a_receiver_without_keys_makes_it_twice_unless_it_is_looked_up(stage):
    pay = stage.tool(delivery="check-then-act", settle_delay=timedelta(seconds=1))
    pay.lookup(lambda *, idempotency_key: pytest.fail("the real backend was asked"))
    stage.calls_then_goes_on(pay)
    with fake_world() as world:
        world.answers(pay, lost({"paid": True}))
        stage.begin()
        stage.later(times=3)
    assert Run.objects.get(key="run-1").status == "completed"
    assert (len(world.received), len(world.made)) == (1, 1)
    with fake_world() as world:
        world.answers(pay, {"paid": True})
        for _ in range(2):
            pay.function(idempotency_key="k", amount_minor=1)
    assert len(world.made) == 2


def test_a_tool_that_the_test_says_nothing_about_reaches_nobody_and_fails_it(stage):
    pay = stage.tool()
    with fake_world(), pytest.raises(Unscripted, match=r"test\.pay was called"):
        pay.function(idempotency_key="k", amount_minor=1)
    assert stage.receiver.received == []
    assert pay.function(idempotency_key="k", amount_minor=1) == {"paid": True}


def test_the_kit_works_in_no_database_that_somebody_uses(database, monkeypatch):
    from django.db import connection

    monkeypatch.setitem(connection.settings_dict, "NAME", "production")
    for use in (refuse_elsewhere, drain, crash_at("x").__enter__):
        with pytest.raises(NotATestDatabase, match="production"):
            use()
