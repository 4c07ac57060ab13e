"""Who holds an open approval, who stands in for whom, the log of both, and the words that the inbox finds approvals by.

An inbox entry comes and goes with the open state of its approval: by trigger, so that none can be forgotten. Words are
kept as they are (no dictionary), whole and in their parts, and are found by their beginnings.
"""

import django.db.models.deletion
import django.db.models.functions.comparison
from django.conf import settings
from django.contrib.auth.management import create_permissions
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
CREATE INDEX inbox_words ON approvals_inboxentry USING gin (words);
"""

KEPT = """
CREATE FUNCTION approvals_keep_inbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.status = 'open' THEN
    INSERT INTO approvals_inboxentry (approval_id, words)
      SELECT NEW.id, approvals_words(key, NEW.tool, NEW.statement, NEW.payload) FROM runs_run WHERE id = NEW.run_id
      ON CONFLICT (approval_id) DO NOTHING;
  ELSIF TG_OP = 'UPDATE' THEN
    DELETE FROM approvals_inboxentry WHERE approval_id = NEW.id;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER approval_keeps_its_inbox_entry AFTER INSERT OR UPDATE OF status ON approvals_approval
  FOR EACH ROW EXECUTE FUNCTION approvals_keep_inbox();
INSERT INTO approvals_inboxentry (approval_id, words)
  SELECT asked.id, approvals_words(run.key, asked.tool, asked.statement, asked.payload)
    FROM approvals_approval AS asked JOIN runs_run AS run ON run.id = asked.run_id WHERE asked.status = 'open';
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
DROP INDEX inbox_words; DROP FUNCTION approvals_words(text, text, text, text); DROP FUNCTION approvals_sought(text);
DROP FUNCTION approvals_split(text);
""",
    KEPT: """
DROP TRIGGER approval_keeps_its_inbox_entry ON approvals_approval; DROP FUNCTION approvals_keep_inbox();
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
        ("approvals", "0006_findings_rights"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("runs", "0008_cheaper_steps"),
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
        migrations.RemoveIndex(
            model_name="approval",
            name="approval_amount",
        ),
        migrations.AddIndex(
            model_name="approval",
            index=models.Index(
                models.OrderBy(
                    django.db.models.functions.comparison.Coalesce("amount_minor", -9223372036854775807),
                    descending=True,
                ),
                models.F("id"),
                condition=models.Q(("status", "open")),
                name="approval_amount",
            ),
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
