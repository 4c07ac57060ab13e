"""The effect protocol: intent (committed before anything is sent), send, outcome (committed as soon as it is known).

A retry sends the stored request under the same key; the outcome of what was sent is written by whoever learns it, also
after a lost lease. What an unknown outcome leads to is the tool's delivery: its key is sent again within the key's
life, it is looked up, or it stays unknown for a person. Used by calls only. May import lease, tools, models, values.
"""

import json
import logging
from datetime import timedelta
from typing import Any, NoReturn

from django.db import IntegrityError, transaction

from . import spending, tools
from .errors import (
    ConflictThere,
    EffectRefused,
    EffectUnresolved,
    KeyConflict,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    PermanentError,
    Refused,
    Retryable,
    sentence_of,
)
from .failpoints import reach
from .lease import Lease, execute
from .lightening import LARGEST, lighten_outcome, restored
from .models import AuditEvent, Call, DatabaseClock, database_clock
from .states import CallKind, EffectState
from .timelimit import unhurried
from .tools import Tool
from .values import BadValue, as_json, digest, from_json

logger = logging.getLogger(__name__)

KEY_LIFE_TRUSTED = 0.8
"""An effect is sent again only within this part of the receiver's key life: clocks and queues need the rest."""

_MARK_SENT = """
UPDATE runs_call SET state = 'sent', sends = sends + 1,
       sent_at = coalesce(sent_at, runs_clock()), last_sent_at = runs_clock()
 WHERE id = %(call)s AND EXISTS (
       SELECT FROM runs_run
        WHERE id = %(run)s AND fence = %(fence)s AND status = 'running' AND lease_until > runs_clock())
RETURNING sends
"""


class Effects:
    """The effects of one step, under the lease of its run."""

    def __init__(self, lease: Lease, step: str) -> None:
        self._lease, self._step = lease, step
        self.run_key, self.position = lease.run.key, lease.position

    def under(self, key: str) -> Call | None:
        return Call.objects.filter(kind=CallKind.EFFECT, key=key).first()

    def prepare(self, tool: Tool, key: str, request: str) -> Call:
        """Write the intent, and what it may cost. The caller's transaction holds the run's lock. Raises Capped."""
        arguments = json.loads(request)["arguments"]
        subject = tool.subject(arguments)
        reserved = spending.reserve(self._lease.run, self._step, tool, arguments)
        try:
            with transaction.atomic():
                return Call.objects.create(
                    run=self._lease.run,
                    position=self.position,
                    step=self._step,
                    tool=tool.name,
                    kind=tool.kind,
                    key=key,
                    request=request,
                    digest=digest(request),
                    once_per=subject,
                    state=EffectState.PREPARED,
                    prepared_at=database_clock(),
                    **reserved,
                )
        except IntegrityError:
            first = Call.objects.filter(tool=tool.name, once_per=subject).exclude(state=EffectState.REFUSED).first()
            if subject is None or first is None:
                raise
            raise PermanentError(
                f"{tool.name} may happen once per {subject}, and {first.key} stands for it already. Nothing was sent."
            ) from None

    def alarm(self, call: Call, request: str) -> NoReturn:
        """Refuse to send under a key that stands for another request than this one, and leave a row that keeps it.
        `request` is empty when nothing was granted under the key. Raises KeyReused."""
        now = digest(request) if request else "nothing"
        self._tell(call, f"{call.key} stands for {call.digest}, and was asked to stand for {now}", request)
        raise KeyReused(call.key, call.digest, now)

    def _tell(self, call: Call, detail: str, request: str = "") -> None:
        AuditEvent.objects.create(
            kind=AuditEvent.Kind.KEY_REUSED,
            run=self._lease.run,
            position=self.position,
            call=call,
            detail=detail,
            request=request,
            actor=self._lease.worker,
        )
        logger.error("Idempotency key %s and its request do not belong together.", call.key)

    def settle(self, call: Call) -> dict[str, Any]:
        """Bring an effect to a known outcome and return its answer, or say why that cannot be done now."""
        tool = tools.get(call.tool)
        if tool is None:
            raise PermanentError(f"{call.key} needs the tool {call.tool}, which this code does not know.")
        if call.state == EffectState.CONFIRMED:
            return restored(call.answer or {})
        if call.state == EffectState.REFUSED:
            raise EffectRefused(call.key, call.tool, call.error)
        known = self._find_out(tool, call)
        return self._send(tool, call) if known is None else known

    def _find_out(self, tool: Tool, call: Call) -> dict[str, Any] | None:
        """The answer of an effect that may have happened already; None when it may be sent (again)."""
        was_sent = call.state in (EffectState.SENT, EffectState.UNKNOWN)
        match tool.delivery:
            case "at-most-once" if was_sent:
                return self._leave_unknown(call, call.error or "its worker ended before an outcome was recorded")
            case "check-then-act":
                self._let_it_settle(tool, call)
                return self._look_up(tool, call)
            case "keyed" if was_sent and not self._key_lives(tool, call):
                return self._look_up(tool, call)
        return None

    def _key_lives(self, tool: Tool, call: Call) -> bool:
        return call.sent_at is not None and database_clock() - call.sent_at < tool.key_life * KEY_LIFE_TRUSTED

    def _let_it_settle(self, tool: Tool, call: Call) -> None:
        """What was just sent may not be found yet: look only once the backend has had its time."""
        if call.last_sent_at is not None and call.state != EffectState.PREPARED:
            left = call.last_sent_at + tool.settle_delay - database_clock()
            if left > timedelta():
                words = f"{call.key} may have happened; it is looked up once {call.tool} has had time to show it."
                raise Retryable(words, retry_after=left.total_seconds())

    def _look_up(self, tool: Tool, call: Call) -> dict[str, Any] | None:
        if tool.lookup_function is None:
            raise EffectUnresolved(call.key, call.tool)
        found = tool.look_up(call.key)
        return None if found is None else self._confirm(tool, call, found, by=Call.SettledBy.LOOKUP)

    def _send(self, tool: Tool, call: Call) -> dict[str, Any]:
        if digest(call.request) != call.digest:
            self.alarm(call, call.request)
        was_sent = call.state in (EffectState.SENT, EffectState.UNKNOWN)
        held = {"call": call.pk, "run": self._lease.run.pk, "fence": self._lease.fence}
        marked = execute(_MARK_SENT, held).fetchone()
        if marked is None:
            raise LeaseLost
        call.sends = marked[0]
        reach(self.run_key, self.position, f"{tool.name}-sending")
        try:
            answer = tool.use(idempotency_key=call.key, **json.loads(call.request)["arguments"])
        except Refused as error:
            return self._refused(call, error, was_sent=was_sent)
        except KeyConflict as error:
            self._conflict(call, error)
        except Retryable as error:
            # Nothing happened this time; an earlier send may still have.
            self._record(call, EffectState.UNKNOWN if was_sent else EffectState.PREPARED, error=sentence_of(error))
            raise
        except Exception as error:  # noqa: BLE001 (a tool may raise anything)
            return self._unknown(tool, call, error)
        with unhurried():
            # The step's time may be over, above all where this process was frozen: what is known is kept all the same.
            reach(self.run_key, self.position, f"{tool.name}-answered")
            return self._confirm(tool, call, answer)

    def _confirm(self, tool: Tool, call: Call, answer: Any, by: str = Call.SettledBy.ANSWER) -> dict[str, Any]:
        try:
            known = from_json(answer_text(tool, answer))
        except BadValue as error:
            self._record(call, EffectState.UNKNOWN, error=sentence_of(error))
            raise
        replayed = bool(known.get("replayed", False))
        kept = lighten_outcome(self._lease.run.pk, self.position, tool.name, known)
        columns = {"answer": kept, "replayed": replayed, "settled_by": by} | spending.settle(call, tool, known)
        self._record(call, EffectState.CONFIRMED, error="", **columns)
        reach(self.run_key, self.position, f"{call.tool}-recorded")
        return known

    def _refused(self, call: Call, error: Refused, *, was_sent: bool) -> dict[str, Any]:
        if was_sent and not error.stored:
            self._record(call, EffectState.UNKNOWN, error=sentence_of(error))
            raise OutcomeUnknown(
                f"{call.key} was refused now, but an earlier send of it may have happened: {error}"
            ) from error
        self._record(call, EffectState.REFUSED, error=sentence_of(error))
        raise EffectRefused(call.key, call.tool, str(error)) from error

    def _conflict(self, call: Call, error: KeyConflict) -> NoReturn:
        """The receiver has another request under this key: nobody knows here what that was, so a person must."""
        self._record(call, EffectState.UNKNOWN, error=sentence_of(error))
        self._tell(call, f"The receiver knows {call.key} with another request than {call.digest}")
        raise ConflictThere(call.key, sentence_of(error)) from error

    def _unknown(self, tool: Tool, call: Call, error: Exception) -> dict[str, Any]:
        # An exception that the tool did not class says nothing about what happened outside: unknown, never failed.
        if tool.delivery == "at-most-once":
            return self._leave_unknown(call, sentence_of(error))
        self._record(call, EffectState.UNKNOWN, error=sentence_of(error))
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


def answer_text(tool: Tool, answer: Any) -> str:
    """A tool's answer as the JSON text that is recorded. Raises BadValue."""
    if not isinstance(answer, dict):
        raise BadValue(f"{tool.name}'s answer", f"it is a {type(answer).__name__}; a tool answers with a dict")
    return as_json(answer, where=f"{tool.name}'s answer", limit=LARGEST)
