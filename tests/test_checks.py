"""Settings under which runs would be lost or workers would hang are refused at the start, each with its cure."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.checks import run_checks

from runs.doorbell import longest_bell

PROJECT = Path(__file__).resolve().parents[1]


def refused(settings, *, queue=None, database=None):
    """The ids of what is refused with these values in place of the site's own."""
    settings.Q_CLUSTER = settings.Q_CLUSTER | (queue or {})
    databases = copy.copy(settings.DATABASES)
    databases["default"] = databases["default"] | (database or {})
    settings.DATABASES = databases
    return {found.id: found for found in run_checks() if found.id.startswith("runs.E")}


def test_the_sites_own_settings_are_safe(settings):
    assert refused(settings) == {}


@pytest.mark.parametrize(
    ("number", "queue", "cure"),
    [
        (4, {"orm": "other"}, "must commit with the run"),
        (5, {"broker_class": "django_q.brokers.orm.ORM"}, "runs.doorbell.WakeBroker"),
        (7, {"ack_failures": False}, "Set it to True"),
        (8, {"scheduler": True}, "Set it to False"),
        (9, {"sync": True}, "Set it to False"),
    ],
)
def test_an_unsafe_queue_is_refused_with_its_cure(settings, number, queue, cure):
    found = refused(settings, queue=queue)
    assert list(found) == [f"runs.E{number:03}"]
    assert cure in found[f"runs.E{number:03}"].hint


@pytest.mark.parametrize(
    ("number", "database", "cure"),
    [
        (1, {"OPTIONS": {"pool": True}}, "Remove OPTIONS['pool']"),
        (2, {"CONN_MAX_AGE": 0}, "Set it to 60"),
        (3, {"CONN_HEALTH_CHECKS": False}, "Set it to True"),
    ],
)
def test_an_unsafe_database_connection_is_refused_with_its_cure(settings, number, database, cure):
    found = refused(settings, database=database)
    assert list(found) == [f"runs.E{number:03}"]
    assert cure in found[f"runs.E{number:03}"].hint


@pytest.mark.parametrize(("retry", "ids"), [(119, ["runs.E006"]), (120, ["runs.E006"]), (121, [])])
def test_a_retry_that_is_not_above_twice_the_timeout_is_refused(settings, retry, ids):
    """C11: a slow bell would be executed twice at once."""
    assert list(refused(settings, queue={"timeout": 60, "retry": retry})) == ids


@pytest.mark.parametrize(("less", "ids"), [(1, ["runs.E010"]), (0, []), (-1, [])])
def test_a_stop_that_would_kill_the_longest_step_is_refused(settings, less, ids):
    settings.STOP_GRACE = longest_bell() - less
    assert list(refused(settings)) == ids


def test_the_runner_does_not_start_under_unsafe_settings(database, tmp_path):
    (tmp_path / "unsafe.py").write_text(
        "from durable_site.settings import *\nQ_CLUSTER = Q_CLUSTER | {'retry': Q_CLUSTER['timeout']}\n"
    )
    environment = database.environment | {"DJANGO_SETTINGS_MODULE": "unsafe", "PYTHONPATH": f"{tmp_path}:{PROJECT}"}
    ended = subprocess.run(
        [sys.executable, "manage.py", "runner"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "runs.E006" in ended.stderr
    assert "A slow bell would be executed twice at once." in ended.stderr
