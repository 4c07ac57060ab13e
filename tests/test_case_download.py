"""A case is taken away from its page: by those of the team with a role, on record, and it verifies on its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from browsing import browser, text
from django.contrib.auth.models import User
from django.core.management import call_command
from stage import Stage, tamper

from approvals import verifier
from approvals.models import LedgerCheckpoint
from approvals.testing import answer
from runs.models import AuditEvent
from runs.testing import drain

ADDRESS = "/cases/claim-0042/"


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture
def decision(stage, people):
    stage.asks_then_pays()
    decision = answer(stage.asked("claim-0042"), people.adjuster)
    drain()
    return decision


def taken(person):
    response = browser(person).post(ADDRESS)
    assert response.status_code == 200
    return b"".join(response.streaming_content)


def verified(folder, archive):
    """What the one file says on a machine that has nothing else of ours: its exit code and words."""
    (folder / "case.zip").write_bytes(archive)
    call_command("signing_key", "show", "--trust-file", str(folder / "trust.json"))
    (folder / "verifier.py").write_bytes(Path(verifier.__file__).read_bytes())
    command = [sys.executable, "-I", "verifier.py", "case.zip", "trust.json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("role", ["adjuster", "ops", "auditor"])
def test_what_is_downloaded_verifies_with_the_stand_alone_file_and_is_on_record(decision, people, tmp_path, role):
    person = getattr(people, role)
    code, words = verified(tmp_path, taken(person))
    assert (code, words) == (0, words)
    event = AuditEvent.objects.get(kind="case-exported")
    assert (event.user, event.actor, event.run.key) == (person, "web", "claim-0042")


def test_a_case_that_was_altered_on_its_way_does_not_verify(decision, people, tmp_path):
    archive = bytearray(taken(people.auditor))
    archive[len(archive) // 2] ^= 1
    assert verified(tmp_path, bytes(archive))[0] != 0


def test_the_download_has_its_name_and_is_kept_by_no_cache(decision, people):
    response = browser(people.adjuster).post(ADDRESS)
    assert response["Content-Disposition"] == 'attachment; filename="claim-0042.zip"'
    assert response["Content-Type"] == "application/zip"
    assert response["Cache-Control"] == "private, no-store"
    assert int(response["Content-Length"]) == len(b"".join(response.streaming_content))


def test_strangers_get_404_and_take_nothing(decision, people):
    for send in (browser(people.stranger).get, browser(people.stranger).post):
        assert send(ADDRESS).status_code == 404
        assert send("/cases/claim-0999/").status_code == 404
    assert not AuditEvent.objects.filter(kind="case-exported").exists()


def test_somebody_of_the_team_without_a_role_is_refused_on_record(decision, people):
    guest = User.objects.create(username="guest")
    guest.groups.set([people.team])
    page = browser(guest).get(ADDRESS)
    assert "Only adjusters, operators and auditors" in text(page)
    assert 'method="post" action="/cases' not in page.content.decode()
    refused = browser(guest).post(ADDRESS)
    assert refused.status_code == 403
    assert "Nothing was exported" in text(refused)
    assert list(AuditEvent.objects.values_list("kind", "user__username")) == [("verb-refused", "guest")]


def test_looking_at_the_page_exports_and_signs_nothing(decision, people):
    page = browser(people.auditor).get(ADDRESS)
    assert "python -I verifier.py claim-0042.zip trust.json" in text(page)
    assert browser(people.auditor, enforce_csrf_checks=True).post(ADDRESS).status_code == 403
    assert not AuditEvent.objects.filter(kind="case-exported").exists()
    assert not LedgerCheckpoint.objects.exists()


def test_the_pages_of_receipt_approval_and_run_lead_to_it(decision, people):
    for address in (f"/receipts/{decision.entry_id}/", f"/approvals/{decision.approval_id}/", "/runs/claim-0042/"):
        page = browser(people.adjuster).get(address).content.decode()
        assert re.search(rf'href="{ADDRESS}"', page), address


def test_without_the_ledgers_key_nothing_is_exported_and_the_page_says_so(decision, people, database):
    tamper(database, "UPDATE approvals_ledgerhead SET key_id = 'ed25519-0000000000000000'")
    refused = browser(people.auditor).post(ADDRESS)
    assert refused.status_code == 503
    assert "Nothing was exported" in text(refused)
