"""Stuck runs are counted by their team, and without a look at each ready run's moves."""

from django.db import migrations

from runs import stuck

AGAIN = "DROP FUNCTION runs_stuck(float8, float8);" + stuck.STUCK


class Migration(migrations.Migration):
    dependencies = [("runs", "0017_lists_by_wait")]

    operations = [migrations.RunSQL(AGAIN, migrations.RunSQL.noop)]
