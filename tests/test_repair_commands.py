"""The operators' verbs on the command line: each acts and refuses as its verb does, and exits honestly."""

import io
import json
import sys
from datetime import timedelta

import pytest
from django.core.management import ManagementUtility
from stage import Stage
from test_commands import Said

from runs import engine
from runs.errors import PermanentError, Refused
from runs.models import AuditEvent, Run, Transition
from runs.testing import drain
from runs.waits import event
from runs.workflows import Caps

WHY = ["--why", "agreed with the claimant"]


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture
def manage(capsys, monkeypatch):
    """`manage.py runs` as typed by olga of ops, with --json; what it printed and its exit code."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def run(*words, user="olga", as_json=True) -> Said:
        capsys.readouterr()
        code = 0
        who = ["--as", user] if user else []
        try:
            ManagementUtility(["manage.py", "runs", *words, *who, *(["--json"] if as_json else [])]).execute()
        except SystemExit as ended:
            code = ended.code
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture
def waiting(stage) -> Run:
    """run-1, which waits for the event papers."""

    @stage.flow.step
    def hear(ctx):
        return event("papers", expires_in=timedelta(days=1))

    return stage.begin()


@pytest.fixture
def dead(stage) -> Run:
    """run-1, dead at its second step: the first paid, the second gave up."""
    pay = stage.tool()

    @stage.flow.step
    def settle(ctx):
        return {"payment": ctx.call(pay, amount_minor=184_000)}

    @stage.flow.step
    def file(ctx):
        if ctx.input.get("papers") is None:
            raise PermanentError("there are no papers")
        return {}

    return stage.begin()


def done(said: Said, status: str) -> dict:
    assert said.code == 0, said.err
    assert said.json["status"] == status
    return said.json


def test_a_wait_is_extended_by_command_with_who_and_why_and_only_to_a_later_time(manage, waiting):
    later = waiting.due_at + timedelta(days=1)
    told = done(manage("extend", "run-1", "--until", later.isoformat(), *WHY), "waiting")
    assert told["wait"]["due_at"] == f"{later:%Y-%m-%dT%H:%M:%S.%fZ}"
    kept = AuditEvent.objects.get(kind="wait-extended")
    assert (kept.user.username, kept.actor, kept.detail.endswith(": agreed with the claimant")) == (
        "olga",
        "command line",
        True,
    )
    naive = f"{later + timedelta(hours=5):%Y-%m-%dT%H:%M}"
    assert done(manage("extend", "run-1", "--until", naive, *WHY), "waiting")["wait"]["due_at"] == f"{naive}:00.000000Z"
    assert manage("extend", "run-1", "--until", "2020-01-01", *WHY).code == 1
    assert manage("extend", "run-1", "--until", "tomorrow", *WHY).code == 2
    assert manage("extend", "run-1", "--until", later.isoformat()).code == 2
    assert manage("extend", "run-1", "--until", later.isoformat(), *WHY, user="ada").code == 1
    assert manage("extend", "run-1", "--until", later.isoformat(), *WHY, user="eve").code == 3


def refused(said: Said, kind: str, sentence: str, code: int = 1) -> None:
    assert (said.code, said.json["error"]["type"]) == (code, kind)
    assert sentence in said.json["error"]["message"]
    assert sentence in said.err


def last_move(key: str = "run-1") -> tuple[str, str, str, str]:
    move = Transition.objects.filter(run__key=key).last()
    return move.to_status, move.why, move.actor, move.user.username


def test_pause_and_resume(manage, waiting):
    refused(manage("resume", "run-1", *WHY), "IllegalMove", "Run run-1 is waiting, so it cannot be resumed.")
    done(manage("pause", "run-1", *WHY), "paused")
    assert last_move() == ("paused", "agreed with the claimant", "command line", "olga")
    done(manage("resume", "run-1", *WHY), "waiting")
    assert last_move() == ("waiting", "agreed with the claimant", "command line", "olga")
    refused(manage("pause", "run-1", *WHY, user="ada"), "NotAllowed", "takes the right to operate runs")


def test_retry(manage, stage):
    @stage.flow.step
    def shaky(ctx):
        raise OSError("not yet")

    stage.begin()
    done(manage("retry", "run-1", *WHY), "ready")
    assert last_move() == ("ready", "agreed with the claimant", "command line", "olga")
    refused(manage("retry", "run-1", *WHY), "IllegalMove", "Run run-1 is ready, so it cannot be tried again now.")


def test_raise_cap(manage, stage):
    stage.flow.caps = Caps(steps=1)
    stage.calls_then_goes_on(stage.tool())
    assert stage.begin().wait_kind == "cap"
    refused(manage("raise-cap", "run-1", *WHY), "BadRequest", "Say which cap to raise")
    done(manage("raise-cap", "run-1", *WHY, "--steps", "2", "--working-time", "60", "--age", "86400"), "ready")
    assert Run.objects.get().caps == {"steps": 2, "working_time": 60.0, "age": 86400.0}
    assert last_move() == ("ready", "agreed with the claimant", "command line", "olga")


@pytest.mark.parametrize("given", [["--steps", "0"], ["--age", "-1"], ["--working-time", "1e9"], ["--steps", "9" * 30]])
def test_a_cap_that_is_no_whole_number_is_a_wrong_command_line(manage, waiting, given):
    said = manage("raise-cap", "run-1", *WHY, *given)
    assert (said.code, said.out) == (2, "")
    assert Run.objects.get().caps is None


def test_redrive_and_discard(manage, dead):
    done(manage("redrive", "run-1", *WHY), "ready")
    refused(manage("redrive", "run-1", *WHY), "IllegalMove", "Run run-1 is ready, so it cannot be redriven.")
    refused(manage("discard", "run-1", *WHY), "IllegalMove", "Run run-1 is ready, so it cannot be discarded.")
    drain()
    assert done(manage("discard", "run-1", *WHY), "cancelled")["outcome"] == "discarded"
    assert last_move() == ("cancelled", "agreed with the claimant", "command line", "olga")


def test_a_fork_is_previewed_then_made_with_another_input(manage, dead, stage):
    preview = manage("fork", "run-1", "run-2", *WHY, "--preview")
    assert (preview.code, preview.json["key"], preview.json["position"]) == (0, "run-1", 1)
    assert [(call["key"], call["state"], call["blocks"]) for call in preview.json["repeats"]] == [
        ("run-1:step1", "confirmed", False)
    ]
    refused(manage("fork", "run-1", "run-2", *WHY), "BadRequest", "makes these effects again: run-1:step1.")
    assert not Run.objects.filter(key="run-2").exists()
    given = ["--repeat", "run-1:step1", "--input", '{"papers": 3}']
    answer = done(manage("fork", "run-1", "run-2", *WHY, *given), "ready")
    assert (answer["key"], answer["forked_from"], answer["requested_by"]) == ("run-2", "run-1", "olga")
    drain()
    made = Run.objects.get(key="run-2")
    assert (made.status, made.input, stage.receiver.keys) == (
        "completed",
        {"papers": 3},
        ["run-1:step1", "run-2:step1"],
    )


def test_a_fork_from_the_middle_repeats_nothing_that_came_before(manage, dead, tmp_path):
    file = tmp_path / "input.json"
    file.write_text('{"papers": 4}')
    assert "makes no effect again" in manage("fork", "run-1", "x", *WHY, "--preview", "--from", "2", as_json=False).out
    said = manage("fork", "run-1", "run-2", *WHY, "--from", "2", "--input", f"@{file}")
    assert (done(said, "ready")["next_step"], Run.objects.get(key="run-2").input) == ("file", {"papers": 4})
    move = ("ready", "forked from run-1 at step 2: agreed with the claimant", "command line", "olga")
    assert last_move("run-2") == move
    refused(manage("fork", "run-1", "x", *WHY, "--preview", "--from", "3"), "BadRequest", "at steps 1 to 2")


def test_the_preview_in_words_says_what_to_do_about_each_effect(manage, stage):
    stage.calls_then_goes_on(stage.tool())
    stage.receiver.script = [TimeoutError("no answer"), Refused("closed")]
    stage.begin()
    engine.cancel("run-1", why="withdrawn")
    said = manage("fork", "run-1", "run-2", *WHY, "--preview", as_json=False)
    assert "run-1:step1  test.pay  unknown  blocks the fork: it must be settled first" in said.out
    refused(manage("fork", "run-1", "run-2", *WHY), "BadRequest", "It is not known whether run-1:step1 happened")


def test_deliver_says_whether_a_step_takes_the_event(manage, waiting):
    early = manage("deliver", "run-1", "photos", "--body", "{}", as_json=False)
    assert early.out.startswith("No step waits for the event photos now: it is kept.\nrun-1: waiting.")
    answer = done(manage("deliver", "run-1", "papers", "--body", '{"pages": 3}'), "ready")
    assert (answer["event"]["name"], answer["event"]["taken_at_position"]) == ("papers", 1)
    drain()
    assert Run.objects.get().checkpoints.get().output == {"event": {"pages": 3}}
    refused(manage("deliver", "run-1", "papers", "--body", "{}"), "IllegalMove", "Run run-1 is completed")
    assert manage("deliver", "run-1", "papers", "--body", '{"a": NaN}').code == 2


COMMANDS = [
    ["pause", "run-1", *WHY],
    ["resume", "run-1", *WHY],
    ["retry", "run-1", *WHY],
    ["raise-cap", "run-1", *WHY, "--steps", "9"],
    ["redrive", "run-1", *WHY],
    ["discard", "run-1", *WHY],
    ["fork", "run-1", "run-2", *WHY],
    ["fork", "run-1", "run-2", *WHY, "--preview"],
    ["deliver", "run-1", "papers", "--body", "{}"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_strangers_hear_of_a_run_what_they_hear_of_none(manage, waiting, words):
    refused(manage(*words, user="eve"), "NoSuchRun", "There is no run run-1.", code=3)
    said = manage(words[0], "no-such", *words[2:], user=None)
    assert (said.code, said.json["error"]["type"]) == (3, "NoSuchRun")
    assert Transition.objects.filter(run=waiting).last().to_status == "waiting"


@pytest.mark.parametrize("words", [words for words in COMMANDS if "--preview" not in words], ids=lambda words: words[0])
def test_an_adjuster_is_told_the_rule_and_a_row_keeps_the_attempt(manage, waiting, words):
    refused(manage(*words, user="ada"), "NotAllowed", "ada does not have it.")
    assert list(AuditEvent.objects.values_list("kind", "user__username")) == [("verb-refused", "ada")]


@pytest.mark.parametrize("words", [words for words in COMMANDS if "--why" in words], ids=lambda words: words[0])
def test_a_reason_is_a_must(manage, waiting, words):
    at = words.index("--why")
    assert manage(*words[:at], *words[at + 2 :]).code == 2
    if "--preview" not in words:
        refused(manage(*words[:at], "--why", " ", *words[at + 2 :]), "BadRequest", "Say why you")


def test_the_answer_is_one_json_value(manage, waiting):
    assert json.loads(manage("pause", "run-1", *WHY).out)["key"] == "run-1"
