"""What is wrong with the ledger in the database: entry by entry, against the rows they tell of, and rows without any.

The faults and what a decision must fit are those of verifier.py, which finds the same in an export. May import
approvals.models, rows, signing, verifier, merkle and runs.values.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from typing import Any

from django.db import connection
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Value

from runs.values import from_json

from .merkle import Frontier
from .models import Approval, Decision, LedgerBody, LedgerCheckpoint, LedgerEntry, StatementTemplate, VerifyingKey
from .rows import instant, row
from .signing import GENESIS
from .verifier import (
    CHECKPOINT,
    ROTATION,
    Fault,
    Found,
    Keys,
    decision_faults,
    digest,
    record_hash,
    statement_faults,
    verify,
)

UNTRUE = {Fault.RECORD, Fault.SIGNATURE, Fault.UNKNOWN_KEY, Fault.RETIRED_KEY, Fault.FALSE_KEY}
"""An entry with one of these is believed in nothing."""
MOST_ROWS = 100
"""Of rows that no entry covers so many are named."""


@dataclass(frozen=True)
class Expected:
    """What the next entry of a walk has to be."""

    sequence: int = 1
    previous_hash: str = GENESIS


def entries() -> QuerySet[LedgerEntry]:
    """Entries with all that is compared. `follower`: a later decision on the same approval."""
    followers = Decision.objects.filter(approval=OuterRef("decision__approval_id"), entry__gt=OuterRef("sequence"))
    related = LedgerEntry.objects.select_related("body", "decision__approval__run")
    return related.annotate(is_followed=Exists(followers))


def all_keys() -> Keys:
    """The first key and those that it and its successors handed on to, by what the rows say. Each that was replaced may
    have signed up to the entry that replaced it."""
    files = dict(VerifyingKey.objects.order_by("since", "key_id").values_list("key_id", "public_key"))
    rotations = [from_json(entry.record) for entry in LedgerEntry.objects.filter(kind=ROTATION)]
    replaced = {rotation["key_id"]: rotation["sequence"] for rotation in rotations}
    keys = Keys()
    for name in [*list(files)[:1], *(rotation["new_key_id"] for rotation in rotations)]:
        if name in files:
            keys.trust(name, files[name], replaced.get(name))
    return keys


class Walk:
    """One walk over the chain: hands keys on from rotation to rotation, and holds checkpoints against the tree."""

    def __init__(self, noted: list[dict[str, str]]) -> None:
        self.expected, self.frontier, self.withheld, self.compared = Expected(), Frontier(), 0, 0
        self._keys = Keys()
        if first := VerifyingKey.objects.order_by("since", "key_id").first():
            # Nothing here vouches for the first key: whoever verifies elsewhere brings it along.
            self._keys.trust(first.key_id, first.public_key)
        own = LedgerCheckpoint.objects.order_by("size", "pk").values("record", "signature").iterator(chunk_size=1000)
        self._checkpoints = merge(_signed(own), sorted(_signed(noted), key=_size), key=_size)
        self._next = next(self._checkpoints, None)

    def step(self, entry: LedgerEntry) -> Iterator[Found]:
        yield from self._checkpoint_faults()
        found = list(of_entry(entry, self.expected, self._keys))
        yield from found
        if entry.body and entry.body.text is None:
            self.withheld += 1
        if not UNTRUE & {one.fault for one in found}:
            yield from self._take_note(entry)
        self.frontier.add(entry.entry_hash)
        self.expected = Expected(entry.sequence + 1, entry.entry_hash)

    def rest(self) -> Iterator[Found]:
        """What is known only at the end."""
        yield from self._checkpoint_faults(at_end=True)
        yield from of_withheld()

    def _take_note(self, entry: LedgerEntry) -> Iterator[Found]:
        """Of an entry that hands the key on."""
        if entry.kind == ROTATION and (problem := self._keys.rotate(from_json(entry.record), entry.sequence)):
            yield Found(Fault.FALSE_KEY, f"Entry {entry.sequence}: {problem}.")

    def _checkpoint_faults(self, *, at_end: bool = False) -> Iterator[Found]:
        """Each checkpoint when the walk has come to its size; at the end those that no walk can come to."""
        while self._next is not None and (at_end or self._next.size <= self.frontier.size):
            yield from _checkpoint_faults(self._next, self._keys, self.frontier)
            self._next, self.compared = next(self._checkpoints, None), self.compared + 1


@dataclass(frozen=True)
class Signed:
    """A checkpoint, ours or one that was noted elsewhere."""

    record: dict[str, Any]
    text: str
    signature: str

    @property
    def size(self) -> int:
        return int(self.record["size"])


def _signed(lines: Iterable[Any]) -> Iterator[Signed]:
    return (Signed(from_json(line["record"]), line["record"], line["signature"]) for line in lines)


def _size(checkpoint: Signed) -> int:
    return checkpoint.size


def _checkpoint_faults(noted: Signed, keys: Keys, frontier: Frontier) -> Iterator[Found]:
    """`frontier`: the tree of as many entries as the checkpoint says, or all there are."""
    name = f"The checkpoint of {noted.record.get('signed_at')} at {noted.size} entries"
    signer = str(noted.record.get("key_id"))
    if problem := keys.fault_of(signer, noted.size + 1):
        yield Found(problem[0], f"{name}: {problem[1]}.")
    elif not verify(noted.text, noted.signature, keys.public[signer], domain=CHECKPOINT):
        yield Found(Fault.CHECKPOINT, f"{name}: its signature does not fit it.")
    if noted.size > frontier.size:
        yield Found(Fault.TRUNCATED, f"{name}: the chain has only {frontier.size}; its end was cut off.")
    elif noted.record.get("root") != frontier.root:
        yield Found(Fault.REWRITTEN, f"{name}: the chain does not begin with those; entries were cut or rewritten.")


def of_entry(entry: LedgerEntry, expected: Expected, keys: Keys) -> Iterator[Found]:
    name = f"Entry {entry.sequence}"
    try:
        record = from_json(entry.record)
    except ValueError as error:
        yield Found(Fault.RECORD, f"{name}: its record cannot be read: {error}")
        return
    if not isinstance(record, dict):
        yield Found(Fault.RECORD, f"{name}: its record is not an object.")
        return
    yield from _place_faults(name, entry, record, expected)
    yield from _seal_faults(name, entry, record, keys)
    if (entry.body is not None) != ("body_digest" in record) or _is_another(entry.body, record):
        yield Found(Fault.BODY, f"{name}: its body is not the one that was signed.")
        return
    if (entry.kind, instant(entry.at)) != (record.get("kind"), record.get("signed_at")):
        yield Found(Fault.RECORD, f"{name}: its columns say something else than its record.")
    if entry.kind != "decision" and hasattr(entry, "decision"):
        yield Found(Fault.DECISION, f"{name}: a decision leans on it, and it is none.")
    if entry.kind == "decision":
        body = from_json(entry.body.text) if entry.body and entry.body.text is not None else {}
        yield from _decision_faults(name, entry, record | body)


def _is_another(body: LedgerBody | None, record: dict[str, Any]) -> bool:
    return body is not None and body.text is not None and digest(body.text) != record.get("body_digest")


def _place_faults(name: str, entry: LedgerEntry, record: dict[str, Any], expected: Expected) -> Iterator[Found]:
    if record.get("sequence") != entry.sequence:
        yield Found(Fault.SWAPPED, f"{name}: its record is that of entry {record.get('sequence')}; it was renumbered.")
    if entry.sequence != expected.sequence:
        yield Found(Fault.REMOVED, f"{name}: number {expected.sequence} was expected here; an entry is missing.")
    if entry.previous_hash != expected.previous_hash or record.get("previous_hash") != expected.previous_hash:
        yield Found(Fault.CHAIN, f"{name}: it does not follow the entry before it.")


def _seal_faults(name: str, entry: LedgerEntry, record: dict[str, Any], keys: Keys) -> Iterator[Found]:
    if record_hash(entry.record) != entry.entry_hash:
        yield Found(Fault.RECORD, f"{name}: its record is not the one that was hashed.")
    if problem := keys.fault_of(entry.key_id, entry.sequence):
        yield Found(problem[0], f"{name}: {problem[1]}.")
    elif record.get("key_id") != entry.key_id:
        yield Found(Fault.UNKNOWN_KEY, f"{name}: the key {entry.key_id} is not the one that its record names.")
    elif not verify(entry.record, entry.signature, keys.public[entry.key_id]):
        yield Found(Fault.SIGNATURE, f"{name}: its signature does not fit its record.")


def _decision_faults(name: str, entry: LedgerEntry, told: dict[str, Any]) -> Iterator[Found]:
    decision = getattr(entry, "decision", None)
    if decision is None:
        yield Found(Fault.DECISION, f"{name}: its decision's row is gone.")
        return
    is_followed = getattr(entry, "is_followed", None)
    if is_followed is None:
        is_followed = Decision.objects.filter(approval=decision.approval_id, entry__gt=entry.sequence).exists()
    run = decision.approval.run.key
    yield from decision_faults(name, told, row(decision), row(decision.approval), run, is_last=not is_followed)


# Rows that no entry covers


_SETTLED_BY = (
    ("approved", "approve", F("required")),
    ("rejected", "reject", Value(1)),
    ("responded", "respond", Value(1)),
)


def of_approvals() -> Iterator[Found]:
    """An approval may not say approved, rejected, sent back or expired without signed entries that say so, nobody may
    have signed one twice, and each says what its template and its payload make."""
    yield from _bare_expiries()
    for status, verdict, needed in _SETTLED_BY:
        signed = Count("decisions__user", filter=Q(decisions__verdict=verdict), distinct=True)
        bare = Approval.objects.filter(status=status).annotate(signed=signed).filter(signed__lt=needed)
        for pk, run_key in bare.values_list("pk", "run__key")[:MOST_ROWS]:
            yield Found(Fault.UNSIGNED, f"Approval {pk} of run {run_key} says {status}, but nobody signed that.")
    twice = Decision.objects.values("approval", "approval__run__key", "user").annotate(times=Count("pk"))
    for said in twice.filter(times__gt=1)[:MOST_ROWS]:
        name = f"Approval {said['approval']} of run {said['approval__run__key']}"
        yield Found(Fault.SAME_PERSON, f"{name}: person {said['user']} signed twice, and each is to be another.")
    yield from _statements()


def _statements() -> Iterator[Found]:
    templates = dict(StatementTemplate.objects.values_list("version", "text"))
    columns = Approval.objects.values("id", "statement", "statement_version", "payload", "payload_digest")
    for approval in columns.order_by("pk").iterator(chunk_size=1000):
        yield from statement_faults(dict(approval), templates)
        if approval["payload"] and digest(approval["payload"]) != approval["payload_digest"]:
            yield Found(Fault.PAYLOAD, f"Approval {approval['id']}: its payload is not the one of its digest.")


_EXPIRED_UNTOLD = """
SELECT approval.id, run.key FROM approvals_approval AS approval JOIN runs_run AS run ON run.id = approval.run_id
 WHERE approval.status = 'expired' AND approval.id::text NOT IN
       (SELECT coalesce(substring(record FROM '"approval":([0-9]+)'), '') FROM approvals_ledgerentry
         WHERE kind = 'expiry')
 LIMIT %s
"""


def _bare_expiries() -> Iterator[Found]:
    with connection.cursor() as cursor:
        cursor.execute(_EXPIRED_UNTOLD, [MOST_ROWS])
        for pk, run_key in cursor.fetchall():
            yield Found(Fault.UNSIGNED, f"Approval {pk} of run {run_key} says expired, but no entry records that.")


# What was withheld. Records are read as text: an altered one, which the walk has named, must not end the look.

_SAID = """
WITH said AS MATERIALIZED (
  SELECT substring(record FROM '"entries":\\[([0-9,]*)\\]') AS entries,
         substring(record FROM '"approvals":\\[([0-9,]*)\\]') AS approvals,
         substring(record FROM '"withholding":([0-9]{1,18})')::bigint AS act,
         substring(record FROM '"runs":([0-9]{1,18}),')::bigint AS runs,
         substring(record FROM '"runs_digest":"([0-9a-f]{64})"') AS runs_digest
    FROM approvals_ledgerentry WHERE kind = 'withholding'
)
"""
_BARE_BODIES = f"""
{_SAID}, named AS (SELECT unnest(string_to_array(entries, ',')::bigint[]) AS sequence FROM said)
SELECT sequence FROM approvals_ledgerentry AS entry JOIN approvals_ledgerbody AS body ON body.id = entry.body_id
 WHERE body.text IS NULL AND NOT EXISTS (SELECT FROM named WHERE named.sequence = entry.sequence)
 ORDER BY sequence LIMIT %s
"""
_BARE_APPROVALS = f"""
{_SAID}, named AS (SELECT unnest(string_to_array(approvals, ',')::bigint[]) AS id FROM said)
SELECT id FROM approvals_approval AS approval
 WHERE payload = '' AND NOT EXISTS (SELECT FROM named WHERE named.id = approval.id) ORDER BY id LIMIT %s
"""
_BARE_RUNS = f"""
{_SAID}, done AS (
  SELECT withholding_id AS act, count(*) AS runs,
         encode(sha256(convert_to(string_agg(key, E'\\n' ORDER BY key), 'UTF8')), 'hex') AS runs_digest
    FROM runs_run WHERE withholding_id IS NOT NULL GROUP BY withholding_id
)
, told AS (SELECT act, runs, runs_digest FROM said)
SELECT DISTINCT act FROM ((TABLE done EXCEPT TABLE told) UNION (TABLE told EXCEPT TABLE done)) AS other
 ORDER BY act LIMIT %s
"""


def of_withheld() -> Iterator[Found]:
    """A body, an approval's payload or a run's values may be gone only where an entry says that they were withheld."""
    for number in _numbers(_BARE_BODIES):
        yield Found(Fault.BODY, f"Entry {number}: its body is gone, and no entry says that it was withheld.")
    for number in _numbers(_BARE_APPROVALS):
        yield Found(Fault.PAYLOAD, f"Approval {number}: its payload is gone, and no entry says that it was withheld.")
    for number in _numbers(_BARE_RUNS):
        sentence = "the runs that are withheld are others than its entry says, or no entry says so."
        yield Found(Fault.BODY, f"Withholding {number}: {sentence}")


def _numbers(statement: str) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(statement, [MOST_ROWS])
        return [number for (number,) in cursor.fetchall()]
