"""The ledger is one gap-free chain that anybody can verify, and ordinary statements cannot change what it speaks of."""

import base64
import json
from hashlib import sha256

import psycopg
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.db import connection, transaction
from django.utils import timezone
from stage import Party, Stage, four_entries, holding, wait_until_blocked

from approvals import ledger
from approvals.models import Approval, LedgerEntry, LedgerHead
from approvals.signing import GENESIS
from approvals.testing import answer
from runs.testing import drain

DOMAIN = b"durable-runs/ledger-entry/v1\n"


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture
def chain(stage):
    return four_entries(stage)


# Whole


def test_a_chain_of_decisions_and_expiries_verifies_and_each_entry_alone_does(chain):
    verdict = ledger.verify()
    assert (verdict.ok, verdict.entries, verdict.head_hash) == (True, 4, chain[-1].entry_hash)
    assert [entry.kind for entry in chain] == ["decision", "decision", "expiry", "decision"]
    assert all(ledger.check_entry(entry) for entry in chain)


def test_an_empty_ledger_verifies(database):
    assert (ledger.verify().ok, ledger.verify().entries, ledger.verify().head_hash) == (True, 0, GENESIS)


def test_an_outsider_verifies_it_with_the_published_rules_alone(chain, database):
    """From rows alone, by the docstring of approvals/signing.py; nothing of ours but the column names."""
    keys = dict(database.query("SELECT key_id, public_key FROM approvals_verifyingkey"))
    columns = "sequence, record, entry_hash, previous_hash, signature, key_id"
    previous, number = "0" * 64, 0
    for sequence, record, entry_hash, previous_hash, signature, key_id in database.query(
        f"SELECT {columns} FROM approvals_ledgerentry ORDER BY sequence"
    ):
        number += 1
        message = DOMAIN + record.encode()
        public = base64.b64decode(keys[key_id])
        assert key_id == "ed25519-" + sha256(public).hexdigest()[:16]
        Ed25519PublicKey.from_public_bytes(public).verify(base64.b64decode(signature), message)
        with pytest.raises(InvalidSignature):
            Ed25519PublicKey.from_public_bytes(public).verify(base64.b64decode(signature), message + b" ")
        assert entry_hash == sha256(message).hexdigest()
        said = json.loads(record)
        assert (said["sequence"], said["previous_hash"], said["key_id"]) == (sequence, previous_hash, key_id)
        assert (sequence, previous_hash) == (number, previous)
        assert record == json.dumps(said, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        previous = entry_hash
    assert database.query("SELECT sequence, entry_hash FROM approvals_ledgerhead") == [(number, previous)]


def test_a_record_says_what_was_decided_by_whom_on_which_bytes_and_which_facts(chain, stage):
    said = ledger.told(chain[1])
    approval = Approval.objects.get(run__key="rejected")
    expected = {
        "run": "rejected",
        "approval": approval.pk,
        "verdict": "reject",
        "comment": "the payee is unknown",
        "signer_name": "ada",
        "signer_role": "adjusters",
        "payload_digest": sha256(approval.payload.encode()).hexdigest(),
        "facts_digest": sha256(b'{"amount":184000,"claim":"open"}').hexdigest(),
        "statement": "Pay 1,840.00 USD to p-1",
        "position": 1,
    }
    assert expected.items() <= said.items()
    assert {"auth_method", "auth_age", "meaning", "signed_at", "key_id", "signer_id", "requested_by"} <= said.keys()


def test_a_signed_record_names_no_person_and_repeats_no_words_of_one(chain):
    """So that both can be withheld, and whoever holds the records learns neither."""
    for text in ("ada", "the payee is unknown", "Pay 1,840.00"):
        assert all(text not in entry.record for entry in chain)
    salts = {json.loads(entry.body.text)["salt"] for entry in chain}
    assert len(salts) == len(chain)


# Ordinary statements, also of a superuser


def refused(database, statement):
    with psycopg.connect(database.url, autocommit=True) as other, pytest.raises(psycopg.errors.Error) as error:
        other.execute(statement)
    return str(error.value)


@pytest.mark.parametrize("table", ["approvals_ledgerentry", "approvals_decision", "approvals_verifyingkey"])
def test_signed_rows_refuse_update_delete_and_truncate(chain, database, table):
    column = {"approvals_ledgerentry": "kind", "approvals_decision": "comment", "approvals_verifyingkey": "public_key"}[
        table
    ]
    before = database.query(f"SELECT * FROM {table} ORDER BY 1")
    for statement in (
        f"UPDATE {table} SET {column} = {column}",
        f"DELETE FROM {table}",
        f"TRUNCATE {table} CASCADE",
        f"TRUNCATE {table}, approvals_decision",
    ):
        assert "append-only" in refused(database, statement), statement
    assert database.query(f"SELECT * FROM {table} ORDER BY 1") == before


def test_an_approval_can_be_neither_deleted_nor_emptied(chain, database):
    assert "is frozen" in refused(database, "DELETE FROM approvals_approval")
    refused(database, "TRUNCATE approvals_approval")
    assert "append-only" in refused(database, "TRUNCATE approvals_approval CASCADE")
    assert Approval.objects.count() == 4


def test_what_was_asked_cannot_be_changed_by_an_ordinary_statement(stage, database):
    """What decides which action runs, on what grounds, until when, and who may not sign it."""
    stage.asks_then_pays()
    stage.asked()
    changes = [
        "payload = payload || ' '",
        "payload_digest = repeat('0', 64)",
        "tool = 'test.burn'",
        "statement = 'Pay nothing'",
        "statement_version = ''",
        "facts = '{}'",
        "facts_digest = repeat('0', 64)",
        "facts_source = ''",
        "required = 0",
        "requested_by_id = NULL",
        "terms = '{}'",
        "act_within = interval '1 year'",
        "amount_minor = 1",
        "asked_at = now()",
        "step = 'settle'",
    ]
    assert [change for change in changes if not is_refused(database, f"UPDATE approvals_approval SET {change}")] == []


def is_refused(database, statement):
    with psycopg.connect(database.url) as other:
        try:
            other.execute(statement)
        except psycopg.errors.IntegrityError:
            return True
        other.rollback()
    return False


def test_a_spent_approval_cannot_be_made_unspent_by_an_ordinary_statement(chain, database):
    assert Approval.objects.filter(spent_at__isnull=False).count() == 2
    assert is_refused(database, "UPDATE approvals_approval SET spent_at = NULL, spent_key = NULL")


# Gap-free


def append(members):
    with transaction.atomic():
        return ledger.append("note", members, at=timezone.now()).sequence


def test_appends_of_many_at_once_make_one_chain_without_a_gap(database):
    parties = [Party(lambda number=number: [append({"by": number, "n": n}) for n in range(10)]) for number in range(8)]
    sequences = sorted(sequence for party in parties for sequence in party.outcome())
    assert sequences == list(range(1, 81))
    assert (ledger.verify().problems, ledger.verify().entries) == ([], 80)


def test_decisions_of_many_at_once_make_one_chain_without_a_gap(stage):
    stage.asks_then_pays()
    questions = [stage.asked(f"run-{number}") for number in range(12)]
    parties = [
        Party(lambda mine=questions[number::4], user=user: [answer(question, user).pk for question in mine])
        for number, user in enumerate([stage.people.adjuster, stage.people.second_adjuster] * 2)
    ]
    assert sum(len(party.outcome()) for party in parties) == 12
    drain()
    assert (ledger.verify().problems, ledger.verify().entries) == ([], 12)
    assert sorted(stage.receiver.keys) == sorted(f"run-{number}:step2" for number in range(12))


def test_a_transaction_that_rolls_back_leaves_no_gap(database):
    append({"n": 1})
    with pytest.raises(RuntimeError), transaction.atomic():
        ledger.append("note", {"n": 2}, at=timezone.now())
        raise RuntimeError("changed its mind")
    assert append({"n": 3}) == 2
    assert (ledger.verify().problems, LedgerHead.objects.get().sequence) == ([], 2)


def test_a_later_append_waits_for_an_earlier_one_that_may_still_roll_back(database):
    append({"n": 1})
    with holding(database, "SELECT FROM approvals_ledgerhead FOR UPDATE"):
        second = Party(lambda: append({"n": 2}))
        wait_until_blocked(database)
        assert LedgerEntry.objects.count() == 1
    assert second.outcome() == 2


def test_a_record_that_cannot_be_canonical_is_refused_and_leaves_no_gap(database):
    for bad in (1.5, float("nan"), "\x00", "\ud83d", 2**53):
        with pytest.raises(ValueError, match="ledger record"):
            append({"amount": bad})
    assert append({"n": 1}) == 1
    assert ledger.verify().problems == []


def test_verifying_while_others_append_raises_no_false_alarm(database):
    """The head is read under a lock that somebody holds while appending: the walk is over by then."""
    append({"n": 1})
    with holding(database, "SELECT pg_advisory_lock(1)") as gate:
        appender = Party(lambda: append_behind(gate))
        wait_until_blocked(database)
        verifier = Party(ledger.verify)
        wait_until_blocked(database, 2)
        gate.execute("SELECT pg_advisory_unlock(1)")
    assert appender.outcome() == 2
    assert verifier.outcome().problems == []


def append_behind(gate):
    """Keep everybody from reading the head until the gate opens, then append."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("LOCK TABLE approvals_ledgerhead IN ACCESS EXCLUSIVE MODE")
            cursor.execute("SELECT pg_advisory_lock(1)")
        return append({"n": 2})
