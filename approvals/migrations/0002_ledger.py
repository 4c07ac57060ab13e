"""The ledger's one head, and what the database itself refuses: changes of signed rows and of frozen payloads, and a
signature of whoever asked."""

from django.db import migrations

APPEND_ONLY = """
CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION runs_append_only();
CREATE TRIGGER {table}_not_emptied BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION runs_append_only();
"""

UNDO = """
DROP TRIGGER {table}_append_only ON {table};
DROP TRIGGER {table}_not_emptied ON {table};
"""

TABLES = ("approvals_ledgerentry", "approvals_decision", "approvals_verifyingkey")

HEAD = f"INSERT INTO approvals_ledgerhead (id, sequence, entry_hash) VALUES (1, 0, '{'0' * 64}')"

FROZEN = """
CREATE FUNCTION approvals_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'approval % is frozen: what was asked may not change', OLD.id USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER approval_stays_as_asked BEFORE UPDATE ON approvals_approval FOR EACH ROW
  WHEN (to_jsonb(OLD) - '{status,closed_at,signed_facts,spent_at,spent_key,due_at}'::text[]
        IS DISTINCT FROM to_jsonb(NEW) - '{status,closed_at,signed_facts,spent_at,spent_key,due_at}'::text[]
        OR OLD.status <> 'open' AND (OLD.status, OLD.closed_at, OLD.signed_facts, OLD.due_at)
           IS DISTINCT FROM (NEW.status, NEW.closed_at, NEW.signed_facts, NEW.due_at)
        OR OLD.spent_at IS NOT NULL AND (OLD.spent_at, OLD.spent_key) IS DISTINCT FROM (NEW.spent_at, NEW.spent_key))
  EXECUTE FUNCTION approvals_frozen();
CREATE TRIGGER approval_stays BEFORE DELETE ON approvals_approval FOR EACH ROW EXECUTE FUNCTION approvals_frozen();

CREATE FUNCTION approvals_four_eyes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM approvals_approval WHERE id = NEW.approval_id AND requested_by_id = NEW.user_id) THEN
    RAISE EXCEPTION 'approval % may not be decided by whoever asked for it', NEW.approval_id USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER decision_by_four_eyes BEFORE INSERT ON approvals_decision FOR EACH ROW EXECUTE FUNCTION approvals_four_eyes();
"""

THAWED = """
DROP TRIGGER approval_stays_as_asked ON approvals_approval; DROP TRIGGER approval_stays ON approvals_approval;
DROP TRIGGER decision_by_four_eyes ON approvals_decision;
DROP FUNCTION approvals_frozen(); DROP FUNCTION approvals_four_eyes();
"""


class Migration(migrations.Migration):
    dependencies = [("approvals", "0001_initial"), ("runs", "0002_guards")]

    operations = [
        migrations.RunSQL(HEAD, "DELETE FROM approvals_ledgerhead"),
        *(migrations.RunSQL(APPEND_ONLY.format(table=table), UNDO.format(table=table)) for table in TABLES),
        migrations.RunSQL(FROZEN, THAWED),
    ]
