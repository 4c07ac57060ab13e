"""What was signed cannot be changed by a table's owner or a superuser, and a guard that is gone is named."""

import psycopg
import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import CommandError
from stage import Stage, four_entries

from approvals import checkpoints, guards
from approvals.models import Approval, AssignmentEvent
from approvals.verifier import Fault
from runs.models import Artefact, AuditEvent, Run, Withholding, database_clock


@pytest.fixture
def full(people):
    """A row in every table that is guarded."""
    with Stage(people) as stage:
        four_entries(stage)
        checkpoints.make()
        AuditEvent.objects.create(kind="verb-refused", detail="for this test")
        person = people.adjuster
        AssignmentEvent.objects.create(
            at=database_clock(), kind="claimed", approval=Approval.objects.first(), by=person, to=person, actor="test"
        )
        kept = {"place": "by hand", "sha256": "ab" * 32, "size": 1, "media_type": "text/plain"}
        Withholding.objects.create(at=database_clock(), rule="for this test", actor="test")
        Artefact.objects.create(run=Run.objects.first(), position=1, kept_at=database_clock(), **kept)
        yield


def refusal(database, *statements):
    with psycopg.connect(database.url) as other:
        try:
            for statement in statements:
                other.execute(statement)
        except psycopg.errors.IntegrityConstraintViolation as error:
            other.rollback()
            return str(error)
        other.rollback()
    return ""


GUARDED = (*guards.APPEND_ONLY, "approvals_ledgerbody", "approvals_ledgerhead", "approvals_approval")


@pytest.mark.parametrize("role", ["origin", "replica"])
def test_delete_and_truncate_fail_for_a_superuser_also_as_a_replica(full, database, role):
    assert database.query("SELECT rolsuper FROM pg_roles WHERE rolname = current_user") == [(True,)]
    for table in GUARDED:
        assert database.query(f"SELECT count(*) FROM {table}")[0][0] > 0, table
        for statement in (f"DELETE FROM {table}", f"TRUNCATE {table} CASCADE"):
            assert refusal(database, f"SET session_replication_role = {role}", statement), statement


@pytest.mark.parametrize("role", ["origin", "replica"])
def test_update_fails_for_a_superuser_also_as_a_replica(full, database, role):
    second = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum = 2"
    for table in guards.APPEND_ONLY:
        column = database.query(second, table)[0][0]
        statement = f"UPDATE {table} SET {column} = {column}"
        assert "append-only" in refusal(database, f"SET session_replication_role = {role}", statement), table


def test_they_fail_for_an_owner_who_is_no_superuser(full, database):
    become = ["CREATE ROLE ledger_owner", "GRANT ALL ON ALL TABLES IN SCHEMA public TO ledger_owner"]
    for table in GUARDED:
        own = [*become, f"ALTER TABLE {table} OWNER TO ledger_owner", "SET ROLE ledger_owner"]
        assert refusal(database, *own, f"DELETE FROM {table}"), table
        assert refusal(database, *own, f"TRUNCATE {table} CASCADE"), table


def test_the_head_only_moves_on_and_a_body_is_only_withheld(full, database):
    for change in ("sequence = 3", "sequence = 6", "entry_hash = repeat('a', 64)", "sequence = 5"):
        assert "moves on by one" in refusal(database, f"UPDATE approvals_ledgerhead SET {change}"), change
    assert "withheld, not changed" in refusal(database, "UPDATE approvals_ledgerbody SET text = 'other'")
    assert "withheld, not changed" in refusal(database, "UPDATE approvals_ledgerbody SET text = NULL")


def check_ids():
    return [error.id for error in run_checks(databases=["default"])]


def test_all_guards_are_there_and_always_on(database):
    assert list(guards.faults()) == []
    assert check_ids() == []


LIST = [(name, table) for name, table in sorted(guards.expected().items())]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("DROP TRIGGER {name} ON {table}", "is missing"),
        ("ALTER TABLE {table} DISABLE TRIGGER {name}", "is not ENABLE ALWAYS"),
        ("ALTER TABLE {table} ENABLE TRIGGER {name}", "is not ENABLE ALWAYS"),
    ],
)
def test_each_guard_that_is_dropped_or_weakened_is_reported_by_name(database, what, words):
    for name, table in LIST:
        with psycopg.connect(database.url, autocommit=True) as other:
            other.execute(what.format(name=name, table=table))
    found = [one.sentence for one in guards.faults()]
    assert [sentence.split(words)[0].split() for sentence in found] == [
        ["The", "trigger", name, "of", "table", table] for name, table in LIST
    ]
    assert check_ids() == ["approvals.E001"] * len(LIST)


def test_a_guard_that_no_longer_refuses_is_reported(database):
    with psycopg.connect(database.url, autocommit=True) as other:
        other.execute(
            "CREATE OR REPLACE FUNCTION runs_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RETURN NEW; END $$"
        )
    assert "no longer refuses" in next(guards.faults()).sentence


def test_verify_ledger_says_which_and_its_exit_code_is_that_of_triggers(database, capsys):
    with psycopg.connect(database.url, autocommit=True) as other:
        other.execute("DROP TRIGGER approvals_decision_append_only ON approvals_decision")
    with pytest.raises(CommandError) as ended:
        call_command("verify_ledger")
    assert ended.value.returncode == Fault.TRIGGER
    assert "trigger: The trigger approvals_decision_append_only of table approvals_decision" in capsys.readouterr().out
