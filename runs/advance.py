"""One stretch of work: claim a run, execute step after step, checkpoint each, stop when it parks, ends or time is up.

Never raises to the queue for anything a run did: that is recorded in the run. May import engine's neighbours below it:
lease, calls, waits, workflows, tools, models, doorbell.
"""

import logging
import time
import traceback
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, transaction

from . import waits, workflows
from .calls import ClosePosition, Context, State
from .doorbell import stopping
from .errors import LeaseLost, PermanentError, Refused, Retryable, sentence_of
from .failpoints import reach
from .lease import Lease
from .lightening import LARGEST, is_light, lighten_output
from .models import Run, database_clock
from .spending import Capped
from .states import Status, WaitKind
from .timelimit import TimeIsUp, limited
from .values import BadValue, as_json
from .waits import Answered, Parked, Wait
from .workflows import Caps, Finish, Goto, Step, Workflow

logger = logging.getLogger(__name__)


def advance(run_id: int) -> None:
    """Work on this run, then on any other that is ready, until the stretch's time is over or a stop was asked for."""
    until = time.monotonic() + settings.STRETCH
    lease = Lease.take(run_id)
    while lease is not None:
        Stretch(lease, until).work()
        lease = None if is_over(until) else Lease.take_any()


def is_over(until: float) -> bool:
    return time.monotonic() >= until or stopping()


class Unfit(Exception):
    """This code cannot go on with the run: it does not know the workflow, its version or the step."""


class Stretch:
    """One claimed run, from claim to the moment it is given up."""

    def __init__(self, lease: Lease, until: float) -> None:
        self.lease, self.until, self.at_work = lease, until, True

    def work(self) -> None:
        """Work until the run is given up, one way or the other. Raises only when the database is gone for good."""
        reach(self.lease.run.key, self.lease.position, "claimed")
        try:
            try:
                self._positions()
            except (OperationalError, InterfaceError) as error:
                self._give_back(error)
        except LeaseLost:
            self.lease.record_loss(f"the write of step {self.lease.position}")
            reach(self.lease.run.key, self.lease.position, "refused")

    def _positions(self) -> None:
        try:
            self.workflow = self._workflow()
            self.state = State(self.lease.run.pk, self.lease.run.position, self.workflow.appends)
            self._hold_for(self._step())
            while self.at_work:
                self._one_position(self._step())
        except Unfit as unfit:
            self._wait_for_repair(WaitKind.MIGRATION, str(unfit))

    def _one_position(self, step: Step) -> None:
        """Execute what position + 1 asks for, and write what came of it."""
        if self._tried_too_often(step) or self._is_capped():
            return
        run, here = self.lease.run, self.lease.position
        try:
            # An atomic step's own rows and its checkpoint commit together.
            with transaction.atomic() if step.atomic else nullcontext():
                self._write(step, self._execute(step))
                if step.atomic:
                    reach(run.key, here, "committing")
        except Capped as capped:
            self._wait_for_repair(WaitKind.CAP, str(capped))
            return
        except TimeIsUp:
            self._try_again(step, TimeoutError(f"it took longer than its {self._timeout(step):g} s"))
            return
        except (PermanentError, Refused, BadValue) as error:
            self._bury(step, error)
            return
        except Exception as error:  # noqa: BLE001 (an author's code may raise anything)
            self._try_again(step, error)
            return
        reach(run.key, here, "committed")

    def _execute(self, step: Step) -> Any:
        run = self.lease.run
        with limited(self._timeout(step)):
            if run.asked:
                # The step has asked already and is not entered again: its wait says what came of it.
                return waits.kinds[run.asked].resolve(run, self.lease.position)
            reach(run.key, self.lease.position, "entered")
            try:
                return step(Context(self.lease, self.state, step))
            except ClosePosition as closed:
                return closed.closing

    def _write(self, step: Step, result: Any) -> None:
        if isinstance(result, Wait):
            self._park(step, result)
        else:
            self._commit(step, result)

    def _commit(self, step: Step, result: Any, kind: str = "") -> None:
        where, output, next_step = self._read_result(step, result)
        text = as_json(output, where=f"step {step.name}: output", limit=LARGEST)
        kept = text if is_light(text) else lighten_output(self.lease.run, self.lease.position, step.name, output)
        closed_as = getattr(result, "closed_as", "")
        kind = kind or self.lease.run.asked
        reach(self.lease.run.key, self.lease.position, "returned")
        if step.atomic:
            # What the database checks at commit is checked here: after it the lease believes that the step is done.
            connection.check_constraints()
        if where == Status.RUNNING and not is_over(self.until):
            self.lease.commit(
                kept,
                next_step=next_step,
                timeout=self._timeout(self.workflow.steps[next_step]),
                kind=kind,
                closed_as=closed_as,
            )
            self.state.add(text)
            return
        self.at_work = False
        if where == Status.RUNNING:
            self.lease.commit_and_leave(
                kept,
                status=Status.READY,
                next_step=next_step,
                why="the stretch is over",
                kind=kind,
                closed_as=closed_as,
            )
        else:
            outcome = result.outcome if isinstance(result, Finish) else "completed"
            self.lease.commit_and_leave(
                kept,
                status=where,
                next_step=step.name,
                why=f"ended: {outcome}",
                outcome=outcome,
                kind=kind,
                closed_as=closed_as,
            )

    def _read_result(self, step: Step, result: Any) -> tuple[Status, dict[str, Any], str]:
        """Where the run goes, what the step leaves, and the step after it."""
        match result:
            case Finish(output=output):
                return Status.COMPLETED, output, step.name
            case Goto(step=name, output=output):
                if name not in self.workflow.steps:
                    raise PermanentError(
                        f"Step {step.name} goes on at {name}, which {self.workflow.name} does not have."
                    )
                return Status.RUNNING, output, name
            case None | dict():
                following = self.workflow.after(step.name)
                return (
                    (Status.RUNNING, result or {}, following)
                    if following
                    else (Status.COMPLETED, result or {}, step.name)
                )
        raise PermanentError(
            f"Step {step.name} returned {type(result).__name__}; a step returns a dict, goto(…), finish(…) or a wait."
        )

    def _park(self, step: Step, wait: Wait) -> None:
        if step.atomic:
            raise PermanentError(f"Step {step.name} is atomic, so it may not wait; ask in a step of its own.")
        with transaction.atomic():
            # Under the run's lock whoever answers cannot slip in between the look and the move.
            run = self.lease.locked()
            now = database_clock()
            parked = wait.park(run, self.lease.position, now)
            if isinstance(parked, Answered):
                self._commit(step, parked.closing, kind=wait.kind)
                return
            self.at_work = False
            self._move_to_wait(run, wait, parked, now)
            reach(run.key, self.lease.position, "committing")

    def _move_to_wait(self, run: Run, wait: Wait, parked: Parked, now: datetime) -> None:
        run.move(
            wait.parks_as,
            why=parked.name,
            actor=self.lease.worker,
            worked=run.worked + (now - self.lease.began),
            attempt=0,
            asked=wait.kind,
            wait_terms=parked.terms,
            wait_kind=wait.kind,
            wait_name=parked.name[:200],
            wait_since=now,
            due_at=parked.due_at,
        )

    def _tried_too_often(self, step: Step) -> bool:
        """A step that killed its worker each time never came to fail: the claim counted it."""
        limit = self.workflow.retry_of(step).attempts
        if self.lease.run.attempt <= limit:
            return False
        sentence = (
            f"Step {step.name} was begun {limit} times and never ended: it killed its worker or outlived its lease."
        )
        self._leave(Status.DEAD, why=sentence, reason=sentence)
        return True

    def _is_capped(self) -> bool:
        """At a cap the run waits for a person, and keeps all that it did."""
        sentence = reached(self._caps(), self.lease.run, self.lease.began)
        if sentence:
            self._wait_for_repair(WaitKind.CAP, sentence)
        return bool(sentence)

    def _caps(self) -> Caps:
        if not self.lease.run.caps:
            return self.workflow.caps
        # That of spend is looked at when something is spent.
        raised = {name: value for name, value in self.lease.run.caps.items() if name != "spend"}
        times = {name: timedelta(seconds=value) for name, value in raised.items() if name != "steps"}
        return replace(self.workflow.caps, **(raised | times))

    def _wait_for_repair(self, kind: WaitKind, sentence: str) -> None:
        self._leave(Status.WAITING, why=sentence, kind=kind, name=sentence, due=settings.WAIT_FOR_REPAIR, counted=False)

    def _give_back(self, error: Exception) -> None:
        """The connection broke: on a new one, let another stretch go on at once instead of when the lease runs out."""
        connection.close()
        logger.error("Run %s: the database connection was lost (%s).", self.lease.run.key, type(error).__name__)
        self._leave(Status.READY, why=f"the database connection was lost: {type(error).__name__}")

    def _bury(self, step: Step, error: Exception) -> None:
        sentence = f"Step {step.name} failed for good: {sentence_of(error)}"
        self._leave(Status.DEAD, why=sentence, reason=sentence)

    def _try_again(self, step: Step, error: Exception) -> None:
        retry, attempt = self.workflow.retry_of(step), self.lease.run.attempt
        sentence = f"Step {step.name}, attempt {attempt} of {retry.attempts}: {sentence_of(error)}"
        where = "" if isinstance(error, Retryable) else _where(error)
        logger.warning(
            "Run %s, step %s, attempt %s: %s%s", self.lease.run.key, step.name, attempt, type(error).__name__, where
        )
        if attempt >= retry.attempts:
            self._leave(Status.DEAD, why=f"{sentence}. No attempt is left.", reason=sentence)
            return
        delay = max(retry.delay(attempt), getattr(error, "retry_after", None) or 0)
        self._leave(Status.SLEEPING, why=sentence, kind=WaitKind.RETRY, name=sentence[:200], due=delay)

    def _leave(self, status: Status, **leaving: Any) -> None:
        self.at_work = False
        reach(self.lease.run.key, self.lease.position, "leaving")
        self.lease.leave(status, **leaving)
        reach(self.lease.run.key, self.lease.position, "left")

    def _workflow(self) -> Workflow:
        run = self.lease.run
        found = workflows.get(run.workflow, run.version)
        if found is None:
            raise Unfit(f"No worker here knows workflow {run.workflow} version {run.version}")
        return found

    def _step(self) -> Step:
        run = self.lease.run
        if run.next_step not in self.workflow.steps:
            raise Unfit(f"Workflow {run.workflow} version {run.version} has no step {run.next_step} in this code")
        return self.workflow.steps[run.next_step]

    def _hold_for(self, step: Step) -> None:
        if step.timeout is not None:
            self.lease.extend(self._timeout(step))
            reach(self.lease.run.key, self.lease.position, "held")

    def _timeout(self, step: Step) -> float:
        return step.timeout.total_seconds() if step.timeout else settings.STEP_TIMEOUT


def reached(caps: Caps, run: Run, now: datetime) -> str:
    """Which cap the run has reached, in a sentence; empty when it may go on. Waiting is age, but not work."""
    if run.position >= caps.steps:
        return f"It has made its {caps.steps} step{'' if caps.steps == 1 else 's'}; raise the cap or cancel it"
    if run.worked >= caps.working_time:
        return f"Its steps have worked for {_spelled(run.worked)}, and {_spelled(caps.working_time)} is the cap"
    if now - run.created_at >= caps.age:
        return f"It is {_spelled(now - run.created_at)} old, and {_spelled(caps.age)} is the cap"
    return ""


def _where(error: BaseException) -> str:
    """Where in the code it happened, without what it says: its words may hold personal data, and logs may not."""
    return "\n" + "".join(traceback.format_tb(error.__traceback__)).rstrip()


def _spelled(time: timedelta) -> str:
    return str(time - timedelta(microseconds=time.microseconds))
