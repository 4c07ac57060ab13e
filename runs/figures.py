"""What is known of effects, in numbers, per tool; every question is answered from an index.

May import models and tools.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db.models import Count, Min, Q, QuerySet

from . import tools
from .models import AuditEvent, Call, Finding, database_clock
from .states import CallKind, EffectState


def of_effects() -> list[dict[str, Any]]:
    """Per tool, in the order of names: what became of its effects, how often a key was replayed or reused with another
    request, what is unknown now and since when, and how what was unknown became known.

    Effects that are prepared and not sent are not counted: nothing has happened yet.
    """
    now, figures = database_clock(), defaultdict[str, dict[str, Any]](dict)
    for rows in (_confirmed(), _refused(), _unresolved(now), _reused(), _open_findings()):
        for row in rows:
            figures[row.pop("tool")] |= row
    names = {tool.name for tool in tools.registered() if tool.kind == CallKind.EFFECT} | set(figures)
    return [_whole(name, figures[name]) for name in sorted(names)]


def _whole(tool: str, known: dict[str, Any]) -> dict[str, Any]:
    counts = ("confirmed", "refused", "unknown_now", "key_replays", "key_reused_with_another_request", "open_findings")
    whole = {name: known.get(name, 0) for name in counts}
    resolved = {how: known.get(how, 0) for how in ("by_sending_again", "by_looking_up")}
    by_person = {"by_a_person": known.get("by_a_person", 0) + known.get("refused_by_a_person", 0)}
    effects = whole["confirmed"] + whole["refused"] + whole["unknown_now"]
    oldest = {"oldest_unknown_seconds": known.get("oldest_unknown_seconds")}
    return {"tool": tool, "effects": effects} | whole | oldest | {"resolved": resolved | by_person}


def _confirmed() -> QuerySet[Any, Any]:
    by = Call.SettledBy
    confirmed = Call.objects.filter(kind=CallKind.EFFECT, state=EffectState.CONFIRMED)
    return confirmed.values("tool").annotate(
        confirmed=Count("*"),
        key_replays=Count("tool", filter=Q(replayed=True, settled_by=by.ANSWER)),
        by_sending_again=Count("tool", filter=Q(sends__gt=1, settled_by=by.ANSWER)),
        by_looking_up=Count("tool", filter=Q(settled_by=by.LOOKUP)),
        by_a_person=Count("tool", filter=Q(settled_by=by.PERSON)),
    )


def _refused() -> QuerySet[Any, Any]:
    refused = Call.objects.filter(kind=CallKind.EFFECT, state=EffectState.REFUSED)
    by_hand = Count("tool", filter=Q(settled_by=Call.SettledBy.PERSON))
    return refused.values("tool").annotate(refused=Count("*"), refused_by_a_person=by_hand)


def _unresolved(now: datetime) -> Iterable[dict[str, Any]]:
    unresolved = Call.objects.unresolved().values("tool").annotate(unknown_now=Count("*"), since=Min("sent_at"))
    for row in unresolved:
        age = (now - row["since"]).total_seconds() if row["since"] else None
        yield {"tool": row["tool"], "unknown_now": row["unknown_now"], "oldest_unknown_seconds": age}


def _reused() -> Iterable[dict[str, Any]]:
    alarms = AuditEvent.objects.filter(kind=AuditEvent.Kind.KEY_REUSED, call__isnull=False).order_by()
    for row in alarms.values("call__tool").annotate(number=Count("*")):
        yield {"tool": row["call__tool"], "key_reused_with_another_request": row["number"]}


def _open_findings() -> QuerySet[Any, Any]:
    return Finding.objects.open().order_by().values("tool").annotate(open_findings=Count("*"))
