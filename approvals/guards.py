"""The triggers that keep signed rows as they are, and whether they are all there.

A superuser can drop or disable one: that is found here, by name, by `manage.py verify_ledger` and by the system check.
May import verifier.
"""

from collections.abc import Iterator

from django.db import connection

from .verifier import Fault, Found

APPEND_ONLY = (
    "approvals_assignmentevent",
    "approvals_ledgerentry",
    "approvals_ledgercheckpoint",
    "approvals_statementtemplate",
    "approvals_verifyingkey",
    "approvals_decision",
    "runs_artefact",
    "runs_auditevent",
    "runs_checkpoint",
    "runs_transition",
    "runs_withholding",
)
"""Each has a trigger against UPDATE and DELETE of a row, and one against TRUNCATE. Those of artefacts, audit events,
checkpoints, moves and decisions let one UPDATE through: emptying a value of a run that retention withheld."""

OTHERS = {
    "approval_stays": "approvals_approval",
    "approval_stays_as_asked": "approvals_approval",
    "approval_spent_when_signed": "approvals_approval",
    "approvals_approval_not_emptied": "approvals_approval",
    "authority_is_kept": "approvals_authority",
    "authorities_not_emptied": "approvals_authority",
    "decision_by_four_eyes": "approvals_decision",
    "ledger_body_only_withheld": "approvals_ledgerbody",
    "approvals_ledgerbody_not_emptied": "approvals_ledgerbody",
    "ledger_head_only_grows": "approvals_ledgerhead",
    "approvals_ledgerhead_not_emptied": "approvals_ledgerhead",
    "run_moves_legally": "runs_run",
    "run_withheld_once": "runs_run",
    "runs_finding_closed_stays": "runs_finding",
    "runs_finding_is_kept": "runs_finding",
    "runs_finding_not_emptied": "runs_finding",
}

_PRESENT = """
SELECT tgname, tgrelid::regclass::text, tgenabled, prosrc
  FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid WHERE NOT tgisinternal
"""


def expected() -> dict[str, str]:
    """Every trigger and its table."""
    both = {f"{table}_{what}": table for table in APPEND_ONLY for what in ("append_only", "not_emptied")}
    return both | OTHERS


def faults() -> Iterator[Found]:
    """Triggers that are missing, that would not fire always, or that no longer refuse."""
    with connection.cursor() as cursor:
        cursor.execute(_PRESENT)
        present = {(name, table): (enabled, source) for name, table, enabled, source in cursor.fetchall()}
    for name, table in sorted(expected().items()):
        enabled, source = present.get((name, table), ("", ""))
        if not enabled:
            yield Found(Fault.TRIGGER, f"The trigger {name} of table {table} is missing: rows could be changed.")
        elif enabled != "A":
            yield Found(Fault.TRIGGER, f"The trigger {name} of table {table} is not ENABLE ALWAYS: it can be evaded.")
        elif "RAISE EXCEPTION" not in source or source.count("RETURN") > 1:
            yield Found(Fault.TRIGGER, f"The function of the trigger {name} of table {table} no longer refuses.")
