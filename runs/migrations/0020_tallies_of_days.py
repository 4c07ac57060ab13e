"""Tallies of quarters of a day and of days, summed up from the hours that are there."""

from django.db import migrations, models

SUM_UP = """
INSERT INTO runs_tally (figure, width, slot, name, bucket, number, total, most)
SELECT figure, '{into}', date_bin('{stride}', slot, '2020-01-01 00:00:00+00'), name, bucket, sum(number), sum(total),
       max(most)
  FROM runs_tally WHERE width = '{of}' GROUP BY 1, 3, 4, 5
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0019_due_with_status")]

    operations = [
        migrations.AlterField(
            model_name="tally",
            name="width",
            field=models.CharField(
                choices=[("m", "Five minutes"), ("h", "An hour"), ("q", "Six hours"), ("d", "A day")], max_length=1
            ),
        ),
        migrations.RunSQL(SUM_UP.format(of="h", into="q", stride="6 hours"), migrations.RunSQL.noop),
        migrations.RunSQL(SUM_UP.format(of="q", into="d", stride="1 day"), migrations.RunSQL.noop),
    ]
