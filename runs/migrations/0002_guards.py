"""What the database itself refuses: illegal moves, changes of final runs, and changes of append-only rows."""

from django.db import migrations

from runs.states import MOVES

LEGAL = ", ".join(f"('{source}', '{target}')" for source, targets in MOVES.items() for target in sorted(targets))

MOVES_GUARD = f"""
CREATE FUNCTION runs_guard_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (OLD.status, NEW.status) NOT IN (VALUES {LEGAL}) THEN
    RAISE EXCEPTION 'run % may not move from % to %', OLD.key, OLD.status, NEW.status USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER run_moves_legally BEFORE UPDATE ON runs_run FOR EACH ROW
  WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION runs_guard_move();

CREATE FUNCTION runs_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'integrity_constraint_violation';
END $$;
"""

APPEND_ONLY = """
CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION runs_append_only();
CREATE TRIGGER {table}_not_emptied BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION runs_append_only();
"""

UNDO = """
DROP TRIGGER {table}_append_only ON {table};
DROP TRIGGER {table}_not_emptied ON {table};
"""

TABLES = ("runs_transition", "runs_checkpoint", "runs_auditevent")


class Migration(migrations.Migration):
    dependencies = [("runs", "0001_initial")]

    operations = [
        migrations.RunSQL(
            MOVES_GUARD,
            "DROP TRIGGER run_moves_legally ON runs_run; DROP FUNCTION runs_guard_move(); DROP FUNCTION runs_append_only();",
        ),
        *(migrations.RunSQL(APPEND_ONLY.format(table=table), UNDO.format(table=table)) for table in TABLES),
        # Room on each page for the next version of a row: with no index on what a step commit writes, updates stay HOT.
        migrations.RunSQL("ALTER TABLE runs_run SET (fillfactor = 75)", "ALTER TABLE runs_run RESET (fillfactor)"),
    ]
