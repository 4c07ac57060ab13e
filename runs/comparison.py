"""Compares what a provider lists with the effects recorded here, both ways; every difference becomes a finding.

Their list is streamed and kept in the table of what was listed, so that no side is ever held in memory, and a list may
come in any order. What they have is read before what we have, so that an effect made meanwhile is no difference. Each
function does a bounded part, so that a step of a workflow can be made of it; `compare` does all of it at once. May
import providers, lease (for fixed SQL), tools, models, errors.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django.db.models import Count, Exists, OuterRef, Q

from . import providers, tools
from .columns import Among
from .errors import BadRequest, ProviderDown
from .evidence import has_other_amount, ours_of, theirs_of
from .findings import Difference, Evidence
from .lease import execute
from .models import Call, Finding, Listed, Run, database_clock
from .states import EffectState
from .tools import ProviderRecord, Tool

BATCH = 500
LOOKUPS = 100
"""Effects and findings in one part where each may cost a question to the provider."""
SKEW = timedelta(minutes=10)
"""How far the provider's clock may be from ours before records at the edge of a window are looked up one by one."""

Kind = Finding.Kind
Cursor = tuple[str, int]
"""The instant and the id of the record to go on behind."""
COMPARED = (Kind.MISSING_THERE, Kind.MISSING_HERE, Kind.AMOUNT_DIFFERS, Kind.DUPLICATE_REFERENCE)
MAY_HAVE_HAPPENED = (EffectState.CONFIRMED, EffectState.UNKNOWN, EffectState.SENT)
LARGEST = 2**63 - 1

_KEEP = """
INSERT INTO runs_listed (tool, record, key, reference, amount_minor, currency, created_at, seen_at)
SELECT %(tool)s, records.*, runs_clock()
  FROM unnest(%(records)s::text[], %(keys)s::text[], %(references)s::text[], %(amounts)s::bigint[],
              %(currencies)s::text[], %(times)s::timestamptz[]) AS records
ON CONFLICT (tool, record) DO UPDATE
   SET key = EXCLUDED.key, reference = EXCLUDED.reference, amount_minor = EXCLUDED.amount_minor,
       currency = EXCLUDED.currency, created_at = EXCLUDED.created_at, seen_at = EXCLUDED.seen_at
"""

AGREES_AGAIN = "Compared again: the difference is gone."


@dataclass
class Comparison:
    """How far a comparison of one tool has come. `found`: new findings; `gone`: findings that closed by themselves;
    `down`: why the provider could not be asked."""

    tool: str
    listed: int = 0
    found: int = 0
    gone: int = 0
    down: str = ""


def compare(
    tool: Tool | str, since: datetime, until: datetime, tell: Callable[[Comparison], None] | None = None
) -> Comparison:
    """Compare what was done from `since` until before `until`. A provider that is down becomes its one finding.

    `tell` is called after each part. Raises BadRequest for a tool that cannot list.
    """
    listing, tell = _listing(tool), tell or (lambda progress: None)
    progress = Comparison(listing.name)
    try:
        take_list(listing, since - SKEW, until + SKEW, progress, tell=tell)
        _repeat(lambda after: look_at_theirs(listing, since - SKEW, until + SKEW, progress, after))
        _repeat(lambda after: look_for_ours(listing, since, until, progress, after))
        _repeat(lambda after: close_gone(listing, progress, after))
    except ProviderDown as down:
        progress.down = down.why
        providers.went_down(down)
    tell(progress)
    return progress


def take_list(
    tool: Tool,
    since: datetime,
    until: datetime,
    progress: Comparison,
    *,
    seconds: float | None = None,
    tell: Callable[[Comparison], None] = lambda progress: None,
) -> bool:
    """Take over what the provider lists of this time.

    False when `seconds` were over first: what was taken is kept, and a shorter time can be asked for. Raises
    ProviderDown.
    """
    began, end = database_clock(), _end(seconds)
    for batch in _batches(providers.records(tool, since, until)):
        progress.listed += _keep(tool, batch)
        tell(progress)
        if time.monotonic() > end:
            return False
    # The list of this time is whole: what is not on it any more is no longer there.
    Listed.objects.filter(tool=tool.name, created_at__gte=since, created_at__lt=until, seen_at__lt=began).delete()
    providers.answers(tool.name, "list")
    return True


def look_at_theirs(
    tool: Tool, since: datetime, until: datetime, progress: Comparison, after: Cursor | None = None
) -> Cursor | None:
    """Compare the next records of this time with our effects. Where to go on; None when those were the last."""
    rows = Listed.objects.filter(tool=tool.name, created_at__gte=since, created_at__lt=until)
    if after:
        at = datetime.fromisoformat(after[0])
        rows = rows.filter(Q(created_at__gt=at) | Q(pk__gt=after[1]), created_at__gte=at)
    batch = list(rows.order_by("created_at", "pk")[:BATCH])
    _note(tool, differences_of(tool, batch), progress)
    return (batch[-1].created_at.isoformat(), batch[-1].pk) if batch else None


def look_for_ours(
    tool: Tool,
    since: datetime,
    until: datetime,
    progress: Comparison,
    after: int | None = None,
    *,
    seconds: float | None = None,
) -> int | None:
    """Look for effects confirmed in this time that the provider does not list, behind the call with the id `after`.

    An effect is given the time that the provider's own records take to show it, and is looked up by its key before it
    is called missing. The id to go on behind; None when those were the last. Raises ProviderDown.
    """
    end, until = _end(seconds), min(until, database_clock() - providers.patience(tool))
    those = _not_listed(tool).filter(settled_at__gte=since, settled_at__lt=until, pk__gt=after or 0)
    missing, after = [], None
    for call in those.order_by("pk")[:LOOKUPS]:
        if providers.find(tool, call.key) is None:
            missing.append(Difference(Kind.MISSING_THERE, tool.name, call.key, call.run, ours=[ours_of(call)]))
        after = call.pk
        if time.monotonic() > end:
            break
    _note(tool, missing, progress)
    return after


def close_gone(
    tool: Tool, progress: Comparison, after: int | None = None, *, seconds: float | None = None
) -> int | None:
    """Close the tool's findings whose difference has gone, behind the finding with the id `after`. The id to go on
    behind; None when those were the last. Raises ProviderDown."""
    end, gone = _end(seconds), []
    those = Finding.objects.open().filter(tool=tool.name, kind__in=COMPARED, pk__gt=after or 0)
    findings, after = list(those.order_by("pk")[:LOOKUPS]), None
    standing, not_listed = _standing(tool, findings)
    for finding in findings:
        stands = finding.name in standing
        if finding.key in not_listed and finding.kind == Kind.MISSING_THERE:
            stands = providers.find(tool, finding.key) is None
        gone += [] if stands else [finding.pk]
        after = finding.pk
        if time.monotonic() > end:
            break
    progress.gone += Finding.objects.filter(pk__in=gone).close(AGREES_AGAIN)
    return after


def _standing(tool: Tool, findings: list[Finding]) -> tuple[set[tuple[str, str]], set[str]]:
    """Which of these differences there are now, by what is listed; and which of their effects are not listed."""
    keys = Among(finding.key for finding in findings)
    rows = Listed.objects.filter(Q(key__in=keys) | Q(record__in=keys) | Q(reference__in=keys), tool=tool.name)
    not_listed = set(_not_listed(tool).filter(key__in=keys).values_list("key", flat=True))
    return {difference.name for difference in differences_of(tool, list(rows))}, not_listed


# Their side


def differences_of(tool: Tool, rows: list[Listed]) -> Iterator[Difference]:
    """What does not fit between these records and our effects. A record that repeats another's reference is told once,
    as that, and not as missing here too."""
    repeated = _repeated(tool, rows)
    calls = _effects([*rows, *(row for those in repeated.values() for row in those)])
    for reference, those in repeated.items():
        yield _duplicate(tool, reference, those, calls)
    single = [row for row in rows if row.reference not in repeated]
    yield from _missing_here(tool, [row for row in single if not _may_have_happened(calls.get(row.key))], calls)
    for row in rows:
        call = calls.get(row.key)
        if call and _may_have_happened(call) and has_other_amount(call, row.amount_minor, row.currency):
            told = {"ours": [ours_of(call)], "theirs": [theirs_of(row)]}
            yield Difference(Kind.AMOUNT_DIFFERS, tool.name, row.key, call.run, **told)


def _duplicate(tool: Tool, reference: str, rows: list[Listed], calls: dict[str, Call]) -> Difference:
    ours = [calls[key] for key in dict.fromkeys(row.key for row in rows) if key in calls]
    run = ours[0].run if ours else None
    told: dict[str, Evidence] = {"ours": [ours_of(call) for call in ours], "theirs": [theirs_of(row) for row in rows]}
    return Difference(Kind.DUPLICATE_REFERENCE, tool.name, reference, run, **told)


def _missing_here(tool: Tool, rows: list[Listed], calls: dict[str, Call]) -> Iterator[Difference]:
    runs = {run.key: run for run in Run.objects.filter(key__in=Among({row.key.partition(":")[0] for row in rows}))}
    by_key: dict[str, list[Listed]] = defaultdict(list)
    for row in rows:
        by_key[row.key or row.record].append(row)
    for key, those in by_key.items():
        call = calls.get(key)
        run = call.run if call else runs.get(key.partition(":")[0])
        told = {"ours": [ours_of(call)] if call else [], "theirs": [theirs_of(row) for row in those]}
        yield Difference(Kind.MISSING_HERE, tool.name, key, run, **told)


def _repeated(tool: Tool, rows: list[Listed]) -> dict[str, list[Listed]]:
    """All records of each reference that these rows share with another record, now or from an earlier list."""
    those = Listed.objects.filter(tool=tool.name)
    shared = (
        those.filter(reference__in=Among({row.reference for row in rows}))
        .values("reference")
        .annotate(number=Count("pk"))
    )
    references = [row["reference"] for row in shared.filter(number__gt=1)]
    repeated: dict[str, list[Listed]] = defaultdict(list)
    if references:
        for row in those.filter(reference__in=Among(references)).order_by("created_at", "pk"):
            repeated[row.reference].append(row)
    return repeated


def _effects(rows: Iterable[Listed]) -> dict[str, Call]:
    calls = Call.objects.effects().filter(key__in=Among({row.key for row in rows if row.key}))
    return {call.key: call for call in calls.select_related("run").defer("answer")}


def _may_have_happened(call: Call | None) -> bool:
    return call is not None and call.state in MAY_HAVE_HAPPENED


def _keep(tool: Tool, records: list[ProviderRecord]) -> int:
    """Write the records down as they are now; how many."""
    rows = {row[0]: row for row in map(_row, records)}
    names = ("records", "keys", "references", "amounts", "currencies", "times")
    columns = (list(column) for column in zip(*rows.values(), strict=True))
    execute(_KEEP, {"tool": tool.name} | dict(zip(names, columns, strict=True)))
    return len(rows)


def _row(record: ProviderRecord) -> tuple[str, str, str, int | None, str, datetime]:
    key, amount = _text(record.key), record.amount_minor
    name = _text(record.id) or key
    amount = None if amount is None else max(-LARGEST, min(LARGEST, amount))
    return (
        name,
        key,
        _text(record.reference) or key or name,
        amount,
        _text(record.currency)[:8].upper(),
        record.created_at,
    )


def _text(word: Any) -> str:
    """What somebody else's system says, in a form that can be kept: one odd record must not end the comparison."""
    return str(word or "").replace("\0", "").encode(errors="replace").decode()[:255]


# Our side


def _not_listed(tool: Tool) -> Any:
    listed = Listed.objects.filter(tool=tool.name, key=OuterRef("key"))
    confirmed = Call.objects.effects().filter(~Exists(listed), tool=tool.name, state=EffectState.CONFIRMED)
    return confirmed.select_related("run").defer("answer")


def _note(tool: Tool, differences: Iterable[Difference], progress: Comparison) -> None:
    found = list(differences)
    if found:
        progress.found += Finding.objects.note(tool.name, found, providers.team())


def _listing(tool: Tool | str) -> Tool:
    known = tool if isinstance(tool, Tool) else tools.get(tool)
    if known is None or known.listing_function is None:
        names = ", ".join(listing.name for listing in tools.with_listing()) or "none"
        raise BadRequest(f"{tool} has no list to compare with. Tools that have one: {names}.")
    return known


def _batches(records: Iterator[ProviderRecord]) -> Iterator[list[ProviderRecord]]:
    while batch := list(islice(records, BATCH)):
        yield batch


def _end(seconds: float | None) -> float:
    return time.monotonic() + (float("inf") if seconds is None else seconds)


def _repeat(part: Callable[[Any], Any]) -> None:
    after = part(None)
    while after is not None:
        after = part(after)
