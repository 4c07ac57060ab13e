"""Which run keeps which artefact; and audit rows for large checkpoints and for artefacts that were read."""

import django.db.models.deletion
from django.db import migrations, models

APPEND_ONLY = """
CREATE TRIGGER runs_artefact_append_only BEFORE UPDATE OR DELETE ON runs_artefact
  FOR EACH ROW EXECUTE FUNCTION runs_append_only();
CREATE TRIGGER runs_artefact_not_emptied BEFORE TRUNCATE ON runs_artefact
  FOR EACH STATEMENT EXECUTE FUNCTION runs_append_only();
"""

UNDO = """
DROP TRIGGER runs_artefact_append_only ON runs_artefact;
DROP TRIGGER runs_artefact_not_emptied ON runs_artefact;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0008_cheaper_steps"),
    ]

    operations = [
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
                ],
                max_length=24,
            ),
        ),
        migrations.CreateModel(
            name="Artefact",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("position", models.PositiveIntegerField()),
                (
                    "place",
                    models.CharField(help_text="Where the value stood: output.report, or by hand.", max_length=200),
                ),
                ("sha256", models.CharField(max_length=64)),
                ("size", models.BigIntegerField(help_text="Bytes.")),
                ("media_type", models.CharField(max_length=100)),
                ("kept_at", models.DateTimeField()),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="artefacts",
                        to="runs.run",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "position", "sha256", "place", "media_type"), name="artefact_kept_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("sha256__regex", "^[0-9a-f]{64}$")), name="artefact_sha256_form"
                    ),
                ],
            },
        ),
        migrations.RunSQL(APPEND_ONLY, UNDO),
    ]
