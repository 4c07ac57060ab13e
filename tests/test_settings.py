"""The site refuses to start without real secrets, and says which is missing."""

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GOOD = {
    "SECRET_KEY": "k3Jw8zQp0vXc7nRt5yUb2mLs9dFg4hAe6iOq1wEr-TyUiOpAsDfGhJk",
    "APPROVAL_SIGNING_KEY": base64.b64encode(bytes(range(32))).decode(),
    "DATABASE_URL": "postgresql://nobody@localhost/nothing",
    "ALLOWED_HOSTS": "runs.example",
}


def start(**environment: str) -> subprocess.CompletedProcess[str]:
    bare = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG"}}
    command = [sys.executable, "-c", "import django; django.setup(); print('started')"]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=bare | {"DJANGO_SETTINGS_MODULE": "durable_site.settings"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_with_all_secrets_given_it_starts():
    assert start(**GOOD).stdout == "started\n"


@pytest.mark.parametrize("name", ["SECRET_KEY", "APPROVAL_SIGNING_KEY"])
@pytest.mark.parametrize("value", ["", "short", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"])
def test_a_missing_or_weak_secret_refuses_to_start_and_says_which(name, value):
    refused = start(**GOOD | {name: value})
    assert refused.returncode != 0
    assert "started" not in refused.stdout
    last = refused.stderr.strip().splitlines()[-1]
    assert last.startswith("django.core.exceptions.ImproperlyConfigured: ")
    assert name in last
    assert value == "" or value not in last


def test_a_signing_key_that_is_no_key_refuses_to_start():
    refused = start(**GOOD | {"APPROVAL_SIGNING_KEY": base64.b64encode(bytes(range(1, 50))).decode()})
    assert "APPROVAL_SIGNING_KEY holds 49 bytes" in refused.stderr


def test_a_signing_key_in_a_file_is_enough_and_one_that_others_can_read_refuses_to_start(tmp_path):
    path = tmp_path / "signing.key"
    path.write_text(GOOD["APPROVAL_SIGNING_KEY"])
    path.chmod(0o600)
    given = GOOD | {"APPROVAL_SIGNING_KEY": "", "APPROVAL_SIGNING_KEY_FILE": str(path)}
    assert start(**given).stdout == "started\n"
    path.chmod(0o644)
    refused = start(**given).stderr.strip().splitlines()[-1]
    assert "ImproperlyConfigured: The key file" in refused
    assert "mode 0644" in refused
    assert GOOD["APPROVAL_SIGNING_KEY"] not in refused


def test_the_first_key_can_be_made_before_there_is_one(tmp_path):
    command = [sys.executable, "manage.py", "signing_key", "create", "--file", str(tmp_path / "signing.key")]
    bare = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG"}}
    given = bare | GOOD | {"APPROVAL_SIGNING_KEY": "", "DJANGO_SETTINGS_MODULE": "durable_site.settings"}
    made = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    assert "Set APPROVAL_SIGNING_KEY_FILE to it." in made.stdout
    assert (tmp_path / "signing.key").stat().st_mode & 0o777 == 0o600


def test_a_database_that_is_not_postgresql_is_refused():
    assert "must name a PostgreSQL database" in start(**GOOD | {"DATABASE_URL": "sqlite:///x.db"}).stderr


@pytest.mark.parametrize("name", ["NOTIFY_WEBHOOK", "ALARM_WEBHOOK"])
def test_a_webhook_without_a_secret_is_refused_by_name(name):
    given = GOOD | {f"{name}_URL": "https://hooks.example/x"}
    assert f"{name}_URL needs {name}_SECRET" in start(**given | {f"{name}_SECRET": "secret"}).stderr
    assert start(**given | {f"{name}_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}).stdout == "started\n"


def test_a_number_that_is_none_is_refused_by_name():
    assert "STEP_TIMEOUT must be a number" in start(**GOOD | {"STEP_TIMEOUT": "soon"}).stderr


def test_in_development_a_secret_is_made_once_and_kept_private(tmp_path):
    given = GOOD | {"DEBUG": "1", "DURABLE_RUNS_VAR": str(tmp_path), "SECRET_KEY": "", "APPROVAL_SIGNING_KEY": ""}
    assert start(**given).stdout == "started\n"
    kept = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert set(kept) == {"SECRET_KEY", "APPROVAL_SIGNING_KEY"}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "secrets").iterdir()} == {0o600}
    assert start(**given).stdout == "started\n"
    assert {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()} == kept
