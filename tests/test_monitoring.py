"""What monitors see: /metrics for whoever has the token, probes that tell the truth, and rules and dashboards that name
only figures which exist."""

import json
import re
from datetime import timedelta

import pytest
import yaml
from django.db import connection
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families
from runner_process import PROJECT, RunnerProcess, eventually

from runs import metrics, stuck
from runs.engine import start
from runs.models import Beat, Upkeep, database_clock
from tests.flows.workflows import plain

DOCS = PROJECT / "docs" / "monitoring"
NAME = re.compile(r"durable_runs_\w+")


def families() -> set[str]:
    """The names that a sample may have: a counter's ends with _total."""
    found = text_string_to_metric_families(metrics.text().decode())
    return {f"{one.name}_total" if one.type == "counter" else one.name for one in found}


# /metrics


def scrape(token: str | None = None):
    return Client().get("/metrics", headers={"Authorization": f"Bearer {token}"} if token is not None else {})


def test_without_the_setting_nobody_reads_metrics(database, settings):
    settings.METRICS_TOKEN = ""
    for token in (None, "", "anything"):
        assert scrape(token).status_code == 403


def test_only_the_token_reads_metrics(database, settings):
    settings.METRICS_TOKEN = "a long secret"
    for token in (None, "", "a long secre", "a long secret2"):
        refused = scrape(token)
        assert (refused.status_code, refused["WWW-Authenticate"]) == (401, "Bearer")
    answer = scrape("a long secret")
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain; version=")


def test_metrics_are_read_by_the_librarys_own_parser_and_each_has_a_meaning(people):
    Upkeep.objects.create(name="tallies", every=timedelta(minutes=1), due_at=database_clock())
    start(plain, key="run-1", input={}, team=people.team)
    found = list(text_string_to_metric_families(metrics.text().decode()))
    assert len(found) > 15
    assert all(one.documentation for one in found)
    assert len({one.name for one in found}) == len(found)


def test_no_run_and_no_person_is_ever_a_label(people):
    start(plain, key="secret-claim-77", input={"payee": "someone"}, team=people.team, by=people.requester)
    told = metrics.text().decode()
    for word in ("secret-claim-77", "someone", "rick", "claims"):
        assert word not in told


# Rules and dashboards


def test_every_alert_rule_names_only_metrics_that_exist(database):
    groups = yaml.safe_load((DOCS / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 10
    for rule in rules:
        assert set(NAME.findall(rule["expr"])) <= families(), rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]


def test_the_dashboard_names_only_metrics_that_exist_and_leaves_none_out(database):
    panels = json.loads((DOCS / "dashboard.json").read_text())["panels"]
    named = {name for panel in panels for target in panel["targets"] for name in NAME.findall(target["expr"])}
    assert named == families()


# Probes


def ready() -> tuple[int, dict[str, str]]:
    answer = Client().get("/readyz")
    return answer.status_code, dict(line.split(": ", 1) for line in answer.content.decode().splitlines())


def beats(silent_for: float = 0, acknowledged: float = 0) -> None:
    now = database_clock()
    at, canary = now - timedelta(seconds=silent_for), now - timedelta(seconds=acknowledged)
    Beat.objects.create(host="here", pid=1, workers=2, started_at=at, beat_at=at, canary_at=canary)


def test_ready_needs_a_runner_that_beats(database):
    assert ready()[0] == 503
    assert ready()[1]["runner"] == "none beats"
    beats(silent_for=11)
    assert ready()[1]["runner"] == "none beats"


def test_ready_needs_a_queue_that_answers(database):
    beats(acknowledged=16)
    status, told = ready()
    assert (status, told["runner"]) == (503, "ok")
    assert "hangs" in told["queue"]


def test_ready_is_ready(database):
    beats()
    assert ready() == (200, {"database": "ok", "migrations": "ok", "runner": "ok", "queue": "ok"})


def test_ready_needs_every_migration_and_alive_does_not(database):
    beats()
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM django_migrations WHERE id = (SELECT max(id) FROM django_migrations WHERE app = 'approvals')"
        )
    status, told = ready()
    assert (status, told["migrations"]) == (503, "1 not applied")
    assert Client().get("/healthz").status_code == 200


def test_probes_are_answered_without_https_and_pages_are_not(database, settings):
    settings.SECURE_SSL_REDIRECT = True
    assert Client().get("/healthz").status_code == 200
    assert Client().get("/readyz").status_code == 503
    assert Client().get("/metrics").status_code == 301
    assert Client().get("/sign-in/").status_code == 301


@pytest.mark.faults
def test_a_real_runner_is_ready_hung_and_ready_again(database, flows_world, tmp_path, settings):
    settings.CANARY_EVERY = 6
    with RunnerProcess(database, tmp_path / "runner.log", flows=True, CANARY_EVERY="15") as runner:
        eventually(lambda: ready()[0] == 200)
        # It lives, and acknowledges nothing: each process of it is stopped.
        for process in runner.guarded():
            process.suspend()
        eventually(lambda: ready()[0] == 503, 20)
        assert ready()[1]["runner"] == "ok"
        assert not stuck.is_answered()
        # The runner replaces it by itself.
        eventually(lambda: ready()[0] == 200, 60)
        assert runner.terminate() == 0
        assert ready()[1]["runner"] == "none beats"
