"""The ledger: an append-only, hash-chained, signed list of decisions and other audited acts.

Each entry's record is canonical JSON that contains its own sequence number, the hash of the entry before it and the id
of the key that signs it. What a record says of persons in clear stands in a body beside it, of which the record holds
the digest: a body can be withheld. docs/ledger.md is the format. May import approvals.models, rows, signing, verifier,
faults, and of runs lease (its prepared statements), models and values.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from runs.lease import execute
from runs.models import Run
from runs.values import canonical, digest, from_json

from . import faults
from .models import Approval, LedgerEntry, LedgerHead, StatementTemplate, VerifyingKey
from .rows import instant
from .signing import GENESIS, BadSigningKey, SigningKey, configured_signing_key, record_hash
from .verifier import NEW_KEY, ROTATION, WITHHOLDING, Fault, Found

SCHEMA = "durable-runs/ledger/2"
BODY_MEMBERS = {"statement", "comment", "signer_name", "mail_to"}
"""What goes into the body, whatever the kind of entry."""
KINDS = ("decision", "expiry", "extension", "ladder", "authority", "alarm-rule", "standing", ROTATION, WITHHOLDING)
"""Of entries, as far as this code writes them."""
MOST_FOUND = 1000
"""A walk names so many faults and counts the rest."""


class CannotSign(Exception):
    """Nothing was written: the configured key is not the one that may sign next, or cannot be used."""

    status = 503


@dataclass
class Verdict:
    """What a walk over the chain found. `ok` only if there is no problem at all."""

    entries: int = 0
    head_hash: str = GENESIS
    found: list[Found] = field(default_factory=list)
    more: int = 0
    withheld: int = 0
    checkpoints: int = 0

    @property
    def ok(self) -> bool:
        return not self.found

    @property
    def problems(self) -> list[str]:
        more = [f"{self.more} further problems are not listed."] if self.more else []
        return [one.sentence for one in self.found] + more

    def note(self, faults: Iterator[Found]) -> None:
        for one in faults:
            if len(self.found) < MOST_FOUND:
                self.found.append(one)
            else:
                self.more += 1


_LOCK_HEAD = "SELECT id, sequence, entry_hash, key_id FROM approvals_ledgerhead FOR UPDATE"

_CHAIN = """
WITH body AS (
  INSERT INTO approvals_ledgerbody (text) SELECT %(body)s::text WHERE %(body)s::text IS NOT NULL RETURNING id
), entry AS (
  INSERT INTO approvals_ledgerentry
         (sequence, kind, record, entry_hash, previous_hash, signature, key_id, at, body_id)
  VALUES (%(sequence)s, %(kind)s, %(record)s, %(entry_hash)s, %(previous_hash)s, %(signature)s, %(key_id)s, %(at)s,
          (SELECT id FROM body))
  RETURNING sequence, entry_hash, body_id
)
UPDATE approvals_ledgerhead AS head SET sequence = entry.sequence, entry_hash = entry.entry_hash FROM entry
RETURNING entry.body_id
"""


def append(kind: str, members: dict[str, Any], *, at: datetime) -> LedgerEntry:
    """Add one signed entry, in the caller's transaction. The head's lock is the last that a transaction takes. Raises
    CannotSign."""
    # Whoever holds the head's lock holds it until the commit is on disk, and everybody waits for that: what can be done
    # before is, and then two prepared statements follow.
    key = _configured_key()
    body = _body({name: members[name] for name in BODY_MEMBERS & members.keys()})
    public = {name: value for name, value in members.items() if name not in BODY_MEMBERS}
    public |= {"schema": SCHEMA, "kind": kind, "key_id": key.key_id, "signed_at": instant(at)}
    public |= {"body_digest": digest(body)} if body else {}
    head = _locked_head()
    _hand_over(head, key)
    sequence, previous_hash = head.sequence + 1, head.entry_hash
    public |= {"sequence": sequence, "previous_hash": previous_hash}
    record = canonical(public, where="ledger record", limit=1_000_000)
    columns: dict[str, Any] = {
        "sequence": sequence,
        "kind": kind,
        "record": record,
        "entry_hash": record_hash(record),
        "previous_hash": previous_hash,
        "signature": key.sign(record),
        "key_id": key.key_id,
        "at": at,
    }
    [(body_id,)] = execute(_CHAIN, columns | {"body": body}).fetchall()
    return LedgerEntry.from_db("default", [*columns, "body_id"], [*columns.values(), body_id])


def key_for(head: LedgerHead) -> SigningKey:
    """The key that signs next; the first one is put on file, with the head locked. Raises CannotSign."""
    key = _configured_key()
    _hand_over(head, key)
    return key


def _configured_key() -> SigningKey:
    try:
        return configured_signing_key()
    except BadSigningKey as problem:
        raise CannotSign(str(problem)) from None


def _locked_head() -> LedgerHead:
    row = execute(_LOCK_HEAD, {}).fetchone()
    if row is None:
        raise LedgerHead.DoesNotExist("The head of the ledger is gone, so nothing can be appended.")
    return LedgerHead.from_db("default", ["id", "sequence", "entry_hash", "key_id"], row)


def _hand_over(head: LedgerHead, key: SigningKey) -> None:
    """Let this key sign behind this head, or refuse it."""
    if not head.key_id:
        VerifyingKey.objects.create(key_id=key.key_id, public_key=key.public_key)
        LedgerHead.objects.update(key_id=key.key_id)
    elif head.key_id != key.key_id:
        raise CannotSign(
            f"The configured signing key is {key.key_id}, and the ledger goes on with {head.key_id}. Nothing was "
            "signed. Configure that key, or hand the ledger on with `manage.py signing_key rotate`."
        )


def rotate(new: SigningKey, *, by: str, at: datetime) -> LedgerEntry:
    """Hand the ledger on to another key, in the caller's transaction: one entry, signed by the old key, that holds the
    new key and its own signature over the place where it takes over. Raises CannotSign."""
    head = _locked_head()
    if VerifyingKey.objects.filter(key_id=new.key_id).exists():
        raise CannotSign(f"The key {new.key_id} has signed here before. A key that was replaced never signs again.")
    place = f"{head.entry_hash}:{new.public_key}"
    members = {
        "new_key_id": new.key_id,
        "new_public_key": new.public_key,
        "new_key_signature": new.sign(place, domain=NEW_KEY),
        "by": by,
    }
    entry = append(ROTATION, members, at=at)
    VerifyingKey.objects.create(key_id=new.key_id, public_key=new.public_key)
    LedgerHead.objects.update(key_id=new.key_id)
    return entry


def keep_template(version: str, text: str) -> None:
    """Keep a template of statements for those who fill it again; what is kept already stays."""
    StatementTemplate.objects.bulk_create([StatementTemplate(version=version, text=text)], ignore_conflicts=True)


def told(entry: LedgerEntry) -> dict[str, Any]:
    """All that an entry says: its record, with its body where that is not withheld."""
    record = from_json(entry.record)
    return record | (from_json(entry.body.text) if entry.body and entry.body.text else {})


def _body(members: dict[str, Any]) -> str | None:
    salted = members | {"salt": secrets.token_hex(16)}
    return canonical(salted, where="ledger record", limit=1_000_000) if members else None


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
        "evidence_digest": digest(approval.evidence) if approval.evidence else None,
        "requested_by": approval.requested_by_id,
    }


def check_entry(entry: LedgerEntry) -> bool:
    """Is this one entry whole: record, body, hash and signature, and what its decision and approval rows say? Whether
    its key might sign at that place shows only in a walk."""
    keys = faults.all_keys()
    return not list(faults.of_entry(entry, faults.Expected(entry.sequence, entry.previous_hash), keys))


def verify(noted: list[dict[str, str]] | None = None) -> Verdict:
    """Walk the whole chain, in flat memory, and compare it with the rows it speaks of, with its own signed checkpoints
    and with those that were `noted` elsewhere."""
    walk = faults.Walk(noted or [])
    # One look at the head before the walk and one after: others may append meanwhile, and the head only grows.
    before, verdict = LedgerHead.objects.first(), Verdict()
    for entry in faults.entries().order_by("sequence").iterator(chunk_size=1000):
        verdict.note(walk.step(entry))
        if before is not None and before.sequence == entry.sequence:
            verdict.note(_head_faults(before, entry))
        verdict.entries, verdict.head_hash = verdict.entries + 1, entry.entry_hash
    verdict.note(_end_faults(before, LedgerHead.objects.first(), walk.expected.sequence - 1))
    verdict.note(walk.rest())
    verdict.note(faults.of_approvals())
    verdict.withheld, verdict.checkpoints = walk.withheld, walk.compared
    return verdict


def _head_faults(head: LedgerHead, entry: LedgerEntry) -> Iterator[Found]:
    if head.entry_hash != entry.entry_hash:
        yield Found(Fault.CHAIN, f"The head says that entry {entry.sequence} is another than the chain has.")


def _end_faults(before: LedgerHead | None, after: LedgerHead | None, last: int) -> Iterator[Found]:
    if before is None or after is None:
        yield Found(Fault.TRUNCATED, "The head of the chain is gone, so nothing says where it ends.")
    elif last < before.sequence:
        yield Found(
            Fault.TRUNCATED,
            f"The head says {before.sequence} entries, the chain has {last}: its end was cut off or altered.",
        )
    elif last > after.sequence:
        sentence = "entries were appended behind it, or it was altered."
        yield Found(Fault.APPENDED, f"The head says {after.sequence} entries, the chain has {last}: {sentence}")
