"""What approvals add to the health page, to /metrics and to the alarms: how long people take, and whether the ledger is
whole. Registered at start-up. May import models; runs' tallies, metrics, health, alerts, upkeep and how values are
shown.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta

from prometheus_client.core import Metric

from runs import health, metrics, tallies
from runs.alerts import Case, condition
from runs.health import Card, Period, State
from runs.templatetags import show
from runs.upkeep import reported

from .models import LedgerHead

VERIFIED = "verify-ledger"
"""Under this name the command keeps what its last walk found."""

tallies.source(
    "decided",
    """SELECT '' AS name, extract(epoch FROM d.decided_at - a.asked_at)::float8 AS value,
              d.decided_at AS at
         FROM approvals_decision AS d JOIN approvals_approval AS a ON a.id = d.approval_id
        WHERE d.decided_at >= %(since)s AND d.decided_at < %(until)s""",
)


@metrics.source
def ledger_metrics() -> Iterator[Metric]:
    head, last = LedgerHead.objects.first(), reported(VERIFIED)
    entries = head.sequence if head else float("nan")
    yield metrics.gauge("ledger_entries", "Number of the last entry of the ledger.", value=entries)
    at = last.done_at.timestamp() if last and last.done_at else float("nan")
    yield metrics.gauge("ledger_verified_timestamp_seconds", "When the ledger was last verified.", value=at)
    whole = int(last.state["ok"]) if last else float("nan")
    yield metrics.gauge("ledger_whole", "1 when it was whole then, 0 when it was broken.", value=whole)


@health.source
def ledger_card(over: Period) -> Iterator[Card]:
    head, last = LedgerHead.objects.first(), reported(VERIFIED)
    whole: tuple[State, str] = ("none", "")
    if last is not None:
        whole = ("ok", "Intact") if last.state["ok"] else ("bad", "Broken")
    checked = show.moment(last.done_at, seconds=True) if last and last.done_at else "never: run verify_ledger"
    details = [("Entries", f"{head.sequence:,}"), ("Head", head.entry_hash)] if head else [("Head", "gone")]
    yield Card("ledger", "Audit chain", *whole, is_wide=True, details=[*details, ("Last full check", checked)])


@condition("chain-broken", "Ledger broken")
def broken(after: timedelta) -> Iterable[Case]:
    last = reported(VERIFIED)
    if last is not None and not last.state["ok"]:
        number = len(last.state["problems"])
        yield Case("ledger", f"verify_ledger found problems: {number}. The first: {last.state['problems'][0]}")
