"""What recurs from the start, whose team it is, and what the database refuses of findings."""

from datetime import timedelta

from django.db import migrations

from runs.columns import DatabaseNow

TEAM = "ops"
RECURRING = (
    ("reconcile-unknown", timedelta(minutes=5)),
    ("reconcile-provider", timedelta(days=1)),
)

CLOSED_STAYS = """
CREATE TRIGGER runs_finding_closed_stays BEFORE UPDATE ON runs_finding FOR EACH ROW
  WHEN (OLD.resolved_at IS NOT NULL) EXECUTE FUNCTION runs_append_only();
CREATE TRIGGER runs_finding_is_kept BEFORE DELETE ON runs_finding FOR EACH ROW EXECUTE FUNCTION runs_append_only();
CREATE TRIGGER runs_finding_not_emptied BEFORE TRUNCATE ON runs_finding
  FOR EACH STATEMENT EXECUTE FUNCTION runs_append_only();
"""

UNDO = """
DROP TRIGGER runs_finding_closed_stays ON runs_finding;
DROP TRIGGER runs_finding_is_kept ON runs_finding;
DROP TRIGGER runs_finding_not_emptied ON runs_finding;
"""


def make_recurring(apps, schema_editor):
    team, _ = apps.get_model("auth", "Group").objects.get_or_create(name=TEAM)
    for name, every in RECURRING:
        apps.get_model("runs", "Recurring").objects.create(
            name=name, workflow=name, every=every, due_at=DatabaseNow() + every, team=team
        )


def forget_recurring(apps, schema_editor):
    """People may be in the group: a step back leaves it."""
    apps.get_model("runs", "Recurring").objects.filter(name__in=[name for name, _ in RECURRING]).delete()


class Migration(migrations.Migration):
    dependencies = [("runs", "0006_reconciliation")]

    operations = [
        migrations.RunSQL(CLOSED_STAYS, UNDO),
        migrations.RunPython(make_recurring, forget_recurring),
    ]
