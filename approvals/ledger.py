"""The ledger: an append-only, hash-chained, signed list of decisions and other audited acts.

Each entry's record is canonical JSON that contains its own sequence number, the hash of the entry before it and the id
of the key that signs it. May import approvals.models, approvals.signing and runs.values.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from runs.models import Run
from runs.values import canonical, digest, from_json

from .models import Approval, LedgerEntry, LedgerHead, VerifyingKey
from .signing import GENESIS, configured_signing_key, record_hash
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
    record = canonical(members | chain, where="ledger record")
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
    verdict, keys = Verdict(), dict(VerifyingKey.objects.values_list("key_id", "public_key"))
    entries = LedgerEntry.objects.select_related("decision__approval__run").order_by("sequence")
    for entry in entries.iterator(chunk_size=1000):
        verdict.problems += _faults(entry, verdict.head_hash, verdict.entries + 1, keys)
        verdict.entries, verdict.head_hash = verdict.entries + 1, entry.entry_hash
    head = LedgerHead.objects.first()
    if head is None:
        verdict.problems.append("The head of the chain is gone, so nothing says where it ends.")
    elif (head.sequence, head.entry_hash) != (verdict.entries, verdict.head_hash):
        verdict.problems.append(
            f"The head says {head.sequence} entries, the chain has {verdict.entries}: its end was cut off or altered."
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
    elif not verify_signature(entry.record, entry.signature, keys[entry.key_id]):
        yield f"{name}: its signature does not fit its record."
    if entry.kind == "decision":
        yield from _decision_faults(name, entry, record)


def _decision_faults(name: str, entry: LedgerEntry, record: dict[str, Any]) -> Iterator[str]:
    decision = getattr(entry, "decision", None)
    if decision is None:
        yield f"{name}: its decision's row is gone."
        return
    approval, signed = decision.approval, record.get
    said = (signed("run"), signed("approval"), signed("signer_id"), signed("verdict"), signed("comment"))
    if said != (approval.run.key, approval.pk, decision.user_id, decision.verdict, decision.comment):
        yield f"{name}: the decision's row says something else than what was signed."
    if {digest(approval.payload), approval.payload_digest} != {signed("payload_digest")}:
        yield f"{name}: the payload of approval {approval.pk} is not the one that was signed."
    if (
        decision.verdict == "approve"
        and approval.required == 1
        and digest(approval.signed_facts) != signed("facts_digest")
    ):
        yield f"{name}: the facts of approval {approval.pk} are not those that were signed."


def _uncovered_approvals() -> Iterator[str]:
    """An approval may not say approved or rejected without a signed decision that says so."""
    for status, verdict in (("approved", "approve"), ("rejected", "reject")):
        bare = Approval.objects.filter(status=status).exclude(decisions__verdict=verdict).values_list("pk", "run__key")
        for pk, run_key in bare[:100]:
            yield f"Approval {pk} of run {run_key} says {status}, but nobody signed that."
