"""What is kept up from the start, and the rules of the alarms."""

from datetime import timedelta

from django.db import migrations

from runs.columns import DatabaseNow

UPKEEP = {
    "tallies": timedelta(minutes=1),
    "alarms": timedelta(seconds=5),
    "notices": timedelta(seconds=5),
}
RULES = {
    "approval-late": timedelta(hours=2),
    "chain-broken": timedelta(),
    "dead-letter": timedelta(),
    "effect-unknown": timedelta(hours=1),
    "key-reused": timedelta(),
    "run-stuck": timedelta(minutes=1),
    "runner-silent": timedelta(seconds=30),
}


def make_rows(apps, schema_editor):
    upkeep, rule = (apps.get_model("runs", name).objects for name in ("Upkeep", "AlarmRule"))
    for name, every in UPKEEP.items():
        upkeep.create(name=name, every=every, due_at=DatabaseNow())
    for name, after in RULES.items():
        rule.create(name=name, condition=name, after=after)


class Migration(migrations.Migration):
    dependencies = [("runs", "0013_watch")]

    operations = [migrations.RunPython(make_rows, migrations.RunPython.noop)]
