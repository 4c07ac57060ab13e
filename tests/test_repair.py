"""The operators' verbs: what each may be done to, what it leaves behind, and that it never does anything twice."""

from datetime import timedelta

import pytest
from stage import Party, Stage, fresh

from approvals.decisions import TooLate
from approvals.testing import answer
from runs import engine, repair, workflows
from runs.errors import BadRequest, IllegalMove, NoSuchRun, NotAllowed, PermanentError
from runs.lease import Lease
from runs.models import AuditEvent, Call, Checkpoint, Delivery, Run, Transition
from runs.testing import drain
from runs.tools import tool
from runs.waits import event, timer
from runs.workflows import Caps, Retry, Workflow

AN_HOUR = timedelta(hours=1)


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


# Which verb may be done to a run in which status


def plays_every_part(stage) -> None:
    """One step that brings its run into the status that its input names."""
    stage.flow.retry = Retry(attempts=3, base=3600, cap=3600)

    @stage.flow.step
    def play(ctx):
        match ctx.input["part"]:
            case "timer":
                return timer(after=AN_HOUR)
            case "retry":
                raise OSError("not yet")
            case "event":
                return event("papers", expires_in=AN_HOUR)
            case "expired":
                return event("papers", expires_in=timedelta())
            case "dead":
                raise PermanentError("broken")
        return {}


def in_each_status(stage) -> dict[str, Run]:
    """A run of each status and of each kind of wait, none of them by a short cut."""
    plays_every_part(stage)
    Workflow("capped", caps=Caps(steps=0)).step(stage.flow.steps["play"].function)
    forgotten = Workflow("forgotten")
    forgotten.step(stage.flow.steps["play"].function)
    engine.start("capped", key="cap", input={}, team=stage.people.team)
    engine.start("forgotten", key="migration", input={}, team=stage.people.team)
    del workflows._registry["forgotten", 1]
    for part in ("timer", "retry", "event", "expired", "dead", "completed"):
        stage.begin(part, part=part)
    stage.begin("paused", part="event")
    repair.pause("paused", why="made so")
    stage.begin("cancelled", part="event")
    engine.cancel("cancelled", why="made so")
    running, ready = (
        engine.start(stage.flow, key=key, input={"part": "completed"}, team=stage.people.team)
        for key in ("running", "ready")
    )
    assert Lease.take(running.pk) is not None
    runs = {run.key: run for run in Run.objects.all()}
    assert {key: f"{run.status} {run.wait_kind}".strip() for key, run in runs.items()} == STANDING
    assert ready.key in runs
    return runs


STANDING = {
    "ready": "ready",
    "running": "running",
    "timer": "sleeping timer",
    "retry": "sleeping retry",
    "event": "waiting event",
    "cap": "waiting cap",
    "migration": "waiting migration",
    "paused": "paused event",
    "dead": "dead",
    "completed": "completed",
    "expired": "expired",
    "cancelled": "cancelled",
}

WHY = "agreed on the phone"

VERBS = {
    "pause": repair.pause,
    "resume": repair.resume,
    "retry": repair.retry_now,
    "raise a cap of": lambda key, **who: repair.raise_cap(key, steps=9, **who),
    "redrive": repair.redrive,
    "discard": repair.discard,
    "fork": lambda key, **who: repair.fork(key, f"{key}-again", **who),
    "cancel": engine.cancel,
}

BECOMES = {
    "pause": dict.fromkeys(["ready", "running", "timer", "retry", "event", "cap", "migration", "paused"], "paused"),
    "resume": {"paused": "waiting"},
    "retry": dict.fromkeys(["retry", "cap", "migration"], "ready"),
    "raise a cap of": {"ready": "ready", "running": "running", "timer": "sleeping", "retry": "sleeping"}
    | {"event": "waiting", "cap": "ready", "migration": "waiting", "paused": "paused", "dead": "dead"},
    "redrive": {"dead": "ready"},
    "discard": {"dead": "cancelled"},
    "fork": {"dead": "dead", "completed": "completed", "expired": "expired", "cancelled": "cancelled"},
    "cancel": dict.fromkeys(STANDING.keys() - {"completed", "expired"}, "cancelled"),
}
"""The status of the run after the verb, from wherever it is legal; from everywhere else it is refused."""


def rows() -> list:
    """Everything that a refused verb must leave as it was."""
    return [list(model.objects.order_by("pk").values()) for model in (Run, Transition, Checkpoint, Delivery)]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_done_where_it_is_legal_and_refused_with_a_sentence_elsewhere(stage, verb):
    runs = in_each_status(stage)
    for key, status in BECOMES[verb].items():
        VERBS[verb](key, by=stage.people.ops, why=WHY, actor="the page")
        assert fresh(runs[key]).status == status
        if status != runs[key].status:
            move = runs[key].transitions.last()
            assert (move.from_status, move.to_status) == (runs[key].status, status)
            assert (move.why, move.user, move.actor) == (WHY, stage.people.ops, "the page")
    for key in runs.keys() - BECOMES[verb].keys():
        before = rows()
        with pytest.raises(IllegalMove, match=rf"^Run {key} is {runs[key].status}.* Nothing was changed\.$"):
            VERBS[verb](key, by=stage.people.ops, why=WHY)
        assert rows() == before


@pytest.mark.parametrize(("verb", "key"), [("pause", "paused"), ("cancel", "cancelled")])
def test_doing_it_again_is_no_error_and_leaves_no_row(stage, verb, key):
    in_each_status(stage)
    before = rows()
    VERBS[verb](key, by=stage.people.ops, why=WHY)
    assert rows() == before


@pytest.mark.parametrize("key", ["event", "paused", "dead", "ready"])
def test_an_event_may_be_delivered_until_the_run_has_ended(stage, key):
    runs = in_each_status(stage)
    engine.deliver(key, "papers", {"pages": 3}, by=stage.people.ops)
    assert Delivery.objects.get(run=runs[key]).delivered_by == stage.people.ops
    for ended in ("completed", "expired", "cancelled"):
        with pytest.raises(IllegalMove, match=f"Run {ended} is {ended}, so it cannot be given the event papers"):
            engine.deliver(ended, "papers", {}, by=stage.people.ops)
    assert Delivery.objects.count() == 1


@pytest.mark.parametrize("verb", [*VERBS, "deliver an event to"])
def test_only_who_may_operate_the_run_repairs_it_and_refused_attempts_leave_a_row(stage, verb):
    plays_every_part(stage)
    stage.begin("event", part="event")
    act = VERBS.get(verb) or (lambda key, *, by, why: engine.deliver(key, "papers", {}, by=by))
    before = rows()
    for user in (stage.people.adjuster, stage.people.auditor):
        with pytest.raises(NotAllowed, match=f"To {verb} a run takes the right to operate runs"):
            act("event", by=user, why=WHY)
    with pytest.raises(NoSuchRun):
        act("event", by=stage.people.stranger, why=WHY)
    assert rows() == before
    kept = AuditEvent.objects.order_by("pk").values_list("kind", "run__key", "user__username")
    assert list(kept) == [("verb-refused", "event", "ada"), ("verb-refused", "event", "aud")]


@pytest.mark.parametrize("verb", VERBS)
def test_a_reason_that_is_none_or_cannot_be_kept_is_refused(stage, verb):
    plays_every_part(stage)
    stage.begin("event", part="event")
    before = rows()
    for why in ("", " \n", "a\0b", "\ud83d", "x" * 2001):
        with pytest.raises(BadRequest, match=r"The reason|the reason"):
            VERBS[verb]("event", by=stage.people.ops, why=why)
    assert rows() == before


def test_a_key_that_stands_for_no_run_is_no_such_run(people):
    for verb in VERBS.keys() - {"fork"}:
        for key in ("no-such", "a\0b", "ü"):
            with pytest.raises(NoSuchRun):
                VERBS[verb](key, why=WHY)
    for key in ("no-such", "a\0b", "ü"):
        with pytest.raises(NoSuchRun):
            repair.fork(key, "new", why=WHY)


# Pause and resume


def test_what_is_approved_while_paused_counts_and_nothing_is_paid_before_the_resume(stage):
    stage.asks_then_pays()
    approval = stage.asked()
    repair.pause("run-1", why="a question from audit")
    answer(approval, stage.people.adjuster)
    assert drain() == 0
    assert (fresh(approval.run).status, stage.receiver.keys) == ("paused", [])
    repair.resume("run-1", why="answered")
    drain()
    assert (fresh(approval.run).status, stage.receiver.keys) == ("completed", ["run-1:step2"])


@pytest.mark.parametrize("outcome", [{"paid": True}, TimeoutError("no answer")], ids=["confirmed", "unknown"])
def test_a_step_paused_under_way_may_not_commit_and_what_it_sent_is_kept(stage, outcome):
    stage.calls_then_goes_on(stage.tool())

    def paused_while_it_pays(key):
        Party(lambda: repair.pause("run-1", why="stop at once")).outcome()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    stage.receiver.script = [paused_while_it_pays]
    run = stage.begin()
    assert (run.status, run.position, run.worker, Checkpoint.objects.count()) == ("paused", 0, "", 0)
    assert AuditEvent.objects.get().kind == "late-write"
    known = isinstance(outcome, dict)
    assert Call.objects.get().state == ("confirmed" if known else "unknown")
    repair.resume("run-1", why="go on")
    drain()
    assert fresh(run).status == "completed"
    assert stage.receiver.keys == ["run-1:step1"] * (1 if known else 2)
    assert Call.objects.get().state == "confirmed"


@pytest.mark.parametrize("verb", ["pause", "redrive"])
def test_what_a_step_read_stands_when_it_is_entered_again_and_costs_no_attempt(stage, verb):
    read = []

    @tool("test.look")
    def look(*, claim: str) -> dict:
        read.append(claim)
        return {"n": len(read)}

    @stage.flow.step(retry=Retry(attempts=1))
    def assess(ctx):
        seen = ctx.call(look, claim="0042")
        if run_is_fresh := not entered:
            entered.append(run_is_fresh)
            if verb == "redrive":
                raise PermanentError("not yet")
            Party(lambda: repair.pause("run-1", why="stop")).outcome()
        return {"saw": seen}

    entered = []
    run = stage.begin()
    (repair.redrive if verb == "redrive" else repair.resume)("run-1", why="go on")
    drain()
    assert fresh(run).status == "completed"
    assert (run.checkpoints.get().output, read) == ({"saw": {"n": 1}}, ["0042"])


def test_an_event_that_comes_while_paused_is_kept_and_taken_on_resume(stage):
    @stage.flow.step
    def hear(ctx):
        return event("papers", expires_in=AN_HOUR)

    run = stage.begin()
    repair.pause("run-1", why="wait")
    engine.deliver("run-1", "papers", {"pages": 3})
    assert drain() == 0
    assert (fresh(run).status, fresh(run).wait_kind) == ("paused", "")
    assert repair.resume("run-1", why="go on").status == "ready"
    drain()
    assert run.checkpoints.get().output == {"event": {"pages": 3}}


def test_a_run_resumed_after_its_due_time_expires_by_the_sweep_and_nobody_decides_before(stage):
    stage.asks_then_pays(expires_in=AN_HOUR)
    approval = stage.asked()
    repair.pause("run-1", why="wait")
    stage.later(AN_HOUR * 2)
    assert fresh(approval.run).status == "paused"
    with pytest.raises(TooLate):
        answer(approval, stage.people.adjuster)
    assert repair.resume("run-1", why="go on").status == "waiting"
    drain()
    approval.refresh_from_db()
    assert (fresh(approval.run).status, approval.status, stage.receiver.keys) == ("expired", "expired", [])


def test_a_sleeper_resumed_after_its_time_goes_on_at_once_and_one_before_it_sleeps_on(stage):
    @stage.flow.step
    def nap(ctx):
        return timer(after=AN_HOUR)

    run = stage.begin()
    repair.pause("run-1", why="wait")
    assert repair.resume("run-1", why="go on").status == "sleeping"
    assert drain() == 0
    repair.pause("run-1", why="wait")
    stage.later(AN_HOUR * 2)
    assert fresh(run).status == "paused"
    repair.resume("run-1", why="go on")
    drain()
    assert fresh(run).status == "completed"


def test_a_back_off_goes_on_after_a_pause(stage):
    plays_every_part(stage)
    run = stage.begin("retry", part="retry")
    repair.pause("retry", why="wait")
    back = repair.resume("retry", why="go on")
    assert (back.status, back.wait_kind, back.due_at) == ("sleeping", "retry", run.due_at)


def test_values_are_equal_whether_or_not_the_run_was_paused_between_two_steps(stage):
    values = {"n": 10**15, "f": 0.1, "text": "é\U0001f600", "none": None, "deep": [{"a": [1, 2.5, True]}], "empty": {}}
    saw = {}

    @stage.flow.step
    def first(ctx):
        return values

    @stage.flow.step
    def second(ctx):
        if ctx.run_key == "paused" and "paused" not in saw:
            saw["paused"] = None
            Party(lambda: repair.pause("paused", why="between")).outcome()
        else:
            saw[ctx.run_key] = ctx.state
        return {}

    stage.begin("straight")
    stage.begin("paused")
    repair.resume("paused", why="go on")
    drain()
    assert saw["straight"] == saw["paused"] == values
    assert [type(value) for value in saw["straight"].values()] == [type(value) for value in saw["paused"].values()]


# Retry now and higher caps


def test_a_run_that_backs_off_is_tried_now_and_its_attempts_go_on_counting(stage):
    plays_every_part(stage)
    run = stage.begin("retry", part="retry")
    for attempt in (2, 3):
        repair.retry_now("retry", why="it is back")
        drain()
        assert fresh(run).attempt == attempt
    assert fresh(run).status == "dead"


def test_trying_a_capped_run_again_without_a_higher_cap_leaves_it_waiting(stage):
    Workflow("capped", caps=Caps(steps=0)).step(lambda ctx: {})
    run = engine.start("capped", key="run-1", input={}, team=stage.people.team)
    drain()
    repair.retry_now("run-1", why="perhaps")
    drain()
    assert (fresh(run).status, fresh(run).wait_kind, fresh(run).attempt) == ("waiting", "cap", 0)


def test_a_cap_raised_while_paused_lets_the_run_go_on_when_it_is_resumed(stage):
    stage.flow.caps = Caps(steps=1)
    stage.calls_then_goes_on(stage.tool())
    run = stage.begin()
    repair.pause("run-1", why="wait")
    assert repair.raise_cap("run-1", steps=2, why="granted").status == "paused"
    assert repair.resume("run-1", why="go on").status == "ready"
    drain()
    assert fresh(run).status == "completed"


@pytest.mark.parametrize(
    "caps", [{}, {"steps": 0}, {"steps": -1}, {"age": timedelta(-1)}, {"working_time": timedelta()}]
)
def test_a_cap_is_raised_to_something(stage, caps):
    plays_every_part(stage)
    stage.begin("event", part="event")
    with pytest.raises(BadRequest, match="Say which cap to raise"):
        repair.raise_cap("event", why=WHY, **caps)


def test_who_raised_a_cap_and_why_stays_although_the_run_is_not_moved_by_it(stage):
    plays_every_part(stage)
    run = stage.begin("event", part="event")
    repair.raise_cap("event", steps=9, by=stage.people.ops, why=WHY)
    moves = run.transitions.values_list("why", "user")
    audited = run.audit_events.values_list("detail", "user")
    kept = [(words, user) for words, user in (*moves, *audited) if user == stage.people.ops.pk]
    assert [words for words, _ in kept if WHY in words]
