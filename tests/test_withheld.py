"""What was withheld: pages say so, the database lets exactly that through, and tampering around it is found."""

from datetime import timedelta

import psycopg
import pytest
from browsing import browser, text
from old_runs import SECRET, ended, secret_run, tells_secrets
from stage import Stage, tamper, withhold
from test_artefacts import keep_in
from test_verifier import exported

from approvals import ledger, verifier
from approvals.models import Approval, Decision
from approvals.verifier import Fault
from runs import retention
from runs.models import Withholding, database_clock
from runs.testing import move_clock


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    return keep_in(settings, tmp_path / "artefacts")


# Pages


def test_pages_of_a_withheld_run_open_and_say_so(stage, people):
    tells_secrets(stage)
    run = secret_run(stage)
    approval, entry, kept = Approval.objects.get(), Decision.objects.get().entry_id, run.artefacts.first()
    withhold()
    move_clock(timedelta())
    for person in (people.adjuster, people.ops):
        shown = browser(person).get("/runs/run-1/")
        assert (shown.status_code, "Body withheld by retention on" in text(shown)) == (200, True)
        assert ("Its output is withheld by retention." in text(shown), SECRET in text(shown)) == (True, False)
    shown = browser(people.adjuster).get(f"/approvals/{approval.pk}/")
    assert (shown.status_code, "Body withheld by retention on" in text(shown)) == (200, True)
    assert approval.payload_digest in text(shown)
    receipt = browser(people.adjuster).get(f"/receipts/{entry}/")
    assert (receipt.status_code, "Not valid" in text(receipt)) == (200, False)
    assert "What was said in clear is withheld" in text(receipt)
    gone = browser(people.adjuster).get(f"/runs/run-1/artefacts/{kept.sha256}/")
    assert (gone.status_code, "was withheld by retention on" in text(gone)) == (410, True)
    assert browser(people.adjuster).get("/runs/?tab=completed").status_code == 200
    for page in ("runs/run", "runs/checkpoint", "runs/call", "approvals/approval", "runs/withholding", "runs/hold"):
        assert browser(people.superuser).get(f"/admin/{page}/").status_code == 200
    assert "Fork" not in text(browser(people.ops).get("/runs/run-1/header/"))


# Nothing else is allowed, and what is done around it is found


def refused(database, statement):
    with psycopg.connect(database.url) as other:
        try:
            other.execute("SET session_replication_role = replica")
            other.execute(statement)
        except psycopg.errors.IntegrityConstraintViolation:
            return True
        finally:
            other.rollback()
    return False


OTHER_CHANGES = [
    "UPDATE runs_checkpoint SET output = '{\"b\":3}'",
    "UPDATE runs_checkpoint SET output = '{}', step = 'other'",
    "UPDATE runs_artefact SET removed_at = now(), size = 0",
    "UPDATE runs_artefact SET removed_at = NULL",
    "UPDATE runs_transition SET why = 'because'",
    "UPDATE runs_transition SET why = 'Withheld by retention' WHERE user_id IS NOT NULL",
    "UPDATE runs_withholding SET rule = 'another'",
    "UPDATE runs_run SET withholding_id = NULL WHERE withholding_id IS NOT NULL",
    "UPDATE runs_run SET withholding_id = 1, input = '{}' WHERE key = 'live'",
    "UPDATE approvals_approval SET payload = ''",
    "UPDATE approvals_approval SET payload = '', facts = '', signed_facts = '', payee = '', statement = 'other'",
    "UPDATE approvals_approval SET amount_minor = 1",
    "UPDATE approvals_decision SET comment = 'other'",
    "UPDATE approvals_decision SET comment = 'Withheld by retention', facts = '', verdict = 'reject'",
    "UPDATE approvals_ledgerbody SET text = 'other'",
    "DELETE FROM runs_checkpoint",
    "DELETE FROM approvals_decision",
]
EXACTLY_THE_WITHHOLDING = [
    "UPDATE runs_checkpoint SET output = '{}'",
    "UPDATE runs_auditevent SET request = ''",
    "UPDATE runs_artefact SET removed_at = now()",
    "UPDATE runs_transition SET why = 'Withheld by retention'",
    "UPDATE approvals_approval SET payload = '', facts = '', signed_facts = '', payee = '', "
    "statement = 'Withheld by retention'",
    "UPDATE approvals_decision SET comment = 'Withheld by retention', facts = ''",
    "UPDATE approvals_ledgerbody SET text = NULL",
]


def test_the_triggers_let_the_withholding_through_and_nothing_else(stage, people, database):
    tells_secrets(stage)
    secret_run(stage)
    stage.begin("live", whom=SECRET)
    for statement in EXACTLY_THE_WITHHOLDING:
        assert statement.startswith("UPDATE runs_auditevent") or refused(database, statement), statement
    Withholding.objects.create(at=database_clock(), rule="r", actor="a")
    with psycopg.connect(database.url, autocommit=True) as other:
        other.execute("UPDATE runs_run SET withholding_id = 1, input = '{}' WHERE key = 'run-1'")
    for statement in OTHER_CHANGES:
        assert refused(database, statement), statement


TAMPERINGS = {
    "a body that no entry names": ("UPDATE approvals_ledgerbody SET text = NULL", Fault.BODY),
    "a payload that no entry names": (
        "UPDATE approvals_approval SET payload = '', statement = 'Withheld by retention'",
        Fault.PAYLOAD,
    ),
    "a run that no entry names": (
        "UPDATE runs_run SET withholding_id = (SELECT max(id) FROM runs_withholding)",
        Fault.BODY,
    ),
    "a run that was taken out of its batch": (
        "UPDATE runs_run SET withholding_id = NULL WHERE key = 'old'",
        Fault.BODY,
    ),
    "a comment put into a withheld decision": ("UPDATE approvals_decision SET comment = 'yes, do'", Fault.DECISION),
    "a verdict of a withheld decision": ("UPDATE approvals_decision SET verdict = 'reject'", Fault.DECISION),
    "a payload digest of a withheld approval": (
        "UPDATE approvals_approval SET payload_digest = repeat('a', 64)",
        Fault.PAYLOAD,
    ),
    "a statement of a withheld approval": ("UPDATE approvals_approval SET statement = 'Pay 1 USD'", Fault.STATEMENT),
    "a payload put into a withheld approval": ("UPDATE approvals_approval SET payload = '{}'", Fault.STATEMENT),
    "the withholding's own record": (
        "UPDATE approvals_ledgerentry SET record = replace(record, 'runs\":1', 'runs\":2') WHERE kind = 'withholding'",
        Fault.BODY,
    ),
    "no withholding": ("DELETE FROM approvals_ledgerentry WHERE kind = 'withholding'", Fault.BODY),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_tampering_around_what_is_withheld_is_still_found(stage, people, database, what):
    tells_secrets(stage)
    secret_run(stage, "old")
    withhold()
    ended("other", team=people.team)
    assert ledger.verify().problems == []
    if what in ("a body that no entry names", "a payload that no entry names"):
        move_clock(timedelta())
        secret_run(stage, "new")
    statement, fault = TAMPERINGS[what]
    if what == "a run that no entry names":
        statement += " WHERE key = 'other'"
    tamper(database, statement)
    found = {one.fault for one in ledger.verify().found}
    assert fault in found, found


FORGERIES = {
    "a body that no entry names": ("entries", lambda rows: rows[0].update(body=None), Fault.BODY),
    "a payload": (
        "approvals",
        lambda rows: rows[0].update(payload="", statement="Withheld by retention"),
        Fault.PAYLOAD,
    ),
    "a request": ("calls", lambda rows: rows[0].update(request=""), Fault.EFFECT),
    "facts": ("approvals", lambda rows: rows[0].update(signed_facts=""), Fault.FACTS),
    "a whole run": ("run", lambda row: row.update(withholding_id=7), Fault.BODY),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_the_stand_alone_verifier_finds_what_is_gone_without_an_entry(stage, what):
    tells_secrets(stage)
    secret_run(stage)
    name, change, fault = FORGERIES[what]
    whole = exported("run-1")
    rows = whole.loaded(name)
    change(rows)
    forged = whole.replaced(**{name: rows}).sealed_anew()
    assert fault in {one.fault for one in forged.check()}


def test_the_words_for_what_is_withheld_are_the_same_everywhere():
    assert verifier.WITHHELD == retention.WITHHELD
