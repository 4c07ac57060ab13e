"""Ranges by time over the tables that the admin narrows by date. Rows come in the order of their times, so ranges of
pages are index enough, and a step commit pays nothing for them."""

import django.contrib.postgres.indexes
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("runs", "0023_sendings")]

    operations = [
        migrations.AddIndex(
            model_name="auditevent",
            index=django.contrib.postgres.indexes.BrinIndex(
                autosummarize=True, fields=["at"], name="audit_when", pages_per_range=16
            ),
        ),
        migrations.AddIndex(
            model_name="call",
            index=django.contrib.postgres.indexes.BrinIndex(
                autosummarize=True, fields=["prepared_at"], name="call_when", pages_per_range=16
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=django.contrib.postgres.indexes.BrinIndex(
                autosummarize=True, fields=["created_at"], name="run_when", pages_per_range=16
            ),
        ),
    ]
