"""Bodies beside the signed records, the key that signs next, signed checkpoints, and the templates of statements."""

import django.db.models.deletion
from django.db import migrations, models


def name_the_key(apps, schema_editor):
    """The key of the last entry is the one that signs on."""
    last = apps.get_model("approvals", "LedgerEntry").objects.order_by("-sequence").first()
    if last is not None:
        apps.get_model("approvals", "LedgerHead").objects.update(key_id=last.key_id)


def keep_templates(apps, schema_editor):
    """Of the tools that this code knows: what was asked before is told by them."""
    from runs import tools

    template = apps.get_model("approvals", "StatementTemplate")
    known = {tool.statement_version: tool.statement for tool in tools.registered()}
    asked = apps.get_model("approvals", "Approval").objects.values_list("statement_version", flat=True).distinct()
    template.objects.bulk_create(template(version=one, text=known[one]) for one in asked if one in known)


def leave(apps, schema_editor):
    """What was filled in goes with its columns."""


class Migration(migrations.Migration):
    dependencies = [("approvals", "0006_findings_rights")]

    operations = [
        migrations.CreateModel(
            name="LedgerBody",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "text",
                    models.TextField(
                        blank=True, help_text="Null once it is withheld; then an entry says so.", null=True
                    ),
                ),
            ],
            options={"verbose_name_plural": "ledger bodies"},
        ),
        migrations.CreateModel(
            name="LedgerCheckpoint",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("size", models.BigIntegerField()),
                ("record", models.TextField(help_text="Canonical JSON; these bytes are signed.")),
                ("signature", models.CharField(max_length=88)),
                ("key_id", models.CharField(max_length=32)),
                (
                    "frontier",
                    models.TextField(help_text="Hashes of the tree's full parts, from which it grows on. Not signed."),
                ),
                ("at", models.DateTimeField()),
            ],
            options={"indexes": [models.Index(fields=["size"], name="checkpoint_size")]},
        ),
        migrations.CreateModel(
            name="StatementTemplate",
            fields=[
                (
                    "version",
                    models.CharField(
                        help_text="SHA-256 of the text.", max_length=64, primary_key=True, serialize=False
                    ),
                ),
                ("text", models.TextField()),
            ],
            options={"ordering": ["version"]},
        ),
        migrations.AddField(
            model_name="ledgerentry",
            name="body",
            field=models.OneToOneField(
                blank=True,
                help_text="Digest in record.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="entry",
                to="approvals.ledgerbody",
            ),
        ),
        migrations.AddField(
            model_name="ledgerhead",
            name="key_id",
            field=models.CharField(blank=True, default="", help_text="The only key that signs next.", max_length=32),
        ),
        migrations.AddIndex(
            model_name="ledgerentry",
            index=models.Index(
                condition=models.Q(("kind", "key-rotation")), fields=["sequence"], name="ledger_rotation"
            ),
        ),
        migrations.RunPython(name_the_key, leave),
        migrations.RunPython(keep_templates, leave),
    ]
