"""What else grows old: files that only withheld runs kept, mirrored records of providers, sessions, failed tasks.

Each part is done in small steps, each a transaction of its own: it may be killed, repeated, and done twice at once. May
import retention, lightening, artefacts, doorbell, models.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Sum

from . import artefacts, doorbell
from .artefacts import StorageAway
from .failpoints import reach
from .lightening import claim_file
from .models import Artefact, DatabaseClock, DatabaseNow, Finding, Listed
from .retention import Rule

ROWS_AT_ONCE = 500

Tell = Callable[[int], object]
"""Told how many more there are gone."""


@dataclass(frozen=True)
class Files:
    """Files that went, those that another run still keeps or names just now, and how many could not be reached."""

    removed: int = 0
    bytes: int = 0
    shared: int = 0
    away: int = 0


# Files


def idle_files() -> QuerySet[Artefact]:
    """Rows of withheld runs whose file is still there."""
    return Artefact.objects.filter(removed_at=None, run__withholding__isnull=False)


def removable() -> dict[str, int]:
    """How many files would go, and their bytes: those that no run with values keeps."""
    kept = Artefact.objects.filter(sha256=OuterRef("sha256"), removed_at=None, run__withholding=None)
    alone = idle_files().filter(~Exists(kept)).values("sha256").annotate(bytes=Sum("size") / Count("pk"))
    return alone.aggregate(rows=Count("sha256"), size=Sum("bytes"))


def remove_files(tell: Tell = lambda more: None) -> Files:
    """Remove each file that only withheld runs kept."""
    removed = size = shared = away = 0
    for sha256 in _names():
        try:
            bytes_of_it = _remove(sha256)
        except StorageAway:
            away += 1
            continue
        if bytes_of_it is None:
            shared += 1
            continue
        removed, size = removed + 1, size + bytes_of_it
        tell(1)
    return Files(removed, size, shared, away)


def _names() -> Iterator[str]:
    after = ""
    names = idle_files().order_by("sha256").values_list("sha256", flat=True).distinct()
    while some := list(names.filter(sha256__gt=after)[:ROWS_AT_ONCE]):
        yield from some
        after = some[-1]


def _remove(sha256: str) -> int | None:
    """The file's size; None when it stays."""
    with transaction.atomic():
        # Whoever names the file now holds it; whoever comes later finds it gone and stores it again.
        if not claim_file(sha256):
            return None
        rows = Artefact.objects.filter(sha256=sha256, removed_at=None)
        if rows.filter(run__withholding=None).exists():
            return None
        size = rows.values_list("size", flat=True).first()
        artefacts.remove(sha256)
        reach("retention", 0, "file-removed")
        rows.update(removed_at=DatabaseClock())
    return size or 0


# Rows


def old_listed(rule: Rule) -> QuerySet[Listed]:
    """Providers' records from before what is kept, unless an open finding is about them."""
    if not rule.days:
        return Listed.objects.none()
    about = Finding.objects.filter(resolved_at=None, tool=OuterRef("tool"))
    named = Q(key=OuterRef("key")) | Q(key=OuterRef("record")) | Q(key=OuterRef("reference"))
    old = Listed.objects.filter(created_at__lt=DatabaseNow() - timedelta(days=rule.days))
    return old.filter(~Exists(about.filter(named)))


def old_sessions() -> QuerySet[Session]:
    return Session.objects.filter(expire_date__lt=DatabaseNow())


def delete(rows: QuerySet, tell: Tell = lambda more: None) -> int:
    """Delete these rows, a few at a time, those that somebody holds left out; how many."""
    deleted, free = 0, rows.order_by("pk").select_for_update(skip_locked=True).values_list("pk", flat=True)
    while True:
        with transaction.atomic():
            keys = list(free[:ROWS_AT_ONCE])
            if not keys:
                return deleted
            count, _ = rows.model._default_manager.filter(pk__in=keys).delete()
        deleted += count
        tell(count)


def forget_failures(rule: Rule) -> int:
    """The queue keeps what failed in it; successes it never kept."""
    return doorbell.forget_failures(timedelta(days=rule.days)) if rule.days else 0
