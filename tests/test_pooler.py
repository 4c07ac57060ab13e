"""The runner behind a pooler that pools by transaction: no LISTEN, no prepared statements, and yet work goes on.

Needs the program pgbouncer (Debian package pgbouncer); skipped where it is not installed.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from runner_process import RunnerProcess, eventually
from sandbox_process import SandboxProcess

from approvals.testing import answer_all
from durable_site.claims.testing import made_up_claim
from durable_site.claims.workflows import claim_payout
from runs.engine import start
from runs.models import Run

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(PROGRAM is None, reason="the program pgbouncer is not installed"),
]

CONFIGURATION = """
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 10
"""


def as_nobody(database) -> bool:
    """The embedded server knows whoever comes by his account, and pgbouncer refuses to run as root."""
    return os.geteuid() == 0 and urlsplit(database.url).netloc.partition("@")[2].startswith("%2F")


@contextmanager
def role_for_pooler(database) -> Iterator[str]:
    if not as_nobody(database):
        yield urlsplit(database.url).username or ""
        return
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS nobody")
        connection.execute("CREATE ROLE nobody SUPERUSER LOGIN")
        try:
            yield "nobody"
        finally:
            connection.execute("DROP ROLE nobody")


def server_of(database, role: str) -> str:
    address, info = urlsplit(database.url), psycopg.conninfo.conninfo_to_dict(database.url)
    password = f" password={unquote(address.password)}" if address.password else ""
    return f"host={info['host']} port={info.get('port', 5432)} user={role}{password}"


@pytest.fixture
def pooled(database, tmp_path):
    """The test's database as it is reached through pgbouncer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with role_for_pooler(database) as role:
        configuration = tmp_path / "pgbouncer.ini"
        configuration.write_text(CONFIGURATION.format(server=server_of(database, role), port=port))
        account = ["-u", "nobody"] if os.geteuid() == 0 else []
        with (tmp_path / "pgbouncer.log").open("w") as log:
            process = subprocess.Popen([PROGRAM, *account, str(configuration)], stdout=log, stderr=log)
        through = replace(database, url=f"postgresql://{role}@127.0.0.1:{port}/{database.name}")
        try:
            eventually(lambda: answers(through, process, tmp_path / "pgbouncer.log"))
            yield through
        finally:
            process.terminate()
            process.wait()


def answers(database, process: subprocess.Popen, log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    try:
        return database.query("SELECT 1") == [(1,)]
    except psycopg.OperationalError:
        return False


def test_a_claim_goes_through_behind_a_transaction_pooler(people, pooled, tmp_path, settings):
    with SandboxProcess(tmp_path / "sandbox") as sandbox:
        settings.SANDBOX_URL = sandbox.url
        claim = made_up_claim("pooled", amount_minor=184_000)
        run = start(claim_payout, key=claim.run_key, input={"claim": "pooled"}, team=people.team)
        environment = {"SANDBOX_URL": sandbox.url, "EMAIL_FILE_PATH": str(tmp_path / "mail"), "DATABASE_POOLER": "1"}
        with RunnerProcess(pooled, tmp_path / "runner.log", **environment) as runner:
            eventually(lambda: Run.objects.get(pk=run.pk).status == "waiting")
            assert listeners(pooled) == 0
            assert answer_all(people.adjuster) == 1
            eventually(lambda: Run.objects.get(pk=run.pk).status == "completed")
            assert runner.terminate() == 0
        assert len(sandbox.payments()) == 1
    assert "ERROR" not in (tmp_path / "runner.log").read_text()


def listeners(database) -> int:
    return database.query("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'")[0][0]
