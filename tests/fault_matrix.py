"""Runs that pay while the provider misbehaves and workers are killed at random, and what must be true afterwards.

Every run has a fault of its own, scripted for its key, and a boundary at which its worker is killed; workers are killed
at any moment besides. Real worker processes, the provider a process of its own: what happened is read from its journal.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from sandbox_process import SandboxProcess
from worker_process import WorkerProcess

from runs import engine, repair, workflows
from runs.models import AuditEvent, Call, Finding, Run, Transition, database_clock
from runs.reconciliation import compare, settle_unknown
from runs.states import EffectState, Status
from runs.testing import drain, move_clock
from runs.tools import Tool
from runs.workflows import Retry, Workflow

Fault = dict[str, Any]

STEP = timedelta(seconds=1)
FAULTS: dict[str, Fault] = {
    "delay": {"fault": "delay", "seconds": 0.1},
    "too-late": {"fault": "delay", "seconds": STEP.total_seconds() * 1.5},
    "lost-answer": {"fault": "lost_answer"},
    "garbage": {"fault": "garbage"},
    "other-amount": {"fault": "other_amount"},
    "in-progress": {"fault": "409"},
    "too-many": {"fault": "429"},
    "error": {"fault": "500"},
    "error-paid": {"fault": "500", "effect": True},
    "error-stored": {"fault": "500_stored"},
    "error-stored-paid": {"fault": "500_stored", "effect": True},
    "refused": {"fault": "402_stored"},
    "reset": {"fault": "reset"},
    "reset-paid": {"fault": "reset", "effect": True},
    "down": {"fault": "down"},
    "down-thrice": {"fault": "down", "times": 3},
}
"""Each fault of the sandbox, with its effect and without where it has both."""

ROUND_THE_CALL = ("intending", "intended", "sending", "answered", "recorded")
BOUNDARIES = ("claimed", "entered", "returned", "leaving", "left")
KILLS_AT_ANY_MOMENT = 0.25
"""How many of them there are for each run."""
WORKERS = 2
AMOUNTS = range(1_000, 99_000)
PATIENCE = 60.0
"""Seconds without a move of any run, until work that ought to go on is given up."""
HOUR = timedelta(hours=1)


def chance() -> random.Random:
    """Chance with a seed, which a test that fails has printed. FAULT_SEED repeats one; the moments still differ."""
    seed = int(os.environ.get("FAULT_SEED") or random.SystemRandom().randrange(2**32))
    print(f"FAULT_SEED={seed}")
    return random.Random(seed)


@contextmanager
def paying(tool: Tool) -> Iterator[Workflow]:
    """A workflow of one step, which pays its input by this tool."""
    before = dict(workflows._registry)
    flow = Workflow("pays-by-chance", retry=Retry(attempts=12, base=0.02, cap=0.1))

    @flow.step(timeout=STEP)
    def settle(ctx):
        return {"payment": ctx.call(tool, **ctx.input)}

    try:
        yield flow
    finally:
        workflows._registry.clear()
        workflows._registry.update(before)


class Matrix:
    """So many runs for each of these faults, with one sandbox. `folder` is for failpoints."""

    def __init__(self, flow: Workflow, tool: Tool, sandbox: SandboxProcess, people: Any, folder: Path) -> None:
        self.flow, self.tool, self.sandbox, self.people, self.folder = flow, tool, sandbox, people, folder
        self.chance = chance()
        self.runs: list[Run] = []
        self.killed, self._moves, self._moved_at = 0, 0, time.monotonic()

    def play(self, faults: Iterable[str], times: int) -> None:
        """Start the runs and work them until none of them moves any more, killing workers all the while."""
        for fault in faults:
            for number in range(times):
                self._begin(f"{fault}-{number}", FAULTS[fault])
        self.folder.mkdir()
        (self.folder / "kill").write_text("\n".join(self._point(run) for run in self.runs))
        self._work()

    def _begin(self, key: str, fault: Fault) -> None:
        order = {"amount_minor": self.chance.choice(AMOUNTS), "currency": "USD", "payee": "acct-1", "claim": key}
        self.sandbox.script(**fault, match={"key": f"{key}:step1", "method": "POST"})
        self.runs.append(engine.start(self.flow, key=key, input=order, team=self.people.team))

    def _point(self, run: Run) -> str:
        boundary = self.chance.choice([*(f"{self.tool.name}-{name}" for name in ROUND_THE_CALL), *BOUNDARIES])
        return f"{run.key}:step1:{boundary}"

    def _work(self) -> None:
        workers = [WorkerProcess(self.folder) for _ in range(WORKERS)]
        strikes = iter([self.chance.uniform(0, 0.2) for _ in range(int(len(self.runs) * KILLS_AT_ANY_MOMENT))])
        try:
            while self._is_anything_moving():
                strike = next(strikes, None)
                time.sleep(strike or 0.05)
                if strike:
                    self.chance.choice(workers).kill()
                for number, worker in enumerate(workers):
                    if worker.was_killed:
                        workers[number] = WorkerProcess(self.folder)
                        self.killed += 1
        finally:
            for worker in workers:
                worker.kill()

    def _is_anything_moving(self) -> bool:
        """Fails when nothing has moved for too long, although something ought to."""
        moving = Run.objects.exclude(status__in=[Status.COMPLETED, Status.DEAD]).count()
        moves = Transition.objects.count()
        if moves > self._moves:
            self._moves, self._moved_at = moves, time.monotonic()
        assert time.monotonic() < self._moved_at + PATIENCE, f"{moving} runs are still under way"
        return moving > 0

    def paid(self) -> dict[str, Any]:
        """The provider's journal by key; no key is in it twice."""
        journal = self.sandbox.payments()
        twice = [key for key, times in Counter(line["key"] for line in journal).items() if times > 1]
        assert twice == []
        return {line["key"]: line for line in journal}

    def assert_told_rightly(self) -> None:
        """What each run says happened is in the journal once, and what it says did not happen is not there."""
        paid = self.paid()
        assert set(paid) <= {f"{run.key}:step1" for run in self.runs}
        assert not AuditEvent.objects.filter(kind=AuditEvent.Kind.KEY_REUSED).exists()
        for run in Run.objects.all():
            call = run.calls.get()
            if call.state == EffectState.CONFIRMED:
                assert_is_that_payment(call, paid[call.key])
            elif call.state in (EffectState.REFUSED, EffectState.PREPARED):
                assert call.key not in paid, f"{call.key} is {call.state} and was paid: {call.error}"
            completed = run.status == Status.COMPLETED
            assert not completed or call.state == EffectState.CONFIRMED, f"{run.key} is {run.status}: {call.state}"

    def reconcile(self) -> None:
        """Past the time that the provider's own records may take."""
        move_clock(HOUR)
        settle_unknown()
        now = database_clock()
        compared = compare(self.tool, now - 2 * HOUR, now + HOUR)
        assert not compared.down, compared.down

    def assert_both_sides_agree(self) -> None:
        """One sum on either side; whatever is still unknown is a finding for a person, and nothing else is one."""
        paid, now = self.paid(), database_clock()
        ours = Call.objects.filter(state=EffectState.CONFIRMED)
        assert {call.key: call.run.input["amount_minor"] for call in ours.select_related("run")} == {
            key: line["amount_minor"] for key, line in paid.items()
        }
        assert self.tool.listing_function is not None
        listed = sum(record.amount_minor or 0 for record in self.tool.listing_function(now - 2 * HOUR, now + HOUR))
        assert listed == sum(line["amount_minor"] for line in paid.values()) > 0
        unresolved = set(Call.objects.unresolved().values_list("key", flat=True))
        assert set(Finding.objects.open().values_list("kind", "key")) == {("unknown", key) for key in unresolved}

    def redrive(self) -> None:
        """What became known since goes on, and nobody pays for it again."""
        before = self.paid()
        known = Run.objects.filter(status=Status.DEAD, calls__state=EffectState.CONFIRMED)
        for run in list(known):
            repair.redrive(run.key, why="it is known now")
        drain()
        assert not [(run.key, run.reason) for run in known.all()]
        assert self.paid() == before


def assert_is_that_payment(call: Call, line: dict[str, Any]) -> None:
    assert call.answer is not None
    assert (call.answer["payment"], line["amount_minor"]) == (line["payment"], call.run.input["amount_minor"])


def play(
    tool: Tool, sandbox: SandboxProcess, people: Any, folder: Path, *, faults: Iterable[str], times: int
) -> Matrix:
    """All of it: the faults, what each run says, both sides compared, and what goes on afterwards."""
    with paying(tool) as flow:
        matrix = Matrix(flow, tool, sandbox, people, folder)
        matrix.play(faults, times)
        matrix.assert_told_rightly()
        matrix.reconcile()
        matrix.assert_both_sides_agree()
        matrix.redrive()
        return matrix
