"""System checks: settings under which runs would be lost or workers would hang are refused, each with its cure."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.files.storage import FileSystemStorage, storages

from . import otlp
from .doorbell import longest_bell


@register()
def queue_is_safe(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """What docs/queue.md explains, value by value."""
    return [*_database_faults(settings.DATABASES["default"]), *_queue_faults(settings.Q_CLUSTER)]


@register()
def artefacts_can_be_written(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Told of, not refused: a host that only serves pages need not write."""
    storage = storages["artefacts"]
    if not isinstance(storage, FileSystemStorage):
        return []
    folder = Path(storage.location)
    standing = next(path for path in (folder, *folder.parents) if path.exists())
    if standing.is_dir() and os.access(standing, os.W_OK | os.X_OK):
        return []
    hint = f"Make {standing} writable for the runner, or set ARTEFACTS to a folder that is."
    return [Warning("The artefact storage cannot be written: steps with large values fail.", hint=hint, id="runs.W011")]


@register()
def telemetry_can_be_sent(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Told of, not refused: runs go on without it."""
    if not settings.TELEMETRY or otlp.is_installed():
        return []
    hint = "pip install 'durable-runs[otel]', or set TELEMETRY=0."
    return [Warning("TELEMETRY is on, and OpenTelemetry is not installed: nothing is sent.", hint=hint, id="runs.W012")]


def _database_faults(database: dict[str, Any]) -> Iterator[CheckMessage]:
    if "pool" in database.get("OPTIONS", {}):
        yield _fault(
            1, "the database has a connection pool", "Remove OPTIONS['pool']: forked workers share its sockets."
        )
    if database.get("CONN_MAX_AGE") == 0:
        yield _fault(2, "CONN_MAX_AGE is 0", "Set it to 60: every bell would open a connection of its own.")
    if not database.get("CONN_HEALTH_CHECKS"):
        yield _fault(
            3, "CONN_HEALTH_CHECKS is off", "Set it to True: a restart of PostgreSQL would fail a bell per worker."
        )


def _queue_faults(queue: dict[str, Any]) -> Iterator[CheckMessage]:
    if queue.get("orm") != "default":
        yield _fault(4, "Q_CLUSTER['orm'] is not default", "A bell must commit with the run it rings for.")
    if queue.get("broker_class") != "runs.doorbell.WakeBroker":
        yield _fault(
            5, "Q_CLUSTER['broker_class'] is not ours", "Set it to runs.doorbell.WakeBroker: bells are plain JSON."
        )
    if queue.get("retry", 60) <= 2 * queue.get("timeout", 60):
        yield _fault(
            6, "Q_CLUSTER['retry'] is not above twice the timeout", "A slow bell would be executed twice at once."
        )
    if not queue.get("ack_failures"):
        yield _fault(7, "Q_CLUSTER['ack_failures'] is off", "Set it to True: a bell that fails would ring for ever.")
    if queue.get("scheduler", True):
        yield _fault(8, "Q_CLUSTER['scheduler'] is on", "Set it to False: it executes unsigned rows of a table.")
    if queue.get("sync"):
        yield _fault(9, "Q_CLUSTER['sync'] is on", "Set it to False: bells would be executed by whoever rings.")
    if longest_bell() > settings.STOP_GRACE:
        cure = f"Set STOP_GRACE to {longest_bell()} or more: the longest step would be killed at every stop."
        yield _fault(10, f"STOP_GRACE is {settings.STOP_GRACE:g} s", cure)


def _fault(number: int, what: str, cure: str) -> CheckMessage:
    return Error(f"The runner cannot be trusted: {what}.", hint=cure, id=f"runs.E{number:03}")
