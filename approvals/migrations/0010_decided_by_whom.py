"""What the database itself refuses: approving one's own request or edit, acting on too few signatures. And who may
read and grant authorities.

Authorities are not made here: who may decide how much is for people to say. Until an admin grants some, nobody decides.
"""

from django.contrib.auth.management import create_permissions
from django.db import migrations

FROZEN = """
DROP TRIGGER approval_stays_as_asked ON approvals_approval;
UPDATE approvals_approval
   SET payee = CASE WHEN length(payload::jsonb #>> '{arguments,payee}') <= 200 THEN payload::jsonb #>> '{arguments,payee}'
               ELSE 'sha256:' || encode(sha256(convert_to(payload::jsonb #>> '{arguments,payee}', 'UTF8')), 'hex') END
 WHERE jsonb_typeof(payload::jsonb #> '{arguments,payee}') = 'string';
CREATE TRIGGER approval_stays_as_asked BEFORE UPDATE ON approvals_approval FOR EACH ROW
  WHEN (to_jsonb(OLD) - '{status,closed_at,signed_facts,spent_at,spent_key,due_at,superseded_by_id}'::text[]
        IS DISTINCT FROM to_jsonb(NEW) - '{status,closed_at,signed_facts,spent_at,spent_key,due_at,superseded_by_id}'::text[]
        OR OLD.status <> 'open' AND (OLD.closed_at, OLD.signed_facts, OLD.due_at)
           IS DISTINCT FROM (NEW.closed_at, NEW.signed_facts, NEW.due_at)
        OR OLD.status <> 'open' AND OLD.status <> NEW.status
           AND NOT (OLD.status IN ('approved', 'not-required') AND NEW.status = 'superseded' AND OLD.spent_at IS NULL)
        OR OLD.superseded_by_id IS NOT NULL AND OLD.superseded_by_id IS DISTINCT FROM NEW.superseded_by_id
        OR OLD.spent_at IS NOT NULL AND (OLD.spent_at, OLD.spent_key) IS DISTINCT FROM (NEW.spent_at, NEW.spent_key))
  EXECUTE FUNCTION approvals_frozen();
"""

FROZEN_BEFORE = """
DROP TRIGGER approval_stays_as_asked ON approvals_approval;
CREATE TRIGGER approval_stays_as_asked BEFORE UPDATE ON approvals_approval FOR EACH ROW
  WHEN (to_jsonb(OLD) - '{status,closed_at,signed_facts,spent_at,spent_key,due_at}'::text[]
        IS DISTINCT FROM to_jsonb(NEW) - '{status,closed_at,signed_facts,spent_at,spent_key,due_at}'::text[]
        OR OLD.status <> 'open' AND (OLD.status, OLD.closed_at, OLD.signed_facts, OLD.due_at)
           IS DISTINCT FROM (NEW.status, NEW.closed_at, NEW.signed_facts, NEW.due_at)
        OR OLD.spent_at IS NOT NULL AND (OLD.spent_at, OLD.spent_key) IS DISTINCT FROM (NEW.spent_at, NEW.spent_key))
  EXECUTE FUNCTION approvals_frozen();
"""

FOUR_EYES = """
CREATE OR REPLACE FUNCTION approvals_four_eyes() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE asked approvals_approval%ROWTYPE;
BEGIN
  SELECT * INTO asked FROM approvals_approval WHERE id = NEW.approval_id;
  IF NEW.verdict = 'withdraw' THEN
    IF asked.requested_by_id IS DISTINCT FROM NEW.user_id THEN
      RAISE EXCEPTION 'approval % may be withdrawn only by whoever asked for it', NEW.approval_id USING ERRCODE = 'check_violation';
    END IF;
  ELSIF asked.requested_by_id = NEW.user_id THEN
    RAISE EXCEPTION 'approval % may not be decided by whoever asked for it', NEW.approval_id USING ERRCODE = 'check_violation';
  ELSIF NEW.verdict = 'approve' AND EXISTS (
      SELECT FROM approvals_approval WHERE run_id = asked.run_id AND position = asked.position
         AND version <= asked.version AND edited_by_id = NEW.user_id) THEN
    RAISE EXCEPTION 'approval % may not be approved by whoever changed it', NEW.approval_id USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
"""

FOUR_EYES_BEFORE = """
CREATE OR REPLACE FUNCTION approvals_four_eyes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM approvals_approval WHERE id = NEW.approval_id AND requested_by_id = NEW.user_id) THEN
    RAISE EXCEPTION 'approval % may not be decided by whoever asked for it', NEW.approval_id USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
"""

# A decision counts when its ledger entry is a decision's; a person counts once, by the unique vote.
SPENT = """
CREATE FUNCTION approvals_enough_signatures() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.status <> 'not-required' AND (
      SELECT count(DISTINCT d.user_id) FROM approvals_decision d
        JOIN approvals_ledgerentry e ON e.sequence = d.entry_id AND e.kind = 'decision'
       WHERE d.approval_id = NEW.id AND d.verdict = 'approve'
         AND d.user_id IS DISTINCT FROM NEW.requested_by_id
         AND NOT EXISTS (SELECT FROM approvals_approval v WHERE v.run_id = NEW.run_id AND v.position = NEW.position
                            AND v.version <= NEW.version AND v.edited_by_id = d.user_id)) < NEW.required THEN
    RAISE EXCEPTION 'approval % may not be acted on: it has too few valid signatures', NEW.id USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER approval_spent_when_signed BEFORE INSERT OR UPDATE OF spent_at ON approvals_approval FOR EACH ROW
  WHEN (NEW.spent_at IS NOT NULL) EXECUTE FUNCTION approvals_enough_signatures();
"""

UNCHECKED = """
DROP TRIGGER approval_spent_when_signed ON approvals_approval; DROP FUNCTION approvals_enough_signatures();
"""

KEPT = """
CREATE TRIGGER authority_is_kept BEFORE DELETE ON approvals_authority FOR EACH ROW EXECUTE FUNCTION runs_append_only();
CREATE TRIGGER authorities_not_emptied BEFORE TRUNCATE ON approvals_authority
  FOR EACH STATEMENT EXECUTE FUNCTION runs_append_only();
"""
NOT_KEPT = """
DROP TRIGGER authority_is_kept ON approvals_authority; DROP TRIGGER authorities_not_emptied ON approvals_authority;
"""

RIGHTS = {
    "admins": ["add_authority", "change_authority", "view_authority"],
    "auditors": ["view_authority"],
}


def make_roles(apps, schema_editor):
    # Permissions are made after all migrations; these are needed now.
    config = apps.get_app_config("approvals")
    config.models_module = True
    create_permissions(config, apps=apps, verbosity=0)
    config.models_module = None
    group, permission = apps.get_model("auth", "Group"), apps.get_model("auth", "Permission")
    for name, rights in RIGHTS.items():
        group.objects.get(name=name).permissions.add(*permission.objects.filter(codename__in=rights))
    seniors, _ = group.objects.get_or_create(name="senior-adjusters")
    seniors.permissions.add(*group.objects.get(name="adjusters").permissions.all())


def keep_roles(apps, schema_editor):
    """People may be in the group: a step back leaves it, and the rights go with their table."""


class Migration(migrations.Migration):
    dependencies = [("approvals", "0009_authorities_and_proposals")]

    operations = [
        migrations.RunSQL(FROZEN, FROZEN_BEFORE),
        migrations.RunSQL(FOUR_EYES, FOUR_EYES_BEFORE),
        migrations.RunSQL(SPENT, UNCHECKED),
        migrations.RunSQL(KEPT, NOT_KEPT),
        migrations.RunPython(make_roles, keep_roles),
    ]
