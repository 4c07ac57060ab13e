"""of_run: one case as one archive that verifier.py checks without us. The same rows give the same bytes but for the
moment, the exporter and the checkpoint. An export is an audited act, and so is being refused one.

May import models, ledger, checkpoints, merkle, rows, verifier and runs' engine and models.
"""

import hashlib
import json
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.models import Q, QuerySet

from runs import engine
from runs.errors import NoSuchRun
from runs.models import AuditEvent, Run, database_clock
from runs.values import canonical, from_json

from . import checkpoints, ledger
from .merkle import Tree
from .models import (
    Approval,
    Decision,
    LedgerCheckpoint,
    LedgerEntry,
    LedgerHead,
    StatementTemplate,
    VerifyingKey,
)
from .rows import instant, row
from .verifier import EXPORT, MANIFEST, ROTATION, SEAL, WITHHOLDING, pack

SCHEMA = "durable-runs/export/1"
CONSISTENT_WITH = 200
"""The archive proves that it goes on from so many of the last checkpoints, and from those that are named."""

READ_ME = """This is case {run}, exported by Durable Runs at {at}.

manifest.json lists every file with its SHA-256; manifest.sig is the site's signature over it. run, timeline, calls,
approvals, decisions and events are the rows of the site. entries are the signed records of this case with the proof
that they stand in the ledger that checkpoint signs; templates make the statements that people read.

Verify it with verifier.py, which comes from the product's source and not from this archive, and with the keys that you
trust: python -I verifier.py {run}.zip trust.json
"""
WITHHELD_READ_ME = """
Body withheld by retention on {at} ({rule}): input, outputs, requests, answers, payloads, facts and comments are gone.
Their digests, the decisions and the signed records stay, and verify; an entry of the kind withholding says so.
"""


class NotAllowed(Exception):
    """This person sees the run, and may not take its case away. Nothing was exported."""


RULE = "Only adjusters, operators and auditors may take a case away."
RIGHTS = ("approvals.decide_approval", "runs.operate_run", "runs.view_all_teams")


def may_take(user: Any) -> bool:
    """Whether somebody who sees a run may take its case away."""
    return any(user.has_perm(right) for right in RIGHTS)


def take(key: str, *, by: Any, actor: str) -> bytes:
    """As `of_run`, for a person. Raises NoSuchRun for strangers, NotAllowed, CannotSign."""
    run = engine.find(key, by)
    if not may_take(by):
        detail = f"export: {RULE}"
        AuditEvent.objects.create(kind=AuditEvent.Kind.VERB_REFUSED, run=run, detail=detail, actor=actor, user=by)
        raise NotAllowed(RULE)
    return of_run(run.key, by=by, actor=actor)


def of_run(key: str, *, by: Any, actor: str, noted: list[dict[str, str]] | None = None) -> bytes:
    """The archive. `noted`: lines of checkpoints that it has to be comparable with. Raises NoSuchRun, CannotSign."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            # Every file tells of one moment.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        run = Run.objects.filter(key=key).first()
        if run is None:
            raise NoSuchRun(key)
        checkpoint = checkpoints.make()
        files = _files(run, checkpoint, noted or [])
        sealed = _sealed(run, files, by.get_username() if by else actor)
    detail = f"exported with {len(files)} files, manifest {hashlib.sha256(sealed[MANIFEST]).hexdigest()}"
    AuditEvent.objects.create(kind=AuditEvent.Kind.CASE_EXPORTED, run=run, detail=detail, actor=actor, user=by)
    return pack(sealed)


def _sealed(run: Run, files: dict[str, bytes], by: str) -> dict[str, bytes]:
    key, at = ledger.key_for(LedgerHead.objects.get()), instant(database_clock())
    act = run.withholding
    withheld = WITHHELD_READ_ME.format(at=instant(act.at), rule=act.rule) if act else ""
    files["README.txt"] = (READ_ME.format(run=run.key, at=at) + withheld).encode()
    manifest = canonical(
        {
            "schema": SCHEMA,
            "run": run.key,
            "exported_at": at,
            "exported_by": by,
            "key_id": key.key_id,
            "entries": [entry["sequence"] for entry in json.loads(files["entries.json"])],
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        },
        where="manifest",
        limit=1_000_000,
    )
    return files | {MANIFEST: manifest.encode(), SEAL: key.sign(manifest, domain=EXPORT).encode()}


def _files(run: Run, checkpoint: LedgerCheckpoint, noted: list[dict[str, str]]) -> dict[str, bytes]:
    hashes = LedgerEntry.objects.filter(sequence__lte=checkpoint.size).order_by("sequence")
    tree = Tree(hashes.values_list("entry_hash", flat=True).iterator(chunk_size=10_000))
    approvals = Approval.objects.filter(run=run).order_by("pk")
    decisions = Decision.objects.filter(approval__run=run).order_by("pk")
    entries = _entries(run, tree)
    versions = approvals.values_list("statement_version", flat=True)
    content = {
        "run": row(run) | {"withheld": row(run.withholding) if run.withholding else None},
        "timeline": {"moves": _rows(run.transitions.order_by("pk")), "steps": _rows(run.checkpoints.all())},
        "deliveries": _rows(run.deliveries.order_by("pk")),
        "calls": _rows(run.calls.order_by("pk")),
        "events": _rows(run.audit_events.order_by("pk")),
        "approvals": [row(approval) | {"groups": _names(approval.groups)} for approval in approvals],
        "decisions": _rows(decisions),
        "entries": entries,
        "checkpoint": checkpoints.as_trusted(checkpoint) | {"consistency": _consistency(tree, checkpoint, noted)},
        "templates": dict(StatementTemplate.objects.filter(version__in=versions).values_list("version", "text")),
        "keys": _rows(VerifyingKey.objects.order_by("since", "key_id")),
        "people": _people(run, entries, approvals),
    }
    return {f"{name}.json": _text(value) for name, value in content.items()}


def _text(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode()


def _rows(rows: QuerySet[Any]) -> list[dict[str, Any]]:
    return [row(one) for one in rows]


def _names(groups: Any) -> list[str]:
    return sorted(groups.values_list("name", flat=True))


def _entries(run: Run, tree: Tree) -> list[dict[str, Any]]:
    """The entries of this run, found by their own words, those that handed the key on, and that of its withholding."""
    named = Q(record__contains=f'"run":"{run.key}"') | Q(kind=ROTATION)
    if run.withholding_id is not None:
        # Signed for many runs at once, and so without their keys.
        named |= Q(kind=WITHHOLDING, record__endswith=f'"withholding":{run.withholding_id}}}')
    own = LedgerEntry.objects.filter(named, sequence__lte=tree.size).select_related("body").order_by("sequence")
    return [
        {
            "sequence": entry.sequence,
            "key_id": entry.key_id,
            "record": entry.record,
            "signature": entry.signature,
            "body": entry.body.text if entry.body else None,
            "proof": tree.inclusion(entry.sequence),
        }
        for entry in own
        if entry.kind in (ROTATION, WITHHOLDING) or from_json(entry.record).get("run") == run.key
    ]


def _consistency(tree: Tree, checkpoint: LedgerCheckpoint, noted: list[dict[str, str]]) -> dict[str, list[str]]:
    last = LedgerCheckpoint.objects.filter(size__lt=checkpoint.size).order_by("-pk").values_list("size", flat=True)
    sizes = {*last[:CONSISTENT_WITH], *(from_json(line["record"])["size"] for line in noted)}
    return {str(size): tree.consistency(size) for size in sorted(sizes) if 0 < size < tree.size}


def _people(run: Run, entries: list[dict[str, Any]], approvals: QuerySet[Approval]) -> dict[str, str]:
    """Who the numbers in records and rows are, as far as accounts still say."""
    told = [from_json(entry["record"]) for entry in entries]
    numbers = {record.get("signer_id") for record in told} | {record.get("requested_by") for record in told}
    numbers |= {run.requested_by_id, *approvals.values_list("requested_by_id", flat=True)}
    users = get_user_model().objects.filter(pk__in=[number for number in numbers if type(number) is int])
    return {str(user.pk): user.get_username() for user in users.order_by("pk")}
