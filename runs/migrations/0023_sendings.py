"""Notices of alarms go by mail and by webhook, each with tries of its own; a runner's silence is kept when it is back."""

import django.db.models.deletion
from django.db import migrations, models

import runs.columns

MOVED = """
UPDATE runs_notice SET title = rule_id;
INSERT INTO runs_sending (notice_id, channel, tries, next_try_at, sent_at, error)
SELECT id, 'mail', tries, next_try_at, sent_at, error FROM runs_notice;
"""

# The sweep no longer sends: what does needs no turn of its own.
NO_TURN = "DELETE FROM runs_upkeep WHERE name = 'notices'"


class Migration(migrations.Migration):
    dependencies = [("runs", "0022_telemetry")]

    operations = [
        migrations.CreateModel(
            name="Sending",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("channel", models.CharField(choices=[("mail", "Mail"), ("webhook", "Webhook")], max_length=7)),
                ("tries", models.SmallIntegerField(default=0)),
                ("next_try_at", models.DateTimeField(db_default=runs.columns.DatabaseNow())),
                ("sent_at", models.DateTimeField(blank=True, null=True)),
                ("error", models.TextField(blank=True)),
                (
                    "notice",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="sendings",
                        to="runs.notice",
                    ),
                ),
            ],
        ),
        migrations.AddField(
            model_name="notice",
            name="title",
            field=models.CharField(default="", help_text="What the rule is about, in words.", max_length=100),
            preserve_default=False,
        ),
        migrations.RunSQL(MOVED, migrations.RunSQL.noop),
        migrations.RunSQL(NO_TURN, migrations.RunSQL.noop),
        # What was moved waits for its foreign key's check, and no table is altered while it does.
        migrations.RunSQL("SET CONSTRAINTS ALL IMMEDIATE", migrations.RunSQL.noop),
        migrations.RemoveIndex(model_name="notice", name="alarm_notice_unsent"),
        migrations.RemoveField(model_name="notice", name="error"),
        migrations.RemoveField(model_name="notice", name="next_try_at"),
        migrations.RemoveField(model_name="notice", name="sent_at"),
        migrations.RemoveField(model_name="notice", name="tries"),
        migrations.AddIndex(
            model_name="sending",
            index=models.Index(
                condition=models.Q(("sent_at__isnull", True)), fields=["next_try_at"], name="sending_unsent"
            ),
        ),
        migrations.AddConstraint(
            model_name="sending",
            constraint=models.UniqueConstraint(fields=("notice", "channel"), name="sending_once_per_channel"),
        ),
        migrations.AddField(
            model_name="alarmrule",
            name="is_posted",
            field=models.BooleanField(
                default=True,
                help_text="Also by the signed webhook, where ALARM_WEBHOOK_URL names one.",
                verbose_name="webhook",
            ),
        ),
        migrations.AddField(
            model_name="beat",
            name="back_at",
            field=models.DateTimeField(blank=True, help_text="When it beat again.", null=True),
        ),
        migrations.AddField(
            model_name="beat",
            name="silent_from",
            field=models.DateTimeField(blank=True, help_text="Its last beat before it last fell silent.", null=True),
        ),
        migrations.AlterField(
            model_name="auditevent",
            name="kind",
            field=models.CharField(
                choices=[
                    ("late-write", "Late write refused"),
                    ("key-reused", "Key reused with another request"),
                    ("decision-refused", "Decision refused"),
                    ("verb-refused", "Action refused"),
                    ("effect-settled", "Effect settled by hand"),
                    ("cap-raised", "Cap raised"),
                    ("large-checkpoint", "Large checkpoint"),
                    ("artefact-read", "Artefact read"),
                    ("case-exported", "Case exported"),
                    ("wait-extended", "Wait extended"),
                    ("exported", "List exported"),
                    ("read", "Personal data read"),
                    ("withheld", "Withheld by retention"),
                    ("held", "Held from retention"),
                    ("released", "Released to retention"),
                ],
                max_length=24,
            ),
        ),
    ]
