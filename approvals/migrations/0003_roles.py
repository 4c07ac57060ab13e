"""The four roles as Django groups with their rights. Teams are groups too; people make those."""

from django.contrib.auth.management import create_permissions
from django.db import migrations

RIGHTS = {
    "adjusters": ["decide_approval", "view_approval", "view_run"],
    "ops": ["operate_run", "view_run", "view_approval"],
    "auditors": [
        "view_all_teams",
        "view_run",
        "view_checkpoint",
        "view_call",
        "view_delivery",
        "view_transition",
        "view_auditevent",
        "view_approval",
        "view_decision",
        "view_ledgerentry",
        "view_verifyingkey",
    ],
    "admins": ["add_user", "change_user", "view_user", "view_group", "add_group", "change_group"],
}


def make_roles(apps, schema_editor):
    # Permissions are made after all migrations; these are needed now.
    for name in ("auth", "runs", "approvals"):
        config = apps.get_app_config(name)
        config.models_module = True
        create_permissions(config, apps=apps, verbosity=0)
        config.models_module = None
    group, permission = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
    for name, rights in RIGHTS.items():
        made, _ = group.objects.get_or_create(name=name)
        made.permissions.add(*permission.objects.filter(codename__in=rights))


def keep_roles(apps, schema_editor):
    """People may be in them: a step back leaves the groups."""


class Migration(migrations.Migration):
    dependencies = [("approvals", "0002_ledger"), ("auth", "0012_alter_user_first_name_max_length")]

    operations = [migrations.RunPython(make_roles, keep_roles)]
