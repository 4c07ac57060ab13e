"""Large values: kept in Django's storage under the hash of their bytes; whoever keeps one holds the reference.

Written before the row that names it, verified whenever it is read, never changed: the same bytes are the same file.
Which storage is Django's STORAGES["artefacts"]; a folder by default. Which run keeps what, and what of an output or an
answer is moved here, is in lightening. May import errors.
"""

import hashlib
import re
import tempfile
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from django.core.files import File
from django.core.files.base import ContentFile
from django.core.files.storage import Storage, storages

from .errors import PermanentError, Retryable

CHUNK = 64 * 1024
MARK = "$artefact"
"""The only member of an object that an author puts into an output to refer to an artefact."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(; ?[\w-]+=[\w.-]+)*", re.ASCII)
LONGEST_MEDIA_TYPE = 100


class Damaged(PermanentError):
    def __init__(self, sha256: str, why: str) -> None:
        super().__init__(f"The artefact {sha256[:12]}… {why}. Restore it from a backup; what was recorded is its hash.")


class NoReference(PermanentError):
    def __init__(self) -> None:
        super().__init__("This refers to no artefact. Give what ctx.artefact(…) returned.")


class StorageAway(Retryable):
    def __init__(self, asked: str, error: Exception) -> None:
        super().__init__(
            f"The artefact storage cannot be {asked} now: {type(error).__name__}. See the setting ARTEFACTS."
        )


class About(NamedTuple):
    """What is known of an artefact without reading it; `size` in bytes."""

    sha256: str
    size: int
    media_type: str

    @classmethod
    def of(cls, value: Any) -> "About":
        """Raises NoReference for what has not the form of one."""
        if not isinstance(value, dict) or value.keys() != {"sha256", "size", "media_type"}:
            raise NoReference
        about = cls(**value)
        if not isinstance(about.sha256, str) or not _SHA256.fullmatch(about.sha256):
            raise NoReference
        return about


def about_reference(reference: Any) -> About:
    """What a reference of an author's speaks of. Raises NoReference."""
    if not isinstance(reference, dict) or reference.keys() != {MARK}:
        raise NoReference
    return About.of(reference[MARK])


def reference(about: About) -> dict[str, Any]:
    """{"$artefact": {"sha256": …, "size": …, "media_type": …}}: a JSON value to put into an output."""
    return {MARK: about._asdict()}


def measured(content: bytes, media_type: str) -> About:
    return About(hashlib.sha256(content).hexdigest(), len(content), media_type)


def keep(content: bytes | IO[Any], *, media_type: str = "application/octet-stream") -> About:
    """Store the bytes, of a file all of them. Raises StorageAway, and PermanentError for what cannot be stored."""
    if len(media_type) > LONGEST_MEDIA_TYPE or not _MEDIA_TYPE.fullmatch(media_type):
        raise PermanentError(f"{media_type[:40]!r} is no media type; write it as text/plain.")
    if isinstance(content, bytes):
        about = measured(content, media_type)
        _save(about, ContentFile(content))
        return about
    with tempfile.SpooledTemporaryFile(max_size=2**20) as copy:
        # A copy, because a file may change between the look that names it and the one that stores it.
        about = _copied(content, copy, media_type)
        _save(about, File(copy))
    return about


def _copied(content: IO[Any], copy: IO[bytes], media_type: str) -> About:
    seen, size = hashlib.sha256(), 0
    if content.seekable():
        content.seek(0)
    while chunk := content.read(CHUNK):
        if not isinstance(chunk, bytes):
            raise PermanentError("An artefact's file must be opened in binary mode.")
        seen.update(chunk)
        size += copy.write(chunk)
    return About(seen.hexdigest(), size, media_type)


def _save(about: About, file: File) -> None:
    storage, name = _storage(), _name(about.sha256)
    try:
        if storage.exists(name):
            if _is_whole(storage, about):
                return
            # Another storage than ours may hold half a file, or store a second one beside it under another name.
            storage.delete(name)
        file.seek(0)
        if (stored := storage.save(name, file)) != name:
            storage.delete(stored)
    except Exception as error:
        raise StorageAway("written", error) from error


def read(about: About) -> bytes:
    """All bytes, verified. Raises Damaged, StorageAway."""
    return b"".join(stream(about))


def check(about: About) -> None:
    """Read it all and raise Damaged unless these are the bytes that were stored."""
    for _ in stream(about):
        pass


def stream(about: About) -> Iterator[bytes]:
    """The bytes, chunk by chunk. The last chunk is given only once all are seen to be those that were stored: what is
    damaged is never whole in anybody's hands. Raises Damaged, StorageAway."""
    storage, seen, last = _storage(), hashlib.sha256(), b""
    try:
        with storage.open(_name(about.sha256)) as file:
            while chunk := file.read(CHUNK):
                seen.update(chunk)
                if last:
                    yield last
                last = chunk
    except FileNotFoundError:
        raise Damaged(about.sha256, "is gone") from None
    except Exception as error:
        raise StorageAway("read", error) from error
    if seen.hexdigest() != about.sha256:
        raise Damaged(about.sha256, "holds other bytes than were stored")
    if last:
        yield last


def is_there(sha256: str) -> bool:
    """Whether a file of that name is stored. Raises StorageAway."""
    try:
        return _storage().exists(_name(sha256))
    except Exception as error:
        raise StorageAway("read", error) from error


def remove(sha256: str) -> None:
    """Delete the file, if there is one. The caller sees to it that nobody keeps it (pruning). Raises StorageAway."""
    try:
        _storage().delete(_name(sha256))
    except Exception as error:
        raise StorageAway("written", error) from error


def _is_whole(storage: Storage, about: About) -> bool:
    name = _name(about.sha256)
    if storage.size(name) != about.size:
        return False
    try:
        check(about)
    except Damaged:
        return False
    return True


def _storage() -> Storage:
    return storages["artefacts"]


def _name(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256[2:4]}/{sha256}"
