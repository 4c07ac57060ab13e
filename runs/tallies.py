"""Tallies: what happened in each slot of five minutes and each hour, counted once, so that no page scans what grows.

A slot is counted anew as long as rows may still come for it, always from the rows themselves: counting twice changes
nothing. Slots are summed up to hours, these to quarters of a day, and these to days, so that a long window reads few
rows. Values are sorted into buckets, eight to a doubling, each with its sum: slots add up to any window, counts and
greatest values are exact, and a quantile is off by less than a bucket (nine hundredths).

May import models, upkeep, stuck, doorbell.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connection

from . import stuck
from .doorbell import Canary
from .models import Tally, Transition, database_clock
from .upkeep import job

SLOT, HOUR, QUARTER, DAY = timedelta(minutes=5), timedelta(hours=1), timedelta(hours=6), timedelta(days=1)
LATE = timedelta(minutes=10)
"""How long after a slot's end rows of it may still be committed; a transaction of ours is shorter."""
AT_ONCE = timedelta(hours=2)
"""How much one look counts at most: who is behind catches up over many looks, and the sweep goes on meanwhile."""
KEPT_SLOTS, KEPT_HOURS, LOOKED_BACK = timedelta(days=2), timedelta(days=62), timedelta(days=30)
STEP_TIMES_OF = timedelta(days=7)
"""What is taken for the usual time of a step."""

_BUCKET = "CASE WHEN value > 0 THEN greatest(-300, floor(8 * ln(value) / ln(2::float8)))::int ELSE -301 END"
_STEP = "r.workflow || '/' || r.version || '/' || c.step"

WHY_DEAD = """CASE
  WHEN why LIKE '%%idempotency key%%another request%%' THEN 'key-reused'
  WHEN why LIKE '%%No attempt is left.' THEN 'attempts'
  WHEN why LIKE '%%it killed its worker or outlived its lease.' THEN 'worker-killed'
  WHEN why LIKE 'Nobody mended it in time%%' THEN 'not-mended'
  WHEN why LIKE '%%Nothing happened; going on means asking anew.' THEN 'effect-refused'
  WHEN why LIKE '%%It is not known whether%%' THEN 'effect-unknown'
  ELSE 'failed-for-good' END"""
"""Why a run went to the dead letters, as one of few classes, from the sentence of its move."""

_SOURCES: dict[str, str] = {
    "step-time": f"""
      SELECT {_STEP} AS name, extract(epoch FROM c.committed_at - c.started_at)::float8 AS value,
             c.committed_at AS at
        FROM runs_checkpoint AS c JOIN runs_run AS r ON r.id = c.run_id
       WHERE c.committed_at >= %(since)s AND c.committed_at < %(until)s AND c.wait_kind = '' AND c.closed_as = ''""",
    "step-size": f"""
      SELECT {_STEP} AS name, octet_length(c.output)::float8 AS value, c.committed_at AS at
        FROM runs_checkpoint AS c JOIN runs_run AS r ON r.id = c.run_id
       WHERE c.committed_at >= %(since)s AND c.committed_at < %(until)s""",
    # Claims after a lease that ended unreleased: the move before was the sweep's, out of running.
    "resumed": """
      SELECT '' AS name, 0::float8 AS value, t.at FROM runs_transition AS t
       WHERE t.at >= %(since)s AND t.at < %(until)s AND t.to_status = 'running'
         AND (SELECT b.from_status = 'running' AND b.actor = 'sweep' FROM runs_transition AS b
               WHERE b.run_id = t.run_id AND b.id < t.id ORDER BY b.at DESC, b.id DESC LIMIT 1)""",
    "ended": """
      SELECT to_status AS name, 0::float8 AS value, at FROM runs_transition
       WHERE at >= %(since)s AND at < %(until)s AND to_status IN ('completed', 'expired', 'cancelled')""",
    "dead": f"""
      SELECT {WHY_DEAD} AS name, 0::float8 AS value, at FROM runs_transition
       WHERE at >= %(since)s AND at < %(until)s AND to_status = 'dead'""",
    "confirmed": """
      SELECT tool AS name, 0::float8 AS value, settled_at AS at FROM runs_call
       WHERE kind = 'effect' AND state = 'confirmed' AND settled_at >= %(since)s AND settled_at < %(until)s""",
    "replayed": """
      SELECT tool AS name, 0::float8 AS value, settled_at AS at FROM runs_call
       WHERE kind = 'effect' AND state = 'confirmed' AND replayed
         AND settled_at >= %(since)s AND settled_at < %(until)s""",
    "key-reused": """
      SELECT coalesce(c.tool, '') AS name, 0::float8 AS value, e.at
        FROM runs_auditevent AS e LEFT JOIN runs_call AS c ON c.id = e.call_id
       WHERE e.kind = 'key-reused' AND e.at >= %(since)s AND e.at < %(until)s""",
}
SAMPLES = ("stuck", "ready", "bells", "oldest-bell")
"""What cannot be counted afterwards is looked at each time; a slot keeps the greatest."""
WITH_VALUES = ("step-time", "step-size", "decided")

_COUNT = """
INSERT INTO runs_tally (figure, width, slot, name, bucket, number, total, most)
SELECT %(figure)s, 'm', date_bin('5 minutes', at, %(since)s), left(name, 200), {bucket}, count(*), sum(value),
       max(value)
  FROM ({source}) AS found GROUP BY 3, 4, 5
"""
_SUM_UP = """
INSERT INTO runs_tally (figure, width, slot, name, bucket, number, total, most)
SELECT figure, %(into)s, date_bin(%(stride)s, slot, %(since)s), name, bucket, sum(number), sum(total), max(most)
  FROM runs_tally
 WHERE figure = ANY(%(figures)s) AND width = %(of)s AND slot >= %(since)s AND slot < %(until)s
 GROUP BY 1, 3, 4, 5
"""
_WIDER = (("m", "h", HOUR), ("h", "q", QUARTER), ("q", "d", DAY))
"""Each width but the first is summed up from the one before: (of, into, how long its slots are)."""
_SAMPLE = """
INSERT INTO runs_tally (figure, width, slot, name, bucket, number, total, most)
VALUES (%(figure)s, 'm', %(slot)s, '', 0, 1, 0, %(value)s)
ON CONFLICT (figure, width, slot, name, bucket) DO UPDATE SET most = greatest(runs_tally.most, excluded.most)
"""
_STEP_TIMES = """
WITH summed AS (
  SELECT name, bucket, sum(number) AS number, sum(total) AS total
    FROM runs_tally WHERE figure = 'step-time' AND width = 'h' AND slot >= %(since)s GROUP BY name, bucket
), ranked AS (
  SELECT name, total / number AS mean, sum(number) OVER (PARTITION BY name) AS of,
         sum(number) OVER (PARTITION BY name ORDER BY bucket) AS upto FROM summed
)
INSERT INTO runs_steptime (workflow, version, step, number, p95)
SELECT split_part(name, '/', 1), split_part(name, '/', 2)::smallint, split_part(name, '/', 3), max(of),
       make_interval(secs => min(mean) FILTER (WHERE upto >= 0.95 * of))
  FROM ranked GROUP BY name
ON CONFLICT (workflow, version, step) DO UPDATE SET number = excluded.number, p95 = excluded.p95
"""


def source(figure: str, statement: str) -> None:
    """Have another app's rows counted: a SELECT of name, value and at between %(since)s and
    %(until)s."""
    _SOURCES[figure] = statement


@job("tallies")
def count_up(state: dict[str, Any]) -> bool:
    """Count the slots that are not settled yet, up to now, and whatever follows from them; whether more is left."""
    now = database_clock()
    since, end = _from(state, now), floor(now, SLOT) + SLOT
    # Whole hours, so that none is summed up again after its first slots were forgotten.
    until = min(end, floor(since, HOUR) + AT_ONCE)
    _count(since, until)
    _sample(now)
    _sum_up(since, until)
    _sum_up(now, end)
    # A slot is settled once nothing of it can come any more: until then the next look counts it again.
    state["from"] = max(since, min(until, floor(now - LATE, SLOT))).isoformat()
    _learn_step_times(now)
    # Of what is not settled nothing goes: it will be summed up again.
    _forget(min(now, since))
    return until < end


def counted_until(state: dict[str, Any]) -> datetime:
    """From where on a look that left this state will count again: what is before it is settled."""
    return datetime.fromisoformat(state["from"])


def floor(at: datetime, width: timedelta) -> datetime:
    """The beginning of the slot of that width in which this instant lies; slots count from midnight, UTC."""
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (at - midnight) // width * width


def _from(state: dict[str, Any], now: datetime) -> datetime:
    """The first slot that is not settled; at the very first look that of the first row, within the days looked at."""
    if "from" in state:
        since = counted_until(state).astimezone(now.tzinfo)
        # Whoever is behind begins with a whole hour, whose slots may be forgotten by now.
        return since if now - since < HOUR else floor(since, HOUR)
    first = Transition.objects.order_by("id").values_list("at", flat=True).first()
    return floor(max(first or now, now - LOOKED_BACK), HOUR)


def _count(since: datetime, until: datetime) -> None:
    Tally.objects.filter(figure__in=_SOURCES, width="m", slot__gte=since, slot__lt=until).delete()
    with connection.cursor() as cursor:
        for figure, found in _SOURCES.items():
            bucket = _BUCKET if figure in WITH_VALUES else "0"
            values: dict[str, Any] = {"figure": figure, "since": since, "until": until}
            cursor.execute(_COUNT.format(bucket=bucket, source=found), values)


def _sample(now: datetime) -> None:
    with connection.cursor() as cursor:
        for figure, value in looked_at().items():
            cursor.execute(_SAMPLE, {"figure": figure, "slot": floor(now, SLOT), "value": value})


def looked_at() -> dict[str, float]:
    """The samples, as they are now."""
    queue = Canary.queue()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT count(*) FROM runs_stuck(%s, %s)), (SELECT count(*) FROM runs_run WHERE status = 'ready')",
            stuck.arguments(),
        )
        standing_still, ready = cursor.fetchone()
    values = (standing_still, ready, queue["bells"], queue["oldest"])
    return dict(zip(SAMPLES, values, strict=True))


def _sum_up(since: datetime, until: datetime) -> None:
    """Every wider slot that this time touches, as a whole."""
    for of, into, width in _WIDER:
        begin, end = floor(since, width), max(until, floor(since, width) + width)
        figures = [*_SOURCES, *SAMPLES]
        values: dict[str, Any] = {"figures": figures, "of": of, "into": into, "stride": width}
        Tally.objects.filter(figure__in=figures, width=into, slot__gte=begin, slot__lt=end).delete()
        with connection.cursor() as cursor:
            cursor.execute(_SUM_UP, values | {"since": begin, "until": end})


def _learn_step_times(now: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_STEP_TIMES, {"since": floor(now - STEP_TIMES_OF, HOUR)})


def _forget(now: datetime) -> None:
    # Counts of whole days are kept for ever: the counters of /metrics may never fall.
    Tally.objects.filter(width="m", slot__lt=now - KEPT_SLOTS).delete()
    Tally.objects.filter(width__in=["h", "q"], slot__lt=now - KEPT_HOURS).delete()
    days = Tally.objects.filter(width="d", slot__lt=now - KEPT_HOURS)
    days.filter(figure__in=[*WITH_VALUES, *SAMPLES]).delete()


# Reading them


class Bucket(NamedTuple):
    """One bucket of one figure within a part of a window."""

    part: datetime
    name: str
    number: int
    total: float
    most: float


# Parts by their number: to read a thousand times of day takes longer than to find them.
_READ = """
SELECT part, name, sum(number)::bigint, sum(total), max(most)
  FROM (SELECT *, (extract(epoch FROM slot - %(since)s)::bigint / %(seconds)s)::int AS part FROM runs_tally) AS tally
 WHERE figure = %(figure)s AND width = %(width)s AND slot >= %(since)s AND slot < %(until)s
 GROUP BY {together}
"""


def read(figure: str, since: datetime, until: datetime, stride: timedelta) -> list[Bucket]:
    """The buckets of a figure, in parts as long as `stride` from `since` on."""
    rows = _rows("part, name, bucket", figure, since, until, stride)
    return [Bucket(since + part * stride, *row) for part, *row in rows]


def read_sums(figure: str, since: datetime, until: datetime, stride: timedelta) -> tuple[list[Bucket], list[Bucket]]:
    """The same summed up in two ways: over all names (each is then ""), and over all parts (each is then `since`)."""
    rows = _rows("GROUPING SETS ((part, bucket), (name, bucket))", figure, since, until, stride)
    of_parts = [Bucket(since + part * stride, "", *row) for part, name, *row in rows if name is None]
    return of_parts, [Bucket(since, name, *row) for _, name, *row in rows if name is not None]


def _rows(together: str, figure: str, since: datetime, until: datetime, stride: timedelta) -> list[Any]:
    values: dict[str, Any] = {"figure": figure, "since": since, "until": until, "width": _width_for(stride)}
    with connection.cursor() as cursor:
        cursor.execute(_READ.format(together=together), values | {"seconds": int(stride.total_seconds())})
        return cursor.fetchall()


def _width_for(stride: timedelta) -> str:
    """The widest slots that such parts are made of."""
    return next((width for _, width, length in reversed(_WIDER) if stride % length == timedelta()), "m")


def totals() -> dict[tuple[str, str], int]:
    """How often each plain count has ever been counted, by figure and name."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT figure, name, sum(number)::bigint FROM runs_tally WHERE width = 'd' AND figure = ANY(%s)"
            " GROUP BY figure, name",
            [[figure for figure in _SOURCES if figure not in WITH_VALUES]],
        )
        return {(figure, name): number for figure, name, number in cursor.fetchall()}


def quantile(buckets: Iterable[Bucket], share: float) -> float | None:
    """The value that this share of the values does not exceed: the mean of its bucket. None where there is no value."""
    found = sorted(buckets, key=lambda bucket: bucket.total / bucket.number)
    rank = share * sum(bucket.number for bucket in found)
    for bucket in found:
        rank -= bucket.number
        if rank <= 0:
            return bucket.total / bucket.number
    return None
