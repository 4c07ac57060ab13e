"""Who may see the health page and its alarms, and who edits their rules."""

from django.contrib.auth.management import create_permissions
from django.db import migrations

RIGHTS = {
    "ops": ["view_health", "view_alarm", "view_alarmrule"],
    "auditors": ["view_health", "view_alarm", "view_alarmrule"],
    "admins": ["view_health", "view_alarm", "view_alarmrule", "add_alarmrule", "change_alarmrule"],
}


def give_rights(apps, schema_editor):
    # Permissions are made after all migrations; these are needed now.
    config = apps.get_app_config("runs")
    config.models_module = True
    create_permissions(config, apps=apps, verbosity=0)
    config.models_module = None
    for name, rights in RIGHTS.items():
        group = apps.get_model("auth", "Group").objects.get(name=name)
        group.permissions.add(*apps.get_model("auth", "Permission").objects.filter(codename__in=rights))


def keep_rights(apps, schema_editor):
    """The rights go with their tables."""


class Migration(migrations.Migration):
    dependencies = [("approvals", "0013_decision_when"), ("runs", "0014_watch_rows")]

    operations = [migrations.RunPython(give_rights, keep_rights)]
