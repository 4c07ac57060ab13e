"""An exported case verifies with one file and no site, and each tampering has its own message and exit code."""

import base64
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
from django.db import transaction
from stage import Stage, four_entries, question, shown, tamper, withhold

from approvals import checkpoints, export, ledger, proposals, verifier
from approvals.merkle import Frontier, Tree
from approvals.models import Approval, LedgerBody, LedgerCheckpoint, LedgerEntry
from approvals.signing import SigningKey, configured_signing_key
from approvals.testing import answer
from approvals.verifier import Fault
from runs import money, tools
from runs.models import AuditEvent, Run, database_clock
from runs.testing import drain
from runs.values import canonical
from runs.workflows import goto

VERIFIER = Path(verifier.__file__)


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture
def chain(stage):
    return four_entries(stage)


@dataclass
class Exported:
    """A case and what an auditor trusts. The forger of `forged` may have the site's key, or not."""

    files: dict[str, bytes]
    trust: dict

    def loaded(self, name):
        return json.loads(self.files[f"{name}.json"])

    def check(self) -> list[verifier.Found]:
        return verifier.check(verifier.pack(self.files), self.trust)[0]

    def told(self) -> tuple[int, str]:
        found = self.check()
        return verifier.exit_code(found), " ".join(one.sentence for one in found)

    def replaced(self, **changed) -> "Exported":
        content = {f"{name}.json": json.dumps(value).encode() for name, value in changed.items()}
        return Exported(self.files | content, self.trust)

    def sealed_anew(self) -> "Exported":
        """With a manifest that lists the files as they are now, signed by whoever has the site's key."""
        manifest = self.loaded("manifest")
        digests = {name: sha256(self.files[name]).hexdigest() for name in manifest["files"]}
        entries = [entry["sequence"] for entry in self.loaded("entries")]
        text = canonical(manifest | {"files": digests, "entries": entries})
        seal = configured_signing_key().sign(text, domain=verifier.EXPORT)
        return Exported(self.files | {"manifest.json": text.encode(), "manifest.sig": seal.encode()}, self.trust)

    def with_entries(self, change: Callable[[list], object]) -> "Exported":
        entries = self.loaded("entries")
        change(entries)
        return self.replaced(entries=entries)


def trust_now(*noted: LedgerCheckpoint) -> dict:
    key = configured_signing_key()
    keys = [{"key_id": key.key_id, "public_key": key.public_key, "until": None}]
    return {"keys": keys, "checkpoints": [checkpoints.as_trusted(one) for one in noted]}


def exported(key="approved", trust=None, **options) -> Exported:
    packed = export.of_run(key, by=None, actor="test", **options)
    return Exported(verifier.unpack(packed), trust or trust_now())


@pytest.fixture
def case(chain) -> Exported:
    return exported()


# Whole


@pytest.mark.parametrize("run", ["approved", "rejected", "expired", "again"])
def test_a_case_as_exported_is_whole(chain, run):
    assert exported(run).check() == []


def test_a_case_with_every_other_answer_is_whole(stage):
    """Changed by one and approved by another, sent back, taken back: each a signature of its own, with evidence."""
    stage.asks_then_pays(on_respond=goto("approve"), evidence={"photos": "ab" * 32})
    changed, sent_back, taken_back = (stage.asked(key) for key in ("changed", "sent-back", "taken-back"))
    more = {"arguments": json.dumps(json.loads(changed.payload)["arguments"] | {"amount_minor": 150_000})}
    proposals.edit(changed.pk, user=stage.people.adjuster, comment="twice", **more, **shown(changed))
    answer(question(changed.run), stage.people.second_adjuster)
    proposals.respond(sent_back.pk, user=stage.people.adjuster, comment="more photos", **shown(sent_back))
    mine = {"user": stage.people.requester, "payload_digest": taken_back.payload_digest}
    proposals.withdraw(taken_back.pk, comment="in error", **mine)
    drain()
    for run in ("changed", "sent-back", "taken-back"):
        assert exported(run).check() == []
    assert ledger.verify().problems == []


def test_the_stand_alone_file_says_so_with_cryptography_alone(case, tmp_path):
    """In a process of its own, isolated: no Django, no settings, no package of ours on its path."""
    (tmp_path / "verifier.py").write_text(VERIFIER.read_text())
    (tmp_path / "case.zip").write_bytes(verifier.pack(case.files))
    (tmp_path / "trust.json").write_text(json.dumps(case.trust))

    def run():
        command = [sys.executable, "-I", "verifier.py", "case.zip", "trust.json"]
        return subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)

    whole = run()
    assert (whole.returncode, whole.stdout, whole.stderr) == (0, "The case is whole.\n", "")
    changed = case.replaced(run=case.loaded("run") | {"outcome": "rejected"})
    (tmp_path / "case.zip").write_bytes(verifier.pack(changed.files))
    broken = run()
    assert broken.returncode == Fault.MANIFEST
    assert "MANIFEST (35): run.json: it is not the file that the manifest lists." in broken.stdout
    (tmp_path / "trust.json").write_text("{}")
    assert run().returncode == verifier.USAGE


def test_the_verifier_imports_nothing_but_the_standard_library_and_cryptography():
    program = f"import runpy, sys; runpy.run_path({str(VERIFIER)!r}); print(*{{n.split('.')[0] for n in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True).stdout
    assert "cryptography" in loaded
    assert not {"django", "runs", "approvals", "rfc8785", "psycopg"} & set(loaded.split())


def test_an_export_holds_all_of_the_case_and_nothing_of_another(case, people):
    entry = case.loaded("entries")[0]
    assert [json.loads(entry["record"])["run"]] == ["approved"]
    assert case.loaded("approvals")[0]["payload"] == Approval.objects.get(run__key="approved").payload
    assert [call["key"] for call in case.loaded("calls")] == ["approved:step2"]
    assert case.loaded("templates") == {sha256(b"Pay {amount} to {payee}").hexdigest(): "Pay {amount} to {payee}"}
    assert case.loaded("people") == {str(people.adjuster.pk): "ada", str(people.requester.pk): "rick"}
    assert [move["to_status"] for move in case.loaded("timeline")["moves"]][-1] == "completed"
    assert all(b"payee is unknown" not in content for content in case.files.values())


def test_the_same_case_gives_the_same_bytes_but_for_moment_and_checkpoint(chain):
    first, second = exported(), exported()
    differing = {name for name in first.files if first.files[name] != second.files[name]}
    assert differing == {"README.txt", "manifest.json", "manifest.sig", "checkpoint.json", "events.json"}
    assert list(first.files) == sorted(first.files)


def test_an_export_is_an_audited_act(case, people):
    export.of_run("approved", by=people.auditor, actor="test")
    events = AuditEvent.objects.filter(kind="case-exported", run__key="approved").order_by("pk")
    assert [event.user for event in events] == [None, people.auditor]
    assert sha256(case.files["manifest.json"]).hexdigest() in events[0].detail


def test_a_case_of_two_approvers_and_one_of_nobody_s_approval_are_whole(stage):
    stage.asks_then_pays(required=2)
    approval = stage.asked()
    answer(approval, stage.people.adjuster)
    answer(approval, stage.people.second_adjuster)
    assert exported("run-1").check() == []
    assert len(exported("run-1").loaded("entries")) == 2


# Tampering with an export, by somebody without the site's key


def flipped(text: str, place: int = 40) -> str:
    return text[:place] + ("1" if text[place] == "0" else "0") + text[place + 1 :]


def change_entry(member: str, change: Callable[[str], object]):
    def apply(case):
        return case.with_entries(lambda entries: entries[0].update({member: change(entries[0][member])}))

    return apply


def change_row(file: str, **columns):
    def apply(case):
        first, *others = case.loaded(file)
        return case.replaced(**{file: [first | columns, *others]})

    return apply


WITHOUT_THE_KEY = {
    "a byte of a record": (
        change_entry("record", lambda text: text.replace("password", "passkeyz")),
        Fault.RECORD,
        "Entry 1: its signature does not fit its record",
    ),
    "a byte of a signature": (change_entry("signature", flipped), Fault.SIGNATURE, "Entry 1: its signature"),
    "a byte of a body": (change_entry("body", flipped), Fault.BODY, "Entry 1: its body is not the one"),
    "a byte of a proof": (change_entry("proof", lambda proof: [flipped(proof[0]), *proof[1:]]), Fault.CHAIN, "Entry 1"),
    "no proof": (change_entry("proof", lambda proof: []), Fault.CHAIN, "not in the chain"),
    "a key": (change_entry("key_id", lambda key: "ed25519-0000000000000000"), Fault.UNKNOWN_KEY, "is not known"),
    "an entry's number": (change_entry("sequence", lambda number: 2), Fault.REMOVED, "its record is that of entry 1"),
    "a removed entry": (lambda case: case.with_entries(list.clear), Fault.REMOVED, "Entry 1 belongs to this case"),
    "a payload": (
        change_row("approvals", payload='{"arguments":{"amount_minor":984000},"tool":"test.pay"}'),
        Fault.STATEMENT,
        "the payload of approval 1",
    ),
    "a payload's digest": (change_row("approvals", payload_digest="0" * 64), Fault.PAYLOAD, "the payload of approval"),
    "a statement": (change_row("approvals", statement="Pay nothing"), Fault.STATEMENT, "not what its template"),
    "facts": (change_row("approvals", signed_facts="{}"), Fault.FACTS, "the facts of approval 1"),
    "who decided": (change_row("decisions", user_id=99), Fault.DECISION, "Entry 1: the decision's row"),
    "what was decided": (change_row("decisions", verdict="reject"), Fault.DECISION, "Entry 1: the decision's row"),
    "a comment": (change_row("decisions", comment="seen by the board"), Fault.DECISION, "Entry 1: the decision's row"),
    "when it was decided": (change_row("decisions", decided_at="2020"), Fault.DECISION, "Entry 1: the decision's row"),
    "no decision": (lambda case: case.replaced(decisions=[]), Fault.DECISION, "Entry 1: its decision's row is gone"),
    "how many must approve": (change_row("approvals", required=2), Fault.UNSIGNED, "says approved, but nobody"),
    "expired": (change_row("approvals", status="expired"), Fault.UNSIGNED, "says expired, but no entry"),
    "whoever asked": (
        lambda case: change_row("approvals", requested_by_id=case.loaded("decisions")[0]["user_id"])(case),
        Fault.REQUESTER,
        "by whoever asked for it",
    ),
    "a template": (lambda case: case.replaced(templates={}), Fault.TEMPLATE, "template of its statement"),
    "what was sent": (change_row("calls", request="{}"), Fault.EFFECT, "approved:step2: its request"),
    "an answer": (change_row("calls", answer={"paid": False}), Fault.MANIFEST, "calls.json: it is not the file"),
    "the run": (
        lambda case: case.replaced(run=case.loaded("run") | {"key": "other"}),
        Fault.FOREIGN,
        "of run approved",
    ),
    "a removed file": (
        lambda case: Exported({name: case.files[name] for name in case.files if name != "events.json"}, case.trust),
        Fault.MANIFEST,
        "events.json: the manifest lists it, and it is missing",
    ),
    "an added file": (
        lambda case: Exported(case.files | {"more.json": b"{}"}, case.trust),
        Fault.MANIFEST,
        "more.json: the manifest does not list it",
    ),
}


@pytest.mark.parametrize("name", WITHOUT_THE_KEY)
def test_each_tampering_has_its_message_and_exit_code(case, name):
    change, fault, sentence = WITHOUT_THE_KEY[name]
    code, told = change(case).told()
    assert sentence in told
    assert code == fault, told


def test_two_entries_that_changed_places_are_found(stage):
    stage.asks_then_pays(required=2)
    approval = stage.asked()
    for user in (stage.people.adjuster, stage.people.second_adjuster):
        answer(approval, user)
    case = exported("run-1")
    code, told = case.with_entries(list.reverse).told()
    assert (code, "do not stand in their order: [2, 1]" in told) == (Fault.SWAPPED, True)
    numbers = [1, 2]
    swapped = case.with_entries(lambda entries: [entry.update(sequence=numbers.pop()) for entry in entries])
    assert swapped.told()[0] == Fault.SWAPPED


def test_bytes_that_belong_to_no_file_are_found(case):
    packed = verifier.pack(case.files)
    for raw in (packed + b"\0", packed[:-1], packed[:100], b"", b"PK"):
        found, _ = verifier.check(raw, case.trust)
        assert verifier.exit_code(found) == Fault.ARCHIVE, raw[:10]


def test_a_thousand_random_byte_flips_are_all_found(case):
    packed, rng = verifier.pack(case.files), random.Random(8785)
    assert verifier.check(packed, case.trust) == ([], [])
    missed = []
    for _ in range(1000):
        place, bit = rng.randrange(len(packed)), 1 << rng.randrange(8)
        raw = packed[:place] + bytes([packed[place] ^ bit]) + packed[place + 1 :]
        if not verifier.check(raw, case.trust)[0]:
            missed.append((place, bit))
    assert missed == []


# Tampering by somebody who has the site's key and signs what he forged


def test_an_unknown_key_under_a_forged_entry_is_found(case):
    forger = SigningKey(sha256(b"a forger's seed").digest())

    def sign(entries):
        entries[0]["record"] = entries[0]["record"].replace(entries[0]["key_id"], forger.key_id)
        entries[0] |= {"key_id": forger.key_id, "signature": forger.sign(entries[0]["record"])}

    code, told = case.with_entries(sign).sealed_anew().told()
    assert (code, f"Entry 1: the key {forger.key_id} is not known" in told) == (Fault.UNKNOWN_KEY, True)


def test_a_key_that_the_auditor_filed_under_another_name_is_found(case):
    forger = SigningKey(sha256(b"a forger's seed").digest())
    case.trust["keys"][0]["public_key"] = forger.public_key
    code, told = case.told()
    assert (code, "is another" in told) == (Fault.FALSE_KEY, True)


def test_an_entry_appended_behind_the_signed_end_is_found(case):
    def add(entries):
        key = configured_signing_key()
        record = canonical(json.loads(entries[0]["record"]) | {"sequence": 9, "previous_hash": "0" * 64})
        entries.append(entries[0] | {"sequence": 9, "record": record, "signature": key.sign(record)})

    code, told = case.with_entries(add).sealed_anew().told()
    assert (code, "Entry 9 was appended behind the 4 entries" in told) == (Fault.APPENDED, True)


def test_an_entry_of_another_run_is_found(chain):
    case, other = exported("approved"), exported("again")
    code, told = (
        case.replaced(entries=other.loaded("entries"), decisions=other.loaded("decisions")).sealed_anew().told()
    )
    assert "Entry 4: it belongs to run again, not to approved" in told
    moved = case.with_entries(lambda entries: entries[0].update(signature=other.loaded("entries")[0]["signature"]))
    assert moved.sealed_anew().told()[0] == Fault.SIGNATURE
    borrowed = other.loaded("decisions")[0] | {"approval_id": case.loaded("approvals")[0]["id"]}
    code, told = case.replaced(entries=other.loaded("entries"), decisions=[borrowed]).sealed_anew().told()
    assert (code, "it was signed for approval" in told) == (Fault.FOREIGN, True)


@transaction.atomic
def appended(kind, members, at) -> LedgerEntry:
    return ledger.append(kind, members, at=at)


def forged_decision(stage, signer, **members) -> Exported:
    """A decision that the site itself signed and no verb of ours would have made: its rows are put there by hand."""
    stage.asks_then_pays(required=2)
    approval = stage.asked()
    answer(approval, stage.people.adjuster)
    first = ledger.told(LedgerEntry.objects.get())
    now = database_clock()
    entry = appended("decision", first | {"signer_id": signer.pk} | members, now)
    put = "INSERT INTO approvals_decision (approval_id, user_id, verdict, comment, decided_at, entry_id) VALUES "
    tamper(stage.database, "ALTER TABLE approvals_decision DROP CONSTRAINT decision_one_vote")
    tamper(stage.database, f"{put} (%s, %s, 'approve', '', %s, %s)", approval.pk, signer.pk, now, entry.pk)
    return exported("run-1")


@pytest.fixture
def forging(stage, database):
    stage.database = database
    return stage


def test_one_person_who_signed_twice_is_found_here_and_there(forging):
    case = forged_decision(forging, forging.people.adjuster)
    code, told = case.told()
    assert (code, "signed twice" in told) == (Fault.SAME_PERSON, True)
    verdict = ledger.verify()
    assert verifier.exit_code(verdict.found) == Fault.SAME_PERSON
    assert "signed twice" in " ".join(verdict.problems)


def test_a_requester_who_approved_is_found_here_and_there(forging):
    code, told = forged_decision(forging, forging.people.requester).told()
    assert (code, "Entry 2: it was signed by whoever asked for it" in told) == (Fault.REQUESTER, True)
    assert verifier.exit_code(ledger.verify().found) == Fault.REQUESTER


def test_an_approval_by_whoever_changed_the_action_is_found_here_and_there(forging):
    stranger = forging.people.second_adjuster
    forged_decision(forging, stranger)
    tamper(forging.database, "UPDATE approvals_approval SET edited_by_id = %s", stranger.pk)
    code, told = exported("run-1").told()
    assert (code, "approved by whoever changed it" in told) == (Fault.REQUESTER, True)
    assert verifier.exit_code(ledger.verify().found) == Fault.REQUESTER


def test_other_evidence_than_was_signed_is_found_here_and_there(forging):
    forging.asks_then_pays(evidence={"photos": "ab" * 32})
    answer(forging.asked(), forging.people.adjuster)
    tamper(forging.database, "UPDATE approvals_approval SET evidence = %s", canonical({"photos": "cd" * 32}))
    code, told = exported("run-1").told()
    assert (code, "the evidence of approval" in told) == (Fault.DECISION, True)
    assert verifier.exit_code(ledger.verify().found) == Fault.DECISION


def test_an_approval_that_says_sent_back_and_nobody_signed_that_is_found_here_and_there(forging):
    forging.asks_then_pays(required=2)
    answer(forging.asked(), forging.people.adjuster)
    tamper(forging.database, "UPDATE approvals_approval SET status = 'responded', closed_at = now()")
    code, told = exported("run-1").told()
    assert (code, "says responded, but nobody signed" in told) == (Fault.UNSIGNED, True)
    assert verifier.exit_code(ledger.verify().found) == Fault.UNSIGNED


def test_a_signed_statement_that_template_and_payload_do_not_make_is_found_here_and_there(stage, database):
    """Whoever asked showed other words than the bytes that were to be sent; the approver signed both."""
    stage.asks_then_pays()
    approval = stage.asked()
    tamper(database, "UPDATE approvals_approval SET statement = 'Pay 18.40 USD to p-1'")
    answer(approval, stage.people.adjuster)
    code, told = exported("run-1").told()
    assert (code, "somebody read less" in told) == (Fault.STATEMENT, True)
    assert verifier.exit_code(ledger.verify().found) == Fault.STATEMENT


# Against checkpoints that were noted earlier


def test_a_case_is_consistent_with_any_checkpoint_noted_before(stage, people):
    stage.asks_then_pays()
    with transaction.atomic():
        noted = [checkpoints.make()]
    for number in range(7):
        answer(stage.asked(f"run-{number}"), people.adjuster)
        noted.append(checkpoints.make())
    assert exported("run-2", trust_now(*noted)).check() == []


def cut_off_after(database, sequence):
    """A superuser takes away the end of the ledger, with every row that speaks of it, and the site signs on."""
    tamper(database, f"DELETE FROM approvals_decision WHERE entry_id > {sequence}")
    tamper(database, f"DELETE FROM approvals_ledgerentry WHERE sequence > {sequence}")
    tamper(database, "DELETE FROM approvals_ledgercheckpoint")
    tamper(
        database,
        f"UPDATE approvals_ledgerhead SET sequence = {sequence}, "
        f"entry_hash = (SELECT entry_hash FROM approvals_ledgerentry WHERE sequence = {sequence})",
    )


def test_a_ledger_whose_end_was_cut_off_is_found_by_a_noted_checkpoint(chain, database):
    noted = checkpoints.make()
    cut_off_after(database, 3)
    assert exported().check() == []
    code, told = exported(trust=trust_now(noted)).told()
    assert (code, "at 4 entries: the ledger of this export has only 3: cut off" in told) == (Fault.TRUNCATED, True)


def test_a_ledger_that_was_cut_and_written_anew_is_found_by_a_noted_checkpoint(chain, database, stage):
    noted = checkpoints.make()
    cut_off_after(database, 3)
    for number in range(3):
        answer(stage.asked(f"later-{number}"), stage.people.adjuster)
    lines = [checkpoints.as_trusted(noted)]
    code, told = exported("later-2", trust_now(noted), noted=lines).told()
    assert (code, "does not begin with it" in told) == (Fault.REWRITTEN, True)


def test_a_noted_checkpoint_that_an_export_does_not_speak_of_is_not_taken_as_proved(chain):
    noted = checkpoints.make()
    appended("note", {"run": "approved"}, database_clock())
    case = exported(trust=trust_now(noted))
    assert case.check() == []
    checkpoint = case.loaded("checkpoint") | {"consistency": {}}
    code, told = case.replaced(checkpoint=checkpoint).sealed_anew().told()
    assert (code, "export again with --noted" in told) == (Fault.UNPROVEN, True)


def test_a_noted_checkpoint_that_was_forged_is_not_believed(chain):
    noted = checkpoints.make()
    noted.record = noted.record.replace('"size":4', '"size":3')
    code, told = exported(trust=trust_now(noted)).told()
    assert (code, "its signature does not fit it" in told) == (Fault.CHECKPOINT, True)


# Withheld bodies, and records of the first version


def test_a_withheld_body_is_told_and_the_rest_still_verifies(chain):
    assert withhold().runs == 4
    assert LedgerBody.objects.filter(text__isnull=True).count() == 4
    verdict = ledger.verify()
    assert (verdict.problems, verdict.withheld) == ([], 4)
    packed = export.of_run("rejected", by=None, actor="test")
    found, (run, entry, approval) = verifier.check(packed, trust_now())
    assert (found, run.startswith("Run rejected: its values were withheld by retention on ")) == ([], True)
    assert entry == "Entry 2: body withheld; its digest is signed."
    assert approval == "Approval 2: payload withheld; its digest is signed."
    files = verifier.unpack(packed)
    assert not [name for name, file in files.items() if b"Pay 1,840.00" in file or b"the payee is unknown" in file]
    assert b"Body withheld by retention on " in files["README.txt"]


def test_a_body_that_is_gone_without_a_word_is_found(chain, database):
    tamper(database, "UPDATE approvals_ledgerbody SET text = NULL")
    assert exported().told()[0] == Fault.BODY


def test_entries_of_the_first_version_still_verify(chain, database):
    """They hold statement, comment and name themselves, and have no body."""
    told = ledger.told(chain[3]) | {"schema": "durable-runs/ledger/1"}
    record = canonical({name: told[name] for name in told if name not in ("salt", "body_digest", "requested_by")})
    key, entry_hash = configured_signing_key(), verifier.record_hash(record)
    change = "UPDATE approvals_ledgerentry SET record = %s, entry_hash = %s, signature = %s, body_id = NULL"
    tamper(database, f"{change} WHERE sequence = 4", record, entry_hash, key.sign(record))
    tamper(database, "UPDATE approvals_ledgerhead SET entry_hash = %s", entry_hash)
    assert ledger.verify().problems == []
    assert exported("again").check() == []


# What stands in two places is the same in both


def test_the_verifier_fills_templates_as_tools_do():
    payloads = [
        {"amount_minor": minor, "currency": currency, "payee": payee}
        for minor in (0, 1, -5, 184_000, 10**12)
        for currency in ("USD", "JPY", "BHD", "XXX")
        for payee in ("p-1", "Zoë {x}", "\u202e")
    ]
    for arguments in payloads:
        words = f"{money.amount(arguments['amount_minor'], arguments['currency'])} {arguments['currency']}"
        template = "Pay {amount} to {payee}, {{once}} ({amount_minor})"
        told = verifier.statement_of(template, canonical({"arguments": arguments, "tool": "test.pay"}))
        assert told == template.format_map(arguments | {"amount": words})
    digits = {**dict.fromkeys(money._NO_DIGITS, 0), **dict.fromkeys(money._THREE_DIGITS, 3)}
    assert digits == verifier._MINOR_DIGITS


def test_every_tool_s_statement_can_be_filled_by_the_verifier():
    assert [tool.name for tool in tools.registered() if not verifier.has_plain_places(tool.statement)] == []
    for template in ("{a.b}", "{a[0]}", "{a!r}", "{a:>9}", "{", "}", "{}", "{0}"):
        assert not verifier.has_plain_places(template), template
        assert verifier.statement_of(template, '{"arguments":{"a":1}}') is None, template


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33])
def test_every_proof_of_a_tree_holds_for_its_own_entry_and_size_alone(size):
    hashes = [sha256(bytes([number])).hexdigest() for number in range(size)]
    tree, frontier = Tree(hashes), Frontier()
    roots = [frontier.root]
    for one in hashes:
        frontier.add(one)
        roots.append(frontier.root)
        assert Frontier(frontier.size, frontier.parts).root == frontier.root
    assert tree.root() == roots[-1]
    for number, one in enumerate(hashes, start=1):
        proof = tree.inclusion(number)
        assert verifier.is_included(one, number, size, proof, roots[-1])
        assert not any(
            verifier.is_included(one, other, size, proof, roots[-1]) for other in range(size + 2) if other != number
        )
        assert not verifier.is_included(flipped(one, 3), number, size, proof, roots[-1])
    for earlier in range(size + 1):
        then, now = {"size": earlier, "root": roots[earlier]}, {"size": size, "root": roots[-1]}
        proof = tree.consistency(earlier)
        assert verifier.is_consistent(then, now, proof)
        if earlier > 0:
            assert not verifier.is_consistent(then | {"root": roots[earlier - 1]}, now, proof)
            assert not verifier.is_consistent(then, now | {"root": roots[earlier - 1]}, proof)


def test_a_tree_is_that_of_rfc_9162():
    """The tree of the seven entries of its section 2.1.5, hashed by hand: ((d0 d1)(d2 d3))((d4 d5) d6)."""
    hashes = [sha256(bytes([number])).hexdigest() for number in range(7)]
    leaves = [sha256(b"\0" + bytes.fromhex(one)).digest() for one in hashes]

    def joined(left, right):
        return sha256(b"\1" + left + right).digest()

    d = leaves
    k, i, j = joined(joined(d[0], d[1]), joined(d[2], d[3])), joined(d[4], d[5]), d[6]
    tree = Tree(hashes)
    assert tree.root() == joined(k, joined(i, j)).hex()
    assert tree.inclusion(1) == [step.hex() for step in (d[1], joined(d[2], d[3]), joined(i, j))]
    assert tree.inclusion(7) == [step.hex() for step in (i, k)]
    assert tree.consistency(4) == [joined(i, j).hex()]
    assert tree.consistency(3) == [step.hex() for step in (d[2], d[3], joined(d[0], d[1]), joined(i, j))]


def test_a_run_that_nobody_was_asked_about_is_whole_too(database, people):
    run = Run.objects.create(key="silent", workflow="x", version=1, team=people.team, input={}, next_step="y")
    assert exported(run.key).check() == []
    assert base64.b64decode(exported(run.key).files["manifest.sig"])


def test_the_page_about_the_ledger_lists_every_exit_code():
    page = (VERIFIER.parents[1] / "docs" / "ledger.md").read_text()
    listed = re.findall(r"^\| (\d+) \| ([a-z ]+) \|", page, re.MULTILINE)
    assert listed == [(str(fault.value), fault.name.lower().replace("_", " ")) for fault in Fault]
