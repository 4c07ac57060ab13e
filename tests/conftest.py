"""Fixtures: a real PostgreSQL database for each test, people, teams, and the sandbox as its own process.

Each test gets a clone of a migrated template, dropped afterwards. Rolling back or emptying tables would not do: runs
are moved by other processes, and the append-only tables refuse TRUNCATE.
"""

import itertools
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parent))

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Database:
    """One test's database. `url` is what a process of its own gets as DATABASE_URL."""

    name: str
    url: str

    @property
    def environment(self) -> dict[str, str]:
        return dict(os.environ) | {
            "DATABASE_URL": self.url,
            "DEBUG": "1",
            "DJANGO_SETTINGS_MODULE": "durable_site.settings",
        }

    def query(self, statement: str, *values):
        """Rows, through a connection that has nothing to do with Django's."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(statement, values).fetchall()


def _server_url() -> str:
    from durable_site import embedded

    return os.environ.get("DATABASE_URL") or embedded.database_url()


def _named(name: str) -> str:
    return urlunsplit(urlsplit(_server_url())._replace(path=f"/{name}"))


def _administer(statement: str) -> None:
    with psycopg.connect(_server_url(), autocommit=True) as connection:
        connection.execute(statement)


def _point_django_at(name: str) -> None:
    from django.db import connections

    connections["default"].close()
    connections.settings["default"]["NAME"] = name
    connections["default"].settings_dict["NAME"] = name


@pytest.fixture(scope="session")
def template(django_db_blocker) -> str:
    """A migrated database that nobody connects to: what each test's database is copied from."""
    from django.core.management import call_command

    name = f"test_template_{os.getpid()}"
    _administer(f"CREATE DATABASE {name}")
    with django_db_blocker.unblock():
        _point_django_at(name)
        call_command("migrate", verbosity=0, skip_checks=True)
        # What recurs would start runs of its own in the midst of any test, and what is kept up would look at them;
        # those that mean it say so.
        from runs.models import Recurring, Upkeep

        Recurring.objects.all().delete()
        Upkeep.objects.all().delete()
        _point_django_at(name)
    yield name
    _administer(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(template, django_db_blocker):
    """An empty, migrated database of this test's own."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    _administer(f"CREATE DATABASE {name} TEMPLATE {template}")
    with django_db_blocker.unblock():
        _point_django_at(name)
        try:
            yield Database(name, _named(name))
        finally:
            _point_django_at(template)
            _administer(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def flows_world(database, tmp_path, monkeypatch) -> Path:
    """The outside world of tests.flows: a folder whose files say what was paid and written. And its table."""
    from django.db import connection

    from tests.flows.workflows import ENTRIES

    with connection.cursor() as cursor:
        cursor.execute(ENTRIES)
    world = tmp_path / "world"
    world.mkdir()
    monkeypatch.setenv("FLOWS_WORLD", str(world))
    return world


@dataclass(frozen=True)
class People:
    """One team and one person of each role in it, and a stranger in a team of her own. All log in with `password`.
    Adjusters have an authority without limits."""

    team: object
    adjuster: object
    second_adjuster: object
    ops: object
    auditor: object
    requester: object
    superuser: object
    stranger: object
    password: str = "correct horse battery"


@cache
def _hashed(password: str) -> str:
    """Hashed once a session: the real hasher is slow on purpose."""
    from django.contrib.auth.hashers import make_password

    return make_password(password)


@pytest.fixture
def people(database) -> People:
    from django.contrib.auth.models import Group, User

    from approvals.models import Authority

    team, other = (Group.objects.create(name=name) for name in ("claims", "other-claims"))

    def person(name, *groups, **more):
        user = User.objects.create(
            username=name, email=f"{name}@example.invalid", password=_hashed(People.password), **more
        )
        user.groups.set(groups)
        return user

    def role(name):
        return Group.objects.get(name=name)

    # Without a ledger entry, so that what a test counts is its own.
    Authority.objects.create(group=role("adjusters"), valid_from=datetime(2020, 1, 1, tzinfo=UTC))
    return People(
        team=team,
        adjuster=person("ada", team, role("adjusters")),
        second_adjuster=person("ben", team, role("adjusters")),
        ops=person("olga", team, role("ops")),
        auditor=person("aud", role("auditors"), is_staff=True),
        requester=person("rick", team, role("adjusters")),
        superuser=person("root", is_staff=True, is_superuser=True),
        stranger=person("eve", other, role("adjusters"), role("ops")),
    )
