"""Rows as plain data, as records, exports and those who compare them spell them. May import Django's fields only."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import models


def instant(moment: datetime) -> str:
    """An instant as records spell it: UTC, microseconds, Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def row(instance: models.Model) -> dict[str, Any]:
    """Every column of a row under its own name; instants as text, spans in seconds."""
    return {field.attname: _plain(getattr(instance, field.attname)) for field in instance._meta.concrete_fields}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return instant(value)
    return value.total_seconds() if isinstance(value, timedelta) else value
