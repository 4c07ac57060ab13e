"""What a call may cost, reserved before it is sent, and what it did cost."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0009_artefacts"),
    ]

    operations = [
        migrations.AddField(
            model_name="call",
            name="cost_minor",
            field=models.BigIntegerField(blank=True, help_text="What it did cost, minor units.", null=True),
        ),
        migrations.AddField(
            model_name="call",
            name="currency",
            field=models.CharField(blank=True, db_default="", max_length=3),
        ),
        migrations.AddField(
            model_name="call",
            name="price_minor",
            field=models.BigIntegerField(blank=True, help_text="Reserved before it was sent, minor units.", null=True),
        ),
        migrations.AddConstraint(
            model_name="call",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("cost_minor__isnull", True), ("currency", ""), ("price_minor__isnull", True)),
                    models.Q(
                        ("currency__regex", "^[A-Z]{3}$"),
                        ("price_minor__gte", 0),
                        ("price_minor__isnull", False),
                        models.Q(("cost_minor__isnull", True), ("cost_minor__gte", 0), _connector="OR"),
                    ),
                    _connector="OR",
                ),
                name="call_price_is_money",
            ),
        ),
    ]
