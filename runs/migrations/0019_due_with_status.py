"""How many wait, and for how long still, is read from the index of due times alone."""

from django.db import migrations, models

PARKED = models.Q(status__in=["sleeping", "waiting"])


class Migration(migrations.Migration):
    dependencies = [("runs", "0018_stuck_by_team")]

    operations = [
        migrations.RemoveIndex(model_name="run", name="run_due"),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(condition=PARKED, fields=["due_at"], include=["status"], name="run_due"),
        ),
    ]
