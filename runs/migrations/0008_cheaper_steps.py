"""Indexes and checks that a step commit, a claim and a parked run pay for: fewer, and the same promises."""

import django.core.validators
from django.conf import settings
from django.db import migrations, models

# Named in the statement's SET list or not at all: a step commit, which moves no status, does not even look at it.
GUARD = """
DROP TRIGGER run_moves_legally ON runs_run;
CREATE TRIGGER run_moves_legally BEFORE UPDATE {of_status} ON runs_run FOR EACH ROW
  WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION runs_guard_move();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("runs", "0007_recurring"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="run",
            name="run_key_form",
        ),
        migrations.RemoveIndex(
            model_name="run",
            name="run_at_work",
        ),
        migrations.RemoveIndex(
            model_name="run",
            name="run_team_status",
        ),
        migrations.RemoveIndex(
            model_name="run",
            name="run_status",
        ),
        migrations.AlterField(
            model_name="checkpoint",
            name="attempt",
            field=models.SmallIntegerField(),
        ),
        migrations.AlterField(
            model_name="checkpoint",
            name="position",
            field=models.IntegerField(),
        ),
        migrations.AlterField(
            model_name="run",
            name="attempt",
            field=models.SmallIntegerField(default=0, help_text="Times the next position was begun, counted at claim."),
        ),
        migrations.AlterField(
            model_name="run",
            name="key",
            field=models.CharField(
                db_collation="C",
                max_length=48,
                validators=[
                    django.core.validators.RegexValidator(
                        "^[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?\\Z",
                        "A run key has at most 48 lower-case letters, digits and hyphens, and begins and ends with a letter or digit.",
                    )
                ],
            ),
        ),
        migrations.AlterField(
            model_name="run",
            name="position",
            field=models.IntegerField(default=0, help_text="The number of its last checkpoint."),
        ),
        migrations.AlterField(
            model_name="run",
            name="version",
            field=models.SmallIntegerField(),
        ),
        migrations.AlterField(
            model_name="transition",
            name="position",
            field=models.IntegerField(help_text="The position the run was about to enter or was in."),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(condition=models.Q(("status", "ready")), fields=["id"], name="run_ready"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(fields=["team", "status", "id"], name="run_of_team_by_status"),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(fields=["status", "id"], name="run_by_status"),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.UniqueConstraint(fields=("key",), name="run_once_per_key"),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("key", ""), _negated=True), models.Q(("key__regex", "[^a-z0-9-]|^-|-$"), _negated=True)
                ),
                name="run_key_formed",
            ),
        ),
        migrations.RunSQL(GUARD.format(of_status="OF status"), GUARD.format(of_status="")),
    ]
