"""Artefacts leave the house: who may have one, that it is what was stored, and a row that says who took it.

May import engine, lightening, artefacts, models.
"""

import mimetypes
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from . import artefacts, engine
from .artefacts import About
from .errors import RunError
from .lightening import kept_by
from .models import Artefact, AuditEvent


class NoSuchArtefact(RunError):
    def __init__(self, key: str, sha256: str) -> None:
        super().__init__(f"Run {key} keeps no artefact {sha256[:12]}….")


class NoLongerKept(RunError):
    def __init__(self, key: str, at: datetime) -> None:
        when = f"{at:%-d %b %Y}"
        super().__init__(f"What run {key} kept was withheld by retention on {when}. Its hash is still recorded.")


@dataclass(frozen=True)
class Download:
    """An artefact that was seen to be whole, and under what name a person saves it."""

    artefact: Artefact
    name: str

    def chunks(self) -> Iterator[bytes]:
        """Its bytes; the last come only when all are right, so that what is damaged meanwhile is never whole."""
        return artefacts.stream(_about(self.artefact))


def take(key: str, sha256: str, *, by: Any, actor: str = "") -> Download:
    """Let a person have an artefact of a run that he or she may see. Leaves an audit event.

    Raises NoSuchRun, NoSuchArtefact, NoLongerKept, Damaged, StorageAway.
    """
    run = engine.find(key, by)
    artefact = kept_by(run, sha256)
    if artefact is None:
        raise NoSuchArtefact(key, sha256)
    if run.withholding is not None:
        raise NoLongerKept(key, run.withholding.at)
    artefacts.check(_about(artefact))
    AuditEvent.objects.create(
        kind=AuditEvent.Kind.ARTEFACT_READ,
        run=run,
        position=artefact.position,
        detail=f"{artefact.place}, {artefact.size:,} bytes, sha256 {artefact.sha256}",
        actor=actor,
        user=by,
    )
    extension = mimetypes.guess_extension(artefact.media_type.partition(";")[0]) or ".bin"
    return Download(artefact, f"{key}-step{artefact.position}-{sha256[:12]}{extension}")


def _about(artefact: Artefact) -> About:
    return About(artefact.sha256, artefact.size, artefact.media_type)
