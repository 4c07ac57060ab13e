"""One key signs at a time: made private, shown for auditors, handed on by an entry that both sign, and refused else."""

import json
import os
import stat

import pytest
from browsing import decide, text
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import transaction
from stage import Stage, tamper

from approvals import checkpoints, export, ledger, verifier
from approvals.ledger import CannotSign
from approvals.models import Decision, LedgerEntry, LedgerHead, VerifyingKey
from approvals.signing import BadSigningKey, configured_signing_key, make_key_file, read_key_file
from approvals.testing import answer
from approvals.verifier import Fault
from runs.models import database_clock


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        stage.asks_then_pays()
        yield stage


@transaction.atomic
def append(number=1):
    return ledger.append("note", {"n": number}, at=database_clock())


@pytest.fixture
def new_file(tmp_path):
    path = tmp_path / "new.key"
    make_key_file(path)
    return path


@pytest.fixture
def rotated(database, new_file, settings):
    """Two entries by the first key, then the ledger is handed on, and one entry by the new key."""
    old = configured_signing_key()
    append(1), append(2)
    call_command("signing_key", "rotate", "--to", str(new_file))
    settings.APPROVAL_SIGNING_KEY_FILE = str(new_file)
    append(4)
    return old, read_key_file(new_file)


# Files


def test_a_key_is_made_private_and_one_that_exists_is_never_overwritten(tmp_path, database, capsys):
    path = tmp_path / "a.key"
    call_command("signing_key", "create", "--file", str(path), "--json")
    made = json.loads(capsys.readouterr().out)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (made["key_id"], made["public_key"]) == (read_key_file(path).key_id, read_key_file(path).public_key)
    before = path.read_bytes()
    assert path.read_text().strip() not in str(made)
    with pytest.raises(CommandError, match="No key was made"):
        call_command("signing_key", "create", "--file", str(path))
    assert path.read_bytes() == before


def test_a_key_is_made_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        make_key_file(tmp_path / "a.key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_key_file_that_others_can_read_or_write_is_refused_with_the_cure(new_file, mode, settings):
    new_file.chmod(mode)
    settings.APPROVAL_SIGNING_KEY_FILE = str(new_file)
    with pytest.raises(BadSigningKey, match=f"mode {mode:04o}.*chmod 600") as refused:
        configured_signing_key()
    assert new_file.read_text().strip() not in str(refused.value)


def test_a_key_file_that_is_missing_or_none_is_refused_by_name(tmp_path):
    with pytest.raises(BadSigningKey, match=r"none\.key cannot be read \(FileNotFoundError\)"):
        read_key_file(tmp_path / "none.key")
    (tmp_path / "bad.key").touch(0o600)
    with pytest.raises(BadSigningKey, match=r"bad\.key is missing"):
        read_key_file(tmp_path / "bad.key")


# One key at a time


def test_another_key_signs_nothing_until_the_ledger_is_handed_on(database, new_file, settings):
    append(1)
    settings.APPROVAL_SIGNING_KEY_FILE = str(new_file)
    with pytest.raises(CannotSign, match="signing_key rotate"):
        append(2)
    assert (LedgerEntry.objects.count(), LedgerHead.objects.get().sequence) == (1, 1)
    assert [error.id for error in run_checks(databases=["default"])] == ["approvals.E002"]


def test_a_page_says_so_with_503_when_the_key_is_not_the_ledger_s(stage, new_file, settings, people):
    approval = stage.asked()
    append(1)
    settings.APPROVAL_SIGNING_KEY_FILE = str(new_file)
    response = decide(approval, people.adjuster)
    assert response.status_code == 503
    assert "Nothing was signed" in text(response)
    assert Decision.objects.count() == 0


def test_the_ledger_is_handed_on_by_an_entry_that_both_keys_sign(rotated):
    old, new = rotated
    assert ledger.verify().problems == []
    entries = list(LedgerEntry.objects.order_by("sequence"))
    assert [entry.key_id for entry in entries] == [old.key_id, old.key_id, old.key_id, new.key_id]
    said = json.loads(entries[2].record)
    assert (said["kind"], said["new_key_id"], said["new_public_key"]) == ("key-rotation", new.key_id, new.public_key)
    place = f"{entries[2].previous_hash}:{new.public_key}"
    assert verifier.verify(place, said["new_key_signature"], new.public_key, domain=verifier.NEW_KEY)
    assert all(ledger.check_entry(entry) for entry in entries)


def test_the_old_key_signs_nothing_after_it_was_replaced(rotated, settings):
    settings.APPROVAL_SIGNING_KEY_FILE = ""
    with pytest.raises(CannotSign):
        append(5)


def test_a_key_that_was_replaced_is_never_taken_again(rotated, tmp_path):
    old = tmp_path / "old.key"
    make_key_file(old)
    with transaction.atomic():
        VerifyingKey.objects.create(key_id=read_key_file(old).key_id, public_key=read_key_file(old).public_key)
    with pytest.raises(CommandError, match="never signs again"):
        call_command("signing_key", "rotate", "--to", str(old))


def signed_anew(database, key, entry, **members):
    """The entry's record with other members, hashed and signed by that key and put back in its place, and the head."""
    record = verifier.parsed(entry.record) | {"key_id": key.key_id} | members
    text = ledger.canonical(record)
    entry_hash = verifier.record_hash(text)
    change = "UPDATE approvals_ledgerentry SET record = %s, entry_hash = %s, signature = %s, key_id = %s"
    values = (text, entry_hash, key.sign(text), key.key_id, entry.sequence)
    tamper(database, f"{change} WHERE sequence = %s", *values)
    tamper(database, "UPDATE approvals_ledgerhead SET entry_hash = %s", entry_hash)


def test_an_entry_by_a_replaced_key_is_found_here_and_there(rotated, database, people):
    old, _ = rotated
    run = Stage(people)
    with run:
        run.asks_then_pays()
        answer(run.asked(), people.adjuster)
    signed_anew(database, old, LedgerEntry.objects.get(sequence=5))
    verdict = ledger.verify()
    assert verifier.exit_code(verdict.found) == Fault.RETIRED_KEY
    assert "was replaced by entry 3 and may sign nothing after it" in " ".join(verdict.problems)
    assert not ledger.check_entry(LedgerEntry.objects.get(sequence=5))
    for until in (None, 3):
        trust = {"keys": [{"key_id": old.key_id, "public_key": old.public_key, "until": until}]}
        found, _ = verifier.check(export.of_run("run-1", by=None, actor="test"), trust)
        assert verifier.exit_code(found) == Fault.RETIRED_KEY


def test_a_key_that_no_rotation_brought_in_is_unknown_though_it_is_on_file(database, new_file):
    append(1)
    forger = read_key_file(new_file)
    VerifyingKey.objects.create(key_id=forger.key_id, public_key=forger.public_key)
    signed_anew(database, forger, append(2))
    verdict = ledger.verify()
    assert verifier.exit_code(verdict.found) == Fault.UNKNOWN_KEY
    assert f"Entry 2: the key {forger.key_id} is not known." in verdict.problems


def test_a_rotation_that_the_new_key_did_not_sign_hands_nothing_on(rotated, database):
    old, new = rotated
    entry = LedgerEntry.objects.get(sequence=3)
    tamper(database, "DELETE FROM approvals_ledgerentry WHERE sequence = 4")
    tamper(database, "UPDATE approvals_ledgerhead SET sequence = 3")
    signed_anew(database, old, entry, new_key_signature="A" * 86 + "==")
    verdict = ledger.verify()
    assert f"Entry 3: the new key {new.key_id} did not sign it." in verdict.problems
    assert verifier.exit_code(verdict.found) == Fault.FALSE_KEY


def test_a_trust_file_of_before_or_after_a_rotation_verifies_a_case_of_after_it(rotated, people, tmp_path, capsys):
    with Stage(people) as stage:
        stage.asks_then_pays()
        answer(stage.asked(), people.adjuster)
    old, new = rotated
    packed = export.of_run("run-1", by=None, actor="test")
    before = {"keys": [{"key_id": old.key_id, "public_key": old.public_key}]}
    call_command("signing_key", "show", "--trust-file", str(tmp_path / "trust.json"), "--json")
    after = json.loads((tmp_path / "trust.json").read_text())
    assert json.loads(capsys.readouterr().out) == after
    assert [(key["key_id"], key["until"]) for key in after["keys"]] == [(old.key_id, 3), (new.key_id, None)]
    assert [verifier.check(packed, trust)[0] for trust in (before, after)] == [[], []]
    with pytest.raises(CommandError, match="File exists"):
        call_command("signing_key", "show", "--trust-file", str(tmp_path / "trust.json"))


def test_checkpoints_before_and_after_a_rotation_verify(rotated):
    checkpoints.make()
    assert (ledger.verify().problems, ledger.verify().checkpoints) == ([], 1)
