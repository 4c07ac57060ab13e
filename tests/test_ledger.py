"""The ledger finds and names every alteration, also by a superuser who switched all triggers off; and it has no gaps."""

import base64
import json
from datetime import timedelta
from hashlib import sha256

import psycopg
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from django.db import transaction
from django.utils import timezone
from stage import Party, Stage, holding, tamper, wait_until_blocked

from approvals import ledger
from approvals.models import Approval, LedgerEntry, LedgerHead, VerifyingKey
from approvals.signing import GENESIS, SigningKey
from approvals.testing import answer
from runs.testing import drain, move_clock

DOMAIN = b"durable-runs/ledger-entry/v1\n"


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture
def chain(stage):
    """Four entries: approved and paid, rejected, expired, approved; in runs named so."""
    stage.asks_then_pays(expires_in=timedelta(hours=1))
    stage.people.adjuster.save()
    questions = [stage.asked(name) for name in ("approved", "rejected", "expired", "again")]
    answer(questions[0], stage.people.adjuster)
    answer(questions[1], stage.people.adjuster, "reject", "the payee is unknown")
    tamper_with_due_time(stage, questions[2])
    answer(questions[3], stage.people.second_adjuster)
    drain()
    assert ledger.verify().problems == []
    return list(LedgerEntry.objects.order_by("sequence"))


def tamper_with_due_time(stage, approval):
    """Let one run's wait fall due, by the clock, and turn the clock back for the others."""
    from runs.sweep import _close_overdue

    move_clock(timedelta(hours=2))
    assert _close_overdue(approval.run_id) == 1
    move_clock(timedelta())


def problems():
    found = ledger.verify().problems
    assert ledger.verify().ok is (not found)
    return " ".join(found)


def run_of(name):
    return Approval.objects.get(run__key=name)


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
    said = json.loads(chain[1].record)
    approval = run_of("rejected")
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


# Tampered with, triggers and foreign keys off

FIRST = "UPDATE approvals_ledgerentry SET {} WHERE sequence = 1"
OF_FIRST = "UPDATE approvals_decision SET {} WHERE entry_id = 1"
APPROVED = "UPDATE approvals_approval SET {} WHERE run_id = (SELECT id FROM runs_run WHERE key = 'approved')"
REHASHED = (
    "record = {0}, entry_hash = encode(sha256(convert_to(E'durable-runs/ledger-entry/v1\\n' || {0}, 'UTF8')), 'hex')"
)

ALTERATIONS = {
    "a record": (FIRST.format("record = replace(record, '\"ada\"', '\"eve\"')"), "Entry 1: its record is not the one"),
    "a record with its hash": (
        FIRST.format(REHASHED.format("replace(record, '\"ada\"', '\"eve\"')")),
        "Entry 1: its signature",
    ),
    "a record's spelling": (FIRST.format("record = ' ' || record"), "Entry 1: its record is not the one"),
    "a record that is no JSON": (FIRST.format("record = 'x'"), "Entry 1: its record cannot be read"),
    "a record without members": (FIRST.format("record = '{}'"), "Entry 1: its record is not the one"),
    "a record that is a list": (FIRST.format("record = '[]'"), "Entry 1"),
    "a signature": (FIRST.format("signature = 'A' || substr(signature, 2, 86) || '='"), "Entry 1: its signature"),
    "a signature of another entry": (
        FIRST.format("signature = (SELECT signature FROM approvals_ledgerentry WHERE sequence = 2)"),
        "Entry 1: its signature",
    ),
    "a hash": (FIRST.format("entry_hash = repeat('a', 64)"), "Entry 1: its record is not the one"),
    "a link": (FIRST.format("previous_hash = repeat('a', 64)"), "Entry 1: it does not follow"),
    "a kind": (FIRST.format("kind = 'note'"), "Entry 1"),
    "a key's name": (FIRST.format("key_id = 'ed25519-0000000000000000'"), "Entry 1: the key"),
    "an instant": (FIRST.format("at = at - interval '1 day'"), "Entry 1"),
    "no entry in the middle": ("DELETE FROM approvals_ledgerentry WHERE sequence = 2", "an entry is missing"),
    "no first entry": ("DELETE FROM approvals_ledgerentry WHERE sequence = 1", "an entry is missing"),
    "no last entry": ("DELETE FROM approvals_ledgerentry WHERE sequence = 4", "its end was cut off"),
    "another head": ("UPDATE approvals_ledgerhead SET sequence = 3", "its end was cut off or altered"),
    "no head": ("DELETE FROM approvals_ledgerhead", "head"),
    "no key": ("DELETE FROM approvals_verifyingkey", "Entry 1: the key"),
    "a verdict": (OF_FIRST.format("verdict = 'reject', comment = 'no'"), "Entry 1: the decision's row"),
    "a comment": (OF_FIRST.format("comment = 'seen by the board'"), "Entry 1: the decision's row"),
    "a signer": (OF_FIRST.format("user_id = user_id + 1"), "Entry 1: the decision's row"),
    "a time of deciding": (
        OF_FIRST.format("decided_at = decided_at - interval '1 day'"),
        "Entry 1: the decision's row",
    ),
    "another question": (OF_FIRST.format("approval_id = approval_id + 2"), "Entry 1: the decision's row"),
    "no decision": ("DELETE FROM approvals_decision WHERE entry_id = 1", "Entry 1: its decision's row is gone"),
    "a payload": (APPROVED.format("payload = replace(payload, '184000', '984000')"), "Entry 1: the payload"),
    "a payload and its digest": (
        APPROVED.format("payload = '{}', payload_digest = encode(sha256('{}'), 'hex')"),
        "Entry 1: the payload",
    ),
    "signed facts": (APPROVED.format("signed_facts = replace(signed_facts, 'open', 'shut')"), "Entry 1: the facts"),
    "a statement": (APPROVED.format("statement = 'Pay 9,840.00 USD to p-1'"), "Entry 1"),
    "a tool": (APPROVED.format("tool = 'test.burn'"), "Entry 1"),
}


@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_an_alteration_is_found_and_named(chain, database, alteration):
    statement, sentence = ALTERATIONS[alteration]
    tamper(database, statement)
    assert sentence in problems()


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
    assert "Entry 1: number 1 was expected here" in found
    assert "Entry 1: it does not follow the entry before it" in found
    assert "Entry 2: it does not follow the entry before it" in found


def test_an_altered_entry_s_receipt_says_so_and_the_others_do_not(chain, database):
    tamper(database, ALTERATIONS["a record with its hash"][0])
    assert [ledger.check_entry(entry) for entry in LedgerEntry.objects.order_by("sequence")] == [
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("status", "others"), [("approved", ""), ("rejected", ""), ("approved", ", signed_facts = facts")]
)
def test_a_status_that_nobody_signed_is_found(chain, database, status, others):
    tamper(database, f"UPDATE approvals_approval SET status = '{status}'{others} WHERE status = 'expired'")
    assert f"of run expired says {status}, but nobody signed that" in problems()


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
    """No trigger off: an ordinary INSERT, beside an expiry's entry that no decision uses yet."""
    lean_on(database, run_of("expired"), sequence=3, user=chain[0].decision.user_id)
    database_update(database, "UPDATE approvals_approval SET status = 'approved' WHERE status = 'expired'")
    assert "Entry 3" in problems()


def lean_on(database, approval, *, sequence, user):
    database_update(
        database,
        "INSERT INTO approvals_decision (approval_id, user_id, verdict, comment, decided_at, entry_id) "
        "VALUES (%s, %s, 'approve', '', now(), %s)",
        approval.pk,
        user,
        sequence,
    )


def database_update(database, statement, *values):
    with psycopg.connect(database.url, autocommit=True) as other:
        assert other.execute(statement, values).rowcount == 1


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
    """What a chain alone cannot show, and what auditors note the head for: entries and head hash are not those of then."""
    noted = ledger.verify()
    cut_off_last(database)
    tamper(database, "UPDATE approvals_approval SET status = 'withdrawn' WHERE id = %s", run_of("again").pk)
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


@pytest.mark.parametrize(
    "change",
    [
        "payload = payload || ' '",
        "payload_digest = repeat('0', 64)",
        "statement = 'Pay nothing'",
        "facts = '{}'",
        "required = 0",
        "tool = 'test.burn'",
        "requested_by_id = NULL",
        "facts_source = ''",
        "facts_digest = repeat('0', 64)",
        "statement_version = ''",
        "terms = '{}'",
        "act_within = interval '1 year'",
        "amount_minor = 1",
        "asked_at = now()",
        "step = 'settle'",
    ],
)
def test_what_was_asked_cannot_be_changed_by_an_ordinary_statement(stage, database, change):
    """What decides which action runs, on what grounds, and who may not sign it."""
    stage.asks_then_pays()
    stage.asked()
    assert "is frozen" in refused(database, f"UPDATE approvals_approval SET {change}")


def test_a_spent_approval_cannot_be_made_unspent_by_an_ordinary_statement(chain, database):
    assert Approval.objects.filter(spent_at__isnull=False).count() == 2
    refused(database, "UPDATE approvals_approval SET spent_at = NULL, spent_key = NULL")


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


def test_a_new_key_goes_on_with_the_chain_and_old_entries_still_verify(database, settings):
    append({"n": 1})
    settings.APPROVAL_SIGNING_KEY = base64.b64encode(sha256(b"the next key").digest()).decode()
    append({"n": 2})
    assert (ledger.verify().problems, VerifyingKey.objects.count()) == ([], 2)
    next_key = SigningKey(sha256(b"the next key").digest())
    assert LedgerEntry.objects.get(sequence=2).key_id == next_key.key_id


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
    from django.db import connection

    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("LOCK TABLE approvals_ledgerhead IN ACCESS EXCLUSIVE MODE")
            cursor.execute("SELECT pg_advisory_lock(1)")
        return append({"n": 2})
