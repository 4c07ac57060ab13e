"""Every alteration is found and named, also that of a superuser who switched all triggers and foreign keys off."""

import base64
from contextlib import contextmanager
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from stage import Stage, change, four_entries, tamper

from approvals import ledger
from approvals.models import Approval, LedgerEntry
from approvals.testing import answer
from approvals.verifier import Fault, exit_code

DOMAIN = b"durable-runs/ledger-entry/v1\n"


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture
def chain(stage):
    return four_entries(stage)


def of_run(name):
    return Approval.objects.get(run__key=name)


def problems():
    verdict = ledger.verify()
    assert verdict.ok is (not verdict.problems)
    return " ".join(verdict.problems)


ENTRY = "UPDATE approvals_ledgerentry SET {} WHERE sequence = 1"
BODY = "UPDATE approvals_ledgerbody SET {} WHERE id = (SELECT body_id FROM approvals_ledgerentry WHERE sequence = 1)"
DECISION = "UPDATE approvals_decision SET {} WHERE entry_id = 1"
APPROVAL = "UPDATE approvals_approval SET {} WHERE run_id = (SELECT id FROM runs_run WHERE key = 'approved')"
FORGED = "replace(record, 'password', 'passkeys')"
REHASHED = f"encode(sha256(convert_to(E'durable-runs/ledger-entry/v1\\n' || {FORGED}, 'UTF8')), 'hex')"

OF_ENTRIES = {
    "a record": (ENTRY.format(f"record = {FORGED}"), Fault.RECORD, "Entry 1: its record is not the one"),
    "a record and its hash": (
        ENTRY.format(f"record = {FORGED}, entry_hash = {REHASHED}"),
        Fault.SIGNATURE,
        "Entry 1: its signature",
    ),
    "a record's spelling": (ENTRY.format("record = ' ' || record"), Fault.RECORD, "Entry 1: its record is not the one"),
    "a record that is no JSON": (ENTRY.format("record = 'x'"), Fault.RECORD, "Entry 1: its record cannot be read"),
    "a record without members": (
        ENTRY.format("record = '{}'"),
        Fault.UNKNOWN_KEY,
        "Entry 1: its record is not the one",
    ),
    "a record that is a list": (ENTRY.format("record = '[]'"), Fault.RECORD, "Entry 1"),
    "a signature": (
        ENTRY.format("signature = 'A' || substr(signature, 2, 86) || '='"),
        Fault.SIGNATURE,
        "Entry 1: its signature",
    ),
    "a signature of another entry": (
        ENTRY.format("signature = (SELECT signature FROM approvals_ledgerentry WHERE sequence = 2)"),
        Fault.SIGNATURE,
        "Entry 1: its signature",
    ),
    "a hash": (ENTRY.format("entry_hash = repeat('a', 64)"), Fault.RECORD, "Entry 1: its record is not the one"),
    "a link": (ENTRY.format("previous_hash = repeat('a', 64)"), Fault.CHAIN, "Entry 1: it does not follow"),
    "a kind": (ENTRY.format("kind = 'note'"), Fault.DECISION, "Entry 1"),
    "an instant": (ENTRY.format("at = at - interval '1 day'"), Fault.RECORD, "Entry 1"),
    "a key's name": (ENTRY.format("key_id = 'ed25519-0000000000000000'"), Fault.UNKNOWN_KEY, "Entry 1: the key"),
    "a body": (BODY.format("text = replace(text, 'ada', 'eve')"), Fault.BODY, "Entry 1: its body"),
    "a body that is no JSON": (BODY.format("text = ''"), Fault.BODY, "Entry 1: its body"),
    "a body that nobody withheld": (BODY.format("text = NULL"), Fault.BODY, "Entry 1: its body is gone"),
    "no body": (ENTRY.format("body_id = NULL"), Fault.BODY, "Entry 1: its body"),
}
OF_THE_CHAIN = {
    "no entry in the middle": (
        "DELETE FROM approvals_ledgerentry WHERE sequence = 2",
        Fault.REMOVED,
        "an entry is missing",
    ),
    "no first entry": ("DELETE FROM approvals_ledgerentry WHERE sequence = 1", Fault.REMOVED, "an entry is missing"),
    "no last entry": ("DELETE FROM approvals_ledgerentry WHERE sequence = 4", Fault.TRUNCATED, "its end was cut off"),
    "another head": ("UPDATE approvals_ledgerhead SET sequence = 3", Fault.APPENDED, "or it was altered"),
    "another hash in the head": (
        "UPDATE approvals_ledgerhead SET entry_hash = repeat('a', 64)",
        Fault.CHAIN,
        "entry 4 is another",
    ),
    "no head": ("DELETE FROM approvals_ledgerhead", Fault.TRUNCATED, "head"),
    "no key": ("DELETE FROM approvals_verifyingkey", Fault.UNKNOWN_KEY, "Entry 1: the key"),
}
OF_DECISIONS = {
    "a verdict": (DECISION.format("verdict = 'reject', comment = 'no'"), Fault.DECISION, "Entry 1: the decision's row"),
    "a comment": (DECISION.format("comment = 'seen by the board'"), Fault.DECISION, "Entry 1: the decision's row"),
    "a signer": (DECISION.format("user_id = user_id + 1"), Fault.DECISION, "Entry 1: the decision's row"),
    "a time": (
        DECISION.format("decided_at = decided_at - interval '1 day'"),
        Fault.DECISION,
        "Entry 1: the decision's",
    ),
    "another question": (
        DECISION.format("approval_id = approval_id + 2"),
        Fault.FOREIGN,
        "Entry 1: it was signed for approval 1 of run approved, and stands at approval 3 of run expired",
    ),
    "no decision": (
        "DELETE FROM approvals_decision WHERE entry_id = 1",
        Fault.DECISION,
        "Entry 1: its decision's row is gone",
    ),
}
OF_APPROVALS = {
    "a payload": (
        APPROVAL.format("payload = replace(payload, '184000', '984000')"),
        Fault.STATEMENT,
        "Entry 1: the payload",
    ),
    "a payload and its digest": (
        APPROVAL.format("payload = '{}', payload_digest = encode(sha256('{}'), 'hex')"),
        Fault.STATEMENT,
        "Entry 1: the payload",
    ),
    "a payload that says as much in words": (
        APPROVAL.format("payload = replace(payload, '0042', '0043')"),
        Fault.PAYLOAD,
        "Entry 1: the payload",
    ),
    "signed facts": (
        APPROVAL.format("signed_facts = replace(signed_facts, 'open', 'shut')"),
        Fault.FACTS,
        "Entry 1: the facts",
    ),
    "a statement": (APPROVAL.format("statement = 'Pay 9,840.00 USD to p-1'"), Fault.STATEMENT, "Entry 1"),
    "a template": (
        "UPDATE approvals_statementtemplate SET text = 'Pay'",
        Fault.TEMPLATE,
        "the template of its statement",
    ),
    "a tool": (APPROVAL.format("tool = 'test.burn'"), Fault.DECISION, "Entry 1"),
    "whoever asked": (
        APPROVAL.format("requested_by_id = (SELECT user_id FROM approvals_decision WHERE entry_id = 1)"),
        Fault.REQUESTER,
        "Entry 1: it was signed by whoever asked for it",
    ),
    "approved, by nobody": (
        "UPDATE approvals_approval SET status = 'approved' WHERE status = 'expired'",
        Fault.UNSIGNED,
        "of run expired says approved, but nobody signed that",
    ),
    "rejected, by nobody": (
        "UPDATE approvals_approval SET status = 'rejected' WHERE status = 'expired'",
        Fault.UNSIGNED,
        "of run expired says rejected, but nobody signed that",
    ),
}
TABLES = ("ledgerbody", "statementtemplate", "ledgerentry", "ledgerhead", "verifyingkey", "decision", "approval")


@contextmanager
def undone(database):
    """What is done to the tables in the block is undone after it."""
    for table in TABLES:
        tamper(database, f"CREATE TABLE kept_{table} AS TABLE approvals_{table}")
    yield
    for table in TABLES:
        tamper(database, f"TRUNCATE approvals_{table} CASCADE")
    for table in TABLES:
        tamper(database, f"INSERT INTO approvals_{table} TABLE kept_{table}")
        tamper(database, f"DROP TABLE kept_{table}")


def found_after(database, statement):
    with undone(database):
        tamper(database, statement)
        try:
            return ledger.verify()
        except Exception as error:
            return f"verify() itself failed: {error!r}"


def is_told(verdict, fault, sentence):
    return exit_code(verdict.found) == fault and sentence in " ".join(verdict.problems)


@pytest.mark.parametrize("alterations", [OF_ENTRIES, OF_THE_CHAIN, OF_DECISIONS, OF_APPROVALS])
def test_every_alteration_is_found_and_named(chain, database, alterations):
    found = {name: found_after(database, statement) for name, (statement, _, _) in alterations.items()}
    missed = {name: found[name] for name, (_, *told) in alterations.items() if not is_told(found[name], *told)}
    assert missed == {}
    assert problems() == ""


def test_two_entries_that_changed_places_are_found(chain, database):
    tamper(
        database,
        "UPDATE approvals_ledgerentry SET sequence = -sequence WHERE sequence IN (1, 2)",
    )
    tamper(
        database,
        "UPDATE approvals_ledgerentry SET sequence = CASE sequence WHEN -1 THEN 2 ELSE 1 END WHERE sequence < 0",
    )
    found = problems()
    assert exit_code(ledger.verify().found) == Fault.SWAPPED
    assert "Entry 1: its record is that of entry 2" in found
    assert "Entry 1: it does not follow the entry before it" in found
    assert "Entry 3: it does not follow the entry before it" in found


def test_an_altered_entry_s_receipt_says_so_and_the_others_do_not(chain, database):
    tamper(database, OF_ENTRIES["a record and its hash"][0])
    assert [ledger.check_entry(entry) for entry in LedgerEntry.objects.order_by("sequence")] == [
        False,
        True,
        True,
        True,
    ]


def test_an_expiry_that_is_in_no_entry_is_found(stage, database):
    """`expired` is not `rejected`, and both leave a signed row."""
    stage.asks_then_pays()
    approval = stage.asked("run-1")
    tamper(database, "UPDATE approvals_approval SET status = 'expired', closed_at = now()")
    assert f"Approval {approval.pk} of run run-1 says expired" in problems()


def test_an_approval_with_fewer_signatures_than_required_is_found(stage, database):
    stage.asks_then_pays(required=2)
    answer(stage.asked(), stage.people.adjuster)
    tamper(database, "UPDATE approvals_approval SET status = 'approved', closed_at = now()")
    assert "of run run-1 says approved" in problems()


def test_signed_facts_of_several_approvers_are_compared_too(stage, database):
    stage.asks_then_pays(required=2)
    approval = stage.asked()
    answer(approval, stage.people.adjuster)
    answer(approval, stage.people.second_adjuster)
    assert ledger.verify().problems == []
    tamper(database, "UPDATE approvals_approval SET signed_facts = '{}'")
    assert "the facts" in problems()


def test_a_decision_that_leans_on_the_entry_of_another_act_is_found(chain, database):
    """An ordinary INSERT, no trigger off, beside an expiry's entry that no decision uses yet."""
    lean_on(database, of_run("expired"), sequence=3, user=chain[0].decision.user_id)
    tamper(database, "UPDATE approvals_approval SET status = 'approved' WHERE status = 'expired'")
    assert "Entry 3" in problems()


def lean_on(database, approval, *, sequence, user):
    change(
        database,
        "INSERT INTO approvals_decision (approval_id, user_id, verdict, comment, decided_at, entry_id) "
        "VALUES (%s, %s, 'approve', '', now(), %s)",
        approval.pk,
        user,
        sequence,
    )


def test_a_chain_signed_anew_with_another_key_under_the_old_name_is_found(chain, database):
    """The forger has the database and not the key: signs all of it with a key of his own, and files that under the old
    key's name, which an outsider may have pinned."""
    forger = Ed25519PrivateKey.from_private_bytes(sha256(b"a forger's seed").digest())
    public = base64.b64encode(forger.public_key().public_bytes_raw()).decode()
    for entry in chain:
        signature = base64.b64encode(forger.sign(DOMAIN + entry.record.encode())).decode()
        tamper(
            database, "UPDATE approvals_ledgerentry SET signature = %s WHERE sequence = %s", signature, entry.sequence
        )
    tamper(database, "UPDATE approvals_verifyingkey SET public_key = %s", public)
    assert "key" in problems()


def test_the_last_decision_cut_off_with_its_row_and_the_head_moved_back_is_found_by_its_approval(chain, database):
    cut_off_last(database)
    assert "of run again says approved, but nobody signed that" in problems()


def test_an_end_cut_off_with_everything_that_speaks_of_it_shows_only_against_a_head_noted_before(chain, database):
    """What a chain alone cannot show, and what auditors note the head for."""
    noted = ledger.verify()
    cut_off_last(database)
    tamper(
        database,
        "UPDATE approvals_approval SET status = 'withdrawn', spent_at = NULL WHERE id = %s",
        of_run("again").pk,
    )
    now = ledger.verify()
    assert now.ok
    assert (now.entries, now.head_hash) == (3, chain[2].entry_hash)
    assert (now.entries, now.head_hash) != (noted.entries, noted.head_hash)


def cut_off_last(database):
    tamper(database, "DELETE FROM approvals_decision WHERE entry_id = 4")
    tamper(database, "DELETE FROM approvals_ledgerentry WHERE sequence = 4")
    tamper(
        database,
        "UPDATE approvals_ledgerhead SET sequence = 3, "
        "entry_hash = (SELECT entry_hash FROM approvals_ledgerentry WHERE sequence = 3)",
    )
