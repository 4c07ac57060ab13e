"""The story of a run as pages tell it: what its rows say was worked, lost, failed and waited for, and its scale."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from runs import timeline
from runs.models import Call, Checkpoint, Run, Transition
from runs.waterfall import TRACK, Scale
from runs.workflows import Workflow

BEGIN = datetime(2026, 12, 1, 9, 0, tzinfo=UTC)
WORKER, OTHER = "a:1:1", "b:2:2"


def at(seconds):
    return BEGIN + timedelta(seconds=seconds)


@pytest.fixture(scope="module")
def flow():
    flow = Workflow("told", version=1)

    for name in ("read", "ask", "pay", "close"):

        def function(ctx):
            pass

        function.__name__ = name
        flow.step(function)
    return flow


class Rows:
    """The rows of one run, as its engine would have written them."""

    def __init__(self, **columns):
        self.run = Run(key="told", workflow="told", version=1, **{"next_step": "read", "status": "running"} | columns)
        self.moves, self.checkpoints, self.calls = [], [], []
        self.move(0, "", "ready", 1, actor="start")

    def move(self, seconds, before, after, position, *, actor=WORKER, why="because", user=None):
        name = ["read", "ask", "pay", "close"][position - 1]
        move = Transition(pk=len(self.moves) + 1, at=at(seconds), from_status=before, to_status=after, step=name)
        move.position, move.actor, move.why, move.user_id = position, actor, why, user
        self.moves.append(move)

    def checkpoint(self, seconds, position, **columns):
        name = ["read", "ask", "pay", "close"][position - 1]
        row = Checkpoint(position=position, step=name, output={}, attempt=1, started_at=at(0), **columns)
        row.committed_at = at(seconds)
        self.checkpoints.append(row)

    def told(self, flow, seconds=100):
        return timeline.tell(
            self.run,
            transitions=self.moves,
            checkpoints=self.checkpoints,
            calls=self.calls,
            workflow=flow,
            now=at(seconds),
        )


def kinds(step):
    return [(segment.kind, (segment.start - BEGIN).seconds, (segment.end - BEGIN).seconds) for segment in step.segments]


def test_steps_of_one_stretch_follow_each_other(flow):
    rows = Rows(position=2, next_step="pay")
    rows.move(1, "ready", "running", 1)
    rows.checkpoint(3, 1)
    rows.checkpoint(7, 2)
    read, ask, pay, close = rows.told(flow, 9).steps
    assert (kinds(read), kinds(ask), kinds(pay)) == ([("work", 1, 3)], [("work", 3, 7)], [("work", 7, 9)])
    assert (read.state, pay.state, close.state) == ("done", "running", "todo")
    assert pay.segments[-1].open


def test_a_worker_that_was_lost_leaves_a_crash_and_a_resume(flow):
    rows = Rows(status="completed", position=1)
    rows.move(1, "ready", "running", 1)
    rows.move(31, "running", "ready", 1, actor="sweep", why="worker a was lost")
    rows.move(32, "ready", "running", 1, actor=OTHER)
    rows.checkpoint(34, 1)
    rows.move(34, "running", "completed", 1, actor=OTHER)
    told = rows.told(flow)
    (step,) = told.steps
    assert kinds(step) == [("lost", 1, 31), ("work", 32, 34)]
    assert step.segments[1].resumed
    assert step.crashes[0].why == "worker a was lost"
    assert (told.crashes, told.failures, told.done) == (1, 0, 1)


def test_the_end_of_a_stretch_is_no_crash(flow):
    rows = Rows(position=1, next_step="ask")
    rows.move(1, "ready", "running", 1)
    rows.checkpoint(3, 1)
    rows.move(3, "running", "ready", 1, why="the stretch is over")
    rows.move(4, "ready", "running", 2, actor=OTHER)
    told = rows.told(flow, 5)
    assert told.crashes == 0
    assert [kinds(step) for step in told.steps[:2]] == [[("work", 1, 3)], [("work", 4, 5)]]


def test_a_failed_attempt_and_its_back_off_are_told_apart_from_a_timer(flow):
    rows = Rows(position=1, next_step="ask", status="sleeping", asked="timer")
    rows.move(1, "ready", "running", 1)
    rows.move(2, "running", "sleeping", 1, why="attempt 1 of 5: no answer")
    rows.move(6, "sleeping", "ready", 1, actor="sweep")
    rows.move(6, "ready", "running", 1)
    rows.checkpoint(8, 1)
    rows.move(9, "running", "sleeping", 2, why="the clock")
    told = rows.told(flow, 20)
    read, ask = told.steps[:2]
    assert kinds(read) == [("failed", 1, 2), ("wait", 2, 6), ("work", 6, 8)]
    assert kinds(ask) == [("work", 8, 9), ("wait", 9, 20)]
    assert told.failures == 1


def test_a_wait_lasts_from_parking_to_its_answer(flow):
    rows = Rows(position=2, next_step="pay")
    rows.move(1, "ready", "running", 1)
    rows.checkpoint(2, 1)
    rows.move(3, "running", "waiting", 2, why="adjusters must approve")
    rows.move(90, "waiting", "ready", 2, actor="web", user=7)
    rows.move(91, "ready", "running", 2, actor=OTHER)
    rows.checkpoint(92, 2, wait_kind="approval")
    ask = rows.told(flow, 93).steps[1]
    assert kinds(ask) == [("work", 2, 3), ("wait", 3, 90), ("work", 91, 92)]
    assert ask.waits[0].why == "adjusters must approve"


def test_a_cancelled_run_ends_at_the_step_it_was_at_and_looks_no_further(flow):
    rows = Rows(position=1, next_step="ask", status="cancelled")
    rows.move(1, "ready", "running", 1)
    rows.checkpoint(2, 1)
    rows.move(3, "running", "waiting", 2)
    rows.move(9, "waiting", "cancelled", 2, actor="web", user=7)
    told = rows.told(flow)
    assert [(step.position, step.state) for step in told.steps] == [(1, "done"), (2, "cancelled")]
    assert told.crashes == 0


def test_a_replayed_call_is_counted(flow):
    rows = Rows(position=1, next_step="ask")
    rows.move(1, "ready", "running", 1)
    rows.checkpoint(2, 1)
    rows.calls.append(Call(position=1, step="read", tool="pay", replayed=True))
    assert rows.told(flow).replays == 1


def test_a_position_counts_on_after_a_loop(flow):
    run = Run(key="told", workflow="told", version=1, position=7, next_step="pay", status="ready")
    assert timeline.place(run, flow) == (8, 9, "Pay")
    assert timeline.place(run, None) == (8, 8, "Pay")


# The scale


def test_bars_keep_their_order_and_stay_on_the_track(flow):
    rows = Rows(position=2, next_step="pay")
    rows.move(1, "ready", "running", 1)
    rows.checkpoint(2, 1)
    rows.move(3, "running", "waiting", 2)
    rows.move(200_000, "waiting", "ready", 2, actor="web", user=7)
    rows.move(200_001, "ready", "running", 2, actor=OTHER)
    rows.checkpoint(200_002, 2, wait_kind="approval")
    told = rows.told(flow, 200_004)
    bars = [bar for step in told.steps for bar in step.bars]
    assert all(bar.x >= 0 and bar.end <= TRACK + 0.01 for bar in bars)
    assert [bar.x for bar in bars] == sorted(bar.x for bar in bars)
    assert told.is_cut


def test_only_a_long_stretch_without_work_is_cut():
    def drawn(wait_seconds):
        work = timeline.Segment("work", at(0), at(100))
        wait = timeline.Segment("wait", at(100), at(100 + wait_seconds))
        return Scale([work, wait]).bar(wait)

    assert drawn(5).cut is False
    assert drawn(500).cut is True
    assert drawn(500).width == drawn(50_000).width


def test_the_words_of_the_axis_have_room(flow):
    rows = Rows(position=3, next_step="close")
    for number in range(3):
        rows.move(number * 40_000 + 1, "ready", "running", number + 1)
        rows.checkpoint(number * 40_000 + 2, number + 1)
        rows.move(number * 40_000 + 2, "running", "ready", number + 1)
    ticks = rows.told(flow, 90_000).ticks
    assert ticks[0].dated
    assert [tick.x for tick in ticks] == sorted(tick.x for tick in ticks)
    gaps = [later.x - earlier.x for earlier, later in pairwise(ticks)]
    assert min(gaps) >= 13


def test_a_run_in_which_nothing_took_any_time_can_be_drawn(flow):
    rows = Rows(position=1, next_step="ask", status="ready")
    rows.move(0, "ready", "running", 1)
    rows.checkpoint(0, 1)
    rows.move(0, "running", "ready", 1)
    assert rows.told(flow, 0).steps[0].bars[0].width > 0
