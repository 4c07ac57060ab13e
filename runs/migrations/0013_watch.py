"""What the watch keeps, ranges by time over the two tables that grow, and what stuck means."""

import datetime

import django.contrib.postgres.indexes
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import runs.columns
from runs import stuck


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("runs", "0012_case_exported"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Alarm",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "subject",
                    models.CharField(help_text="What it is about: a run, an effect's key, a host.", max_length=255),
                ),
                ("sentence", models.TextField()),
                ("opened_at", models.DateTimeField(db_default=runs.columns.DatabaseNow())),
                ("acknowledged_at", models.DateTimeField(blank=True, null=True)),
                ("closed_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="AlarmRule",
            fields=[
                ("name", models.SlugField(max_length=40, primary_key=True, serialize=False)),
                ("condition", models.CharField(help_text="One of the conditions that this code knows.", max_length=32)),
                ("is_on", models.BooleanField(default=True, verbose_name="on")),
                (
                    "after",
                    models.DurationField(
                        default=datetime.timedelta(0),
                        help_text="How long it must have been so. Of a wait for approval: how long before its due time.",
                    ),
                ),
                (
                    "mail_to",
                    models.TextField(
                        blank=True,
                        help_text="Addresses with commas between; empty: the members of the group ops who have one.",
                    ),
                ),
            ],
            options={
                "permissions": [("view_health", "Can see the health page and alarms")],
            },
        ),
        migrations.CreateModel(
            name="Notice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("made_at", models.DateTimeField(db_default=runs.columns.DatabaseNow())),
                ("tries", models.SmallIntegerField(default=0)),
                ("next_try_at", models.DateTimeField(db_default=runs.columns.DatabaseNow())),
                ("sent_at", models.DateTimeField(blank=True, null=True)),
                ("error", models.TextField(blank=True)),
            ],
        ),
        migrations.CreateModel(
            name="StepTime",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("workflow", models.CharField(max_length=64)),
                ("version", models.SmallIntegerField()),
                ("step", models.CharField(max_length=64)),
                ("number", models.BigIntegerField(help_text="Times it was finished within the days looked at.")),
                ("p95", models.DurationField(help_text="95 of 100 times it took no longer.")),
            ],
        ),
        migrations.CreateModel(
            name="Tally",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("figure", models.CharField(max_length=16)),
                ("width", models.CharField(choices=[("m", "Five minutes"), ("h", "An hour")], max_length=1)),
                ("slot", models.DateTimeField(help_text="When it begins.")),
                (
                    "name",
                    models.CharField(
                        help_text="Of what: a step as workflow/version/step, a tool, a reason.", max_length=200
                    ),
                ),
                ("bucket", models.SmallIntegerField()),
                ("number", models.BigIntegerField()),
                ("total", models.FloatField()),
                ("most", models.FloatField()),
            ],
            options={
                "verbose_name_plural": "tallies",
            },
        ),
        migrations.CreateModel(
            name="Upkeep",
            fields=[
                ("name", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("every", models.DurationField(blank=True, null=True)),
                ("due_at", models.DateTimeField(blank=True, null=True)),
                ("done_at", models.DateTimeField(blank=True, null=True)),
                ("state", runs.columns.JSONText(default=dict, help_text="How far it came, or what it found.")),
            ],
            options={
                "verbose_name_plural": "upkeep",
            },
        ),
        migrations.AddIndex(
            model_name="checkpoint",
            index=django.contrib.postgres.indexes.BrinIndex(
                autosummarize=True, fields=["committed_at"], name="checkpoint_when", pages_per_range=16
            ),
        ),
        migrations.AddIndex(
            model_name="transition",
            index=django.contrib.postgres.indexes.BrinIndex(
                autosummarize=True, fields=["at"], name="transition_when", pages_per_range=16
            ),
        ),
        migrations.AddField(
            model_name="alarm",
            name="acknowledged_by",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="alarm",
            name="run",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="runs.run",
            ),
        ),
        migrations.AddField(
            model_name="alarm",
            name="team",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="auth.group",
            ),
        ),
        migrations.AddConstraint(
            model_name="alarmrule",
            constraint=models.CheckConstraint(
                condition=models.Q(("after__gte", datetime.timedelta(0))), name="alarm_rule_after_not_negative"
            ),
        ),
        migrations.AddField(
            model_name="alarm",
            name="rule",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="alarms", to="runs.alarmrule"
            ),
        ),
        migrations.AddField(
            model_name="notice",
            name="rule",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="notices", to="runs.alarmrule"
            ),
        ),
        migrations.AddField(
            model_name="alarm",
            name="notice",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="alarms", to="runs.notice"
            ),
        ),
        migrations.AddConstraint(
            model_name="steptime",
            constraint=models.UniqueConstraint(fields=("workflow", "version", "step"), name="step_time_once"),
        ),
        migrations.AddConstraint(
            model_name="tally",
            constraint=models.UniqueConstraint(fields=("figure", "width", "slot", "name", "bucket"), name="tally_once"),
        ),
        migrations.AddIndex(
            model_name="notice",
            index=models.Index(
                condition=models.Q(("sent_at__isnull", True)), fields=["next_try_at"], name="alarm_notice_unsent"
            ),
        ),
        migrations.AddIndex(
            model_name="alarm",
            index=models.Index(condition=models.Q(("closed_at__isnull", False)), fields=["-id"], name="alarm_closed"),
        ),
        migrations.AddConstraint(
            model_name="alarm",
            constraint=models.UniqueConstraint(
                condition=models.Q(("closed_at__isnull", True)), fields=("rule", "subject"), name="alarm_open_once"
            ),
        ),
        migrations.RunSQL(stuck.ANSWERED + stuck.STUCK, stuck.UNDO),
    ]
