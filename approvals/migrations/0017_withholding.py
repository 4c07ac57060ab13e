"""What was asked, decided and signed in clear may be taken out with its run, and in no other way.

Each function refuses all but one change: everything that retention empties at once, of a row whose run is withheld. And auditors may read what was withheld when, and what is held.
"""

from django.contrib.auth.management import create_permissions
from django.db import migrations

WITHHELD = "Withheld by retention"

OF_WITHHELD_RUN = "EXISTS (SELECT FROM runs_run WHERE id = {run} AND withholding_id IS NOT NULL)"

ABOUT = """
CREATE FUNCTION approvals_about(record text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT substring(record FROM '"approval":([0-9]{1,18})')::bigint
$$;
CREATE INDEX ledger_entry_about ON approvals_ledgerentry (approvals_about(record)) WHERE body_id IS NOT NULL;
"""
ABOUT_NOTHING = "DROP INDEX ledger_entry_about; DROP FUNCTION approvals_about(text);"

# The trigger of 0010, with the columns that it compares; its function lets one change through.
STAYS_AS_ASKED = """
DROP TRIGGER approval_stays_as_asked ON approvals_approval;
CREATE TRIGGER approval_stays_as_asked BEFORE UPDATE ON approvals_approval FOR EACH ROW
  WHEN (to_jsonb(OLD) - '{{status,closed_at,signed_facts,spent_at,spent_key,due_at,superseded_by_id}}'::text[]
        IS DISTINCT FROM to_jsonb(NEW) - '{{status,closed_at,signed_facts,spent_at,spent_key,due_at,superseded_by_id}}'::text[]
        OR OLD.status <> 'open' AND (OLD.closed_at, OLD.signed_facts, OLD.due_at)
           IS DISTINCT FROM (NEW.closed_at, NEW.signed_facts, NEW.due_at)
        OR OLD.status <> 'open' AND OLD.status <> NEW.status
           AND NOT (OLD.status IN ('approved', 'not-required') AND NEW.status = 'superseded' AND OLD.spent_at IS NULL)
        OR OLD.superseded_by_id IS NOT NULL AND OLD.superseded_by_id IS DISTINCT FROM NEW.superseded_by_id
        OR OLD.spent_at IS NOT NULL AND (OLD.spent_at, OLD.spent_key) IS DISTINCT FROM (NEW.spent_at, NEW.spent_key))
  EXECUTE FUNCTION {function}();
ALTER TABLE approvals_approval ENABLE ALWAYS TRIGGER approval_stays_as_asked;
"""

APPROVAL = f"""
CREATE FUNCTION approvals_frozen_or_withheld() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF to_jsonb(NEW) IS DISTINCT FROM to_jsonb(OLD)
       || '{{"payload": "", "facts": "", "signed_facts": "", "payee": "", "statement": "{WITHHELD}"}}'
     OR OLD.payload = '' OR NOT {OF_WITHHELD_RUN.format(run="OLD.run_id")} THEN
    RAISE EXCEPTION 'approval % is frozen: what was asked may not change', OLD.id USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
""" + STAYS_AS_ASKED.format(function="approvals_frozen_or_withheld")
APPROVAL_BEFORE = STAYS_AS_ASKED.format(function="approvals_frozen") + "DROP FUNCTION approvals_frozen_or_withheld();"

DECISION = f"""
CREATE FUNCTION approvals_decision_only_withheld() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP <> 'UPDATE' OR to_jsonb(OLD) = to_jsonb(NEW)
     OR to_jsonb(NEW) IS DISTINCT FROM to_jsonb(OLD) || jsonb_build_object(
          'facts', '', 'comment', CASE WHEN OLD.comment = '' THEN '' ELSE '{WITHHELD}' END)
     OR NOT EXISTS (SELECT FROM runs_run JOIN approvals_approval AS approval ON approval.run_id = runs_run.id
                     WHERE approval.id = OLD.approval_id AND withholding_id IS NOT NULL) THEN
    RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER approvals_decision_append_only ON approvals_decision;
CREATE TRIGGER approvals_decision_append_only BEFORE UPDATE OR DELETE ON approvals_decision
  FOR EACH ROW EXECUTE FUNCTION approvals_decision_only_withheld();
ALTER TABLE approvals_decision ENABLE ALWAYS TRIGGER approvals_decision_append_only;
"""
DECISION_BEFORE = """
DROP TRIGGER approvals_decision_append_only ON approvals_decision; DROP FUNCTION approvals_decision_only_withheld();
CREATE TRIGGER approvals_decision_append_only BEFORE UPDATE OR DELETE ON approvals_decision
  FOR EACH ROW EXECUTE FUNCTION runs_append_only();
ALTER TABLE approvals_decision ENABLE ALWAYS TRIGGER approvals_decision_append_only;
"""

BODY = """
CREATE OR REPLACE FUNCTION approvals_body_withheld() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.text IS NULL OR NEW.text IS NOT NULL OR NEW.id <> OLD.id{run} THEN
    RAISE EXCEPTION 'body % of the ledger is append-only: it may be withheld, not changed', OLD.id USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
"""
ITS_RUN = """
     OR NOT EXISTS (SELECT FROM approvals_ledgerentry AS entry
                      JOIN approvals_approval AS approval ON approval.id = approvals_about(entry.record)
                      JOIN runs_run AS run ON run.id = approval.run_id
                     WHERE entry.body_id = OLD.id AND run.withholding_id IS NOT NULL)"""


RIGHTS = ["view_withholding", "view_hold"]


def give_rights(apps, schema_editor):
    # Permissions are made after all migrations; these are needed now.
    config = apps.get_app_config("runs")
    config.models_module = True
    create_permissions(config, apps=apps, verbosity=0)
    config.models_module = None
    group = apps.get_model("auth", "Group").objects.get(name="auditors")
    group.permissions.add(*apps.get_model("auth", "Permission").objects.filter(codename__in=RIGHTS))


def keep_rights(apps, schema_editor):
    """The rights go with their tables."""


class Migration(migrations.Migration):
    dependencies = [("approvals", "0016_always_all"), ("runs", "0021_retention")]

    operations = [
        migrations.RunSQL(ABOUT, ABOUT_NOTHING),
        migrations.RunSQL(APPROVAL, APPROVAL_BEFORE),
        migrations.RunSQL(DECISION, DECISION_BEFORE),
        migrations.RunSQL(BODY.format(run=ITS_RUN), BODY.format(run="")),
        migrations.RunPython(give_rights, keep_rights),
    ]
