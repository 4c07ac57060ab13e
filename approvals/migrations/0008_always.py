"""The triggers of the ledger hold always, for whoever calls himself a replica too; and an hourly signed checkpoint."""

from datetime import timedelta

from django.db import migrations

from runs.columns import DatabaseNow

NEW_TABLES = ("approvals_ledgercheckpoint", "approvals_statementtemplate")

APPEND_ONLY = """
CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION runs_append_only();
CREATE TRIGGER {table}_not_emptied BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION runs_append_only();
"""
NO_LONGER = "DROP TRIGGER {table}_append_only ON {table}; DROP TRIGGER {table}_not_emptied ON {table};"

NOT_EMPTIED = """
CREATE TRIGGER {table}_not_emptied BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION runs_append_only();
"""
MAY_BE_EMPTIED = "DROP TRIGGER {table}_not_emptied ON {table};"

BODIES_AND_HEAD = """
CREATE FUNCTION approvals_body_withheld() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR OLD.text IS NULL OR NEW.text IS NOT NULL OR NEW.id <> OLD.id THEN
    RAISE EXCEPTION 'body % of the ledger is append-only: it may be withheld, not changed', OLD.id USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER ledger_body_only_withheld BEFORE UPDATE OR DELETE ON approvals_ledgerbody
  FOR EACH ROW EXECUTE FUNCTION approvals_body_withheld();

CREATE FUNCTION approvals_head_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' OR NEW.sequence NOT IN (OLD.sequence, OLD.sequence + 1)
     OR NEW.sequence = OLD.sequence AND NEW.entry_hash <> OLD.entry_hash
     OR NOT EXISTS (SELECT FROM approvals_ledgerentry WHERE sequence = NEW.sequence AND entry_hash = NEW.entry_hash) AND NEW.sequence > 0 THEN
    RAISE EXCEPTION 'the head of the ledger is append-only: it moves on by one entry' USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER ledger_head_only_grows BEFORE UPDATE OR DELETE ON approvals_ledgerhead
  FOR EACH ROW EXECUTE FUNCTION approvals_head_grows();
"""
AS_BEFORE = """
DROP TRIGGER ledger_body_only_withheld ON approvals_ledgerbody; DROP FUNCTION approvals_body_withheld();
DROP TRIGGER ledger_head_only_grows ON approvals_ledgerhead; DROP FUNCTION approvals_head_grows();
"""

# Every trigger of ours; those of foreign keys are internal.
ALWAYS = """
DO $$ DECLARE found record; BEGIN
  FOR found IN SELECT tgrelid::regclass AS owner, tgname FROM pg_trigger
                WHERE NOT tgisinternal AND (tgrelid::regclass::text LIKE 'runs\\_%' OR tgrelid::regclass::text LIKE 'approvals\\_%')
  LOOP EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', found.owner, found.tgname); END LOOP;
END $$
"""

NAME = "ledger-checkpoint"
ROLES = {
    "auditors": ["view_ledgercheckpoint", "view_ledgerbody", "view_statementtemplate", "view_ledgerhead"],
}


def make_recurring(apps, schema_editor):
    team, _ = apps.get_model("auth", "Group").objects.get_or_create(name="ops")
    every = timedelta(hours=1)
    rows = apps.get_model("runs", "Recurring").objects
    rows.create(name=NAME, workflow=NAME, every=every, due_at=DatabaseNow() + every, team=team)


def forget_recurring(apps, schema_editor):
    apps.get_model("runs", "Recurring").objects.filter(name=NAME).delete()


def give_rights(apps, schema_editor):
    from django.contrib.auth.management import create_permissions

    # Permissions are made after all migrations; these are needed now.
    config = apps.get_app_config("approvals")
    config.models_module = True
    create_permissions(config, apps=apps, verbosity=0)
    config.models_module = None
    for name, rights in ROLES.items():
        group = apps.get_model("auth", "Group").objects.get(name=name)
        group.permissions.add(*apps.get_model("auth", "Permission").objects.filter(codename__in=rights))


def keep_rights(apps, schema_editor):
    """The rights go with their tables."""


class Migration(migrations.Migration):
    dependencies = [("approvals", "0007_ledger_bodies"), ("runs", "0012_case_exported")]

    operations = [
        *(migrations.RunSQL(APPEND_ONLY.format(table=table), NO_LONGER.format(table=table)) for table in NEW_TABLES),
        migrations.RunSQL(BODIES_AND_HEAD, AS_BEFORE),
        *(
            migrations.RunSQL(NOT_EMPTIED.format(table=table), MAY_BE_EMPTIED.format(table=table))
            for table in ("approvals_approval", "approvals_ledgerbody", "approvals_ledgerhead")
        ),
        migrations.RunSQL(ALWAYS, migrations.RunSQL.noop),
        migrations.RunPython(make_recurring, forget_recurring),
        migrations.RunPython(give_rights, keep_rights),
    ]
