"""A workflow, a tool and a source of facts for tests to script, and the other parties that a race needs.

Only the far side of the tool is played; engine, approvals and database are the real ones. A party that must wait is
seen waiting in pg_stat_activity before the test goes on: no interleaving here rests on a sleep.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
from django.db import connection, connections
from sandbox_process import wait_until

from approvals import facts as fact_sources
from approvals import ledger
from approvals.decisions import decide
from approvals.facts import current, facts
from approvals.gate import ask
from approvals.models import Approval, ApprovalStatus, Decision, LedgerEntry
from approvals.testing import answer
from runs import engine, pruning, retention, tools, workflows
from runs.lease import Lease
from runs.models import Run
from runs.sweep import close_overdue_waits
from runs.testing import LONG, drain, move_clock, refuse_elsewhere
from runs.tools import Tool, tool
from runs.workflows import Retry, Workflow

LEASE_IS_PAST = timedelta(seconds=60)


class Killed(BaseException):
    """What a tool raises to play the death of its worker: nothing of ours may catch it."""


class Receiver:
    """The far side of a tool. Plays its script, one entry for each call: an exception is raised, a callable is called
    with the key, anything else is the answer. With no script left it answers {"paid": True}."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.received: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, key: str, arguments: dict[str, Any]) -> Any:
        self.received.append((key, arguments))
        act = self.script.pop(0) if self.script else {"paid": True}
        if isinstance(act, BaseException):
            raise act
        return act(key) if callable(act) else act

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.received]


class Stage:
    """Use as a context manager: what it registers is forgotten when it is left."""

    registries = (workflows._registry, tools._registry, fact_sources._sources)

    def __init__(self, people: Any) -> None:
        self.people, self.receiver, self.facts = people, Receiver(), {"claim": "open", "amount": 184_000}
        self._moved = timedelta()

    def __enter__(self) -> "Stage":
        self._before = [dict(registry) for registry in self.registries]
        self.flow = Workflow("under-test", version=1, retry=Retry(attempts=3, base=4, cap=4))
        self.source = facts("test.facts")(lambda arguments: dict(self.facts))
        return self

    def __exit__(self, *_: object) -> None:
        for registry, before in zip(self.registries, self._before, strict=True):
            registry.clear()
            registry.update(before)

    def tool(self, name: str = "test.pay", **options: Any) -> Tool:
        """An effect whose far side is the receiver."""

        @tool(name, effect=True, **{"statement": "Pay {amount} to {payee}"} | options)
        def pay(
            *, idempotency_key: str, amount_minor: int, currency: str = "USD", payee: str = "p-1", claim: str = "0042"
        ) -> dict[str, Any]:
            return self.receiver(idempotency_key, {"amount_minor": amount_minor, "payee": payee, "claim": claim})

        return pay

    def asks_then_pays(self, pay: Tool | None = None, **terms: Any) -> None:
        """Two steps: approve (asks for what the input says, 184000 cents unless given) and settle (performs it)."""
        pay = pay or self.tool(requires_approval=True)
        terms = {"groups": ["adjusters"], "expires_in": timedelta(days=3), "facts": self.source} | terms

        @self.flow.step
        def approve(ctx):
            return ask(pay.proposed(**{"amount_minor": 184_000} | ctx.input), **terms)

        @self.flow.step
        def settle(ctx):
            return {"payment": ctx.perform(approve)}

    def calls_then_goes_on(self, pay: Tool) -> None:
        """Two steps: settle (calls a tool that needs no approval) and after."""

        @self.flow.step
        def settle(ctx):
            return {"payment": ctx.call(pay, amount_minor=184_000)}

        @self.flow.step
        def after(ctx):
            return {"went on": True}

    def later(self, by: timedelta = timedelta(seconds=5), times: int = 1) -> None:
        """Move the clock on from where `later` left it, longer than any back-off here, and work what is due."""
        for _ in range(times):
            self._moved += by
            move_clock(self._moved)
            drain()

    def begin(self, key: str = "run-1", **input: Any) -> Run:
        """Start a run and work it until it parks or ends."""
        run = engine.start(self.flow, key=key, input=input, team=self.people.team, by=self.people.requester)
        drain()
        return fresh(run)

    def asked(self, key: str = "run-1", **input: Any) -> Approval:
        """Start a run, and the question it waits for."""
        return question(self.begin(key, **input))


def fresh(run: Run) -> Run:
    return Run.objects.get(pk=run.pk)


def question(run: Run) -> Approval:
    return Approval.objects.get(run=run, status=ApprovalStatus.OPEN)


def shown(approval: Approval) -> dict[str, str]:
    """What the page of this approval would send back now."""
    return {"payload_digest": approval.payload_digest, "facts_digest": current(approval).digest}


def press(
    approval: Approval, user: Any, verdict: str = "approve", comment: str = "", page: dict[str, str] | None = None
) -> Decision:
    """The form is sent, from a page drawn now or, with `page`, earlier."""
    return decide(approval.pk, user=user, verdict=verdict, comment=comment, **page or shown(approval))


def one_stretch() -> None:
    """One worker's stretch on whatever is ready, without a sweep before it."""
    from runs.advance import Stretch

    lease = Lease.take_any()
    assert lease is not None, "nothing is ready"
    Stretch(lease, LONG).work()


def freeze_clock(at: datetime) -> None:
    """Stop the database's clock at this instant: limits can be hit exactly."""
    refuse_elsewhere()
    with connection.cursor() as cursor:
        for function, volatility in (("runs_clock", "VOLATILE"), ("runs_now", "STABLE")):
            cursor.execute(
                f"CREATE OR REPLACE FUNCTION {function}() RETURNS timestamptz LANGUAGE sql {volatility} "
                f"AS 'SELECT timestamptz ''{at.isoformat()}'''"
            )


class Party(threading.Thread):
    """Somebody else at the same time, with a database connection of their own."""

    def __init__(self, verb: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._verb, self._outcome, self._error = verb, None, None
        self.start()

    def run(self) -> None:
        try:
            self._outcome = self._verb()
        except BaseException as error:
            self._error = error
        finally:
            connections.close_all()

    def outcome(self) -> Any:
        """What the verb returned, or raises what it raised."""
        self.join(20)
        assert not self.is_alive(), "the other party never came to an end"
        if self._error is not None:
            raise self._error
        return self._outcome


def wait_until_blocked(database: Any, count: int = 1) -> None:
    """Until that many sessions of this database wait for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    wait_until(lambda: database.query(waiting) == [(count,)])


@contextmanager
def holding(database: Any, statement: str, *values: Any) -> Iterator[psycopg.Connection]:
    """A second connection that has taken a lock with this statement, until the block is left."""
    with psycopg.connect(database.url) as other:
        other.execute(statement, values)
        yield other


def withhold(days: int = 30, **options: Any) -> retention.Done:
    """All that retention does, `days` and some hours from where the clock really is."""
    move_clock(timedelta(days=days, hours=3))
    done = retention.Done()
    while retention.withhold(retention.Rule(days), done, actor="test", **options):
        pass
    pruning.remove_files()
    return done


def holding_run(database: Any, run_id: int) -> Any:
    return holding(database, "SELECT FROM runs_run WHERE id = %s FOR NO KEY UPDATE", run_id)


def holding_ledger(database: Any) -> Any:
    return holding(database, "SELECT FROM approvals_ledgerhead FOR UPDATE")


DISABLE = """
DO $$ DECLARE found record; BEGIN
  CREATE TEMP TABLE were_on ON COMMIT DROP AS
    SELECT tgrelid::regclass AS owner, tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled = 'A';
  FOR found IN SELECT * FROM were_on
  LOOP EXECUTE format('ALTER TABLE %s DISABLE TRIGGER %I', found.owner, found.tgname); END LOOP;
END $$
"""
ENABLE = """
DO $$ DECLARE found record; BEGIN
  FOR found IN SELECT * FROM were_on
  LOOP EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', found.owner, found.tgname); END LOOP;
END $$
"""


def tamper(database: Any, statement: str, *values: Any) -> None:
    """What a superuser can do after switching off every trigger and foreign key. They are on again afterwards."""
    with psycopg.connect(database.url) as other:
        other.execute("SET session_replication_role = replica")
        other.execute(DISABLE)
        assert other.execute(statement, values).rowcount != 0, "nothing was tampered with"
        other.execute(ENABLE)


def change(database: Any, statement: str, *values: Any) -> None:
    """An ordinary statement of somebody with a console."""
    with psycopg.connect(database.url, autocommit=True) as other:
        assert other.execute(statement, values).rowcount == 1


def four_entries(stage: Stage) -> list[LedgerEntry]:
    """Runs called so: approved and paid, rejected, expired, and again approved and paid. Their ledger entries."""
    stage.asks_then_pays(expires_in=timedelta(hours=1))
    answer(stage.asked("approved"), stage.people.adjuster)
    answer(stage.asked("rejected"), stage.people.adjuster, "reject", "the payee is unknown")
    stage.asked("expired")
    move_clock(timedelta(hours=2))
    assert close_overdue_waits() == 1
    move_clock(timedelta())
    answer(stage.asked("again"), stage.people.second_adjuster)
    drain()
    assert ledger.verify().problems == []
    return list(LedgerEntry.objects.order_by("sequence"))
