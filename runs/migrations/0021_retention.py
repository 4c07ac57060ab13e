"""What retention keeps, and the one change that append-only rows allow: the values of a withheld run are emptied.

A run is withheld by a statement of its own, which the database allows once, for a final run that nothing keeps; from
then on, and only for its rows, a value may be replaced by the empty one, and by nothing else.
"""

from datetime import timedelta

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import runs.columns
from runs.columns import DatabaseNow
from runs.states import FINAL

FINAL_ONES = ", ".join(f"'{status}'" for status in sorted(FINAL))

RUN = f"""
CREATE FUNCTION runs_withheld_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.withholding_id IS NOT NULL OR NEW.withholding_id IS NULL OR NEW.input <> '{{}}'
     OR OLD.status NOT IN ({FINAL_ONES}) OR NEW.status <> OLD.status
     OR EXISTS (SELECT FROM runs_hold WHERE run_id = OLD.id)
     OR EXISTS (SELECT FROM runs_call WHERE run_id = OLD.id AND kind = 'effect' AND state IN ('sent', 'unknown'))
     OR EXISTS (SELECT FROM runs_finding WHERE run_id = OLD.id AND resolved_at IS NULL) THEN
    RAISE EXCEPTION 'run % may not be withheld: it is not final, is held, has open ends, or was withheld', OLD.key
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER run_withheld_once BEFORE UPDATE OF withholding_id ON runs_run FOR EACH ROW
  WHEN (OLD.withholding_id IS DISTINCT FROM NEW.withholding_id) EXECUTE FUNCTION runs_withheld_once();
ALTER TABLE runs_run ENABLE ALWAYS TRIGGER run_withheld_once;
"""
RUN_BEFORE = "DROP TRIGGER run_withheld_once ON runs_run; DROP FUNCTION runs_withheld_once();"

# Each table, the column that may change, and the only change of it.
EMPTIED = (
    ("runs_checkpoint", "output", "OLD.output <> '{}' AND NEW.output = '{}'"),
    ("runs_auditevent", "request", "OLD.request <> '' AND NEW.request = ''"),
    ("runs_transition", "why", "OLD.user_id IS NULL AND OLD.why <> NEW.why AND NEW.why = 'Withheld by retention'"),
    ("runs_artefact", "removed_at", "OLD.removed_at IS NULL AND NEW.removed_at IS NOT NULL"),
)
ONLY_EMPTIED = """
CREATE FUNCTION {table}_only_withheld() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP <> 'UPDATE' OR NOT ({change}) OR to_jsonb(OLD) - '{column}' IS DISTINCT FROM to_jsonb(NEW) - '{column}'
     OR NOT EXISTS (SELECT FROM runs_run WHERE id = OLD.run_id AND withholding_id IS NOT NULL) THEN
    RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER {table}_append_only ON {table};
CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table}
  FOR EACH ROW EXECUTE FUNCTION {table}_only_withheld();
ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_append_only;
"""
NEVER_EMPTIED = """
DROP TRIGGER {table}_append_only ON {table}; DROP FUNCTION {table}_only_withheld();
CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION runs_append_only();
ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_append_only;
"""

APPEND_ONLY = """
CREATE TRIGGER runs_withholding_append_only BEFORE UPDATE OR DELETE ON runs_withholding
  FOR EACH ROW EXECUTE FUNCTION runs_append_only();
CREATE TRIGGER runs_withholding_not_emptied BEFORE TRUNCATE ON runs_withholding
  FOR EACH STATEMENT EXECUTE FUNCTION runs_append_only();
ALTER TABLE runs_withholding ENABLE ALWAYS TRIGGER runs_withholding_append_only;
ALTER TABLE runs_withholding ENABLE ALWAYS TRIGGER runs_withholding_not_emptied;
"""
NO_LONGER = """
DROP TRIGGER runs_withholding_append_only ON runs_withholding;
DROP TRIGGER runs_withholding_not_emptied ON runs_withholding;
"""

NAME = "retention"


def make_recurring(apps, schema_editor):
    """Starts nothing until a setting says how long runs are kept."""
    team, _ = apps.get_model("auth", "Group").objects.get_or_create(name="ops")
    every = timedelta(days=1)
    rows = apps.get_model("runs", "Recurring").objects
    rows.create(name=NAME, workflow=NAME, every=every, due_at=DatabaseNow() + every, team=team)


def forget_recurring(apps, schema_editor):
    apps.get_model("runs", "Recurring").objects.filter(name=NAME).delete()


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("runs", "0020_tallies_of_days"),
    ]

    operations = [
        migrations.CreateModel(
            name="Hold",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="hold",
                        serialize=False,
                        to="runs.run",
                    ),
                ),
                ("why", models.TextField()),
                ("at", models.DateTimeField(db_default=runs.columns.DatabaseNow())),
            ],
        ),
        migrations.CreateModel(
            name="Withholding",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField()),
                ("rule", models.TextField(help_text="How long runs are kept, in words.")),
                (
                    "actor",
                    models.CharField(
                        help_text="The built-in workflow's run, or where the person came in.", max_length=96
                    ),
                ),
            ],
        ),
        migrations.AddField(
            model_name="artefact",
            name="removed_at",
            field=models.DateTimeField(
                blank=True, help_text="When retention took the file, which no other run kept any more.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="auditevent",
            name="kind",
            field=models.CharField(
                choices=[
                    ("late-write", "Late write refused"),
                    ("key-reused", "Key reused with another request"),
                    ("decision-refused", "Decision refused"),
                    ("verb-refused", "Action refused"),
                    ("effect-settled", "Effect settled by hand"),
                    ("cap-raised", "Cap raised"),
                    ("large-checkpoint", "Large checkpoint"),
                    ("artefact-read", "Artefact read"),
                    ("case-exported", "Case exported"),
                    ("wait-extended", "Wait extended"),
                    ("exported", "List exported"),
                    ("withheld", "Withheld by retention"),
                    ("held", "Held from retention"),
                    ("released", "Released to retention"),
                ],
                max_length=24,
            ),
        ),
        migrations.AddIndex(
            model_name="artefact",
            index=models.Index(
                condition=models.Q(("removed_at__isnull", True)), fields=["sha256"], name="artefact_file"
            ),
        ),
        migrations.AddField(
            model_name="hold",
            name="user",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="withholding",
            name="user",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="withholding",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                help_text="The act of retention that took its values out; empty while they are kept.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="runs",
                to="runs.withholding",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", False), ("withholding__isnull", True)),
                fields=["finished_at", "id"],
                name="run_kept",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("forked_from__isnull", False)), fields=["forked_from"], name="run_fork_of"
            ),
        ),
        migrations.RunSQL(APPEND_ONLY, NO_LONGER),
        migrations.RunSQL(RUN, RUN_BEFORE),
        *(
            migrations.RunSQL(
                ONLY_EMPTIED.format(table=table, column=column, change=change), NEVER_EMPTIED.format(table=table)
            )
            for table, column, change in EMPTIED
        ),
        migrations.RunPython(make_recurring, forget_recurring),
    ]
