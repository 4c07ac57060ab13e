"""Large values: kept in Django's storage under the hash of their bytes; checkpoints and calls hold the reference.

Written before the row that names it, verified whenever it is read, never changed: the same bytes are the same file.
Which storage is Django's STORAGES["artefacts"]; the file system under var/ by default. May import values and errors.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from django.core.files import File
from django.core.files.base import ContentFile
from django.core.files.storage import storages

from .errors import PermanentError
from .values import as_json, from_json

INLINE = 32_000
"""Bytes up to which a value stays in its row."""
CHUNK = 64 * 1024
MARK = "$artefact"
"""The only member of an object that stands for a value kept elsewhere."""


class Damaged(PermanentError):
    def __init__(self, sha256: str, why: str) -> None:
        super().__init__(f"The artefact {sha256[:12]}… {why}. Restore it from a backup; what was recorded is its hash.")


def keep(content: bytes | BinaryIO, *, media_type: str = "application/octet-stream") -> dict[str, Any]:
    """Store the bytes and return the reference: {"$artefact": {"sha256": …, "size": …, "media_type": …}}."""
    file = ContentFile(content) if isinstance(content, bytes) else File(content)
    sha256, size = _measure(file)
    storage, name = storages["artefacts"], _name(sha256)
    if not storage.exists(name) or storage.size(name) != size:
        # Written under a name of its own where it stands already: a half-written file is replaced, a whole one kept.
        storage.delete(name)
        file.seek(0)
        storage.save(name, file)
    return {MARK: {"sha256": sha256, "size": size, "media_type": media_type}}


def read(reference: dict[str, Any]) -> bytes:
    """All bytes of a reference, verified. Raises Damaged."""
    return b"".join(stream(reference))


def stream(reference: dict[str, Any]) -> Iterator[bytes]:
    """The bytes of a reference, chunk by chunk; raises Damaged at the end when they are not those that were stored."""
    about = reference[MARK]
    storage, name, seen = storages["artefacts"], _name(about["sha256"]), hashlib.sha256()
    if not storage.exists(name):
        raise Damaged(about["sha256"], "is gone")
    with storage.open(name) as file:
        while chunk := file.read(CHUNK):
            seen.update(chunk)
            yield chunk
    if seen.hexdigest() != about["sha256"]:
        raise Damaged(about["sha256"], "holds other bytes than were stored")


def is_reference(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {MARK}


def lighten(value: dict[str, Any]) -> dict[str, Any]:
    """The same object with each member over INLINE bytes replaced by the reference to it."""
    return {name: _lightened(name, member) for name, member in value.items()}


def restore(value: dict[str, Any]) -> dict[str, Any]:
    """The object as it was before `lighten`. Raises Damaged."""
    return {name: _restored(member) for name, member in value.items()}


def _lightened(name: str, member: Any) -> Any:
    if not isinstance(member, str | list | dict) or is_reference(member):
        return member
    text = as_json(member, where=name)
    return keep(text.encode(), media_type="application/json") if len(text.encode()) > INLINE else member


def _restored(member: Any) -> Any:
    if is_reference(member) and member[MARK]["media_type"] == "application/json":
        return from_json(read(member).decode())
    return member


def _measure(file: File) -> tuple[str, int]:
    seen, size = hashlib.sha256(), 0
    file.seek(0)
    while chunk := file.read(CHUNK):
        seen.update(chunk)
        size += len(chunk)
    return seen.hexdigest(), size


def _name(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256[2:4]}/{sha256}"
