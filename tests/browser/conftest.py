"""Fixtures: real Chromium against the real web server, on the test's own database and with the sandbox beside it.

One browser for all tests, a fresh context for each visit. Every visit of every test is judged when the test ends: no
complaint in the console, no violation of the content policy, no request that failed or went elsewhere.
"""

import os
import shutil
import subprocess
import sys

import pytest
from playwright.sync_api import sync_playwright
from runner_process import PROJECT, RunnerProcess, eventually
from sandbox_process import SandboxProcess
from visits import Visit
from worker_process import WorkerProcess

from durable_site.processes import Children, free_port

HOST = "127.0.0.1"
NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def chromium() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} is installed")
    return found


@pytest.fixture(scope="session")
def browser(chromium):
    # Playwright keeps an event loop in this thread, which Django would take for a reason to refuse all queries.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def sandbox(browser, tmp_path, settings):
    with SandboxProcess(tmp_path / "sandbox") as process:
        settings.SANDBOX_URL = process.url
        yield process


@pytest.fixture(scope="session")
def production(browser, tmp_path_factory):
    """The settings of a site that is not for debugging (its pages for failures are the real ones), its style sheets and
    scripts collected as a deployment does."""
    from django.conf import settings

    environment = {
        "DEBUG": "0",
        "HTTPS": "0",
        "ALLOWED_HOSTS": HOST,
        "DURABLE_RUNS_VAR": str(tmp_path_factory.mktemp("var")),
        "SECRET_KEY": settings.SECRET_KEY,
        "APPROVAL_SIGNING_KEY": settings.APPROVAL_SIGNING_KEY,
    }
    subprocess.run(
        [sys.executable, "manage.py", "collectstatic", "--noinput", "--verbosity=0"],
        cwd=PROJECT,
        env=os.environ | environment | {"DATABASE_URL": "postgresql://nowhere/none"},
        check=True,
    )
    return environment


@pytest.fixture
def site(database, sandbox, production, tmp_path):
    """The address of the web server, a process of its own."""
    environment = database.environment | production | {"SANDBOX_URL": sandbox.url}
    with Children(tmp_path / "log", environment) as children:
        yield children.web(HOST, free_port(), workers=1)


@pytest.fixture
def runner(database, sandbox, tmp_path):
    """The real runner with its queue and workers."""
    mail = str(tmp_path / "mail")
    with RunnerProcess(database, tmp_path / "runner.log", SANDBOX_URL=sandbox.url, EMAIL_FILE_PATH=mail) as process:
        yield process


@pytest.fixture
def worker(database, sandbox):
    """A background worker without a queue: quicker to start than the runner."""
    with WorkerProcess() as process:
        yield process


@pytest.fixture
def visit(browser, site):
    """Call it with a person (or nobody) and options of the browser context: a Visit, already signed in."""
    visits = []

    def begin(person=None, **options) -> Visit:
        context = browser.new_context(base_url=site, **options)
        if person is not None:
            context.add_cookies([{"name": "sessionid", "value": _session_of(person), "url": site}])
        visits.append(Visit(context, site))
        return visits[-1]

    yield begin
    faults = [fault for visit in visits for fault in visit.faults]
    for ended in visits:
        ended.context.close()
    assert faults == []


def _session_of(person) -> str:
    from django.test import Client

    client = Client()
    client.force_login(person)
    return client.cookies["sessionid"].value


@pytest.fixture
def begin(people, sandbox):
    """Call it with a reference: the run of a made-up claim, started and not yet worked. `changes`: columns of it."""
    from durable_site.claims.models import Claim
    from durable_site.claims.testing import made_up_claim
    from durable_site.claims.workflows import claim_payout
    from runs.engine import start

    def begin(reference: str = "0042", amount_minor: int | None = 184_000, **changes):
        made = made_up_claim(reference, amount_minor=amount_minor)
        if changes:
            Claim.objects.filter(pk=made.pk).update(**changes)
        return start(claim_payout, key=made.run_key, input={"claim": reference}, team=people.team, by=people.requester)

    return begin


@pytest.fixture
def claim(begin):
    """As `begin`, and worked until it waits for its adjuster. Gives the approval that it waits for."""
    from approvals.models import Approval
    from runs.testing import drain

    def claim(reference: str = "0042", **changes):
        run = begin(reference, **changes)
        drain()
        eventually(Approval.objects.filter(run=run, run__status="waiting").exists)
        return Approval.objects.get(run=run)

    return claim


@pytest.fixture
def readers(visit, claim, people):
    """The adjuster at two open approvals: at claim 0041 with a script, at claim 0042 without."""

    def reading(reference: str, script: bool) -> Visit:
        ada = visit(people.adjuster, java_script_enabled=script)
        ada.go(f"/approvals/{claim(reference).pk}/")
        return ada

    return [reading("0041", True), reading("0042", False)]
