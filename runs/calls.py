"""What a step sees of its run, and every use it makes of a tool: recorded, keyed, sent under one key.

Lives here: Context, and the effect protocol: intent (committed before anything is sent), send, outcome (committed as
soon as it is known). A retry sends the stored request under the same key. May import lease, tools, waits, models.
"""

import json
import logging
import time
from collections import Counter
from functools import reduce
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction

from . import tools, waits
from .errors import (
    EffectRefused,
    EffectUnresolved,
    KeyReused,
    LeaseLost,
    NotApproved,
    OutcomeUnknown,
    PermanentError,
    Refused,
    Retryable,
)
from .failpoints import reach
from .lease import Lease, execute
from .models import AuditEvent, Call, Checkpoint, DatabaseClock, database_clock
from .states import CallKind, EffectState
from .timelimit import unhurried
from .tools import Tool
from .values import BadValue, as_json, canonical, digest, from_json
from .workflows import Finish, Goto, Step

logger = logging.getLogger(__name__)

KEY_LIFE_TRUSTED = 0.8
"""An effect is sent again only within this part of the receiver's key life: clocks and queues need the rest."""

_RECORD_READ = """
INSERT INTO runs_call (run_id, position, step, tool, kind, key, request, digest, state, answer, replayed, error, sends,
                       prepared_at, sent_at, settled_at)
SELECT id, %(position)s, %(step)s, %(tool)s, %(kind)s, %(key)s, %(request)s, %(digest)s, 'confirmed', %(answer)s, false,
       '', 1, runs_clock(), runs_clock(), runs_clock()
  FROM runs_run WHERE id = %(run)s AND fence = %(fence)s AND status = 'running'
"""

_MARK_SENT = """
UPDATE runs_call SET state = 'sent', sends = sends + 1, sent_at = coalesce(sent_at, runs_clock())
 WHERE id = %(call)s AND EXISTS (
       SELECT FROM runs_run
        WHERE id = %(run)s AND fence = %(fence)s AND status = 'running' AND lease_until > runs_clock())
RETURNING sends
"""


class ClosePosition(BaseException):
    """Leave the step at once: this position is closed, and the run goes on elsewhere."""

    def __init__(self, closing: Goto | Finish) -> None:
        self.closing = closing


class Context:
    """`ctx`: the run as one step sees it. `input` and `state` are JSON values; changing them changes nothing."""

    def __init__(self, lease: Lease, state: "State", step: Step) -> None:
        self._lease, self._state, self._step = lease, state, step
        self._began = time.monotonic()
        self._reads: Counter[str] = Counter()
        self.input: dict[str, Any] = lease.run.input
        self.run_key, self.position, self.attempt = lease.run.key, lease.position, lease.run.attempt

    @property
    def state(self) -> dict[str, Any]:
        """The fold of the outputs of all finished steps."""
        return self._state.fold()

    @property
    def remaining(self) -> float:
        """Seconds left of this step's timeout."""
        timeout = self._step.timeout.total_seconds() if self._step.timeout else settings.STEP_TIMEOUT
        return timeout - (time.monotonic() - self._began)

    def call(self, tool: Tool, effect_name: str = "", /, **arguments: Any) -> dict[str, Any]:
        """Use a tool and return its answer. Reads are recorded; an effect gets the step's idempotency key, and each
        further effect of the same step needs an `effect_name` of its own."""
        if self._step.atomic:
            raise PermanentError(
                f"Step {self._step.name} is atomic, so it may use no tools: no outside call happens in a transaction."
            )
        clean = tool.validate(arguments)
        request = canonical({"arguments": clean, "tool": tool.name}, where=tool.name)
        if tool.kind != CallKind.EFFECT:
            return self._read(tool, clean, request)
        if tool.needs_approval(clean):
            raise NotApproved(tool.name, "it needs an approval; ask for it in a step of its own and perform that.")
        return self._effect(tool, request, effect_name)

    def perform(self, asking_step: Step) -> dict[str, Any]:
        """Make the effect that `asking_step` was granted: re-reads the facts, spends the approval, sends the approved
        bytes. When facts have changed or the approval is too old, this position is closed and the run goes where the
        asking step said."""
        if self._step.atomic:
            raise PermanentError(
                f"Step {self._step.name} is atomic, so it may perform nothing: no call is made in a transaction."
            )
        asked = Checkpoint.objects.filter(run=self._lease.run, step=asking_step.name).order_by("-position").first()
        if asked is None or asked.wait_kind not in waits.kinds:
            raise PermanentError(f"Step {asking_step.name} has asked for nothing yet, so there is nothing to perform.")
        if asked.closed_as:
            # An earlier approval of the same step is not inherited.
            raise PermanentError(
                f"Step {asking_step.name} last ended as {asked.closed_as}, so there is nothing to perform."
            )
        kind = waits.kinds[asked.wait_kind]
        call = _effect_under(self._effect_key(""))
        if call is None:
            # Outside the transaction: reading facts may ask other systems.
            if (instead := kind.recheck(self._lease.run, asked.position)) is not None:
                raise ClosePosition(instead)
            call = self._intend_granted(kind, asked.position)
        elif call.digest != (granted := kind.granted(self._lease.run, asked.position, call.key)):
            self._alarm(call, granted or "nothing")
        return self._settle(call)

    def _read(self, tool: Tool, arguments: dict[str, Any], request: str) -> dict[str, Any]:
        self._reads[tool.name] += 1
        key = f"{self.run_key}:step{self.position}/{tool.name}/{self._reads[tool.name]}"
        if known := Call.objects.exclude(kind=CallKind.EFFECT).filter(key=key, digest=digest(request)).first():
            # Tried again, also after a pause or a redrive, which count attempts anew: what was read stands.
            return known.answer or {}
        answer = _answer(tool, tool.function(**arguments))
        reach(self.run_key, self.position, f"{tool.name}-answered")
        self._record_read(tool, key, request, answer)
        reach(self.run_key, self.position, f"{tool.name}-recorded")
        return from_json(answer)

    def _record_read(self, tool: Tool, key: str, request: str, answer: str) -> None:
        values = {
            "tool": tool.name,
            "kind": tool.kind,
            "key": key,
            "request": request,
            "digest": digest(request),
            "answer": answer,
        }
        where = {
            "run": self._lease.run.pk,
            "fence": self._lease.fence,
            "position": self.position,
            "step": self._step.name,
        }
        if execute(_RECORD_READ, values | where).rowcount == 0:
            raise LeaseLost

    def _effect(self, tool: Tool, request: str, name: str) -> dict[str, Any]:
        key = self._effect_key(name)
        with transaction.atomic():
            self._lease.locked()
            call = _effect_under(key) or self._prepare(tool, key, request)
            reach(self.run_key, self.position, f"{tool.name}-intending")
        if call.digest != digest(request):
            self._alarm(call, digest(request))
        reach(self.run_key, self.position, f"{tool.name}-intended")
        return self._settle(call)

    def _intend_granted(self, kind: type[waits.Wait], asked_at: int) -> Call:
        key = self._effect_key("")
        with transaction.atomic():
            run = self._lease.locked()
            grant = kind.authorise(run, asked_at, key, database_clock())
            if isinstance(grant, Goto | Finish):
                raise ClosePosition(grant)
            tool = tools.get(grant.tool)
            if tool is None:
                raise PermanentError(f"The approved action needs the tool {grant.tool}, which this code does not know.")
            call = self._prepare(tool, key, grant.request)
            if call.digest != grant.digest:
                raise NotApproved(
                    grant.tool, "the stored action is not the one whose digest was approved. Somebody changed it."
                )
        reach(self.run_key, self.position, f"{grant.tool}-intended")
        return call

    def _prepare(self, tool: Tool, key: str, request: str) -> Call:
        """Write the intent. The caller's transaction holds the run's lock."""
        subject = tool.subject(json.loads(request)["arguments"])
        try:
            with transaction.atomic():
                return Call.objects.create(
                    run=self._lease.run,
                    position=self.position,
                    step=self._step.name,
                    tool=tool.name,
                    kind=tool.kind,
                    key=key,
                    request=request,
                    digest=digest(request),
                    once_per=subject,
                    state=EffectState.PREPARED,
                    prepared_at=database_clock(),
                )
        except IntegrityError:
            first = Call.objects.filter(tool=tool.name, once_per=subject).exclude(state=EffectState.REFUSED).first()
            if subject is None or first is None:
                raise
            raise PermanentError(
                f"{tool.name} may happen once per {subject}, and {first.key} stands for it already. Nothing was sent."
            ) from None

    def _effect_key(self, name: str) -> str:
        return f"{self.run_key}:step{self.position}" + (f":{name}" if name else "")

    def _alarm(self, call: Call, now: str) -> None:
        AuditEvent.objects.create(
            kind=AuditEvent.Kind.KEY_REUSED,
            run=self._lease.run,
            position=self.position,
            call=call,
            detail=f"{call.key} stands for {call.digest}, and was asked to stand for {now}",
            actor=self._lease.worker,
        )
        logger.error("Idempotency key %s was about to be used for another request; nothing was sent.", call.key)
        raise KeyReused(call.key, call.digest, now)

    def _settle(self, call: Call) -> dict[str, Any]:
        """Bring an effect to a known outcome and return its answer, or say why that cannot be done now."""
        tool = tools.get(call.tool)
        if tool is None:
            raise PermanentError(f"{call.key} needs the tool {call.tool}, which this code does not know.")
        if call.state == EffectState.CONFIRMED:
            return call.answer or {}
        if call.state == EffectState.REFUSED:
            raise EffectRefused(call.key, call.tool, call.error)
        if call.state in (EffectState.SENT, EffectState.UNKNOWN):
            known = self._find_out(tool, call)
            if known is not None:
                return known
        return self._send(tool, call)

    def _find_out(self, tool: Tool, call: Call) -> dict[str, Any] | None:
        """The answer of an effect that was sent before without a known outcome; None when it may be sent again."""
        if tool.delivery == "at-most-once":
            return self._leave_unknown(call, call.error or "its worker ended before an outcome was recorded")
        if call.sent_at and (database_clock() - call.sent_at) < tool.key_life * KEY_LIFE_TRUSTED:
            return None
        if tool.lookup_function is None:
            raise EffectUnresolved(call.key, call.tool)
        found = tool.lookup_function(idempotency_key=call.key)
        return None if found is None else self._confirm(tool, call, found, by=Call.SettledBy.LOOKUP)

    def _send(self, tool: Tool, call: Call) -> dict[str, Any]:
        if digest(call.request) != call.digest:
            self._alarm(call, digest(call.request))
        was_sent = call.state in (EffectState.SENT, EffectState.UNKNOWN)
        held = {"call": call.pk, "run": self._lease.run.pk, "fence": self._lease.fence}
        marked = execute(_MARK_SENT, held).fetchone()
        if marked is None:
            raise LeaseLost
        call.sends = marked[0]
        reach(self.run_key, self.position, f"{tool.name}-sending")
        try:
            answer = tool.function(idempotency_key=call.key, **json.loads(call.request)["arguments"])
        except Refused as error:
            return self._refused(call, error, was_sent=was_sent)
        except Retryable as error:
            # Nothing happened this time; an earlier send may still have.
            self._record(call, EffectState.UNKNOWN if was_sent else EffectState.PREPARED, error=str(error))
            raise
        except Exception as error:  # noqa: BLE001 (a tool may raise anything)
            return self._unknown(tool, call, error)
        with unhurried():
            # The step's time may be over, above all where this process was frozen: what is known is kept all the same.
            reach(self.run_key, self.position, f"{tool.name}-answered")
            return self._confirm(tool, call, answer)

    def _confirm(self, tool: Tool, call: Call, answer: Any, by: str = Call.SettledBy.ANSWER) -> dict[str, Any]:
        try:
            known = from_json(_answer(tool, answer))
        except BadValue as error:
            self._record(call, EffectState.UNKNOWN, error=str(error))
            raise
        replayed = bool(known.get("replayed", False))
        self._record(call, EffectState.CONFIRMED, answer=known, replayed=replayed, settled_by=by, error="")
        reach(self.run_key, self.position, f"{call.tool}-recorded")
        return known

    def _refused(self, call: Call, error: Refused, *, was_sent: bool) -> dict[str, Any]:
        if was_sent:
            self._record(call, EffectState.UNKNOWN, error=str(error))
            raise OutcomeUnknown(
                f"{call.key} was refused now, but an earlier send of it may have happened: {error}"
            ) from error
        self._record(call, EffectState.REFUSED, error=str(error))
        raise EffectRefused(call.key, call.tool, str(error)) from error

    def _unknown(self, tool: Tool, call: Call, error: Exception) -> dict[str, Any]:
        # An exception that the tool did not class says nothing about what happened outside: unknown, never failed.
        if tool.delivery == "at-most-once":
            return self._leave_unknown(call, str(error) or type(error).__name__)
        self._record(call, EffectState.UNKNOWN, error=str(error) or type(error).__name__)
        raise OutcomeUnknown(f"It is not known whether {call.key} happened: {error}") from error

    def _leave_unknown(self, call: Call, error: str) -> dict[str, Any]:
        self._record(call, EffectState.UNKNOWN, error=error)
        return {"outcome": "unknown"}

    def _record(self, call: Call, state: EffectState, **columns: Any) -> None:
        """Write the outcome, guarded by the effect's own row, also after a lost lease. What is known stays."""
        unsettled = Call.objects.filter(
            pk=call.pk, state__in=[EffectState.PREPARED, EffectState.SENT, EffectState.UNKNOWN]
        )
        if state in (EffectState.PREPARED, EffectState.REFUSED):
            # "Nothing happened" speaks for this send only: another worker's resend may be under way.
            unsettled = unsettled.filter(sends=call.sends)
        unsettled.update(state=state, settled_at=DatabaseClock(), **columns)
        call.state = state


def _effect_under(key: str) -> Call | None:
    return Call.objects.filter(kind=CallKind.EFFECT, key=key).first()


def _answer(tool: Tool, answer: Any) -> str:
    """A tool's answer as the JSON text that is recorded. Raises BadValue."""
    if not isinstance(answer, dict):
        raise BadValue(f"{tool.name}'s answer", f"it is a {type(answer).__name__}; a tool answers with a dict")
    return as_json(answer, where=f"{tool.name}'s answer")


class State:
    """The fold of a run's outputs, read when first asked for and then kept up to date by the stretch."""

    def __init__(self, run_id: int, position: int, appends: frozenset[str]) -> None:
        self._run_id, self._position, self._appends = run_id, position, appends
        self._folded: dict[str, Any] | None = None

    def fold(self) -> dict[str, Any]:
        if self._folded is None:
            outputs = Checkpoint.objects.filter(run_id=self._run_id, position__lte=self._position).order_by("position")
            nothing: dict[str, Any] = {}
            self._folded = reduce(self._with, outputs.values_list("output", flat=True), nothing)
        return self._folded

    def add(self, output: dict[str, Any]) -> None:
        self._position += 1
        if self._folded is not None:
            self._folded = self._with(self._folded, output)

    def _with(self, state: dict[str, Any], output: dict[str, Any]) -> dict[str, Any]:
        appended = {
            name: [*state.get(name, []), *value]
            for name, value in output.items()
            if name in self._appends and isinstance(value, list)
        }
        return state | output | appended
