"""Auditors read bulk work, and how notices of alarms went."""

from django.contrib.auth.management import create_permissions
from django.db import migrations

RIGHTS = ["view_batch", "view_batchitem", "view_sending"]


def give_rights(apps, schema_editor):
    # Permissions are made after all migrations; these are needed now.
    config = apps.get_app_config("runs")
    config.models_module = True
    create_permissions(config, apps=apps, verbosity=0)
    config.models_module = None
    group = apps.get_model("auth", "Group").objects.get(name="auditors")
    group.permissions.add(*apps.get_model("auth", "Permission").objects.filter(codename__in=RIGHTS))


def keep_rights(apps, schema_editor):
    """The rights go with their tables."""


class Migration(migrations.Migration):
    dependencies = [("approvals", "0017_withholding"), ("runs", "0023_sendings")]

    operations = [migrations.RunPython(give_rights, keep_rights)]
