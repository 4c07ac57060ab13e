"""What tells OpenTelemetry of moves looks each second, where the setting TELEMETRY is on."""

from datetime import timedelta

from django.db import migrations

from runs.columns import DatabaseNow


def make_row(apps, schema_editor):
    apps.get_model("runs", "Upkeep").objects.create(name="telemetry", every=timedelta(seconds=1), due_at=DatabaseNow())


def forget_row(apps, schema_editor):
    apps.get_model("runs", "Upkeep").objects.filter(name="telemetry").delete()


class Migration(migrations.Migration):
    dependencies = [("runs", "0021_retention")]

    operations = [migrations.RunPython(make_row, forget_row)]
