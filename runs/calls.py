"""What a step sees of its run, and every use it makes of a tool: recorded, keyed, sent under one key.

Lives here: Context (what `ctx` offers) and State (the fold of the outputs). How an effect is sent is in effects. May
import effects, lease, tools, waits, models.
"""

import json
import logging
import time
from collections import Counter
from functools import reduce
from typing import IO, Any

from django.conf import settings
from django.db import transaction
from django.db.models import TextField
from django.db.models.functions import Cast

from . import artefacts, spending, tools, waits
from .effects import Effects, answer_text
from .errors import (
    LeaseLost,
    NotApproved,
    PermanentError,
    Refused,
    Retryable,
    sentence_of,
)
from .failpoints import reach
from .lease import Lease, execute
from .lightening import (
    holds_marks,
    is_light,
    keep_by_hand,
    kept_by,
    lighten_answer,
    lighten_outcome,
    restored,
    restored_members,
)
from .models import Call, Checkpoint, DatabaseClock, database_clock
from .states import CallKind, EffectState, WaitKind
from .tools import Tool
from .values import as_json, canonical, digest, from_json
from .workflows import Finish, Goto, Step

logger = logging.getLogger(__name__)

_RECORD_READ = """
INSERT INTO runs_call (run_id, position, step, tool, kind, key, request, digest, state, answer, replayed, error, sends,
                       prepared_at, sent_at, settled_at)
SELECT id, %(position)s, %(step)s, %(tool)s, %(kind)s, %(key)s, %(request)s, %(digest)s, 'confirmed', %(answer)s, false,
       '', 1, runs_clock(), runs_clock(), runs_clock()
  FROM runs_run WHERE id = %(run)s AND fence = %(fence)s AND status = 'running'
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
        self._effects = Effects(lease, step.name)
        self._reads: Counter[str] = Counter()
        self.input: dict[str, Any] = lease.run.input
        self.run_key, self.position, self.attempt = lease.run.key, lease.position, lease.run.attempt

    @property
    def state(self) -> dict[str, Any]:
        """The fold of the outputs of all finished steps."""
        return self._state.fold()

    @property
    def answer(self) -> dict[str, Any] | None:
        """What a person asked to be changed, when the last question of this run was answered so; else None."""
        asked = (
            Checkpoint.objects.filter(run=self._lease.run, wait_kind=WaitKind.APPROVAL).order_by("-position").first()
        )
        return asked.output["answer"] if asked is not None and asked.closed_as == "responded" else None

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
        is_effect = tool.kind == CallKind.EFFECT
        request = canonical({"arguments": clean, "tool": tool.name}, where=tool.name, signed=is_effect)
        if not is_effect:
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
        call = self._effects.under(self._effect_key(""))
        if call is None:
            # Outside the transaction: reading facts may ask other systems.
            if (instead := kind.recheck(self._lease.run, asked.position)) is not None:
                raise ClosePosition(instead)
            call = self._intend_granted(kind, asked.position)
        else:
            granted = kind.granted(self._lease.run, asked.position, call.key)
            if granted is None or call.digest != granted.digest:
                self._effects.alarm(call, granted.request if granted else "")
        return self._effects.settle(call)

    def artefact(self, content: bytes | str | IO[bytes], *, media_type: str = "") -> dict[str, Any]:
        """Keep something large, and return the reference to put into the output: {"$artefact": {"sha256": …, "size": …,
        "media_type": …}}. Text is kept as UTF-8; a file, opened in binary mode, is kept whole. Whoever sees the run may
        download it; `read_artefact` reads it. Raises Retryable while the storage cannot be written."""
        is_text = isinstance(content, str)
        media_type = media_type or ("text/plain; charset=utf-8" if is_text else "application/octet-stream")
        about = artefacts.keep(content.encode() if isinstance(content, str) else content, media_type=media_type)
        reach(self.run_key, self.position, "artefact-stored")
        keep_by_hand(self._lease.run.pk, self.position, about)
        return artefacts.reference(about)

    def read_artefact(self, reference: dict[str, Any]) -> bytes:
        """The bytes of what this run, or the run that it was forked from, kept with `artefact`; verified. Raises
        PermanentError for what it does not keep, and for what is gone or damaged."""
        about = artefacts.about_reference(reference)
        if kept_by(self._lease.run, about.sha256) is None:
            # A reference that came in from outside must not open what another run keeps.
            raise PermanentError(f"Run {self.run_key} keeps no artefact {about.sha256[:12]}….")
        return artefacts.read(about)

    def _read(self, tool: Tool, arguments: dict[str, Any], request: str) -> dict[str, Any]:
        self._reads[tool.name] += 1
        key = f"{self.run_key}:step{self.position}/{tool.name}/{self._reads[tool.name]}"
        known = Call.objects.exclude(kind=CallKind.EFFECT).filter(key=key, digest=digest(request)).first()
        if known is not None and known.state == EffectState.CONFIRMED:
            # Tried again, also after a pause or a redrive, which count attempts anew: what was read stands.
            return restored(known.answer or {})
        if tool.price is not None:
            return self._buy(tool, arguments, known or Call(key=key, request=request, digest=digest(request)))
        answer = answer_text(tool, tool.use(**arguments))
        reach(self.run_key, self.position, f"{tool.name}-answered")
        value = from_json(answer)
        self._record_read(tool, key, request, answer if is_light(answer) else self._lightened(tool, value))
        reach(self.run_key, self.position, f"{tool.name}-recorded")
        return value

    def _buy(self, tool: Tool, arguments: dict[str, Any], call: Call) -> dict[str, Any]:
        """A read or a model call that has a price: its row is written before it is sent."""
        self._reserve(tool, arguments, call)
        if call.state == EffectState.CONFIRMED:
            return restored(call.answer or {})
        reach(self.run_key, self.position, f"{tool.name}-reserved")
        try:
            value = from_json(answer_text(tool, tool.use(**arguments)))
        except Exception as error:
            # Only what surely did not happen costs nothing; what is tried again stands under the same reservation.
            state = EffectState.PREPARED if isinstance(error, Retryable) else EffectState.UNKNOWN
            self._learn(call, EffectState.REFUSED if isinstance(error, Refused) else state, error=sentence_of(error))
            raise
        reach(self.run_key, self.position, f"{tool.name}-answered")
        kept = lighten_outcome(self._lease.run.pk, self.position, tool.name, value)
        self._learn(call, EffectState.CONFIRMED, answer=kept, error="", **spending.settle(call, tool, value))
        reach(self.run_key, self.position, f"{tool.name}-recorded")
        return value

    def _reserve(self, tool: Tool, arguments: dict[str, Any], call: Call) -> None:
        with transaction.atomic():
            run, now = self._lease.locked(), database_clock()
            if call.pk is not None:
                call.refresh_from_db(from_queryset=Call.objects.select_for_update())
            if call.state == EffectState.CONFIRMED:
                # By a worker that lost this run, was frozen, and had its answer since we looked.
                return
            if call.pk is None or call.state == EffectState.REFUSED:
                reserved = spending.reserve(run, self._step.name, tool, arguments)
                call.price_minor, call.currency = reserved["price_minor"], reserved["currency"]
            call.run, call.position, call.step, call.tool = run, self.position, self._step.name, tool.name
            call.kind, call.state, call.error, call.sends = tool.kind, EffectState.SENT, "", call.sends + 1
            call.prepared_at, call.sent_at, call.last_sent_at = call.prepared_at or now, call.sent_at or now, now
            call.save()

    def _learn(self, call: Call, state: EffectState, **columns: Any) -> None:
        """Write what came of a priced read, guarded by its own row, also after a lost lease: it may have been paid."""
        unknown = Call.objects.filter(pk=call.pk).exclude(state=EffectState.CONFIRMED)
        if state != EffectState.CONFIRMED:
            # This speaks for one send only: another worker may have sent it again.
            unknown = unknown.filter(sends=call.sends)
        unknown.update(state=state, settled_at=DatabaseClock(), **columns)

    def _lightened(self, tool: Tool, answer: dict[str, Any]) -> str:
        return as_json(lighten_answer(self._lease.run.pk, self.position, tool.name, answer))

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
            call = self._effects.under(key) or self._effects.prepare(tool, key, request)
            reach(self.run_key, self.position, f"{tool.name}-intending")
        if call.digest != digest(request):
            self._effects.alarm(call, request)
        reach(self.run_key, self.position, f"{tool.name}-intended")
        return self._effects.settle(call)

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
            call = self._effects.prepare(tool, key, grant.request)
            if call.digest != grant.digest:
                raise NotApproved(
                    grant.tool, "the stored action is not the one whose digest was approved. Somebody changed it."
                )
        reach(self.run_key, self.position, f"{grant.tool}-intended")
        return call

    def _effect_key(self, name: str) -> str:
        return f"{self.run_key}:step{self.position}" + (f":{name}" if name else "")


class State:
    """The fold of a run's outputs, read when first asked for and then kept up to date by the stretch."""

    def __init__(self, run_id: int, position: int, appends: frozenset[str]) -> None:
        self._run_id, self._position, self._appends = run_id, position, appends
        self._folded: dict[str, Any] | None = None

    def fold(self) -> dict[str, Any]:
        if self._folded is None:
            rows = Checkpoint.objects.filter(run_id=self._run_id, position__lte=self._position).order_by("position")
            outputs = list(rows.values_list(Cast("output", TextField()), flat=True))
            nothing: dict[str, Any] = {}
            folded = reduce(self._with, map(self._loaded, outputs), nothing)
            # Only what is left of the fold is read from storage, not what later steps overwrote.
            self._folded = restored_members(folded) if any(map(holds_marks, outputs)) else folded
        return self._folded

    def _loaded(self, text: str) -> dict[str, Any]:
        output: dict[str, Any] = json.loads(text)
        if holds_marks(text):
            # What is appended to must be the list itself.
            output |= restored_members({name: output[name] for name in self._appends & output.keys()})
        return output

    def add(self, output: str) -> None:
        """Take in what a step has just left, as its text: the value that a later worker would read."""
        self._position += 1
        if self._folded is not None:
            self._folded = self._with(self._folded, from_json(output))

    def _with(self, state: dict[str, Any], output: dict[str, Any]) -> dict[str, Any]:
        appended = {
            name: [*state.get(name, []), *value]
            for name, value in output.items()
            if name in self._appends and isinstance(value, list)
        }
        return state | output | appended
