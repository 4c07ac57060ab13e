"""Lists of what waits for one kind of thing: an index that only parked and paused runs have an entry in."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0016_lists_by_workflow")]

    operations = [
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=~models.Q(wait_kind=""),
                fields=["wait_kind", "team", "status", "id"],
                name="run_by_wait",
            ),
        ),
    ]
