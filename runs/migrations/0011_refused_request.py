"""What a reused key was asked to stand for is kept, so that a page can show both requests."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0010_spend")]

    operations = [
        migrations.AddField(
            model_name="auditevent",
            name="request",
            field=models.TextField(
                blank=True, db_default="", help_text="Canonical JSON of what a reused key was asked to stand for."
            ),
        ),
    ]
