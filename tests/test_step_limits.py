"""What a step may not do to its worker: outlive its time, break the connection, eat the memory. It ends, is counted as
an attempt, and the worker goes on."""

import multiprocessing
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import psycopg
import pytest
from django.db import connection, connections
from stage import Party, Stage, fresh

from durable_site.claims.models import Claim
from runs import engine
from runs.models import Call, Run
from runs.testing import drain
from runs.timelimit import TimeIsUp, limited
from runs.tools import tool
from runs.workflows import Retry

SHORT, LONG = timedelta(seconds=0.2), 60
"""A step's time, and the seconds that it would take if nobody ended it: a test that waits for those has failed."""


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@contextmanager
def sooner_than(seconds: float) -> Iterator[None]:
    """No measure of speed: only that the block was ended and did not run its course."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


# Ways to take too long


def sleeps() -> None:
    time.sleep(LONG)


def queries() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [LONG])


def loops() -> None:
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        pass


def catches_everything() -> None:
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        with suppress(Exception):
            time.sleep(LONG)


def waits_for_another_thread() -> None:
    Party(sleeps).join(LONG)


def waits_for_a_lock() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(7)")


WAYS = [sleeps, queries, loops, catches_everything, waits_for_another_thread]


def takes_too_long_once(stage, way: Callable[[], None], **options) -> list[int]:
    """A step that does so at its first attempt; the attempts it was entered with."""
    entered: list[int] = []

    @stage.flow.step(timeout=SHORT, **options)
    def slow(ctx):
        entered.append(ctx.attempt)
        if len(entered) == 1:
            way()
        return {"attempt": ctx.attempt}

    return entered


@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_takes_too_long_is_ended_wherever_it_is_and_counts_as_an_attempt(stage, way, atomic):
    stage.flow.retry = Retry(attempts=3, base=3600, cap=3600)
    entered = takes_too_long_once(stage, way, atomic=atomic)
    with sooner_than(LONG / 2):
        run = stage.begin()
    sentence = "Step slow, attempt 1 of 3: it took longer than its 0.2 s"
    assert (run.status, run.wait_kind, run.wait_name, run.attempt) == ("sleeping", "retry", sentence, 1)
    assert [move.why for move in run.transitions.all()][-1] == sentence
    stage.later(timedelta(hours=2))
    assert (fresh(run).status, run.checkpoints.get().output, entered) == ("completed", {"attempt": 2}, [1, 2])


def test_the_query_that_was_cut_short_is_ended_in_the_database_too_and_the_connection_goes_on(stage, database):
    backends = []

    @stage.flow.step(timeout=SHORT)
    def slow(ctx):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            backends.append(cursor.fetchone()[0])
            if len(backends) == 1:
                queries()
        return {}

    run = stage.begin()
    at_it = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'SELECT pg_sleep%%'"
    )
    assert database.query(f"{at_it} AND state = 'active' AND %s", True) == [(0,)]
    stage.later()
    assert (fresh(run).status, len(backends), len(set(backends))) == ("completed", 2, 1)


def test_a_lock_that_the_step_waited_for_is_not_waited_for_any_more(stage, database):
    takes_too_long_once(stage, waits_for_a_lock)
    with psycopg.connect(database.url, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(7)")
        with sooner_than(LONG / 2):
            assert stage.begin().transitions.filter(why__contains="it took longer than").count() == 1
        assert database.query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == [(0,)]


def test_an_atomic_step_that_takes_too_long_takes_its_rows_back(stage):
    def books_then_sleeps():
        Claim.objects.create(reference="booked", policy_number="p", payee="p", row={})
        time.sleep(LONG)

    stage.flow.retry = Retry(attempts=3, base=3600, cap=3600)
    takes_too_long_once(stage, books_then_sleeps, atomic=True)
    assert (stage.begin().status, Claim.objects.count()) == ("sleeping", 0)


def test_a_step_that_always_takes_too_long_is_dead_after_its_attempts_and_its_neighbours_are_not(stage):
    @stage.flow.step(timeout=SHORT)
    def work(ctx):
        if ctx.run_key == "slow":
            time.sleep(LONG)
        return {}

    slow, other = stage.begin("slow"), stage.begin("other")
    stage.later(times=3)
    assert (fresh(slow).status, fresh(slow).attempt, fresh(other).status) == ("dead", 3, "completed")
    assert fresh(slow).reason == "Step work, attempt 3 of 3: it took longer than its 0.2 s"
    assert slow.transitions.filter(to_status="running").count() == 3


def test_each_step_has_its_own_time_and_the_next_is_not_charged_for_the_last(stage):
    for name in ("one", "two", "three"):

        def step(ctx):
            time.sleep(0.15)
            return {"left": ctx.remaining}

        step.__name__ = name
        stage.flow.step(timeout=timedelta(seconds=0.3))(step)
    run = stage.begin()
    assert run.status == "completed"
    assert all(0 < row.output["left"] < 0.3 for row in run.checkpoints.all())


def test_a_sub_second_timeout_is_a_timeout(stage):
    @stage.flow.step(timeout=timedelta(milliseconds=50), retry=Retry(attempts=1))
    def slow(ctx):
        time.sleep(LONG)

    with sooner_than(LONG / 2):
        run = stage.begin()
    assert (run.status, run.reason) == ("dead", "Step slow, attempt 1 of 1: it took longer than its 0.05 s")


def test_what_a_tool_had_sent_when_its_time_was_up_is_unknown_until_the_same_key_settles_it(stage):
    """C24: the money may have moved."""
    pay = stage.tool()

    @stage.flow.step(timeout=SHORT)
    def settle(ctx):
        return {"payment": ctx.call(pay, amount_minor=184_000)}

    stage.receiver.script = [lambda key: time.sleep(LONG), {"paid": True, "replayed": True}]
    stage.flow.retry = Retry(attempts=3, base=3600, cap=3600)
    run = stage.begin()
    assert run.status == "sleeping"
    # Nobody could write an outcome: the row says that it was sent, and no more.
    assert (Call.objects.get().state, Call.objects.get().settled_at) == ("sent", None)
    stage.later(timedelta(hours=2))
    call = Call.objects.get()
    assert (fresh(run).status, call.state, call.sends, call.replayed) == ("completed", "confirmed", 2, True)
    assert stage.receiver.received[0] == stage.receiver.received[1]
    assert stage.receiver.keys == ["run-1:step1"] * 2


def test_a_read_that_took_too_long_is_read_again(stage):
    read = []

    @tool("test.look")
    def look(*, claim: str) -> dict:
        read.append(claim)
        if len(read) == 1:
            time.sleep(LONG)
        return {"n": len(read)}

    @stage.flow.step(timeout=SHORT)
    def assess(ctx):
        return ctx.call(look, claim="0042")

    run = stage.begin()
    stage.later()
    assert (fresh(run).status, run.checkpoints.get().output) == ("completed", {"n": 2})


def test_a_tool_has_a_time_of_its_own_and_what_it_had_sent_is_unknown_then(stage):
    """C24. The step goes on: it has time left to write the outcome down."""
    pay = stage.tool(timeout=SHORT)
    stage.calls_then_goes_on(pay)
    stage.receiver.script = [lambda key: time.sleep(LONG), {"paid": True, "replayed": True}]
    with sooner_than(LONG / 2):
        run = stage.begin()
    call = Call.objects.get()
    assert (run.status, call.state, call.error) == ("sleeping", "unknown", "test.pay took longer than its 0.2 s.")
    stage.later()
    call.refresh_from_db()
    assert (fresh(run).status, call.state) == ("completed", "confirmed")
    assert stage.receiver.keys == ["run-1:step1"] * 2


def test_a_read_has_a_time_of_its_own_and_is_read_again(stage):
    read = []

    @tool("test.look", timeout=SHORT)
    def look(*, claim: str) -> dict:
        read.append(claim)
        if len(read) == 1:
            catches_everything()
        return {"n": len(read)}

    @stage.flow.step
    def assess(ctx):
        return ctx.call(look, claim="0042")

    with sooner_than(LONG / 2):
        run = stage.begin()
    assert "test.look took longer than its 0.2 s." in run.wait_name
    stage.later()
    assert (fresh(run).status, run.checkpoints.get().output) == ("completed", {"n": 2})


def test_a_lookup_has_the_same_time_and_its_provider_counts_as_down_for_now(stage):
    pay = stage.tool(timeout=SHORT, delivery="check-then-act")
    stage.calls_then_goes_on(pay)

    @pay.lookup
    def look(*, idempotency_key: str) -> dict | None:
        time.sleep(LONG)

    with sooner_than(LONG / 2):
        run = stage.begin()
    assert (run.status, Call.objects.get().state, stage.receiver.keys) == ("sleeping", "prepared", [])
    assert "test.pay took longer than its 0.2 s." in run.wait_name


def test_a_tools_time_does_not_prolong_its_steps(stage):
    look = tool("test.look", timeout=timedelta(seconds=LONG))(lambda: time.sleep(LONG))

    @stage.flow.step(timeout=SHORT, retry=Retry(attempts=1))
    def assess(ctx):
        return ctx.call(look)

    with sooner_than(LONG / 2):
        run = stage.begin()
    assert (run.status, run.reason) == ("dead", "Step assess, attempt 1 of 1: it took longer than its 0.2 s")


def test_the_steps_time_goes_on_behind_that_of_its_tools(stage):
    @tool("test.look", timeout=timedelta(seconds=0.4))
    def look(*, number: int) -> dict:
        return {"number": number}

    @stage.flow.step(timeout=timedelta(seconds=0.5), retry=Retry(attempts=1))
    def assess(ctx):
        for number in range(3):
            ctx.call(look, number=number)
        time.sleep(LONG)

    with sooner_than(LONG / 2):
        run = stage.begin()
    assert (run.status, run.calls.count()) == ("dead", 3)


# The alarm itself


@pytest.fixture
def rang() -> Iterator[list[float]]:
    """An alarm of somebody else's, every 0.4 s after the first 0.4: when it rang."""
    times: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda *_: times.append(time.monotonic()))
    signal.setitimer(signal.ITIMER_REAL, 0.4, 0.4)
    yield times
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.mark.parametrize("ended", [False, True], ids=["in time", "too late"])
def test_an_alarm_that_was_set_before_goes_on_behind_ours_and_again_and_again(rang, ended):
    handler, began = signal.getsignal(signal.SIGALRM), time.monotonic()
    try:
        with limited(0.1 if ended else LONG):
            until(lambda: time.monotonic() - began > 0.2)
    except TimeIsUp:
        assert ended
    assert signal.getsignal(signal.SIGALRM) is handler
    left, every = signal.getitimer(signal.ITIMER_REAL)
    assert 0 < left <= 0.4
    assert every == pytest.approx(0.4)
    until(lambda: len(rang) == 2)


def test_an_alarm_that_fell_due_meanwhile_rings_as_soon_as_the_step_is_over(rang):
    began = time.monotonic()
    with limited(LONG):
        until(lambda: time.monotonic() - began > 0.6)
        assert rang == []
    until(lambda: rang)


def test_a_run_leaves_no_alarm_behind(stage):
    handler = signal.getsignal(signal.SIGALRM)
    takes_too_long_once(stage, sleeps)
    run = stage.begin()
    stage.later()
    assert fresh(run).status == "completed"
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == (handler, (0.0, 0.0))


# A connection that breaks inside a step


def hangs_up() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def hangs_up_and_hides_it() -> None:
    with pytest.raises(Exception, match=r"terminat|closed"):
        hangs_up()


@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
@pytest.mark.parametrize("how", [hangs_up, hangs_up_and_hides_it])
def test_a_connection_that_breaks_inside_a_step_is_replaced_and_the_run_goes_on(stage, how, atomic):
    entered = []

    @stage.flow.step
    def first(ctx):
        entered.append("first")
        return {}

    @stage.flow.step(atomic=atomic)
    def breaks(ctx):
        entered.append(f"breaks {ctx.attempt}")
        if len(entered) == 2:
            how()
        return {}

    run = stage.begin()
    stage.later()
    assert fresh(run).status == "completed"
    assert entered == ["first", "breaks 1", "breaks 2"]
    assert run.checkpoints.last().attempt == 2
    assert connection.is_usable()


def test_a_step_that_always_breaks_its_connection_is_dead_after_its_attempts_and_its_neighbours_are_not(stage):
    entered = []

    @stage.flow.step
    def breaks(ctx):
        if ctx.run_key == "other":
            return {}
        entered.append(ctx.attempt)
        return hangs_up()

    run, other = stage.begin("breaks"), stage.begin("other")
    run = fresh(run)
    assert (run.status, entered, fresh(other).status) == ("dead", [1, 2, 3], "completed")
    assert run.reason.startswith("Step breaks was begun 3 times and never ended")
    assert connection.is_usable()


def test_an_effect_whose_outcome_could_not_be_written_is_settled_under_its_key_on_the_new_connection(stage):
    stage.calls_then_goes_on(stage.tool())
    stage.receiver.script = [lambda key: hangs_up_and_hides_it() or {"paid": True}, {"paid": True, "replayed": True}]
    run = stage.begin()
    assert (fresh(run).status, stage.receiver.keys) == ("completed", ["run-1:step1"] * 2)
    assert (Call.objects.get().state, Call.objects.get().sends) == ("confirmed", 2)


# Memory


def eats_memory(stage) -> Run:
    @stage.flow.step(retry=Retry(attempts=2, base=0.01, cap=0.01))
    def eats(ctx):
        if ctx.input.get("greedy"):
            return {"n": len(bytearray(4 * 2**30))}
        return {"n": 1}

    run = engine.start(stage.flow, key="run-1", input={"greedy": True}, team=stage.people.team)
    engine.start(stage.flow, key="other", input={}, team=stage.people.team)
    return run


def test_a_step_that_eats_memory_fails_by_itself_and_its_worker_lives_on(stage):
    run = eats_memory(stage)

    def work():
        resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30))
        until(lambda: drain() is not None and not Run.objects.exclude(status__in=["dead", "completed"]).exists())

    # Closed before the fork: two processes on one socket would read each other's answers.
    connections.close_all()
    worker = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
    assert (fresh(run).status, fresh(run).reason) == ("dead", "Step eats, attempt 2 of 2: MemoryError")
    assert Run.objects.get(key="other").status == "completed"
