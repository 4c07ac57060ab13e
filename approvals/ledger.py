"""The ledger: an append-only, hash-chained, signed list of decisions and other audited acts.

Each entry's record is canonical JSON that contains its own sequence number, the hash of the entry before it and the id
of the key that signs it. May import approvals.models, approvals.signing and runs.values.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.db.models import Count, F, Q, Value

from runs.models import Run
from runs.values import canonical, digest, from_json

from .models import Approval, ApprovalStatus, Decision, LedgerEntry, LedgerHead, VerifyingKey
from .signing import GENESIS, configured_signing_key, key_id, record_hash
from .signing import verify as verify_signature

SCHEMA = "durable-runs/ledger/1"


@dataclass
class Verdict:
    """What a walk over the chain found. `ok` only if there is no problem at all."""

    entries: int = 0
    head_hash: str = GENESIS
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def append(kind: str, members: dict[str, Any], *, at: datetime) -> LedgerEntry:
    """Add one signed entry, in the caller's transaction. The head's lock is the last that a transaction takes."""
    key = configured_signing_key()
    head = LedgerHead.objects.select_for_update().get()
    sequence = head.sequence + 1
    chain = {
        "schema": SCHEMA,
        "kind": kind,
        "sequence": sequence,
        "previous_hash": head.entry_hash,
        "key_id": key.key_id,
        "signed_at": instant(at),
    }
    record = canonical(members | chain, where="ledger record", limit=1_000_000)
    VerifyingKey.objects.get_or_create(key_id=key.key_id, defaults={"public_key": key.public_key})
    entry = LedgerEntry.objects.create(
        sequence=sequence,
        kind=kind,
        record=record,
        entry_hash=record_hash(record),
        previous_hash=head.entry_hash,
        signature=key.sign(record),
        key_id=key.key_id,
        at=at,
    )
    LedgerHead.objects.update(sequence=sequence, entry_hash=entry.entry_hash)
    return entry


def subject(approval: Approval, run: Run) -> dict[str, Any]:
    """The members of a record that say which question it is about."""
    return {
        "run": run.key,
        "step": approval.step,
        "position": approval.position,
        "approval": approval.pk,
        "version": approval.version,
        "tool": approval.tool,
        "statement": approval.statement,
        "statement_version": approval.statement_version,
        "payload_digest": approval.payload_digest,
    }


def instant(moment: datetime) -> str:
    """An instant as records spell it: UTC, microseconds, Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def check_entry(entry: LedgerEntry) -> bool:
    """Is this one entry whole: record, hash and signature, and what its decision and approval rows say?"""
    keys = dict(VerifyingKey.objects.filter(key_id=entry.key_id).values_list("key_id", "public_key"))
    return not list(_faults(entry, entry.previous_hash, entry.sequence, keys))


def verify() -> Verdict:
    """Walk the whole chain and compare it with the rows it speaks of."""
    # One look at the head before the walk and one after: others may append meanwhile, and the head only grows.
    before, keys = LedgerHead.objects.first(), dict(VerifyingKey.objects.values_list("key_id", "public_key"))
    verdict, hashes = Verdict(), {0: GENESIS}
    entries = LedgerEntry.objects.select_related("decision__approval__run").order_by("sequence")
    for entry in entries.iterator(chunk_size=1000):
        verdict.problems += _faults(entry, verdict.head_hash, verdict.entries + 1, keys)
        verdict.entries, verdict.head_hash = verdict.entries + 1, entry.entry_hash
        if before is not None and before.sequence == verdict.entries:
            hashes[verdict.entries] = entry.entry_hash
    after = LedgerHead.objects.first()
    if before is None or after is None:
        verdict.problems.append("The head of the chain is gone, so nothing says where it ends.")
    elif hashes.get(before.sequence) != before.entry_hash or verdict.entries > after.sequence:
        verdict.problems.append(
            f"The head says {after.sequence} entries, the chain has {verdict.entries}: its end was cut off or altered."
        )
    verdict.problems += _uncovered_approvals()
    return verdict


def _faults(entry: LedgerEntry, previous: str, sequence: int, keys: dict[str, str]) -> Iterator[str]:
    name = f"Entry {entry.sequence}"
    try:
        record = from_json(entry.record)
    except ValueError as error:
        yield f"{name}: its record cannot be read: {error}"
        return
    if not isinstance(record, dict):
        yield f"{name}: its record is not an object."
        return
    if entry.sequence != sequence or record.get("sequence") != sequence:
        yield f"{name}: number {sequence} was expected here; an entry is missing or was renumbered."
    if entry.previous_hash != previous or record.get("previous_hash") != previous:
        yield f"{name}: it does not follow the entry before it."
    if record_hash(entry.record) != entry.entry_hash:
        yield f"{name}: its record is not the one that was hashed."
    if entry.key_id not in keys or record.get("key_id") != entry.key_id:
        yield f"{name}: the key {entry.key_id} is not known."
    elif not is_key_of(keys[entry.key_id], entry.key_id):
        yield f"{name}: the key filed as {entry.key_id} is another."
    elif not verify_signature(entry.record, entry.signature, keys[entry.key_id]):
        yield f"{name}: its signature does not fit its record."
    if (entry.kind, instant(entry.at)) != (record.get("kind"), record.get("signed_at")):
        yield f"{name}: its columns say something else than its record."
    if entry.kind != "decision" and hasattr(entry, "decision"):
        yield f"{name}: a decision leans on it, and it is none."
    if entry.kind == "decision":
        yield from _decision_faults(name, entry, record)


def _decision_faults(name: str, entry: LedgerEntry, record: dict[str, Any]) -> Iterator[str]:
    decision = getattr(entry, "decision", None)
    if decision is None:
        yield f"{name}: its decision's row is gone."
        return
    approval, signed = decision.approval, record.get
    said = (signed("approval"), signed("signer_id"), signed("verdict"), signed("comment"), signed("signed_at"))
    if said != (approval.pk, decision.user_id, decision.verdict, decision.comment, instant(decision.decided_at)):
        yield f"{name}: the decision's row says something else than what was signed."
    if any(signed(member) != value for member, value in subject(approval, approval.run).items()):
        yield f"{name}: approval {approval.pk} asks for something else than what was signed."
    if {digest(approval.payload), approval.payload_digest} != {signed("payload_digest")}:
        yield f"{name}: the payload of approval {approval.pk} is not the one that was signed."
    if _is_last(decision) and digest(approval.signed_facts) != signed("facts_digest"):
        yield f"{name}: the facts of approval {approval.pk} are not those that were signed."


def _uncovered_approvals() -> Iterator[str]:
    """An approval may not say approved, rejected or expired without signed entries that say so."""
    yield from _bare_expiries()
    for status, verdict, needed in (("approved", "approve", F("required")), ("rejected", "reject", Value(1))):
        signed = Count("decisions", filter=Q(decisions__verdict=verdict))
        bare = (
            Approval.objects.filter(status=status)
            .annotate(signed=signed)
            .filter(signed__lt=needed)
            .values_list("pk", "run__key")
        )
        for pk, run_key in bare[:100]:
            yield f"Approval {pk} of run {run_key} says {status}, but nobody signed that."


def _bare_expiries() -> Iterator[str]:
    records = LedgerEntry.objects.filter(kind="expiry").values_list("record", flat=True)
    recorded = {json.loads(record).get("approval") for record in records}
    expired = Approval.objects.filter(status=ApprovalStatus.EXPIRED).values_list("pk", "run__key")
    for pk, run_key in expired.exclude(pk__in=recorded)[:100]:
        yield f"Approval {pk} of run {run_key} says expired, but no entry records that."


def _is_last(decision: Decision) -> bool:
    """Was this one's signature the last? The facts kept on the approval are those that its signer was shown."""
    return not Decision.objects.filter(approval=decision.approval_id, entry__gt=decision.entry_id).exists()


def is_key_of(public_key: str, name: str) -> bool:
    try:
        return key_id(public_key) == name
    except ValueError:
        return False
