"""Brings effects whose outcome is unknown to a known one, by looking them up or by a person; never by guessing.

Lives here: settle_unknown and its bounded part, and the verbs of people: resolve a finding, settle an effect by hand.
Comparing with a provider's list is in comparison. Nothing is asked within a transaction. May import engine, providers,
comparison, tools, models, errors.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from . import engine, providers, spending, tools
from .comparison import Comparison, compare
from .errors import BadRequest, EffectSettled, FindingClosed, NoSuchEffect, NoSuchFinding, NotAllowed, ProviderDown
from .evidence import found_other_amount, ours_of
from .findings import Difference, FindingQuerySet
from .lightening import lighten_outcome
from .models import AuditEvent, Call, Finding, Run, database_clock
from .states import EffectState, Status
from .tools import Tool
from .values import from_json

__all__ = ["Comparison", "Tally", "compare", "find", "is_anything_open", "resolve", "settle_by_hand", "settle_unknown"]

BATCH = 100
AT_WORK = 15.0
"""Seconds after which a batch ends where it is: a step of a workflow has to come to its checkpoint."""
ENOUGH = 2
"""Look-ups that fail in a row, before any of the same tool was answered, until its provider counts as down."""

IS_KNOWN = "Its outcome is known now."
HAPPENED = {"settled_by_hand": True}
"""The answer of an effect that a person says has happened, when they give no other."""


@dataclass
class Tally:
    """How far settling has come. `found`: new findings; `down`: tools whose providers could not be asked."""

    looked_at: int = 0
    confirmed: int = 0
    found: int = 0
    down: list[str] = field(default_factory=list)


def settle_unknown(tell: Callable[[Tally], None] | None = None) -> Tally:
    """Settle all effects that were sent and have no known outcome, as far as their providers know them."""
    tally = Tally()
    after: int | None = 0
    while after is not None:
        after = settle_batch(tally, after)
        if tell:
            tell(tally)
    return tally


def settle_batch(tally: Tally, after: int = 0, seconds: float = AT_WORK) -> int | None:
    """Settle the next effects behind the call with the id `after`; the id to go on behind, None after the last."""
    end = time.monotonic() + seconds
    calls = list(Call.objects.unresolved().filter(pk__gt=after).select_related("run").order_by("pk")[:BATCH])
    if not calls:
        _end(tally)
        return None
    batch = _Batch(tally, database_clock())
    for call in calls:
        batch.settle(call)
        after = call.pk
        if time.monotonic() > end:
            break
    batch.end()
    return after


def is_anything_open() -> bool:
    """Whether settle_unknown would have something to do: what only a person can find out, and was told to people, is
    left to them."""
    answerable = [tool.name for tool in tools.registered() if _can_be_looked_up(tool)]
    told = Finding.objects.told_to_people().filter(kind=Finding.Kind.UNKNOWN, key=OuterRef("key"))
    to_settle = Call.objects.unresolved().filter(Q(tool__in=answerable) | ~Exists(told))
    down = Finding.objects.open().filter(kind=Finding.Kind.PROVIDER_DOWN)
    return to_settle.exists() or _known_by_now().exists() or down.exists()


class _Batch:
    """Some effects being settled, and what each provider has answered so far."""

    def __init__(self, tally: Tally, now: datetime) -> None:
        self.tally, self.now = tally, now
        self.answered: set[str] = set()
        self.failed: dict[str, list[tuple[Call, ProviderDown]]] = defaultdict(list)
        self.differences: dict[str, list[Difference]] = defaultdict(list)

    def settle(self, call: Call) -> None:
        self.tally.looked_at += 1
        if is_at_work(call, self.now):
            return
        tool = tools.get(call.tool)
        if tool is None or not _can_be_looked_up(tool):
            self._ask_people(call, "it cannot be looked up")
        elif tool.name not in self.tally.down:
            self._look_up(tool, call)

    def end(self) -> None:
        """Write down what is for people to see: what stays unknown, and which providers are down."""
        for tool in self.answered:
            providers.answers(tool, "lookup")
        for tool, failures in self.failed.items():
            if tool in self.answered:
                for call, down in failures:
                    self._ask_people(call, f"looking it up fails: {down.why}")
            else:
                self._take_for_down(failures[-1][1])
        for tool, differences in self.differences.items():
            self.tally.found += Finding.objects.note(tool, differences, providers.team())

    def _look_up(self, tool: Tool, call: Call) -> None:
        try:
            found = providers.find(tool, call.key)
        except ProviderDown as down:
            self.failed[tool.name].append((call, down))
            if tool.name not in self.answered and len(self.failed[tool.name]) >= ENOUGH:
                self.tally.down.append(tool.name)
            return
        self.answered.add(tool.name)
        if found is None:
            self._ask_people(call, "it is not found there")
        else:
            self._confirm(call, found)

    def _confirm(self, call: Call, found: Any) -> None:
        try:
            answer = from_json(engine.input_text(found, where=f"answer of {call.tool}'s look-up"))
        except BadRequest as error:
            self._ask_people(call, f"what is found there cannot be kept: {error}")
            return
        if found_other_amount(call, answer):
            self._ask_people(call, "it is found there with another amount", answer)
            return
        one, replayed = Call.objects.filter(pk=call.pk), bool(answer.get("replayed", False))
        kept = lighten_outcome(call.run_id, call.position, call.tool, answer)
        tool = tools.get(call.tool)
        columns = {"answer": kept, "replayed": replayed} | (spending.settle(call, tool, answer) if tool else {})
        settled = one.settle(EffectState.CONFIRMED, Call.SettledBy.LOOKUP, error="", **columns)
        self.tally.confirmed += settled

    def _ask_people(self, call: Call, why: str, found: dict[str, Any] | None = None) -> None:
        """A finding for a person, once the provider's own records had time to show the effect."""
        if self.now - _last_heard_of(call) < _patience(tools.get(call.tool)):
            return
        told = [{"said": why, **({"found": found} if found else {})}]
        about = Difference(Finding.Kind.UNKNOWN, call.tool, call.key, call.run, ours=[ours_of(call)], theirs=told)
        self.differences[call.tool].append(about)

    def _take_for_down(self, down: ProviderDown) -> None:
        providers.went_down(down)
        if down.tool not in self.tally.down:
            self.tally.down.append(down.tool)


def is_at_work(call: Call, now: datetime) -> bool:
    """Whether a worker holds the run at this effect's position and may still record its outcome."""
    run = call.run
    held = run.status == Status.RUNNING and run.lease_until is not None and run.lease_until > now
    return held and run.position + 1 == call.position


def _can_be_looked_up(tool: Tool) -> bool:
    return tool.lookup_function is not None and tool.delivery != "at-most-once"


def _last_heard_of(call: Call) -> datetime:
    return max(at for at in (call.prepared_at, call.last_sent_at or call.sent_at, call.settled_at) if at is not None)


def _patience(tool: Tool | None) -> timedelta:
    # Nothing but a person will ever tell what became of an effect that is sent at most once.
    return timedelta() if tool is None or tool.delivery == "at-most-once" else providers.patience(tool)


def _end(tally: Tally) -> None:
    """After the last effect: close what is known by now, and ask the providers that were down without being asked."""
    _known_by_now().close(IS_KNOWN)
    tally.down += [tool for tool in providers.ask_those_down() if tool not in tally.down]


def _known_by_now() -> FindingQuerySet:
    still = Call.objects.unresolved().filter(key=OuterRef("key"))
    return Finding.objects.open().filter(~Exists(still), kind=Finding.Kind.UNKNOWN)


# What people do


def find(finding_id: int, user: Any) -> Finding:
    """The finding, if the user may see it; NoSuchFinding for strangers as for ids that do not exist. None sees all."""
    findings = Finding.objects.all() if user is None else Finding.objects.visible_to(user)
    finding = findings.select_related("run", "team", "resolved_by").filter(pk=finding_id).first()
    if finding is None:
        raise NoSuchFinding(finding_id)
    return finding


def resolve(finding_id: int, *, by: Any, why: str, actor: str = "") -> Finding:
    """Close a finding in a person's name, with a reason that is kept. Changes nothing else: no effect, no run.

    It opens again only when what it tells of changes. Raises NoSuchFinding, NotAllowed, BadRequest (no reason),
    FindingClosed.
    """
    finding = find(finding_id, by)
    _check_reason(why)
    _may_resolve(finding, by, actor)
    if not Finding.objects.filter(pk=finding.pk).resolve(by, why):
        raise FindingClosed(finding.pk)
    return find(finding_id, by)


def settle_by_hand(
    key: str,
    *,
    outcome: str,
    by: Any,
    why: str,
    answer: dict[str, Any] | None = None,
    actor: str = "",
) -> Call:
    """Record a person's word that the effect under this key happened ("confirmed") or did not ("refused"); its run can
    then be redriven.

    Only while its outcome is unknown and no worker is at it. `answer` is what later steps read as the tool's answer.
    Leaves an audit event, and closes the finding. Raises NoSuchEffect, NotAllowed, BadRequest, EffectSettled.
    """
    _check_reason(why)
    if outcome not in (EffectState.CONFIRMED, EffectState.REFUSED):
        raise BadRequest(f"An effect is settled as confirmed or refused, not as {outcome}.")
    known = from_json(engine.input_text(HAPPENED if answer is None else answer, where="answer"))
    call = _effect(key, by)
    engine.may_operate(call.run.key, by, "settle an effect of")
    with transaction.atomic():
        call.run = engine.locked(call.run.key, by)
        _settle_by_hand(call, EffectState(outcome), known, by=by, why=why, actor=actor)
    return Call.objects.select_related("run").get(pk=call.pk)


def _settle_by_hand(call: Call, outcome: EffectState, answer: dict[str, Any], *, by: Any, why: str, actor: str) -> None:
    if is_at_work(call, database_clock()):
        raise EffectSettled(call.key, "a worker is at it now and may still learn its outcome")
    happened = outcome == EffectState.CONFIRMED
    kept = lighten_outcome(call.run_id, call.position, call.tool, answer)
    columns = {"answer": kept, "error": ""} if happened else {"error": f"settled by hand: {why}"}
    if not Call.objects.filter(pk=call.pk).settle(outcome, Call.SettledBy.PERSON, **columns):
        state = Call.objects.get(pk=call.pk).state
        raise EffectSettled(call.key, f"it is {state}, and only what was sent and is unknown can be")
    AuditEvent.objects.create(
        kind=AuditEvent.Kind.EFFECT_SETTLED,
        run=call.run,
        position=call.position,
        call=call,
        detail=f"{call.key} was {call.state} and is {outcome} by hand: {why}",
        actor=actor or "settle by hand",
        user=by,
    )
    Finding.objects.filter(kind=Finding.Kind.UNKNOWN, tool=call.tool, key=call.key).resolve(by, why)


def _effect(key: str, user: Any) -> Call:
    runs = Run.objects.all() if user is None else Run.objects.visible_to(user)
    if "\0" in key:
        raise NoSuchEffect(key.replace("\0", "?"))
    call = Call.objects.effects().filter(key=key, run__in=runs).select_related("run").first()
    if call is None:
        raise NoSuchEffect(key)
    return call


def _may_resolve(finding: Finding, user: Any, actor: str) -> None:
    if user is None or user.has_perm("runs.operate_run"):
        return
    rule = f"To resolve a finding takes the right to operate runs (group ops); {user.get_username()} does not have it."
    detail = f"resolve finding {finding.pk}: {rule}"
    AuditEvent.objects.create(kind=AuditEvent.Kind.VERB_REFUSED, run=finding.run, detail=detail, actor=actor, user=user)
    raise NotAllowed(rule)


def _check_reason(why: str) -> None:
    if not why.strip():
        raise BadRequest("Say why: the reason stays with the finding.")
    engine.check_words(why, "reason")
