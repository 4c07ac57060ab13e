"""Signed checkpoints of the ledger: each hour one, in the file and by mail, however many look; and what they show."""

import json
from datetime import timedelta

import pytest
from django.apps import apps
from django.core import mail
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import transaction
from stage import Party, tamper

from approvals import checkpoints, ledger
from approvals.merkle import Tree
from approvals.models import LedgerCheckpoint, LedgerEntry
from approvals.signing import configured_signing_key
from approvals.verifier import CHECKPOINT, Fault, verify
from runs.models import Recurring, Run, database_clock
from runs.recurring import start_due
from runs.testing import drain, move_clock


@pytest.fixture
def file(tmp_path, settings):
    settings.LEDGER_CHECKPOINT_FILE = str(tmp_path / "kept" / "checkpoints.jsonl")
    return tmp_path / "kept" / "checkpoints.jsonl"


@pytest.fixture
def hourly(database, file):
    """As the migration plants it; the clock stands before its first time."""
    from importlib import import_module

    import_module("approvals.migrations.0008_always").make_recurring(apps, None)
    return Recurring.objects.get(name="ledger-checkpoint")


@transaction.atomic
def append(times=1):
    for number in range(times):
        ledger.append("note", {"n": number}, at=database_clock())


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_each_hour_a_signed_checkpoint_is_appended_to_the_file(hourly, file):
    append(3)
    drain()
    assert not file.exists()
    for hour in (1, 2):
        move_clock(timedelta(hours=hour, minutes=1))
        drain()
    first, second = lines(file)
    said = json.loads(first["record"])
    key = configured_signing_key()
    assert verify(first["record"], first["signature"], key.public_key, domain=CHECKPOINT)
    hashes = list(LedgerEntry.objects.order_by("sequence").values_list("entry_hash", flat=True))
    assert (said["size"], said["root"], said["head_hash"]) == (3, Tree(hashes).root(), hashes[-1])
    assert json.loads(second["record"])["signed_at"] > said["signed_at"]
    assert set(Run.objects.values_list("status", "outcome")) == {("completed", "3 entries signed")}


def test_two_sweeps_at_once_write_one_checkpoint(hourly, file):
    append()
    move_clock(timedelta(hours=1, minutes=1))
    sweeps = [Party(start_due) for _ in range(4)]
    assert sum(sweep.outcome() for sweep in sweeps) == 1
    drain()
    assert (len(lines(file)), LedgerCheckpoint.objects.count()) == (1, 1)


def test_a_line_that_was_written_before_its_worker_died_is_not_written_again(database, file):
    append()
    made = checkpoints.make()
    for _ in range(2):
        assert checkpoints.write_to_file(made) == str(file)
    checkpoints.write_to_file(checkpoints.make())
    assert len(lines(file)) == 2


def test_it_is_mailed_to_those_who_keep_it_elsewhere_where_addresses_are_set(hourly, file, settings):
    append()
    settings.LEDGER_CHECKPOINT_MAIL = ["auditor@example.invalid"]
    move_clock(timedelta(hours=1, minutes=1))
    drain()
    (sent,) = mail.outbox
    assert sent.to == ["auditor@example.invalid"]
    assert file.read_text().strip() in sent.body
    settings.LEDGER_CHECKPOINT_MAIL = []
    move_clock(timedelta(hours=2, minutes=1))
    drain()
    assert (len(mail.outbox), len(lines(file))) == (1, 2)


def test_a_checkpoint_grows_on_from_the_one_before_and_reads_no_entry_twice(database, django_assert_num_queries):
    append(5)
    checkpoints.make()
    append(6)
    made = checkpoints.make()
    hashes = list(LedgerEntry.objects.order_by("sequence").values_list("entry_hash", flat=True))
    assert json.loads(made.record)["root"] == Tree(hashes).root()
    assert ledger.verify().problems == []


def verified(file):
    try:
        call_command("verify_ledger", "--checkpoints", str(file))
    except CommandError as ended:
        return ended.returncode
    return 0


def cut_off(database, sequence):
    tamper(database, f"DELETE FROM approvals_ledgerentry WHERE sequence > {sequence}")
    tamper(database, "DELETE FROM approvals_ledgercheckpoint")
    tamper(
        database,
        f"UPDATE approvals_ledgerhead SET sequence = {sequence}, "
        f"entry_hash = (SELECT entry_hash FROM approvals_ledgerentry WHERE sequence = {sequence})",
    )


def test_a_ledger_that_lost_its_end_is_found_by_a_checkpoint_in_the_file_and_by_nothing_else(database, file, capsys):
    append(4)
    checkpoints.write_to_file(checkpoints.make())
    append(2)
    assert verified(file) == 0
    assert "signed checkpoints compared: 2" in capsys.readouterr().out
    cut_off(database, 3)
    assert ledger.verify().problems == []
    assert verified(file) == Fault.TRUNCATED
    assert "at 4 entries: the chain has only 3; its end was cut off" in capsys.readouterr().out


def test_a_ledger_that_was_cut_and_grew_again_is_found_by_a_checkpoint_in_the_file(database, file, capsys):
    append(4)
    checkpoints.write_to_file(checkpoints.make())
    cut_off(database, 3)
    append(5)
    assert ledger.verify().problems == []
    assert verified(file) == Fault.REWRITTEN
    assert "does not begin with those" in capsys.readouterr().out


def test_a_forged_checkpoint_is_told_apart_from_a_changed_ledger(database, file):
    append(2)
    checkpoints.write_to_file(checkpoints.make())
    file.write_text(file.read_text().replace("signed_at", "signed_ad"))
    assert verified(file) == Fault.CHECKPOINT


def test_a_file_that_holds_no_checkpoints_is_the_wrong_command_line(database, file):
    file.parent.mkdir()
    for content in ("{}", "x", '{"record": "x", "signature": "y"}', "[]", '{"record": "1", "signature": ""}'):
        file.write_text(content)
        assert verified(file) == 2, content


def test_our_own_checkpoints_are_held_against_the_chain_too(database):
    append(3)
    checkpoints.make()
    tamper(database, "UPDATE approvals_ledgercheckpoint SET record = replace(record, '\"size\":3', '\"size\":2')")
    verdict = ledger.verify()
    assert {one.fault for one in verdict.found} == {Fault.CHECKPOINT, Fault.REWRITTEN}
