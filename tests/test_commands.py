"""What the commands promise: the verbs of the pages with their refusals, pure JSON, honest exit codes.

Most commands run in this process, through the very entry that manage.py uses; where another process matters (purity of
standard output, standard input, a terminal) manage.py itself is started.
"""

import io
import json
import os
import pty
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.core.management import ManagementUtility
from stage import tamper

from approvals import ledger
from approvals.gate import ask, facts
from approvals.models import Approval, Decision, LedgerEntry
from approvals.testing import answer
from runs import engine, workflows
from runs.models import AuditEvent, Call, Run
from runs.testing import drain, move_clock
from runs.tools import tool
from runs.waits import event
from runs.workflows import Retry, Workflow

ROOT = Path(__file__).resolve().parent.parent
RIGHT_TO_LEFT = "\u202e"

world = {"claim status": "open"}
"""What the facts below say; each test begins with this."""
paid: list[str] = []


@facts("test.commands")
def claim_facts(arguments):
    return dict(world)


@tool("test.pay_commands", effect=True, requires_approval=True, statement="Pay {amount} to {payee}")
def pay(*, idempotency_key: str, amount_minor: int, currency: str, payee: str) -> dict:
    paid.append(idempotency_key)
    return {"paid": amount_minor}


@pytest.fixture
def flow():
    """A fresh workflow, forgotten again after the test."""
    made = Workflow("under-test", version=1, retry=Retry(attempts=3, base=4, cap=4))
    yield made
    del workflows._registry["under-test", 1]


@pytest.fixture
def payout(flow):
    """A payout that must be approved, on facts that can change."""
    world.clear()
    world.update({"claim status": "open"})
    paid.clear()

    @flow.step
    def assess(ctx):
        return {"note": "x" * 300}

    @flow.step
    def approve_payout(ctx):
        action = pay.proposed(amount_minor=184000, currency="USD", payee=ctx.input["payee"])
        source = claim_facts if ctx.input.get("facts", True) else None
        return ask(action, groups=["adjusters"], facts=source, expires_in=timedelta(days=3))

    @flow.step
    def pay_claimant(ctx):
        return {"payment": ctx.perform(approve_payout)}

    return flow


@pytest.fixture
def waiting(payout, people) -> Approval:
    """One approval of run-1, which rick asked for."""
    return asked(people, "run-1")


def asked(people, key, **input) -> Approval:
    engine.start("under-test", key=key, input={"payee": "M. Delacroix"} | input, team=people.team, by=people.requester)
    drain()
    return Approval.objects.get(run__key=key)


@pytest.fixture
def parked(flow, people) -> Run:
    """run-1 of team claims, waiting for an event."""

    @flow.step
    def hear(ctx):
        return event("papers", expires_in=timedelta(days=1))

    engine.start(flow, key="run-1", input={}, team=people.team)
    drain()
    return Run.objects.get()


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def manage(capsys, monkeypatch):
    """Run a command as manage.py does, without a terminal; what it printed and its exit code."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def run(*words) -> Said:
        capsys.readouterr()
        code = 0
        try:
            ManagementUtility(["manage.py", *map(str, words)]).execute()
        except SystemExit as ended:
            code = ended.code
        return Said(code, *capsys.readouterr())

    return run


def manage_py(database, *words, input=None) -> Said:
    """manage.py as a process of its own."""
    command = [sys.executable, "manage.py", *map(str, words)]
    ended = subprocess.run(
        command, cwd=ROOT, env=database.environment, input=input, capture_output=True, timeout=120, check=False
    )
    return Said(ended.returncode, ended.stdout.decode("ascii" if "--json" in words else "utf-8"), ended.stderr.decode())


def digests_of(shown: dict) -> list[str]:
    return ["--payload-digest", shown["payload_digest"], "--facts-digest", shown["facts"]["now_digest"]]


def decide_as(manage, name, approval, verdict="approve", *more) -> Said:
    """Decide on what `approvals show` shows now."""
    shown = manage("approvals", "show", approval.pk, "--json").json
    return manage("approvals", "decide", approval.pk, verdict, "--as", name, "--json", *digests_of(shown), *more)


# runs list


def test_the_list_is_one_json_array_from_a_real_process_with_instants_in_utc(database, parked):
    said = manage_py(database, "runs", "list", "--json")
    assert said.code == 0
    (run,) = said.json
    assert (run["key"], run["status"], run["team"], run["wait"]["for"]) == ("run-1", "waiting", "claims", "papers")
    assert run["why"] == engine.explain(parked)
    assert run["created_at"].endswith("Z")
    assert datetime.fromisoformat(run["created_at"]) == parked.created_at


def test_the_list_in_words_says_why_each_run_does_not_move(manage, parked):
    said = manage("runs", "list")
    head, line = said.out.splitlines()
    assert head.split() == ["RUN", "STATUS", "WORKFLOW", "TEAM", "STARTED", "WHY"]
    assert line.startswith("run-1  waiting  under-test  claims")
    assert line.endswith(engine.explain(parked))


def test_filters_narrow_the_list(manage, parked, people):
    def keys(*words):
        return [run["key"] for run in manage("runs", "list", "--json", *words).json]

    engine.start("under-test", key="run-2", input={}, team="other-claims")
    assert keys() == ["run-2", "run-1"]
    assert keys("--status", "waiting") == ["run-1"]
    assert keys("--team", "other-claims") == ["run-2"]
    assert keys("--workflow", "under-test", "--status", "ready") == ["run-2"]
    assert keys("--workflow", "another") == []


def test_a_list_that_was_cut_says_so_without_spoiling_its_json(manage, parked, people):
    engine.start("under-test", key="run-2", input={}, team=people.team)
    cut, whole = manage("runs", "list", "--limit", 1, "--json"), manage("runs", "list", "--limit", 2, "--json")
    assert [run["key"] for run in cut.json] == ["run-2"]
    assert "There are more than 1 runs" in cut.err
    assert len(whole.json) == 2
    assert "There are more" not in whole.err


def test_a_person_sees_the_runs_of_the_own_teams_and_the_system_sees_all(manage, parked):
    assert len(manage("runs", "list", "--json").json) == 1
    assert len(manage("runs", "list", "--json", "--as", "ada").json) == 1
    assert len(manage("runs", "list", "--json", "--as", "aud").json) == 1
    assert manage("runs", "list", "--json", "--as", "eve").json == []
    assert manage("runs", "list", "--as", "eve").out == "No runs.\n"


# runs show, runs why


def test_show_tells_steps_calls_and_moves(manage, waiting, people):
    answer(waiting, people.adjuster)
    drain()
    run = manage("runs", "show", "run-1", "--json").json
    assert [(step["position"], step["step"], step["state"], step["attempts"]) for step in run["steps"]] == [
        (1, "assess", "done", 1),
        (2, "approve_payout", "done", 1),
        (3, "pay_claimant", "done", 1),
    ]
    assert run["steps"][2]["output"] == {"payment": {"paid": 184000}}
    assert all(step["took"] >= 0 for step in run["steps"])
    (call,) = run["calls"]
    assert (call["key"], call["state"], call["replayed"]) == ("run-1:step3", "confirmed", False)
    moves = [(move["from"], move["to"], move["user"]) for move in run["transitions"]]
    assert moves[0] == ("", "ready", "rick")
    assert ("waiting", "ready", "ada") in moves
    assert moves[-1] == ("running", "completed", None)
    assert (run["status"], run["earlier_positions"]) == ("completed", 0)


def test_show_in_words_shortens_an_output_and_says_by_how_much(manage, waiting):
    text = json.dumps({"note": "x" * 300})
    said = manage("runs", "show", "run-1")
    (line,) = [line for line in said.out.splitlines() if " assess " in line and "xxx" in line]
    assert line.endswith(f"{text[:160]} … {len(text) - 160} more characters")
    assert "x" * 300 not in said.out
    assert manage("runs", "show", "run-1", "--json").json["steps"][0]["output"] == {"note": "x" * 300}


def test_show_says_of_a_call_that_it_was_replayed(manage, waiting, people):
    answer(waiting, people.adjuster)
    drain()
    Call.objects.update(replayed=True)
    assert manage("runs", "show", "run-1", "--json").json["calls"][0]["replayed"] is True
    assert "confirmed, replayed" in manage("runs", "show", "run-1").out


def test_why_is_the_pages_sentence(manage, parked):
    assert manage("runs", "why", "run-1").out == engine.explain(parked) + "\n"
    said = {"key": "run-1", "status": "waiting", "why": engine.explain(parked)}
    assert manage("runs", "why", "run-1", "--json").json == said


@pytest.mark.parametrize("words", [["show", "no-such"], ["why", "no-such"], ["cancel", "no-such", "--why", "x"]])
def test_a_run_that_is_not_there_is_exit_code_3(manage, people, words):
    said = manage("runs", *words)
    assert (said.code, said.out) == (3, "")
    assert "There is no run no-such." in said.err


@pytest.mark.parametrize("verb", [["show"], ["why"], ["cancel", "--why", "x"]])
def test_strangers_hear_of_a_run_what_they_hear_of_none(manage, parked, verb):
    said = manage("runs", verb[0], "run-1", *verb[1:], "--as", "eve", "--json")
    assert said.code == 3
    assert said.json["error"]["type"] == "NoSuchRun"
    assert said.json["error"]["message"].startswith("There is no run run-1.")
    parked.refresh_from_db()
    assert parked.status == "waiting"


# runs start


def start(manage, *words, key="new-1", name="under-test", team="claims") -> Said:
    return manage("runs", "start", name, key, "--team", team, *words)


def test_start_takes_its_input_from_the_line_or_a_file_and_twice_is_once(manage, parked, tmp_path):
    file = tmp_path / "input.json"
    file.write_text('{"payee": "Zoë"}')
    first = start(manage, "--input", '{"payee": "Zo\\u00eb"}', "--json")
    again = start(manage, "--input", f"@{file}", "--json")
    assert (first.code, again.code) == (0, 0)
    assert first.json == again.json
    assert (first.json["status"], first.json["requested_by"]) == ("ready", None)
    assert Run.objects.get(key="new-1").input == {"payee": "Zoë"}


def test_start_reads_standard_input_in_a_real_process(database, people):
    words = ["runs", "start", "claim-payout", "claim-9", "--team", "claims", "--input", "-", "--json"]
    said = manage_py(database, *words, input=b'{"claim": "claim-9"}')
    assert said.code == 0, said.err
    assert (said.json["key"], said.json["workflow"]) == ("claim-9", "claim-payout")
    assert Run.objects.get().input == {"claim": "claim-9"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"a": {"amount": NaN}}', "input.a.amount is NaN"),
        ('{"a": [1, -Infinity]}', "input.a[1] is NaN or infinite"),
        ('{"a": 1e999}', "input.a is NaN or infinite"),
        ('{"a": 1, "a": 2}', 'the name "a" twice'),
        ('{"a": "\\ud83d"}', "input.a is text with half of a surrogate pair"),
        ("{nonsense", "input is not JSON"),
        ("@no/such/file.json", "no/such/file.json cannot be read"),
    ],
)
def test_input_that_is_not_json_is_a_usage_error_that_names_the_place(manage, parked, text, named):
    said = start(manage, "--input", text, "--json")
    assert said.code == 2
    assert named in said.json["error"]["message"]
    assert not Run.objects.filter(key="new-1").exists()


@pytest.mark.parametrize(
    ("changes", "kind", "sentence"),
    [
        ({"key": "run-1"}, "AlreadyStarted", "with another input"),
        ({"key": "UPPER"}, "BadRequest", "run key"),
        ({"name": "no-such"}, "BadRequest", "There is no workflow no-such."),
        ({"team": "no-such"}, "BadRequest", "There is no team (group) no-such."),
    ],
)
def test_what_the_engine_refuses_is_exit_code_1_with_its_sentence(manage, parked, changes, kind, sentence):
    said = start(manage, "--input", '{"a": 1}', "--json", **changes)
    assert said.code == 1
    assert said.json["error"]["type"] == kind
    assert sentence in said.json["error"]["message"]
    assert sentence in said.err
    assert Run.objects.count() == 1


def test_an_input_that_is_no_object_is_refused(manage, parked):
    said = start(manage, "--input", "[1]")
    assert (said.code, said.out) == (1, "")
    assert "must be a JSON object" in said.err


def test_a_person_starts_runs_of_the_own_team_only(manage, parked):
    for name in ("eve", "aud"):
        said = start(manage, "--input", "{}", "--as", name, "--json")
        assert (said.code, said.json["error"]["type"]) == (1, "NotAllowed")
    refused = AuditEvent.objects.filter(kind="verb-refused").values_list("user__username", flat=True)
    assert list(refused) == ["eve", "aud"]
    assert start(manage, "--input", "{}", "--as", "olga", "--json").json["requested_by"] == "olga"


# runs cancel


def test_ops_cancel_with_a_reason_and_an_adjuster_may_not(manage, parked):
    refused = manage("runs", "cancel", "run-1", "--why", "x", "--as", "ada", "--json")
    assert (refused.code, refused.json["error"]["type"]) == (1, "NotAllowed")
    said = manage("runs", "cancel", "run-1", "--why", "withdrawn by the claimant", "--as", "olga", "--json")
    assert (said.code, said.json["status"]) == (0, "cancelled")
    move = parked.transitions.last()
    assert (move.to_status, move.why, move.actor) == ("cancelled", "withdrawn by the claimant", "command line")
    assert move.user.username == "olga"


def test_cancelling_twice_is_no_error_and_the_first_reason_stays(manage, parked):
    manage("runs", "cancel", "run-1", "--why", "first")
    assert manage("runs", "cancel", "run-1", "--why", "second").code == 0
    parked.refresh_from_db()
    assert parked.reason == "first"


def test_a_completed_run_and_an_empty_reason_are_refused(manage, parked):
    assert manage("runs", "cancel", "run-1", "--why", " ").code == 1
    engine.deliver("run-1", "papers", {})
    drain()
    said = manage("runs", "cancel", "run-1", "--why", "too late")
    assert (said.code, said.out) == (1, "")
    assert "Run run-1 is completed, so it cannot be cancelled." in said.err


# The command line itself


@pytest.mark.parametrize(
    "words",
    [
        ["runs"],
        ["runs", "list", "--status", "odd"],
        ["runs", "list", "--limit", "0"],
        ["runs", "list", "--as", "nobody"],
        ["runs", "show", "run-\udcff"],
        ["runs", "cancel", "run-1"],
        ["approvals", "show", "one"],
        ["approvals", "decide", "1", "maybe", "--as", "ada"],
        ["approvals", "decide", "1", "approve"],
        ["approvals", "list", "--as", "nobody"],
    ],
)
def test_a_wrong_command_line_is_exit_code_2_and_prints_nothing(manage, parked, words):
    said = manage(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err


def test_somebody_whose_account_is_switched_off_is_nobody(manage, parked, people):
    people.ops.is_active = False
    people.ops.save()
    said = manage("runs", "cancel", "run-1", "--why", "x", "--as", "olga", "--json")
    assert (said.code, said.json["error"]["message"]) == (2, "There is no active user olga.")


@pytest.mark.parametrize(
    "words", [["runs"], ["runs", "list"], ["approvals"], ["approvals", "decide"], ["verify_ledger"]]
)
def test_help_documents_the_exit_codes(manage, people, words):
    said = manage(*words, "--help")
    assert said.code == 0
    assert "Exit code 0:" in " ".join(said.out.split())


# approvals list, approvals show


def test_the_list_holds_what_waits_and_overdue_what_nobody_answered(manage, waiting):
    (listed,) = manage("approvals", "list", "--json", "--as", "ada").json
    assert (listed["id"], listed["run"], listed["overdue"]) == (waiting.pk, "run-1", False)
    assert (listed["groups"], listed["requested_by"]) == (["adjusters"], "rick")
    assert listed["statement"] == "Pay 1,840.00 USD to M. Delacroix"
    assert manage("approvals", "list", "--json", "--as", "eve").json == []
    assert manage("approvals", "list", "--json", "--overdue").json == []
    move_clock(timedelta(days=3, seconds=1))
    (late,) = manage("approvals", "list", "--json", "--overdue").json
    assert (late["id"], late["overdue"]) == (waiting.pk, True)
    assert "(overdue)" in manage("approvals", "list").out


def test_a_decided_approval_waits_no_longer(manage, waiting, people):
    answer(waiting, people.adjuster)
    assert manage("approvals", "list").out == "No approvals wait.\n"


def test_show_prints_the_exact_payload_its_digest_and_the_facts_then_and_now(manage, waiting):
    world["claim status"] = "closed"
    world["payee checked"] = True
    shown = manage("approvals", "show", waiting.pk, "--json").json
    assert shown["payload"] == waiting.payload
    assert shown["payload_digest"] == waiting.payload_digest
    assert (shown["status"], shown["decisions"]) == ("open", [])
    assert shown["facts"]["then"] == {"claim status": "open"}
    assert shown["facts"]["now"] == {"claim status": "closed", "payee checked": True}
    assert shown["facts"]["differences"] == [
        {"name": "claim status", "then": "open", "now": "closed", "change": "changed"},
        {"name": "payee checked", "then": None, "now": True, "change": "added"},
    ]
    text = manage("approvals", "show", waiting.pk).out
    for part in (waiting.statement, waiting.payload, waiting.payload_digest, shown["facts"]["now_digest"]):
        assert part in text
    assert 'claim status   "open"     "closed"  changed' in text


def test_show_of_a_decided_one_tells_who_signed_what(manage, waiting, people):
    world["claim status"] = "reopened"
    answer(waiting, people.adjuster, comment="Seen by two.")
    shown = manage("approvals", "show", waiting.pk, "--json").json
    assert shown["status"] == "approved"
    (decision,) = shown["decisions"]
    assert (decision["signer"], decision["verdict"], decision["sequence"]) == ("ada", "approve", 1)
    assert (shown["facts"]["now"], shown["facts"]["signed"]) == (None, {"claim status": "reopened"})
    text = manage("approvals", "show", waiting.pk).out
    assert "approve by ada at " in text
    assert "Seen by two." in text
    assert "SIGNED" in text


def test_show_tells_a_person_which_rule_forbids_deciding(manage, waiting):
    assert manage("approvals", "show", waiting.pk, "--as", "ada", "--json").json["forbidden_because"] == ""
    assert (
        "Not yours to decide: Only adjusters may decide this."
        in manage("approvals", "show", waiting.pk, "--as", "olga").out
    )


def test_strangers_are_shown_no_approval(manage, waiting):
    for words in ([waiting.pk, "--as", "eve"], [waiting.pk + 1]):
        said = manage("approvals", "show", *words, "--json")
        assert said.code == 3
        assert said.json["error"]["message"].startswith(f"There is no approval {words[0]}.")


def test_no_text_can_hide_or_forge_what_is_signed(manage, payout, people):
    approval = asked(people, "run-1", payee=f"M.{RIGHT_TO_LEFT} Delacroix\nPayload digest: {'0' * 64}")
    text = manage("approvals", "show", approval.pk).out
    assert RIGHT_TO_LEFT not in text
    assert "Beware, unseen characters are spelled here: U+202E RIGHT-TO-LEFT OVERRIDE" in text
    digest_lines = [line for line in text.splitlines() if line.startswith("Payload digest: ")]
    assert digest_lines == [f"Payload digest: {approval.payload_digest}"]
    assert manage("approvals", "show", approval.pk, "--json").json["payload"] == approval.payload


# approvals decide


def test_an_approval_on_the_command_line_is_signed_and_pays_once(manage, waiting, people):
    said = decide_as(manage, "ada", waiting, "approve", "--comment", "Photos agree.")
    assert said.code == 0, said.err
    entry = LedgerEntry.objects.get()
    record = ledger.told(entry)
    assert (record["signer_name"], record["comment"]) == ("ada", "Photos agree.")
    assert (record["auth_method"], record["auth_age"]) == ("command-line", None)
    assert (said.json["sequence"], said.json["entry_hash"]) == (1, entry.entry_hash)
    assert (said.json["status"], said.json["payload_digest"]) == ("approved", waiting.payload_digest)
    drain()
    assert Run.objects.get().status == "completed"
    assert paid == ["run-1:step3"]
    move = Run.objects.get().transitions.filter(from_status="waiting").get()
    assert (move.user.username, move.actor) == ("ada", "command line")


def test_a_rejection_ends_the_run_unpaid(manage, waiting):
    said = decide_as(manage, "ada", waiting, "reject", "--comment", "Wrong payee.")
    assert (said.code, said.json["verdict"], said.json["status"]) == (0, "reject", "rejected")
    drain()
    assert (Run.objects.get().outcome, paid) == ("rejected", [])


def test_the_same_answer_again_is_the_first_receipt(manage, waiting):
    first, again = decide_as(manage, "ada", waiting), decide_as(manage, "ada", waiting)
    assert (again.code, again.json) == (0, first.json)
    assert Decision.objects.count() == 1


def refuse(said: Said, code: int, status: int, kind: str, sentence: str) -> None:
    assert said.code == code
    error = said.json["error"]
    assert (error["status"], error["type"]) == (status, kind)
    assert sentence in error["message"]
    assert sentence in said.err


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("olga", "Only adjusters may decide this."),
        ("rick", "Whoever asked for this may not approve it: four eyes."),
        ("root", "A superuser sees everything and decides nothing."),
        ("aud", "Only adjusters may decide this."),
    ],
)
def test_who_may_not_decide_is_told_the_rule(manage, waiting, name, sentence):
    refuse(decide_as(manage, name, waiting), 1, 403, "NotAnApprover", sentence)
    refuse(
        manage("approvals", "decide", waiting.pk, "approve", "--as", name, "--yes", "--json"),
        1, 403, "NotAnApprover", sentence,
    )  # fmt: skip
    assert not Decision.objects.exists()
    refused = AuditEvent.objects.filter(kind="decision-refused").values_list("user__username", "actor")
    assert list(refused) == [(name, "command line")] * 2


def test_a_stranger_finds_no_approval_to_decide(manage, waiting):
    refuse(decide_as(manage, "eve", waiting), 3, 404, "Stranger", "There is no such approval.")
    assert manage("approvals", "decide", waiting.pk, "approve", "--as", "eve", "--yes").code == 3
    assert not Decision.objects.exists()


def test_nobody_decides_once_the_time_is_over(manage, waiting):
    move_clock(timedelta(days=3, seconds=1))
    refuse(decide_as(manage, "ada", waiting), 1, 410, "TooLate", "This approval expired at")
    drain()
    refuse(decide_as(manage, "ada", waiting), 1, 410, "TooLate", "This approval expired at")
    assert not Decision.objects.exists()


def test_what_changed_since_it_was_shown_is_not_signed(manage, waiting):
    shown = manage("approvals", "show", waiting.pk, "--json").json
    words = ["approvals", "decide", waiting.pk, "approve", "--as", "ada", "--json"]
    other = ["--payload-digest", "0" * 64, "--facts-digest", shown["facts"]["now_digest"]]
    refuse(manage(*words, *other), 1, 412, "Changed", "The payload changed since you saw it.")
    world["claim status"] = "closed"
    refuse(manage(*words, *digests_of(shown)), 1, 412, "Changed", "The facts changed since you saw it.")
    assert not Decision.objects.exists()


def test_one_digest_that_is_given_counts_even_when_another_is_shown(manage, waiting):
    words = ["--payload-digest", "0" * 64, "--yes", "--json"]
    said = manage("approvals", "decide", waiting.pk, "approve", "--as", "ada", *words)
    refuse(said, 1, 412, "Changed", "The payload changed since you saw it.")


def test_a_second_person_is_told_who_decided_before(manage, waiting, people):
    answer(waiting, people.adjuster)
    refuse(decide_as(manage, "ben", waiting), 1, 409, "AlreadyDecided", "already approved by ada at")
    engine.start("under-test", key="run-2", input={"payee": "P"}, team=people.team)
    drain()
    engine.cancel("run-2", by=None, why="withdrawn")
    withdrawn = Approval.objects.get(run__key="run-2")
    refuse(decide_as(manage, "ada", withdrawn), 1, 409, "AlreadyDecided", "already cancelled with its run")


def test_a_rejection_needs_a_reason(manage, waiting):
    refuse(decide_as(manage, "ada", waiting, "reject"), 1, 422, "Invalid", "Say why you reject it")


def test_without_digests_and_terminal_it_shows_what_would_be_signed_and_signs_nothing(manage, waiting):
    said = manage("approvals", "decide", waiting.pk, "approve", "--as", "ada")
    assert said.code == 2
    assert "--yes" in said.err
    for part in (waiting.statement, waiting.payload, waiting.payload_digest, "exactly these bytes be sent"):
        assert part in said.out
    assert not Decision.objects.exists()


def test_yes_signs_what_is_shown_and_keeps_standard_output_pure(manage, waiting):
    said = manage("approvals", "decide", waiting.pk, "approve", "--as", "ada", "--yes", "--json")
    assert (said.code, said.json["verdict"]) == (0, "approve")
    assert waiting.payload in said.err


@pytest.mark.parametrize(("typed", "code"), [("approve", 0), ("yes", 1)])
def test_at_a_terminal_the_verdict_has_to_be_typed(database, payout, people, typed, code):
    approval = asked(people, "run-1", facts=False)
    keyboard, terminal = pty.openpty()
    os.write(keyboard, f"{typed}\n".encode())
    command = [sys.executable, "manage.py", "approvals", "decide", str(approval.pk), "approve", "--as", "ada"]
    ended = subprocess.run(
        command, cwd=ROOT, env=database.environment, stdin=terminal, capture_output=True, timeout=120, check=False
    )
    os.close(keyboard)
    os.close(terminal)
    assert ended.returncode == code, ended.stderr
    assert b'Type "approve" to sign: ' in ended.stdout
    assert approval.payload.encode() in ended.stdout
    assert Decision.objects.exists() == (typed == "approve")


# verify_ledger

WHOLE = {"ok": True, "problems": [], "faults": [], "withheld": 0, "checkpoints": 0}


def test_a_whole_ledger_is_exit_code_0_with_its_head(manage, waiting, people):
    assert manage("verify_ledger", "--json").json == WHOLE | {"entries": 0, "head_hash": "0" * 64}
    answer(waiting, people.adjuster)
    said = manage("verify_ledger", "--json")
    assert said.code == 0
    head = LedgerEntry.objects.get().entry_hash
    assert said.json == WHOLE | {"entries": 1, "head_hash": head}
    assert f"entries: 1\nhead:    {head}\n" in manage("verify_ledger").out


@pytest.fixture
def two_entries(waiting, people) -> None:
    answer(waiting, people.adjuster)
    answer(asked(people, "run-2"), people.second_adjuster)


@pytest.mark.parametrize(
    "tampering",
    [
        (
            "UPDATE approvals_ledgerentry SET record = replace(record, 'password', 'passkeys') WHERE sequence = 2",
            "Entry 2: its record is not the one that was hashed.",
            26,
        ),
        (
            "UPDATE approvals_ledgerentry SET signature = reverse(signature) WHERE sequence = 1",
            "Entry 1: its signature does not fit its record.",
            27,
        ),
        (
            "UPDATE approvals_decision SET comment = 'x' WHERE entry_id = 1",
            "Entry 1: the decision's row says something",
            24,
        ),
        ("UPDATE approvals_ledgerhead SET sequence = 1", "The head says 1 entries, the chain has 2", 15),
    ],
)
def test_one_altered_byte_is_named_and_its_fault_is_the_exit_code(database, manage, two_entries, tampering):
    statement, problem, code = tampering
    tamper(database, statement)
    said = manage("verify_ledger", "--json")
    assert said.code == code
    assert said.json["ok"] is False
    assert said.json["entries"] == 2
    assert any(problem in each for each in said.json["problems"])
    in_words = manage("verify_ledger")
    assert in_words.code == code
    assert problem in in_words.out
    assert "The ledger is not whole" in in_words.err
