"""What the console searches by and what bulk work keeps; tags are copied by a trigger, so every way to start a run does."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import runs.columns

TAGS = """
INSERT INTO runs_tag (run_id, name, value)
SELECT {row}.id, left(tag.key, 100), left(coalesce(tag.value, ''), 200)
  FROM {source}json_each_text({row}.tags::json) AS tag
    ON CONFLICT DO NOTHING
"""

TRIGGER = f"""
CREATE FUNCTION runs_keep_tags() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    DELETE FROM runs_tag WHERE run_id = NEW.id;
  END IF;
  {TAGS.format(row="NEW", source="")};
  RETURN NULL;
END $$;
CREATE TRIGGER run_tags_on_start AFTER INSERT ON runs_run FOR EACH ROW
  WHEN (NEW.tags <> '{{}}') EXECUTE FUNCTION runs_keep_tags();
CREATE TRIGGER run_tags_on_change AFTER UPDATE OF tags ON runs_run FOR EACH ROW
  WHEN (OLD.tags IS DISTINCT FROM NEW.tags) EXECUTE FUNCTION runs_keep_tags();
"""

UNDO = """
DROP TRIGGER run_tags_on_start ON runs_run;
DROP TRIGGER run_tags_on_change ON runs_run;
DROP FUNCTION runs_keep_tags();
"""

ALL = TAGS.format(row="runs_run", source="runs_run, ")

# What became of a run in a batch stays, and nothing leaves a batch.
ITEMS = """
CREATE FUNCTION runs_keep_outcome() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'what became of a run in a batch stays as it is' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER batch_item_outcome_stays BEFORE UPDATE ON runs_batchitem FOR EACH ROW
  WHEN (OLD.outcome <> '' OR (OLD.batch_id, OLD.run_id) IS DISTINCT FROM (NEW.batch_id, NEW.run_id))
  EXECUTE FUNCTION runs_keep_outcome();
CREATE TRIGGER batch_item_is_kept BEFORE DELETE ON runs_batchitem FOR EACH ROW EXECUTE FUNCTION runs_append_only();
"""

UNDO_ITEMS = """
DROP TRIGGER batch_item_outcome_stays ON runs_batchitem;
DROP TRIGGER batch_item_is_kept ON runs_batchitem;
DROP FUNCTION runs_keep_outcome();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("runs", "0014_watch_rows"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Batch",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("action", models.CharField(max_length=16)),
                ("why", models.TextField()),
                (
                    "chosen",
                    models.TextField(blank=True, help_text="What was chosen from: the list's address, or a selection."),
                ),
                ("total", models.PositiveIntegerField(default=0)),
                ("asked_at", models.DateTimeField(db_default=runs.columns.DatabaseNow())),
            ],
            options={
                "verbose_name_plural": "batches",
            },
        ),
        migrations.CreateModel(
            name="BatchItem",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "outcome",
                    models.CharField(
                        blank=True,
                        choices=[("", "Still to come"), ("done", "Done"), ("refused", "Refused")],
                        max_length=7,
                    ),
                ),
                ("sentence", models.TextField(blank=True, help_text="Why it was refused.")),
                ("done_at", models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Tag",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(db_collation="C", max_length=100)),
                (
                    "value",
                    models.CharField(
                        db_collation="C", help_text="As text; cut off after 200 characters.", max_length=200
                    ),
                ),
            ],
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
                ],
                max_length=24,
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(fields=["workflow", "version"], name="run_of_workflow"),
        ),
        migrations.AddField(
            model_name="batch",
            name="asked_by",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="batch",
            name="run",
            field=models.OneToOneField(
                on_delete=django.db.models.deletion.PROTECT, related_name="batch", to="runs.run"
            ),
        ),
        migrations.AddField(
            model_name="batchitem",
            name="batch",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="items", to="runs.batch"
            ),
        ),
        migrations.AddField(
            model_name="batchitem",
            name="run",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="runs.run"
            ),
        ),
        migrations.AddField(
            model_name="tag",
            name="run",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="tag_rows", to="runs.run"
            ),
        ),
        migrations.AddIndex(
            model_name="batchitem",
            index=models.Index(fields=["batch", "outcome", "id"], name="batch_item_by_outcome"),
        ),
        migrations.AddConstraint(
            model_name="batchitem",
            constraint=models.UniqueConstraint(fields=("batch", "run"), name="batch_item_once_per_run"),
        ),
        migrations.AddConstraint(
            model_name="batchitem",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("done_at__isnull", True), ("outcome", "")),
                    models.Q(("done_at__isnull", False), ("outcome__in", ["done", "refused"])),
                    _connector="OR",
                ),
                name="batch_item_outcome_known",
            ),
        ),
        migrations.AddIndex(
            model_name="tag",
            index=models.Index(fields=["value", "name", "run"], name="tag_of_run"),
        ),
        migrations.AddConstraint(
            model_name="tag",
            constraint=models.UniqueConstraint(fields=("run", "name"), name="tag_once_per_name"),
        ),
        migrations.RunSQL(TRIGGER, UNDO),
        migrations.RunSQL(ALL, migrations.RunSQL.noop),
        migrations.RunSQL(ITEMS, UNDO_ITEMS),
    ]
