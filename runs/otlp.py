"""Sends spans to a collector, by OTLP over HTTP: in batches, from a thread of its own, and never for longer than its
time-outs. The only module that imports opentelemetry, which the extra `otel` brings, and only when it has to send.

Where and how is said by the standard variables: OTEL_EXPORTER_OTLP_ENDPOINT, …_HEADERS, …_TIMEOUT, OTEL_SERVICE_NAME,
OTEL_BSP_…. Imports nothing of ours.
"""

import atexit
import logging
import os
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

logger = logging.getLogger(__name__)

MOST_WAITING = 20_000
"""Spans that wait for a collector that is away; what comes beyond is dropped."""
TIMEOUT = 5
"""Seconds for one request, unless OTEL_EXPORTER_OTLP_TIMEOUT says otherwise."""


@dataclass(frozen=True)
class Span:
    """What a span says. `trace` has 128 bits, `id` and `parent` 64; `link`: a span of another trace."""

    name: str
    trace: int
    id: int
    parent: int | None
    start: datetime
    end: datetime
    attributes: dict[str, Any]
    events: list[tuple[str, datetime]] = field(default_factory=list)
    link: tuple[int, int] | None = None
    is_client: bool = False
    failed: bool = False


@cache
def is_installed() -> bool:
    """Whether the extra `otel` is; without it nothing is sent, and a system check says so."""
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError:
        return False
    return True


def send(spans: list[Span]) -> None:
    """Hand spans over to be sent; whatever becomes of them, nothing is raised and nobody waits."""
    if not is_installed():
        return
    try:
        for span in spans:
            _processor().on_end(_readable(span))
    except Exception:
        logger.exception("%s spans could not be handed to OpenTelemetry.", len(spans))


def flush(seconds: float) -> bool:
    """Send what waits now; whether all of it went in time."""
    return bool(_processor().force_flush(int(seconds * 1000)))


@cache
def _processor() -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    timeout = float(os.environ.get("OTEL_EXPORTER_OTLP_TIMEOUT", TIMEOUT))
    made = BatchSpanProcessor(
        OTLPSpanExporter(timeout=timeout), max_queue_size=MOST_WAITING, schedule_delay_millis=1000
    )
    atexit.register(made.shutdown)
    return made


@cache
def _resource() -> Any:
    from opentelemetry.sdk.resources import Resource

    return Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "durable-runs")})


def _readable(span: Span) -> Any:
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanKind
    from opentelemetry.trace.status import Status, StatusCode

    return ReadableSpan(
        span.name,
        context=_context(span.trace, span.id),
        parent=_context(span.trace, span.parent) if span.parent is not None else None,
        resource=_resource(),
        attributes=span.attributes,
        events=[Event(name, timestamp=_nanoseconds(at)) for name, at in span.events],
        links=[Link(_context(*span.link))] if span.link else [],
        kind=SpanKind.CLIENT if span.is_client else SpanKind.INTERNAL,
        instrumentation_scope=InstrumentationScope("durable-runs"),
        status=Status(StatusCode.ERROR) if span.failed else Status(StatusCode.UNSET),
        start_time=_nanoseconds(span.start),
        end_time=_nanoseconds(span.end),
    )


def _context(trace: int, span: int) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(at: datetime) -> int:
    # Not by float, which has too few digits.
    return int(at.timestamp()) * 1_000_000_000 + at.microsecond * 1000
