"""Verifies what `manage.py export_case` wrote: `python -I verifier.py EXPORT TRUST`. Stand-alone, on purpose.

One file that needs Python 3.11 and `cryptography`, and no Django, no database and nothing else of ours. TRUST says
which keys are believed (`manage.py signing_key show --trust-file`), and, if an auditor noted some, which signed
checkpoints of the ledger the case must be consistent with. docs/ledger.md tells the formats and what is not proved.

The product itself imports from here what both sides must do alike: faults and their exit codes, hashes and signatures,
and what a decision must say to fit its rows. May import the standard library and `cryptography`.
"""

import argparse
import base64
import hashlib
import io
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

LEDGER_ENTRY = b"durable-runs/ledger-entry/v1\n"
"""The domain of ledger entries. Its line feed cannot occur in canonical JSON, so prefix and record cannot blend."""
CHECKPOINT = b"durable-runs/checkpoint/v1\n"
NEW_KEY = b"durable-runs/new-key/v1\n"
EXPORT = b"durable-runs/export/v1\n"

ROTATION, WITHHOLDING = "key-rotation", "withholding"
"""The kinds of entry that say something about other entries."""
WITHHELD = "Withheld by retention"
"""What stands where a statement or a comment stood. A payload or facts that were withheld are empty."""


class Fault(IntEnum):
    """What can be wrong; the number is the exit code. Of several the smallest is the code: it says the most."""

    UNKNOWN_KEY = 10
    RETIRED_KEY = 11
    FALSE_KEY = 12
    REMOVED = 13
    SWAPPED = 14
    APPENDED = 15
    TRUNCATED = 16
    FOREIGN = 17
    STATEMENT = 18
    SAME_PERSON = 19
    REQUESTER = 20
    PAYLOAD = 21
    FACTS = 22
    BODY = 23
    DECISION = 24
    UNSIGNED = 25
    RECORD = 26
    SIGNATURE = 27
    CHAIN = 28
    REWRITTEN = 29
    CHECKPOINT = 30
    TEMPLATE = 31
    EFFECT = 32
    TRIGGER = 33
    UNPROVEN = 34
    MANIFEST = 35
    ARCHIVE = 36


USAGE = 2
"""Exit code of a file that cannot be read at all, as of a wrong command line."""


@dataclass(frozen=True)
class Found:
    """One thing that does not hold."""

    fault: Fault
    sentence: str


class Unreadable(Exception):
    """What was given is not what it should be, so nothing can be said."""


# Hashes and signatures


def verify(record: str, signature: str, public_key: str, *, domain: bytes = LEDGER_ENTRY) -> bool:
    """Whether `public_key` (base64, raw) signed exactly this record in this domain. Garbage is False, no error."""
    try:
        key = Ed25519PublicKey.from_public_bytes(only_spelling(public_key))
        key.verify(only_spelling(signature), domain + record.encode())
    except (InvalidSignature, ValueError, TypeError, AttributeError):
        return False
    return True


def record_hash(record: str, *, domain: bytes = LEDGER_ENTRY) -> str:
    """The entry's hash, which the next entry's record must hold: SHA-256 of domain and record, in hexadecimal.

    The hash of the entry before is not mixed in: the record already holds it.
    """
    return hashlib.sha256(domain + record.encode()).hexdigest()


def key_id(public_key: str) -> str:
    """The short name of a public key (base64, raw). Raises ValueError if the text is not base64."""
    return "ed25519-" + hashlib.sha256(only_spelling(public_key)).hexdigest()[:16]


def is_key_of(public_key: str, name: str) -> bool:
    try:
        return key_id(public_key) == name
    except (ValueError, TypeError):
        return False


def only_spelling(text: str) -> bytes:
    """The bytes of a base64 text, which must be their only spelling.

    The last character before the padding has bits that decoders ignore: without this, altering them would go unnoticed.
    """
    raw = base64.b64decode(text, validate=True)
    if base64.b64encode(raw).decode() != text:
        raise ValueError("not the one base64 spelling of its bytes")
    return raw


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def parsed(text: str) -> Any:
    """The value of a JSON text in which no name is repeated. Raises ValueError."""
    try:
        return json.loads(text, object_pairs_hook=_named_once)
    except (TypeError, RecursionError):
        raise ValueError("no JSON text") from None


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name is repeated")
    return dict(pairs)


# The Merkle tree over the entries' hashes (RFC 9162, section 2.1)


def leaf(entry_hash: str) -> bytes:
    return hashlib.sha256(b"\0" + bytes.fromhex(entry_hash)).digest()


def node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def is_included(entry_hash: str, sequence: int, size: int, proof: list[str], root: str) -> bool:
    """Whether the entry of that number (from 1) is in the tree of `size` leaves (RFC 9162, 2.1.3.2)."""
    place, last, reached = sequence - 1, size - 1, leaf(entry_hash)
    if not 0 <= place <= last:
        return False
    for step in map(bytes.fromhex, proof):
        if last == 0:
            return False
        if place & 1 or place == last:
            reached = node(step, reached)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            reached = node(reached, step)
        place, last = place >> 1, last >> 1
    return last == 0 and reached.hex() == root


def is_consistent(earlier: dict[str, Any], now: dict[str, Any], proof: list[str]) -> bool:
    """Whether the tree of `now` (size, root) begins with that of `earlier` (RFC 9162, 2.1.4.2)."""
    first, size = earlier["size"], now["size"]
    if first in (0, size):
        return not proof and (first == 0 or earlier["root"] == now["root"])
    steps = [bytes.fromhex(step) for step in proof]
    if first & (first - 1) == 0:
        steps.insert(0, bytes.fromhex(earlier["root"]))
    return bool(steps) and _grown(first - 1, size - 1, steps) == (earlier["root"], now["root"])


def _grown(first: int, last: int, steps: list[bytes]) -> tuple[str, str] | None:
    while first & 1:
        first, last = first >> 1, last >> 1
    old = new = steps[0]
    for step in steps[1:]:
        if last == 0:
            return None
        if first & 1 or first == last:
            old, new = node(step, old), node(step, new)
            while not first & 1 and first:
                first, last = first >> 1, last >> 1
        else:
            new = node(new, step)
        first, last = first >> 1, last >> 1
    return (old.hex(), new.hex()) if last == 0 else None


# Keys


class Keys:
    """Which key may sign which entry: one at a time, handed on by entries of the kind key-rotation."""

    def __init__(self) -> None:
        self.public: dict[str, str] = {}
        self.until: dict[str, int | None] = {}

    def trust(self, name: str, public_key: str, until: int | None = None) -> None:
        """`until`: the number of the last entry that it may sign, where that is known."""
        self.public[name], self.until[name] = public_key, until

    def fault_of(self, name: str, sequence: int) -> tuple[Fault, str] | None:
        """What speaks against this key under the entry of that number."""
        if name not in self.public:
            return Fault.UNKNOWN_KEY, f"the key {name} is not known"
        if not is_key_of(self.public[name], name):
            return Fault.FALSE_KEY, f"the key filed as {name} is another"
        until = self.until[name]
        if until is not None and sequence > until:
            return Fault.RETIRED_KEY, f"the key {name} was replaced by entry {until} and may sign nothing after it"
        return None

    def rotate(self, record: dict[str, Any], sequence: int) -> str:
        """Take over the new key of a rotation whose own signature held; a sentence where that cannot be."""
        name, public_key = str(record.get("new_key_id")), str(record.get("new_public_key"))
        text = f"{record.get('previous_hash')}:{public_key}"
        if not is_key_of(public_key, name):
            return f"the new key filed as {name} is another"
        if not verify(text, str(record.get("new_key_signature")), public_key, domain=NEW_KEY):
            return f"the new key {name} did not sign it"
        self.until[str(record["key_id"])] = sequence
        self.trust(name, public_key, self.until.get(name))
        return ""


# Statements

_NO_DIGITS, _THREE_DIGITS = ("CLP", "ISK", "JPY", "KRW", "UGX", "VND"), ("BHD", "JOD", "KWD", "OMR", "TND")
_MINOR_DIGITS = dict.fromkeys(_NO_DIGITS, 0) | dict.fromkeys(_THREE_DIGITS, 3)
_PLACE = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}|[{}]")


def statement_of(template: str, payload: str) -> str | None:
    """The action in words: the template filled from the payload's arguments. None where that cannot be done."""
    try:
        words = dict(parsed(payload)["arguments"])
        if "amount_minor" in words and "currency" in words:
            words["amount"] = f"{_amount(int(words['amount_minor']), str(words['currency']))} {words['currency']}"
        return _PLACE.sub(lambda place: _filled(place, words), template)
    except (ValueError, KeyError, TypeError):
        return None


def has_plain_places(template: str) -> bool:
    """Whether `statement_of` can fill the template as `str.format_map` does."""
    return all(place[0] in ("{{", "}}") or place[1] for place in _PLACE.finditer(template))


def _filled(place: re.Match[str], words: dict[str, Any]) -> str:
    if place[0] in ("{{", "}}"):
        return place[0][0]
    return str(words[place[1]])


def _amount(minor: int, currency: str) -> str:
    digits = _MINOR_DIGITS.get(currency, 2)
    whole, rest = divmod(abs(minor), 10**digits)
    return ("-" if minor < 0 else "") + f"{whole:,}" + (f".{rest:0{digits}d}" if digits else "")


# One decision and the rows it must fit. Rows are dicts of their columns, instants as records spell them.

Row = dict[str, Any]
COLUMN_OF = {
    "step": "step",
    "position": "position",
    "version": "version",
    "tool": "tool",
    "statement_version": "statement_version",
    "requested_by": "requested_by_id",
}
"""Members of a record that the approval's row repeats, where the record has them."""


def decision_faults(name: str, told: Row, decision: Row, approval: Row, run: str, *, is_last: bool) -> Iterator[Found]:
    """`told`: the signed record with its body, or without it once that is withheld. `is_last`: no signature follows."""
    if (told.get("approval"), told.get("run")) != (approval["id"], run):
        sentence = f"it was signed for approval {told.get('approval')} of run {told.get('run')}, and stands at "
        yield Found(Fault.FOREIGN, f"{name}: {sentence}approval {approval['id']} of run {run}.")
    said = [told.get("signer_id"), told.get("verdict"), told.get("signed_at")]
    is_same = said == [decision["user_id"], decision["verdict"], decision["decided_at"]]
    if not is_same or not _is_comment(told, decision, approval):
        yield Found(Fault.DECISION, f"{name}: the decision's row says something else than what was signed.")
    yield from _four_eyes_faults(name, told, approval)
    if any(told[member] != approval[column] for member, column in COLUMN_OF.items() if member in told):
        yield Found(Fault.DECISION, f"{name}: approval {approval['id']} asks for something else than what was signed.")
    yield from _content_faults(name, told, approval, is_last)


def _is_comment(told: Row, decision: Row, approval: Row) -> bool:
    """Does the row say what was signed, or, with an approval that was withheld, nothing?"""
    comment = decision["comment"]
    return told.get("comment", comment) == comment if approval["payload"] else comment in ("", WITHHELD)


def _four_eyes_faults(name: str, told: Row, approval: Row) -> Iterator[Found]:
    """Whoever asked may take it back and nothing else; whoever changed it may not approve what came of that."""
    asked, signer, verdict = approval["requested_by_id"], told.get("signer_id"), told.get("verdict")
    if verdict == "withdraw" and signer != asked:
        yield Found(Fault.REQUESTER, f"{name}: it was withdrawn by somebody else than whoever asked for it.")
    if verdict != "withdraw" and asked is not None and signer == asked:
        yield Found(Fault.REQUESTER, f"{name}: it was signed by whoever asked for it, and four eyes are required.")
    if verdict == "approve" and signer is not None and signer == approval.get("edited_by_id"):
        yield Found(Fault.REQUESTER, f"{name}: it was approved by whoever changed it, and four eyes are required.")


def _content_faults(name: str, told: Row, approval: Row, is_last: bool) -> Iterator[Found]:
    number, payload, facts = approval["id"], approval["payload"], approval["signed_facts"]
    now = digest(payload) if payload else approval["payload_digest"]
    if {approval["payload_digest"], now} != {told.get("payload_digest")}:
        yield Found(Fault.PAYLOAD, f"{name}: the payload of approval {number} is not the one that was signed.")
    if is_last and (facts or payload) and digest(facts) != told.get("facts_digest"):
        yield Found(Fault.FACTS, f"{name}: the facts of approval {number} are not those that were signed.")
    if told.get("evidence_digest") != (digest(evidence) if (evidence := approval.get("evidence")) else None):
        yield Found(Fault.DECISION, f"{name}: the evidence of approval {number} is not the one that was signed.")
    if payload and told.get("statement", approval["statement"]) != approval["statement"]:
        yield Found(Fault.STATEMENT, f"{name}: the statement of approval {number} is not the one that was signed.")


def statement_faults(approval: Row, templates: dict[str, str]) -> Iterator[Found]:
    """Is the statement that people read the one that template and payload make?"""
    name, version = f"Approval {approval['id']}", approval["statement_version"]
    template = templates.get(version)
    if template is None or digest(template) != version:
        yield Found(Fault.TEMPLATE, f"{name}: the template of its statement ({version[:12]}) is missing or another.")
    elif approval["statement"] != (statement_of(template, payload) if (payload := approval["payload"]) else WITHHELD):
        yield Found(
            Fault.STATEMENT, f"{name}: its statement is not what its template and its payload make; somebody read less."
        )


# The archive: files in the order of their names, stored, with one fixed date, so that its bytes follow from its content

MANIFEST, SEAL = "manifest.json", "manifest.sig"
JSON_FILES = ("approvals", "calls", "checkpoint", "decisions", "entries", "run", "templates")


def pack(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            member = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            member.create_system, member.external_attr = 3, 0o600 << 16
            archive.writestr(member, files[name])
    return packed.getvalue()


def unpack(raw: bytes) -> dict[str, bytes]:
    """Raises Unreadable."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except Exception as error:  # noqa: BLE001 (whatever the library stumbles over in altered bytes)
        raise Unreadable(f"it cannot be unpacked ({type(error).__name__})") from None


class Case:
    """One export beside what is trusted. `notes` says what could not be checked because it was withheld."""

    approvals: list[Row]
    calls: list[Row]
    checkpoint: Row
    decisions: list[Row]
    entries: list[Row]
    run: Row
    templates: dict[str, str]

    def __init__(self, raw: bytes, trust: Row) -> None:
        self.raw, self.notes, self.keys = raw, list[str](), Keys()
        try:
            for key in trust["keys"]:
                self.keys.trust(key["key_id"], key["public_key"], key.get("until"))
            self.noted = [(parsed(line["record"]), line) for line in trust.get("checkpoints", [])]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Unreadable("TRUST is no trust file; `manage.py signing_key show --trust-file` writes one") from None

    def faults(self) -> Iterator[Found]:
        """Everything that is wrong, in the order in which it is met."""
        try:
            self.files = unpack(self.raw)
            if pack(self.files) != self.raw:
                yield Found(Fault.ARCHIVE, "The archive holds bytes that belong to none of its files.")
            self.manifest = parsed(self.files[MANIFEST].decode())
            yield from self._file_faults()
            for name in JSON_FILES:
                setattr(self, name, parsed(self.files[f"{name}.json"].decode()))
            yield from self._content_faults()
        except Unreadable as problem:
            yield Found(Fault.ARCHIVE, f"The archive is damaged: {problem}.")
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            yield Found(Fault.ARCHIVE, f"The archive has not the form of an export ({type(error).__name__}: {error}).")

    def _file_faults(self) -> Iterator[Found]:
        listed, present = self.manifest["files"], self.files.keys() - {MANIFEST, SEAL}
        for name in sorted(listed.keys() | present):
            if name not in present:
                yield Found(Fault.MANIFEST, f"{name}: the manifest lists it, and it is missing.")
            elif name not in listed:
                yield Found(Fault.MANIFEST, f"{name}: the manifest does not list it.")
            elif hashlib.sha256(self.files[name]).hexdigest() != listed[name]:
                yield Found(Fault.MANIFEST, f"{name}: it is not the file that the manifest lists.")

    def _content_faults(self) -> Iterator[Found]:
        self._hand_keys_on()
        self.head, self.told = parsed(self.checkpoint["record"]), dict[int, Row]()
        yield from self._seal_faults()
        for at, line in self.noted:
            yield from self._noted_faults(at, line)
        yield from self._order_faults()
        for entry in self.entries:
            yield from self._entry_faults(f"Entry {entry['sequence']}", entry)
        yield from self._withholding_faults()
        yield from self._body_faults()
        for approval in self.approvals:
            yield from self._approval_faults(approval)
        yield from self._decision_faults()
        yield from self._effect_faults()

    def _hand_keys_on(self) -> None:
        for entry in sorted(self.entries, key=lambda entry: entry["sequence"]):
            name, number = entry["key_id"], entry["sequence"]
            record = parsed(entry["record"]) if '"key-rotation"' in entry["record"] else {}
            if record.get("kind") != ROTATION or self.keys.fault_of(name, number):
                continue
            if verify(entry["record"], entry["signature"], self.keys.public[name]):
                self.keys.rotate(record, number)

    def _seal_faults(self) -> Iterator[Found]:
        record, manifest = self.checkpoint["record"], self.files[MANIFEST].decode()
        if problem := self._signature_fault(self.head, record, self.checkpoint["signature"], CHECKPOINT):
            yield Found(problem[0], f"The checkpoint of this export: {problem[1]}.")
        manifest_key = {"key_id": self.manifest["key_id"], "size": self.head["size"]}
        if problem := self._signature_fault(manifest_key, manifest, self.files[SEAL].decode(), EXPORT):
            fault = Fault.MANIFEST if problem[0] == Fault.CHECKPOINT else problem[0]
            yield Found(fault, f"The manifest: {problem[1]}.")
        if self.manifest["run"] != self.run["key"]:
            yield Found(Fault.FOREIGN, f"The manifest is of run {self.manifest['run']}, the files of another.")

    def _signature_fault(self, head: Row, text: str, signature: str, domain: bytes) -> tuple[Fault, str] | None:
        if fault := self.keys.fault_of(head["key_id"], head["size"] + 1):
            return fault
        if verify(text, signature, self.keys.public[head["key_id"]], domain=domain):
            return None
        return Fault.CHECKPOINT, "its signature does not fit it"

    def _noted_faults(self, noted: Row, line: Row) -> Iterator[Found]:
        name = f"The checkpoint noted at {noted['size']} entries"
        if problem := self._signature_fault(noted, line["record"], line["signature"], CHECKPOINT):
            yield Found(problem[0], f"{name}: {problem[1]}.")
        elif noted["size"] > self.head["size"]:
            yield Found(Fault.TRUNCATED, f"{name}: the ledger of this export has only {self.head['size']}: cut off.")
        elif noted["size"] not in (0, self.head["size"]) and str(noted["size"]) not in self.checkpoint["consistency"]:
            yield Found(Fault.UNPROVEN, f"{name} cannot be compared; export again with --noted and the file it is in.")
        elif not is_consistent(noted, self.head, self.checkpoint["consistency"].get(str(noted["size"]), [])):
            yield Found(Fault.REWRITTEN, f"{name}: this ledger does not begin with it; entries were cut or rewritten.")

    def _order_faults(self) -> Iterator[Found]:
        numbers, listed = [entry["sequence"] for entry in self.entries], set(self.manifest["entries"])
        if numbers != sorted(set(numbers)):
            yield Found(Fault.SWAPPED, f"The entries do not stand in their order: {numbers}.")
        needed = listed | {decision["entry_id"] for decision in self.decisions}
        for number in sorted(needed - set(numbers)):
            yield Found(Fault.REMOVED, f"Entry {number} belongs to this case and is missing.")
        for number in sorted(set(numbers) - listed):
            yield Found(Fault.APPENDED, f"Entry {number} was added: the manifest does not list it.")

    def _entry_faults(self, name: str, entry: Row) -> Iterator[Found]:
        text, number, size = entry["record"], entry["sequence"], self.head["size"]
        try:
            record = parsed(text)
            self.told[number] = dict(record)
        except ValueError as error:
            yield Found(Fault.RECORD, f"{name}: its record cannot be read: {error}.")
            return
        if record.get("sequence") != number:
            yield Found(Fault.SWAPPED, f"{name}: its record is that of entry {record.get('sequence')}.")
        if not self._is_own(record):
            yield Found(Fault.FOREIGN, f"{name}: it belongs to run {record.get('run')}, not to {self.run['key']}.")
        if number > size:
            yield Found(Fault.APPENDED, f"{name} was appended behind the {size} entries that the checkpoint signs.")
        placed = is_included(record_hash(text), number, size, entry["proof"], self.head["root"])
        if (problem := self.keys.fault_of(entry["key_id"], number)) or record.get("key_id") != entry["key_id"]:
            fault, sentence = problem or (Fault.UNKNOWN_KEY, f"its record names the key {record.get('key_id')}")
            yield Found(fault, f"{name}: {sentence}.")
        elif not verify(text, entry["signature"], self.keys.public[entry["key_id"]]):
            yield Found(Fault.SIGNATURE if placed else Fault.RECORD, f"{name}: its signature does not fit its record.")
        if not placed:
            yield Found(Fault.CHAIN, f"{name}: it is not in the chain that the checkpoint signs, or not at its place.")

    def _is_own(self, record: Row) -> bool:
        if record.get("kind") == WITHHOLDING:
            return bool(record.get("withholding") == self.run.get("withholding_id"))
        return bool(record.get("kind") == ROTATION or record.get("run") == self.run["key"])

    def _body_faults(self) -> Iterator[Found]:
        withheld = self._withheld("entries")
        for entry in self.entries:
            told = self.told.get(entry["sequence"], {})
            if "body_digest" not in told:
                continue
            if entry["body"] is None and entry["sequence"] in withheld:
                self.notes.append(f"Entry {entry['sequence']}: body withheld; its digest is signed.")
            elif entry["body"] is None or digest(entry["body"]) != told["body_digest"]:
                yield Found(Fault.BODY, f"Entry {entry['sequence']}: its body is not the one that was signed.")
            else:
                told |= parsed(entry["body"])

    def _approval_faults(self, approval: Row) -> Iterator[Found]:
        number, payload = approval["id"], approval["payload"]
        if not payload and number in self._withheld("approvals"):
            self.notes.append(f"Approval {number}: payload withheld; its digest is signed.")
        elif digest(payload) != approval["payload_digest"]:
            yield Found(Fault.PAYLOAD, f"Approval {number}: its payload is not the one of its digest.")
        yield from statement_faults(approval, self.templates)
        yield from _vote_faults(approval, [told for told in self.told.values() if told.get("approval") == number])

    def _decision_faults(self) -> Iterator[Found]:
        approvals, rows = {row["id"]: row for row in self.approvals}, {row["entry_id"] for row in self.decisions}
        for number, record in self.told.items():
            if record.get("kind") == "decision" and number not in rows:
                yield Found(Fault.DECISION, f"Entry {number}: its decision's row is gone.")
        for decision in self.decisions:
            number, approval = decision["entry_id"], approvals[decision["approval_id"]]
            later = [row for row in self.decisions if row["approval_id"] == approval["id"] and row["entry_id"] > number]
            if (told := self.told.get(number)) is not None:
                name, run = f"Entry {number}", self.run["key"]
                yield from decision_faults(name, told, decision, approval, run, is_last=not later)

    def _withheld(self, what: str) -> set[int]:
        """The numbers of entries whose body, or of approvals whose values, an entry says to be withheld."""
        return {number for told in self.told.values() if told.get("kind") == WITHHOLDING for number in told[what]}

    def _withholding_faults(self) -> Iterator[Found]:
        """Of a run that is said to be withheld an entry says so; of any other nothing is missing."""
        act, key = self.run.get("withholding_id"), self.run["key"]
        said = {told["withholding"]: told for told in self.told.values() if told.get("kind") == WITHHOLDING}
        if act is None:
            for call in self.calls:
                if not call["request"]:
                    yield Found(Fault.EFFECT, f"{call['key']}: its request is gone, and run {key} is not withheld.")
        elif act in said:
            self.notes.append(f"Run {key}: its values were withheld by retention on {said[act]['signed_at']}.")
        else:
            yield Found(Fault.BODY, f"Run {key}: its values are gone, and no entry says that they were withheld.")

    def _effect_faults(self) -> Iterator[Found]:
        spent = {approval["spent_key"]: approval for approval in self.approvals if approval["spent_key"]}
        for call in self.calls:
            if call["request"] and digest(call["request"]) != call["digest"]:
                yield Found(Fault.EFFECT, f"{call['key']}: its request is not the one of its digest.")
            approval = spent.get(call["key"])
            if approval and call["kind"] == "effect" and call["digest"] != approval["payload_digest"]:
                yield Found(Fault.EFFECT, f"{call['key']}: what was sent is not what approval {approval['id']} allows.")


def _vote_faults(approval: Row, told: list[Row]) -> Iterator[Found]:
    """`told`: every record about this approval."""
    name, status = f"Approval {approval['id']}", approval["status"]
    signers = {
        verdict: [record["signer_id"] for record in told if record.get("verdict") == verdict] for verdict in VOTES
    }
    everybody = [signer for group in signers.values() for signer in group]
    for signer in sorted({signer for signer in everybody if everybody.count(signer) > 1}):
        yield Found(Fault.SAME_PERSON, f"{name}: person {signer} signed twice, and each signature is to be another's.")
    is_short = status == "approved" and len(set(signers["approve"])) < approval["required"]
    answered = {"rejected": "reject", "responded": "respond"}.get(status)
    if is_short or (answered and not signers[answered]):
        yield Found(Fault.UNSIGNED, f"{name} says {status}, but nobody signed that.")
    if status == "expired" and not any(record["kind"] == "expiry" for record in told):
        yield Found(Fault.UNSIGNED, f"{name} says expired, but no entry records that.")


VOTES = ("approve", "reject", "respond")


def check(raw: bytes, trust: Row) -> tuple[list[Found], list[str]]:
    """Everything that is wrong with an export, and what was withheld. Raises Unreadable if `trust` is no trust file."""
    case = Case(raw, trust)
    return list(case.faults()), case.notes


def exit_code(found: Iterable[Found]) -> int:
    return int(min((one.fault for one in found), default=0))


def main(arguments: list[str]) -> int:
    faults = ", ".join(f"{fault.value} {fault.name.lower().replace('_', ' ')}" for fault in Fault)
    parser = argparse.ArgumentParser(
        description="Verifies an exported case without the site that made it.",
        epilog=f"Exit code 0: whole. {USAGE}: a file cannot be read. Else the fault that says the most: {faults}.",
    )
    parser.add_argument("export", metavar="EXPORT", type=Path, help="what manage.py export_case wrote")
    parser.add_argument("trust", metavar="TRUST", type=Path, help="the keys, and perhaps checkpoints, that you trust")
    options = parser.parse_args(arguments)
    try:
        found, notes = check(options.export.read_bytes(), parsed(options.trust.read_text()))
    except (OSError, ValueError, Unreadable) as problem:
        sys.stderr.write(f"{problem}\n")
        return USAGE
    lines = [*notes, *(f"{one.fault.name} ({one.fault.value}): {one.sentence}" for one in found)]
    sys.stdout.write("\n".join([*lines, "The case is NOT whole." if found else "The case is whole."]) + "\n")
    return exit_code(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
