"""Who holds an open approval, who stands in for whom, the log of both, and the words that the inbox finds approvals by.

An inbox entry comes and goes with the open state of its approval: by trigger, so that none can be forgotten. Words are
kept as they are (no dictionary), whole and in their parts, and are found by their beginnings.
"""

import django.db.models.deletion
from django.conf import settings
from django.contrib.auth.management import create_permissions
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import migrations, models

import approvals.models

ARGUMENT = """
CREATE FUNCTION approvals_argument(payload text, name text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN payload IS JSON OBJECT THEN left(payload::jsonb #>> ARRAY['arguments', name], 200) END
$$;
CREATE INDEX approval_earlier_payee ON approvals_approval (tool, approvals_argument(payload, 'payee'), closed_at DESC)
  WHERE status IN ('approved', 'rejected');
CREATE INDEX approval_earlier_claim ON approvals_approval (approvals_argument(payload, 'claim'), closed_at DESC)
  WHERE status IN ('approved', 'rejected');
"""

WORDS = r"""
CREATE FUNCTION approvals_split(said text) RETURNS SETOF text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT left(btrim(word, '.,;:!?()<>"'''), 60) FROM regexp_split_to_table(lower(said), '\s+') AS word
$$;
CREATE FUNCTION approvals_words(key text, tool text, statement text, payload text) RETURNS tsvector
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  WITH said AS (
    SELECT concat_ws(' ', key, tool, left(statement, 2000), string_agg(left(value, 200), ' ')) AS said
      FROM jsonb_each_text(CASE WHEN payload IS JSON OBJECT AND jsonb_typeof(payload::jsonb -> 'arguments') = 'object'
                                THEN payload::jsonb -> 'arguments' ELSE '{}' END) AS argument (name, value)
  ), found AS (
    SELECT approvals_split(said) AS word FROM said
    UNION SELECT replace(approvals_split(said), ',', '') FROM said
    UNION SELECT left(regexp_split_to_table(lower(said), '[^[:alnum:]]+'), 60) FROM said
  )
  SELECT array_to_tsvector(array_agg(word)) FROM found WHERE word <> ''
$$;
CREATE FUNCTION approvals_sought(said text) RETURNS tsquery LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT string_agg('''' || replace(replace(word, '\', '\\'), '''', '''''') || ''':*', ' & ')::tsquery
    FROM approvals_split(said) AS word WHERE word <> ''
$$;
"""

KEPT = """
CREATE FUNCTION approvals_asked(approval bigint) RETURNS int[] LANGUAGE sql STABLE AS $$
  SELECT coalesce(array_agg(group_id ORDER BY group_id), '{}')
    FROM approvals_approval_groups AS asked WHERE asked.approval_id = approval
$$;
CREATE VIEW approvals_inbox_rows AS
  SELECT asked.id AS approval_id, asked.team_id, asked.due_at,
         coalesce(asked.amount_minor, -9223372036854775807) AS rank, approvals_asked(asked.id) AS asked,
         approvals_words(run.key, asked.tool, asked.statement, asked.payload) AS words
    FROM approvals_approval AS asked JOIN runs_run AS run ON run.id = asked.run_id;

CREATE FUNCTION approvals_keep_inbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.status <> 'open' THEN
    DELETE FROM approvals_inboxentry WHERE approval_id = NEW.id;
  ELSIF TG_OP = 'INSERT' THEN
    INSERT INTO approvals_inboxentry (approval_id, team_id, due_at, rank, asked, words)
      SELECT approval_id, team_id, due_at, rank, asked, words FROM approvals_inbox_rows WHERE approval_id = NEW.id;
  ELSE
    UPDATE approvals_inboxentry SET due_at = NEW.due_at WHERE approval_id = NEW.id;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER approval_enters_the_inbox AFTER INSERT ON approvals_approval
  FOR EACH ROW WHEN (NEW.status = 'open') EXECUTE FUNCTION approvals_keep_inbox();
CREATE TRIGGER approval_moves_in_the_inbox AFTER UPDATE ON approvals_approval
  FOR EACH ROW WHEN ((OLD.status, OLD.due_at) IS DISTINCT FROM (NEW.status, NEW.due_at))
  EXECUTE FUNCTION approvals_keep_inbox();

CREATE FUNCTION approvals_keep_asked() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  changed bigint := CASE TG_OP WHEN 'DELETE' THEN OLD.approval_id ELSE NEW.approval_id END;
BEGIN
  UPDATE approvals_inboxentry SET asked = approvals_asked(changed) WHERE approval_id = changed;
  RETURN NULL;
END $$;
CREATE TRIGGER groups_follow_into_the_inbox AFTER INSERT OR UPDATE OR DELETE ON approvals_approval_groups
  FOR EACH ROW EXECUTE FUNCTION approvals_keep_asked();

INSERT INTO approvals_inboxentry (approval_id, team_id, due_at, rank, asked, words)
  SELECT rows.approval_id, rows.team_id, rows.due_at, rows.rank, rows.asked, rows.words
    FROM approvals_inbox_rows AS rows JOIN approvals_approval AS asked ON asked.id = rows.approval_id
   WHERE asked.status = 'open';
"""

APPEND_ONLY = """
CREATE TRIGGER approvals_assignmentevent_append_only BEFORE UPDATE OR DELETE ON approvals_assignmentevent
  FOR EACH ROW EXECUTE FUNCTION runs_append_only();
CREATE TRIGGER approvals_assignmentevent_not_emptied BEFORE TRUNCATE ON approvals_assignmentevent
  FOR EACH STATEMENT EXECUTE FUNCTION runs_append_only();
ALTER TABLE approvals_assignmentevent ENABLE ALWAYS TRIGGER approvals_assignmentevent_append_only;
ALTER TABLE approvals_assignmentevent ENABLE ALWAYS TRIGGER approvals_assignmentevent_not_emptied;
"""

UNDO = {
    ARGUMENT: """
DROP INDEX approval_earlier_payee; DROP INDEX approval_earlier_claim; DROP FUNCTION approvals_argument(text, text);
""",
    WORDS: """
DROP FUNCTION approvals_words(text, text, text, text); DROP FUNCTION approvals_sought(text);
DROP FUNCTION approvals_split(text);
""",
    KEPT: """
DROP TRIGGER groups_follow_into_the_inbox ON approvals_approval_groups; DROP FUNCTION approvals_keep_asked();
DROP TRIGGER approval_enters_the_inbox ON approvals_approval; DROP TRIGGER approval_moves_in_the_inbox ON approvals_approval;
DROP FUNCTION approvals_keep_inbox(); DROP VIEW approvals_inbox_rows; DROP FUNCTION approvals_asked(bigint);
""",
    APPEND_ONLY: """
DROP TRIGGER approvals_assignmentevent_append_only ON approvals_assignmentevent;
DROP TRIGGER approvals_assignmentevent_not_emptied ON approvals_assignmentevent;
""",
}

RIGHTS = {"ops": ["assign_approval"], "auditors": ["view_assignmentevent", "view_absence"]}


def give_rights(apps, schema_editor):
    # Permissions are made after all migrations; these are needed now.
    config = apps.get_app_config("approvals")
    config.models_module = True
    create_permissions(config, apps=apps, verbosity=0)
    config.models_module = None
    for name, rights in RIGHTS.items():
        group = apps.get_model("auth", "Group").objects.get(name=name)
        group.permissions.add(*apps.get_model("auth", "Permission").objects.filter(codename__in=rights))


def keep_rights(apps, schema_editor):
    """The rights go with their tables."""


class Migration(migrations.Migration):
    dependencies = [
        ("approvals", "0014_health_rights"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("runs", "0015_console"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Absence",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("starts_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="AssignmentEvent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField()),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("claimed", "Claimed"),
                            ("assigned", "Assigned"),
                            ("released", "Released"),
                            ("delegated", "Delegated while absent"),
                            ("returned", "Absence ended early"),
                        ],
                        max_length=12,
                    ),
                ),
                ("actor", models.CharField(max_length=96)),
            ],
        ),
        migrations.CreateModel(
            name="InboxEntry",
            fields=[
                (
                    "approval",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="inbox_entry",
                        serialize=False,
                        to="approvals.approval",
                    ),
                ),
                ("due_at", models.DateTimeField()),
                ("rank", models.BigIntegerField(help_text="The amount; LEAST where there is none.")),
                ("asked", ArrayField(models.IntegerField(), help_text="The keys of the groups that were asked.")),
                ("held_since", models.DateTimeField(blank=True, null=True)),
                ("words", approvals.models.Words(editable=False)),
            ],
            options={
                "verbose_name_plural": "inbox entries",
            },
        ),
        migrations.AlterModelOptions(
            name="approval",
            options={
                "permissions": [
                    ("decide_approval", "Can decide approvals of own teams"),
                    ("assign_approval", "Can assign and release approvals of own teams"),
                ]
            },
        ),
        migrations.AddField(
            model_name="absence",
            name="deputy",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="absence",
            name="person",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="assignmentevent",
            name="absence",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="events",
                to="approvals.absence",
            ),
        ),
        migrations.AddField(
            model_name="assignmentevent",
            name="approval",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="assignment_events",
                to="approvals.approval",
            ),
        ),
        migrations.AddField(
            model_name="assignmentevent",
            name="before",
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
            model_name="assignmentevent",
            name="by",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="assignmentevent",
            name="to",
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
            model_name="inboxentry",
            name="holder",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddIndex(
            model_name="absence",
            index=models.Index(fields=["person", "ends_at"], name="absence_of_person"),
        ),
        migrations.AddIndex(
            model_name="absence",
            index=models.Index(fields=["deputy", "ends_at"], name="absence_of_deputy"),
        ),
        migrations.AddConstraint(
            model_name="absence",
            constraint=models.CheckConstraint(
                condition=models.Q(("ends_at__gte", models.F("starts_at"))), name="absence_ends_after_it_starts"
            ),
        ),
        migrations.AddConstraint(
            model_name="absence",
            constraint=models.CheckConstraint(
                condition=models.Q(("person", models.F("deputy")), _negated=True), name="absence_has_another_deputy"
            ),
        ),
        migrations.AddConstraint(
            model_name="assignmentevent",
            constraint=models.CheckConstraint(
                condition=models.Q(("approval__isnull", True), ("absence__isnull", True), _connector="XOR"),
                name="assignment_event_of_one_thing",
            ),
        ),
        migrations.AddField(
            model_name="inboxentry",
            name="team",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="auth.group"
            ),
        ),
        migrations.AddIndex(
            model_name="inboxentry", index=models.Index(fields=["due_at", "approval"], name="inbox_due")
        ),
        migrations.AddIndex(
            model_name="inboxentry", index=models.Index(fields=["team", "due_at", "approval"], name="inbox_team_due")
        ),
        migrations.AddIndex(
            model_name="inboxentry", index=models.Index(fields=["-rank", "approval"], name="inbox_rank")
        ),
        migrations.AddIndex(model_name="inboxentry", index=GinIndex(fields=["asked"], name="inbox_asked")),
        migrations.AddIndex(model_name="inboxentry", index=GinIndex(fields=["words"], name="inbox_words")),
        migrations.AddIndex(
            model_name="inboxentry",
            index=models.Index(condition=models.Q(("holder__isnull", False)), fields=["holder"], name="inbox_holder"),
        ),
        migrations.AddConstraint(
            model_name="inboxentry",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("held_since__isnull", True), ("holder__isnull", True)),
                    models.Q(("held_since__isnull", False), ("holder__isnull", False)),
                    _connector="OR",
                ),
                name="inbox_held_since_then",
            ),
        ),
        *(migrations.RunSQL(statements, undo) for statements, undo in UNDO.items()),
        migrations.RunPython(give_rights, keep_rights),
    ]
