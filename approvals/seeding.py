"""The approvals that seeded runs wait for: the made-up questions behind runs that runs.seeding makes. Registered at
start-up. May import runs.seeding.
"""

from runs import seeding

APPROVALS = """
INSERT INTO approvals_approval (run_id, position, step, version, team_id, tool, statement, statement_version, payload,
       payload_digest, amount_minor, currency, facts_source, facts, facts_digest, signed_facts, terms, status, required,
       asked_at, due_at, act_within)
SELECT r.id, 3, 'settle', 1, team_id, 'seeded-transfer', 'Pay USD ' || cents / 100 || '.00 to an account',
       'seeded', payload, encode(sha256(payload::bytea), 'hex'), cents, 'USD', 'claims', '{"open":true}',
       encode(sha256('{"open":true}'), 'hex'), '', '{}', 'open', 1, wait_since, due_at, interval '1 day'
  FROM runs_run AS r
 CROSS JOIN LATERAL (SELECT 100 * (1 + hashint8extended(r.id, 9) & 8191) AS cents) AS drawn
 CROSS JOIN LATERAL (SELECT '{"arguments":{"amount_minor":' || cents || ',"claim":"' || r.key || '"},"tool":'
                            || '"seeded-transfer"}' AS payload) AS action
 WHERE r.id > %(after)s AND r.workflow LIKE 'seeded-%%' AND r.asked = 'approval'
"""
ASKED = """
INSERT INTO approvals_approval_groups (approval_id, group_id)
SELECT a.id, (SELECT id FROM auth_group WHERE name = 'adjusters')
  FROM approvals_approval AS a JOIN runs_run AS r ON r.id = a.run_id
 WHERE a.run_id > %(after)s AND r.workflow LIKE 'seeded-%%'
"""

seeding.also(APPROVALS)
seeding.also(ASKED)
