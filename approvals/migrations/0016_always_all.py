"""The triggers that came after 0008 hold always, too: on authorities, spending, artefacts."""

from django.db import migrations

# Every trigger of ours; those of foreign keys are internal.
ALWAYS = """
DO $$ DECLARE found record; BEGIN
  FOR found IN SELECT tgrelid::regclass AS owner, tgname FROM pg_trigger
                WHERE NOT tgisinternal AND (tgrelid::regclass::text LIKE 'runs\\_%' OR tgrelid::regclass::text LIKE 'approvals\\_%')
  LOOP EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', found.owner, found.tgname); END LOOP;
END $$
"""


class Migration(migrations.Migration):
    dependencies = [("approvals", "0015_assignment"), ("runs", "0015_console")]

    operations = [migrations.RunSQL(ALWAYS, migrations.RunSQL.noop)]
