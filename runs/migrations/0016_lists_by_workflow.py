"""Lists of one workflow are read in order from one index, whatever their version, team and status."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0015_console")]

    operations = [
        migrations.AddIndex(
            model_name="run",
            index=models.Index(fields=["workflow", "version", "team", "status", "id"], name="run_by_workflow"),
        ),
        migrations.RemoveIndex(model_name="run", name="run_of_workflow"),
    ]
