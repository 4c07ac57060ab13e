"""The sending of notices, and who may read them in the admin."""

from datetime import timedelta

from django.contrib.auth.management import create_permissions
from django.db import migrations

from runs.columns import DatabaseNow

NAME, EVERY = "approval-notices", timedelta(seconds=30)


def make(apps, schema_editor):
    team, _ = apps.get_model("auth", "Group").objects.get_or_create(name="ops")
    apps.get_model("runs", "Recurring").objects.create(
        name=NAME, workflow=NAME, every=EVERY, due_at=DatabaseNow() + EVERY, team=team
    )
    # Permissions are made after all migrations; these are needed now.
    config = apps.get_app_config("approvals")
    config.models_module = True
    create_permissions(config, apps=apps, verbosity=0)
    config.models_module = None
    rights = apps.get_model("auth", "Permission").objects.filter(codename__in=["view_notice", "view_rung"])
    apps.get_model("auth", "Group").objects.get(name="auditors").permissions.add(*rights)


def forget(apps, schema_editor):
    apps.get_model("runs", "Recurring").objects.filter(name=NAME).delete()


class Migration(migrations.Migration):
    dependencies = [("approvals", "0011_deadlines"), ("runs", "0012_case_exported")]

    operations = [migrations.RunPython(make, forget)]
