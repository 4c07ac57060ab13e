"""Checkpoints stay small: what is heavy goes to artefact storage before the row that names it, comes back equal, and is
opened only to the run that keeps it and to those who may see that run."""

import hashlib
import io
import json
from pathlib import Path

import pytest
from browsing import browser, text
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage, storages
from django.db import IntegrityError, connection
from django.test import Client
from stage import Killed, Stage, fresh, one_stretch
from worker_process import finish_with_a_kill_at

from runs import artefacts, engine, repair
from runs.checks import artefacts_can_be_written
from runs.models import Artefact, AuditEvent, Call, Checkpoint
from runs.reconciliation import settle_by_hand
from runs.testing import drain
from runs.tools import tool

HEAVY = "x" * 40_000


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture(autouse=True)
def folder(settings, tmp_path) -> Path:
    """Where artefacts lie in this test."""
    return keep_in(settings, tmp_path / "artefacts")


def keep_in(settings, folder: Path) -> Path:
    options = {"OPTIONS": {"location": str(folder)}}
    settings.STORAGES = settings.STORAGES | {"artefacts": settings.STORAGES["artefacts"] | options}
    return folder


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def rows() -> list[tuple[str, str]]:
    """The checkpoints' and answers' own JSON."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT step, output FROM runs_checkpoint ORDER BY position")
        return cursor.fetchall()


def returns(stage: Stage, *outputs: dict) -> list[dict]:
    """A step for each output, and one more behind them; the states that they see."""
    seen: list[dict] = []
    for number, output in enumerate([*outputs, {}], start=1):

        def step(ctx, output=output):
            seen.append(ctx.state)
            return output

        step.__name__ = f"step_{number}"
        stage.flow.step(step)
    return seen


def as_member(bytes_of_json: int) -> str:
    return "x" * (bytes_of_json - 2)


# What goes there by itself


@pytest.mark.parametrize(("size", "is_kept"), [(31_999, False), (32_000, False), (32_001, True)])
def test_a_member_over_32_kb_is_kept_outside_its_row_and_a_smaller_one_is_not(stage, folder, size, is_kept):
    returns(stage, {"small": 1, "report": as_member(size)})
    run = stage.begin()
    output = json.loads(rows()[0][1])
    assert (output["small"], output["report"] == as_member(size)) == (1, not is_kept)
    content = f'"{as_member(size)}"'.encode()
    sha256 = hashlib.sha256(content).hexdigest()
    assert files(folder) == ([sha256] if is_kept else [])
    kept = list(Artefact.objects.values_list("run", "position", "place", "sha256", "size", "media_type"))
    assert kept == ([(run.pk, 1, "output.report", sha256, size, "application/json")] if is_kept else [])
    if is_kept:
        assert output["report"] == {"$kept": {"sha256": sha256, "size": size, "media_type": "application/json"}}


def test_bytes_count_not_characters(stage, folder):
    returns(stage, {"report": "é" * 16_000})
    stage.begin()
    assert len(files(folder)) == 1


@pytest.mark.parametrize(
    "value",
    [
        HEAVY,
        {"pages": [HEAVY, {"n": 1, "f": 1.5, "none": None, "big": 10**30}]},
        [[1, 2.0, True, "é\u2028"] * 4_000],
        [HEAVY, "small", {"n": HEAVY}],
        ["x" * 300] * 300,
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16") * 9_000,
    ],
    ids=["text", "object", "list", "list of heavy and small", "long list of small", "beyond the BMP"],
)
def test_what_a_step_returned_and_what_later_steps_read_are_equal(stage, value):
    seen = returns(stage, {"value": value, "other": 1})
    run = stage.begin()
    assert len(rows()[0][1]) < 2_000
    assert seen[1] == {"value": value, "other": 1}
    assert json.dumps(seen[1]) == json.dumps({"value": value, "other": 1})
    # Another worker has only the row to read.
    assert json.dumps(in_another_stretch(run)) == json.dumps(seen[1])


def in_another_stretch(run) -> dict:
    from runs.calls import State

    return State(run.pk, fresh(run).position, frozenset(["messages"])).fold()


def test_small_outputs_touch_no_storage(stage, folder, settings):
    blocked = folder.parent / "a file"
    blocked.write_text("")
    keep_in(settings, blocked)
    seen = returns(stage, {"a": "x" * 31_000}, {"b": [1]})
    run = stage.begin()
    assert (run.status, seen[2], Artefact.objects.count()) == ("completed", {"a": "x" * 31_000, "b": [1]}, 0)


def test_the_same_bytes_are_stored_once_whoever_keeps_them(stage, folder):
    returns(stage, {"one": HEAVY, "two": HEAVY}, {"three": [HEAVY, "small"]})
    stage.begin("run-1")
    stage.begin("run-2")
    assert len(files(folder)) == 1
    assert Artefact.objects.values("run").distinct().count() == 2
    assert Artefact.objects.count() == 6


def test_a_heavy_element_of_a_list_that_is_appended_to_is_kept_alone_and_the_list_appends(stage, folder):
    stage.flow.appends = frozenset({"messages"})
    seen = returns(stage, {"messages": ["hello", HEAVY]}, {"messages": [HEAVY, "bye"]})
    run = stage.begin()
    assert json.loads(rows()[0][1])["messages"][0] == "hello"
    assert len(files(folder)) == 1
    assert seen[2]["messages"] == ["hello", HEAVY, HEAVY, "bye"] == in_another_stretch(run)["messages"]


def test_a_list_that_is_heavy_for_its_many_small_elements_is_kept_whole_and_still_appends(stage, folder):
    stage.flow.appends = frozenset({"messages"})
    many = [f"message {number}" for number in range(4_000)]
    seen = returns(stage, {"messages": many}, {"messages": ["one more"]}, {"messages": many})
    run = stage.begin()
    assert set(json.loads(rows()[0][1])["messages"]) == {"$kept"}
    assert seen[3]["messages"] == [*many, "one more", *many] == in_another_stretch(run)["messages"]


def test_what_later_steps_overwrote_is_not_read_again(stage, folder):
    returns(stage, {"report": HEAVY}, {"report": "short"})
    run = stage.begin()
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()
    assert in_another_stretch(run) == {"report": "short"}


# What looks like ours and is not


@pytest.mark.parametrize(
    "value",
    [
        {"$kept": {"sha256": "0" * 64, "size": 3, "media_type": "application/json"}},
        {"deep": [{"$kept": 1}]},
        [{"$kept": {"sha256": "0" * 64, "size": 3, "media_type": "application/json"}}, 1],
        {"$artefact": {"sha256": "0" * 64, "size": 3, "media_type": "application/json"}},
        '{"$kept":{"sha256":"…"}}',
        {"$kept": 1, "and": 2},
    ],
)
def test_a_value_from_outside_that_looks_like_a_mark_is_only_a_value(stage, value):
    seen = returns(stage, {"value": value}, {"$kept": value})
    run = stage.begin()
    assert (run.status, seen[2]) == ("completed", {"value": value, "$kept": value})
    assert in_another_stretch(run) == seen[2]


def test_an_answer_that_looks_like_a_mark_opens_nothing(stage):
    other = artefacts.keep(b'"the secret of another run"', media_type="application/json")
    forged = {"$kept": other._asdict()}

    @tool("test.ask")
    def ask() -> dict:
        return forged

    answers = []

    @stage.flow.step
    def asks(ctx):
        answers.append(ctx.call(ask))
        if len(answers) == 1:
            raise OSError("once more")
        return {"asked": answers[-1]}

    stage.begin()
    stage.later()
    assert answers == [forged, forged]
    assert in_another_stretch(engine.find("run-1", None)) == {"asked": forged}


# Answers


def reads(stage: Stage, answer: dict) -> tuple[list, list]:
    """A step that reads and fails once; how often the tool was used, and what the step was given."""
    used, given = [], []

    @tool("test.ask")
    def ask() -> dict:
        used.append(1)
        return answer

    @stage.flow.step
    def asks(ctx):
        given.append(ctx.call(ask))
        if len(given) == 1:
            raise OSError("once more")
        return {"done": True}

    return used, given


@pytest.mark.parametrize(
    "answer",
    [{"report": HEAVY, "n": 1}, {f"member {n}": "x" * 3_000 for n in range(20)}],
    ids=["one heavy member", "heavy in all"],
)
def test_a_heavy_answer_is_kept_outside_its_row_and_a_replayed_read_gives_it_whole(stage, folder, answer):
    used, given = reads(stage, answer)
    stage.begin()
    stage.later()
    assert (len(used), given) == (1, [answer, answer])
    assert len(json.dumps(Call.objects.get().answer)) < 1_000
    assert Artefact.objects.get().place.startswith("answer")


def test_an_effect_that_is_known_gives_its_heavy_answer_whole_again(stage):
    pay, given = stage.tool(), []
    stage.receiver.script = [{"receipt": HEAVY}]

    @stage.flow.step
    def settle(ctx):
        given.append(ctx.call(pay, amount_minor=5))
        if len(given) == 1:
            raise OSError("once more")
        return {}

    stage.begin()
    stage.later()
    assert given == [{"receipt": HEAVY}] * 2
    assert stage.receiver.keys == ["run-1:step1"]
    assert len(json.dumps(Call.objects.get().answer)) < 1_000


def test_the_request_of_an_effect_is_never_taken_out_of_its_row(stage, folder):
    pay = stage.tool()

    @stage.flow.step
    def settle(ctx):
        return ctx.call(pay, amount_minor=5, payee="p" * 40_000)

    stage.begin()
    request = json.loads(Call.objects.get().request)
    assert (request["arguments"]["payee"], files(folder)) == ("p" * 40_000, [])
    assert stage.receiver.received[0][1]["payee"] == "p" * 40_000


def test_an_effect_that_happened_is_recorded_though_the_storage_cannot_be_written(stage, folder, settings):
    blocked = folder.parent / "a file"
    blocked.write_text("")
    keep_in(settings, blocked)
    stage.receiver.script = [{"receipt": HEAVY}]
    stage.calls_then_goes_on(stage.tool())
    stage.begin()
    call = Call.objects.get()
    assert (call.state, call.answer) == ("confirmed", {"receipt": HEAVY})


def test_an_answer_given_by_hand_is_lightened_too_and_cannot_forge_a_mark(stage):
    other = artefacts.keep(b'"the secret of another run"', media_type="application/json")
    stage.receiver.script = [TimeoutError("no answer")] * 3
    stage.calls_then_goes_on(stage.tool())
    run = stage.begin()
    stage.later(times=3)
    assert fresh(run).status == "dead"
    forged = {"receipt": HEAVY, "forged": {"$kept": other._asdict()}}
    settle_by_hand("run-1:step1", outcome="confirmed", answer=forged, by=None, why="the bank says so")
    repair.redrive("run-1", why="known now")
    drain()
    assert fresh(run).status == "completed"
    assert in_another_stretch(run)["payment"] == forged


# Limits of a checkpoint


def spread(bytes_in_all: int) -> dict[str, str]:
    """An output of that many bytes, none of whose members is heavy."""
    output = {f"m{number:02}": "x" * 25_000 for number in range((bytes_in_all - 40) // 25_008)}
    left = bytes_in_all - len(json.dumps(output, separators=(",", ":"))) - len(',"rest":""')
    return output | {"rest": "x" * left}


@pytest.mark.parametrize(("size", "is_told"), [(63_999, False), (64_000, False), (64_001, True)])
def test_a_checkpoint_over_64_kb_is_told_of(stage, caplog, size, is_told):
    returns(stage, spread(size))
    run = stage.begin()
    assert len(rows()[0][1]) == size
    told = list(AuditEvent.objects.filter(kind="large-checkpoint").values_list("run", "position", "detail"))
    detail = f"step step_1 left a checkpoint of {size:,} bytes; 64,000 is large"
    assert told == ([(run.pk, 1, detail)] if is_told else [])
    logged = f"Run run-1, step step_1: its checkpoint 1 takes {size} bytes."
    assert (logged in caplog.messages) == is_told


@pytest.mark.parametrize(("size", "is_refused"), [(999_999, False), (1_000_000, False), (1_000_001, True)])
def test_a_checkpoint_over_1_mb_is_refused_with_step_and_path_before_anything_is_written(
    stage, folder, size, is_refused
):
    mark = {"$kept": artefacts.measured(f'"{HEAVY}"'.encode(), "application/json")._asdict()}
    beside = len(json.dumps({"heavy": mark}, separators=(",", ":"))) - len("{}") + len(",")
    returns(stage, spread(size - beside) | {"heavy": HEAVY})
    run = stage.begin()
    if not is_refused:
        assert (run.status, len(rows()[0][1])) == ("completed", size)
        return
    assert (run.status, run.position, run.attempt) == ("dead", 0, 1)
    assert run.reason.startswith(
        "Step step_1 failed for good: step step_1: output takes 1,000,001 bytes as JSON and the limit is 1,000,000"
    )
    assert "output.m00 is the largest (25,002 bytes)" in run.reason
    assert (Checkpoint.objects.count(), Artefact.objects.count(), files(folder)) == (0, 0, [])


def test_what_no_row_could_ever_hold_is_refused_with_its_path(stage, folder):
    returns(stage, {"a": 1, "report": "x" * 16_000_001})
    run = stage.begin()
    assert (run.status, files(folder)) == ("dead", [])
    assert "step step_1: output takes more than 16,000,000 bytes" in run.reason


# By hand


@pytest.mark.parametrize(
    ("content", "stored", "media_type"),
    [
        (b"\0\xff", b"\0\xff", "application/octet-stream"),
        ("é", "é".encode(), "text/plain; charset=utf-8"),
        (io.BytesIO(b"y" * 200_000), b"y" * 200_000, "application/octet-stream"),
        (b"", b"", "application/octet-stream"),
    ],
    ids=["bytes", "text", "file", "nothing"],
)
def test_what_is_kept_by_hand_is_read_by_its_reference_in_a_later_step(stage, content, stored, media_type):
    was_read = []

    @stage.flow.step
    def keeps(ctx):
        return {"letter": ctx.artefact(content)}

    @stage.flow.step
    def reads(ctx):
        was_read.append((ctx.state["letter"], ctx.read_artefact(ctx.state["letter"])))
        return {}

    stage.begin()
    about = {"sha256": hashlib.sha256(stored).hexdigest(), "size": len(stored), "media_type": media_type}
    assert was_read == [({"$artefact": about}, stored)]
    assert Artefact.objects.get().place == "by hand"


def test_json_kept_by_hand_stays_a_reference(stage):
    @stage.flow.step
    def keeps(ctx):
        return {"letter": ctx.artefact(b"[1,2]", media_type="application/json")}

    run = stage.begin()
    assert set(in_another_stretch(run)["letter"]) == {"$artefact"}


def test_a_file_is_kept_whole_wherever_it_was_read_to(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"z" * 100_000)
    with path.open("rb") as file:
        file.read(500)
        about = artefacts.keep(file)
    assert artefacts.read(about) == b"z" * 100_000


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "0" * 64,
        {"$artefact": None},
        {"$artefact": {"sha256": "../../secrets", "size": 1, "media_type": "a/b"}},
        {"$artefact": {"sha256": "0" * 64, "size": 1, "media_type": "a/b"}, "more": 1},
        {"$kept": {"sha256": "0" * 64, "size": 1, "media_type": "a/b"}},
    ],
)
def test_what_is_no_reference_is_refused(stage, bad):
    stage.flow.step(reads_reference(bad))
    run = stage.begin()
    assert (run.status, "refers to no artefact" in run.reason) == ("dead", True)


def reads_reference(reference):
    def reads(ctx):
        return {"size": len(ctx.read_artefact(reference))}

    return reads


def test_a_reference_that_came_in_from_outside_opens_nothing_that_another_run_keeps(stage):
    about = artefacts.keep(b"the secret of another run")
    stage.flow.step(reads_reference(artefacts.reference(about)))
    run = stage.begin()
    assert (run.status, f"Run run-1 keeps no artefact {about.sha256[:12]}" in run.reason) == ("dead", True)


@pytest.mark.parametrize("media_type", ["html", "text/html\r\nX: 1", "a/b; c", "text/" + "x" * 100])
def test_what_is_no_media_type_is_refused(stage, folder, media_type):
    @stage.flow.step
    def keeps(ctx):
        return {"letter": ctx.artefact(b"x", media_type=media_type)}

    run = stage.begin()
    assert (run.status, "is no media type" in run.reason, files(folder)) == ("dead", True, [])


# Crashes


@pytest.mark.parametrize("point", ["artefact-stored", "returned", "lightened"])
def test_killed_between_artefact_and_checkpoint_the_run_goes_on(stage, folder, tmp_path, point):
    @stage.flow.step
    def keeps(ctx):
        return {"letter": ctx.artefact(b"a letter"), "report": HEAVY}

    @stage.flow.step
    def reads(ctx):
        return {"read": [len(ctx.state["report"]), ctx.read_artefact(ctx.state["letter"]).decode()]}

    run = engine.start(stage.flow, key="run-1", input={}, team=stage.people.team)
    assert finish_with_a_kill_at(run, f"run-1:step1:{point}", tmp_path / "points", lambda run: None)
    assert (run.status, run.checkpoints.last().output) == ("completed", {"read": [40_000, "a letter"]})
    assert len(files(folder)) == 2
    assert Artefact.objects.count() == 2


def test_the_bytes_are_there_before_the_row_that_names_them(stage, folder):
    """A worker that dies while it stores leaves no row at all."""

    class Dying(FileSystemStorage):
        def _save(self, name, content):
            raise Killed

    returns(stage, {"report": HEAVY})
    engine.start(stage.flow, key="run-1", input={}, team=stage.people.team)
    storages["artefacts"]
    storages._storages["artefacts"] = Dying(location=str(folder))
    with pytest.raises(Killed):
        one_stretch()
    assert (Checkpoint.objects.count(), Artefact.objects.count()) == (0, 0)


def test_a_file_is_never_seen_half_written(folder):
    storage = storages["artefacts"]

    class Breaks(ContentFile):
        def chunks(self, chunk_size=None):
            yield b"half"
            assert files(folder)[0].startswith("."), "its name is not given before its last byte"
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        storage.save("aa/bb/name", Breaks(b"half and half"))
    assert files(folder) == []


@pytest.mark.parametrize("left", [b"", b'"xxx', b'"' + b"y" * 40_000 + b'"'], ids=["empty", "half", "other bytes"])
def test_a_damaged_file_is_replaced_when_the_same_value_is_kept_again(stage, folder, left):
    about = artefacts.measured(f'"{HEAVY}"'.encode(), "application/json")
    path = folder / about.sha256[:2] / about.sha256[2:4] / about.sha256
    path.parent.mkdir(parents=True)
    path.write_bytes(left)
    returns(stage, {"report": HEAVY})
    run = stage.begin()
    assert in_another_stretch(run)["report"] == HEAVY


# A storage that is away, and what is damaged there


def test_while_the_storage_cannot_be_written_the_step_is_tried_again_and_says_why(stage, settings, folder):
    blocked = folder.parent / "a file"
    blocked.write_text("")
    keep_in(settings, blocked)
    returns(stage, {"report": HEAVY})
    run = stage.begin()
    assert (run.status, run.wait_kind, run.position) == ("sleeping", "retry", 0)
    assert "The artefact storage cannot be written now: NotADirectoryError. See the setting ARTEFACTS." in run.wait_name
    blocked.unlink()
    stage.later()
    assert fresh(run).status == "completed"
    assert in_another_stretch(run)["report"] == HEAVY


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda path: path.unlink(), "is gone"),
        (lambda path: path.write_bytes(b"x" * path.stat().st_size), "holds other bytes than were stored"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "holds other bytes than were stored"),
    ],
    ids=["gone", "altered", "cut"],
)
def test_a_damaged_artefact_is_a_dead_letter_with_a_sentence_at_the_step_that_reads_it(stage, folder, harm, sentence):
    from runs.waits import event

    @stage.flow.step
    def keeps(ctx):
        return {"report": HEAVY}

    @stage.flow.step
    def hear(ctx):
        from datetime import timedelta

        return event("papers", expires_in=timedelta(days=1))

    @stage.flow.step
    def reads(ctx):
        return {"size": len(ctx.state["report"])}

    run = stage.begin()
    path = next(path for path in folder.rglob("*") if path.is_file())
    whole = path.read_bytes()
    harm(path)
    engine.deliver("run-1", "papers", {})
    drain()
    run = fresh(run)
    assert (run.status, run.position, sentence in run.reason) == ("dead", 2, True)
    assert run.reason.startswith("Step reads failed for good: The artefact ")
    page = browser(stage.people.ops).get("/runs/run-1/")
    assert (page.status_code, "Download output.report" in text(page)) == (200, True)
    path.write_bytes(whole)
    repair.redrive("run-1", why="restored from the backup")
    drain()
    assert run.checkpoints.last().output == {"size": 40_000}


def test_a_check_tells_of_a_storage_that_cannot_be_written(settings, folder):
    assert artefacts_can_be_written() == []
    folder.mkdir()
    assert artefacts_can_be_written() == []
    blocked = folder.parent / "a file"
    blocked.write_text("")
    keep_in(settings, blocked)
    assert [message.id for message in artefacts_can_be_written()] == ["runs.W011"]


# Forks


def test_a_fork_reads_what_its_origin_kept_and_only_what_came_before_it(stage, folder):
    was_read = []

    @stage.flow.step
    def keeps(ctx):
        return {"letter": ctx.artefact(b"a letter"), "report": HEAVY}

    @stage.flow.step
    def more(ctx):
        was_read.append((ctx.read_artefact(ctx.state["letter"]), ctx.state["report"]))
        return {"more": "y" * 50_000}

    stage.begin()
    fork = repair.fork("run-1", "run-2", position=2, why="again")
    assert [row.place for row in fork.artefacts.order_by("pk")] == ["by hand", "output.report"]
    drain()
    assert (fresh(fork).status, was_read) == ("completed", [(b"a letter", HEAVY)] * 2)
    assert len(files(folder)) == 3


def test_what_a_run_keeps_is_append_only(stage):
    returns(stage, {"report": HEAVY})
    stage.begin()
    with pytest.raises(IntegrityError, match="append-only"):
        Artefact.objects.update(size=1)
    with pytest.raises(IntegrityError, match="append-only"):
        Artefact.objects.all().delete()


# Download


@pytest.fixture
def letter(stage):
    @stage.flow.step
    def keeps(ctx):
        return {"letter": ctx.artefact("<script>alert(1)</script>", media_type="text/html"), "report": HEAVY}

    stage.begin("claim-0042")
    return Artefact.objects.get(place="by hand")


def address(artefact: Artefact, key: str = "claim-0042") -> str:
    return f"/runs/{key}/artefacts/{artefact.sha256}/"


def test_whoever_sees_the_run_downloads_its_artefact_and_nothing_renders_it(stage, letter):
    response = browser(stage.people.ops).get(address(letter))
    assert (response.status_code, response.getvalue()) == (200, b"<script>alert(1)</script>")
    assert response["Content-Type"] == "text/html"
    name = f"claim-0042-step1-{letter.sha256[:12]}.html"
    assert response["Content-Disposition"] == f'attachment; filename="{name}"'
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Security-Policy"].startswith("sandbox")
    assert (response["Content-Length"], response["Cache-Control"]) == ("25", "private, no-store")
    assert response.streaming


def test_strangers_and_those_not_signed_in_get_nothing_and_cannot_tell_what_there_is(stage, letter):
    assert browser(stage.people.stranger).get(address(letter)).status_code == 404
    response = Client().get(address(letter))
    assert (response.status_code, response["Location"].startswith("/sign-in/?next=/runs/")) == (302, True)
    assert AuditEvent.objects.filter(kind="artefact-read").count() == 0


def test_an_artefact_is_had_only_through_a_run_that_keeps_it(stage, letter):
    stage.flow.step(reads_reference(None))
    engine.start(
        stage.flow, key="other", input={"letter": artefacts.reference(about_of(letter))}, team=stage.people.team
    )
    ops = browser(stage.people.ops)
    assert ops.get(address(letter, "other")).status_code == 404
    assert ops.get(f"/runs/claim-0042/artefacts/{'0' * 64}/").status_code == 404
    assert ops.get("/runs/claim-0042/artefacts/../").status_code == 404
    assert ops.post(address(letter)).status_code == 405


def about_of(artefact: Artefact) -> artefacts.About:
    return artefacts.About(artefact.sha256, artefact.size, artefact.media_type)


def test_every_download_leaves_an_audit_row(stage, letter):
    browser(stage.people.ops).get(address(letter))
    read = AuditEvent.objects.get(kind="artefact-read")
    assert (read.user, read.run.key, read.position) == (stage.people.ops, "claim-0042", 1)
    assert read.detail == f"by hand, 25 bytes, sha256 {letter.sha256}"


@pytest.mark.parametrize("harm", [lambda path: path.unlink(), lambda path: path.write_bytes(b"x" * 25)])
def test_a_damaged_artefact_is_a_sentence_not_a_file(stage, letter, folder, harm):
    harm(folder / letter.sha256[:2] / letter.sha256[2:4] / letter.sha256)
    response = browser(stage.people.ops).get(address(letter))
    assert (response.status_code, "Content-Disposition" in response) == (410, False)
    assert "Restore it from a backup" in text(response)
    assert AuditEvent.objects.filter(kind="artefact-read").count() == 0


def test_an_artefact_that_is_damaged_while_it_is_sent_is_never_whole(folder):
    content = b"a" * (2 * artefacts.CHUNK) + b"end"
    about = artefacts.keep(content)
    path = folder / about.sha256[:2] / about.sha256[2:4] / about.sha256
    path.write_bytes(b"b" + content[1:])
    sent = b""
    with pytest.raises(artefacts.Damaged, match="other bytes"):
        for chunk in artefacts.stream(about):
            sent += chunk
    assert len(sent) < len(content)


def test_the_page_of_the_run_lists_what_each_step_keeps(stage, letter):
    page = browser(stage.people.ops).get("/runs/claim-0042/")
    assert "Download by hand 25 bytes text/html" in text(page)
    assert "Download output.report 39.1 KB application/json" in text(page)
    assert f'href="{address(letter)}"' in page.content.decode()
