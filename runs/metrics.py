"""What /metrics tells: one look at indexes and tallies, in the text format of Prometheus.

Labels are tools, steps, statuses, reasons, rules and hosts: few, and known to whoever wrote the workflows. No run, no
person and no key is ever one. Other apps add figures of their own. May import alerts' rows, tallies, stuck, models.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from django.db.models import Count, Min
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from . import stuck, tallies
from .doorbell import Canary
from .models import Alarm, AlarmRule, Beat, Call, Run, Upkeep, database_clock
from .states import LIVE
from .tallies import HOUR, SLOT, Bucket

PREFIX = "durable_runs_"
ALIVE_WITHIN = 10
"""Seconds since its last beat within which a runner is called alive; it beats each second."""
QUANTILES = (0.5, 0.95)

Source = Callable[[], Iterable[Metric]]

_sources: list[Source] = []


def source(function: Source) -> Source:
    """Register a function whose metrics are told with ours."""
    _sources.append(function)
    return function


def text() -> bytes:
    """Everything, as of now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_All())
    return generate_latest(registry)


class _All(Collector):
    def collect(self) -> Iterator[Metric]:
        for function in _sources:
            yield from function()

    def describe(self) -> list[Metric]:
        return []


def gauge(name: str, meaning: str, labels: Iterable[str] = (), value: float | None = None) -> GaugeMetricFamily:
    return GaugeMetricFamily(
        f"{PREFIX}{name}", meaning, labels=None if value is not None else list(labels), value=value
    )


def _counter(name: str, meaning: str, label: str, counts: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"{PREFIX}{name}", meaning, labels=[label] if label else [])
    for value, number in sorted(counts.items()):
        family.add_metric([value] if label else [], number)
    return family


@source
def _counted() -> Iterator[Metric]:
    counts: dict[str, dict[str, int]] = {}
    for (figure, name), number in tallies.totals().items():
        counts.setdefault(figure, {})[name] = number
    for figure, name, label, meaning in (
        ("confirmed", "effects_confirmed", "tool", "Effects that are known to have happened."),
        ("replayed", "key_replays", "tool", "Effects whose receiver answered: done before under this key."),
        ("key-reused", "keys_reused", "tool", "Keys that came back with another request, and were refused."),
        ("ended", "runs_ended", "status", "Runs that came to an end."),
        ("dead", "dead_letters", "reason", "Moves to the dead letters."),
    ):
        yield _counter(name, meaning, label, counts.get(figure, {}))
    resumed = counts.get("resumed", {}).get("", 0)
    yield _counter("resumes", "Claims after a lease that ended unreleased: its worker died.", "", {"": resumed})


@source
def _standing() -> Iterator[Metric]:
    family = gauge("runs", "Live runs.", ["status"])
    counts = Run.objects.filter(status__in=LIVE).order_by().values_list("status").annotate(number=Count("*"))
    numbers = dict(counts)
    for status in sorted(LIVE):
        family.add_metric([status], numbers.get(status, 0))
    yield family
    family = gauge("stuck_runs", "Runs that have something to do, and nobody does it.", ["kind"])
    for kind, number in stuck.counted().items():
        family.add_metric([kind], number)
    yield family
    past = Run.objects.due().filter(status="waiting").count()
    yield gauge("waits_past_due", "Waits whose due time has passed.", value=past)


@source
def _unknown() -> Iterator[Metric]:
    now = database_clock()
    number = gauge("effects_unknown", "Effects that may have happened.", ["tool"])
    oldest = gauge("oldest_unknown_effect_seconds", "Since the oldest of them was sent.", ["tool"])
    for row in Call.objects.unresolved().order_by("tool").values("tool").annotate(number=Count("*"), at=Min("sent_at")):
        number.add_metric([row["tool"]], row["number"])
        oldest.add_metric([row["tool"]], (now - row["at"]).total_seconds() if row["at"] else 0)
    yield from (number, oldest)


@source
def _measured() -> Iterator[Metric]:
    """Of the last hour: what is slower or larger than usual shows at once."""
    until = database_clock()
    since = tallies.floor(until - HOUR, SLOT)
    labels = ["workflow", "version", "step"]
    for figure, name, meaning in (
        ("step-time", "step_seconds", "Time that steps took within the last hour."),
        ("step-size", "checkpoint_bytes", "Size of checkpoints of the last hour."),
    ):
        family = gauge(name, meaning, [*labels, "quantile"])
        found = sorted(tallies.read(figure, since, until, SLOT), key=lambda bucket: bucket.name)
        for step, buckets in groupby(found, key=lambda bucket: bucket.name):
            _add_quantiles(family, step.split("/"), list(buckets))
        yield family
    family = gauge("decision_seconds", "From asking to a person's answer, within the last hour.", ["quantile"])
    _add_quantiles(family, [], tallies.read("decided", since, until, SLOT))
    yield family


def _add_quantiles(family: GaugeMetricFamily, labels: list[str], buckets: list[Bucket]) -> None:
    for share in QUANTILES:
        if (value := tallies.quantile(buckets, share)) is not None:
            family.add_metric([*labels, str(share)], value)
    if buckets:
        family.add_metric([*labels, "1"], max(bucket.most for bucket in buckets))


@source
def _runners() -> Iterator[Metric]:
    queue, now = Canary.queue(), database_clock()
    yield gauge("queue_bells", "Bells that nobody has taken.", value=queue["bells"])
    yield gauge("oldest_bell_seconds", "Age of the oldest of them.", value=max(0, queue["oldest"]))
    alive = gauge("runner_alive", "1 while the runner of this host beats.", ["host"])
    silent = gauge("runner_silent_seconds", "Since the runner of this host last beat.", ["host"])
    for beat in Beat.objects.order_by("host"):
        seconds = (now - beat.beat_at).total_seconds()
        alive.add_metric([beat.host], int(seconds < ALIVE_WITHIN))
        silent.add_metric([beat.host], max(0, seconds))
    yield from (alive, silent)
    yield gauge("queue_answers", "1 while any runner answers bells.", value=int(stuck.is_answered()))


@source
def _watch() -> Iterator[Metric]:
    family = gauge("alarms_open", "Alarms that are open.", ["rule"])
    numbers = dict(Alarm.objects.open().order_by().values_list("rule").annotate(number=Count("*")))
    for name in AlarmRule.objects.order_by("name").values_list("name", flat=True):
        family.add_metric([name], numbers.get(name, 0))
    yield family
    counted: Any = Upkeep.objects.filter(name="tallies").values_list("done_at", flat=True).first()
    age = (database_clock() - counted).total_seconds() if counted else float("nan")
    yield gauge("tallies_age_seconds", "Since the counters were last brought up to date.", value=age)
