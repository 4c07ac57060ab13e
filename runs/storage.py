"""Where artefacts lie by default: a folder whose files appear whole and are on disk before anybody names them.

Named by Django's STORAGES["artefacts"]; any other storage may take its place. Imports nothing of ours.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from django.core.files.storage import FileSystemStorage


class DurableFiles(FileSystemStorage):
    """A file gets its name when its last byte is on disk: a worker that dies, or a power cut, leaves no half file."""

    def get_available_name(self, name: str, max_length: int | None = None) -> str:
        # A name is a hash of the bytes: the same name is the same file.
        return name

    def _save(self, name: str, content: Any) -> str:
        path = Path(self.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as draft:
            try:
                for chunk in content.chunks():
                    draft.write(chunk)
                draft.flush()
                os.fsync(draft.fileno())
                os.replace(draft.name, path)
            except BaseException:
                Path(draft.name).unlink(missing_ok=True)
                raise
        for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
            _sync(folder)
        return name


def _sync(folder: Path) -> None:
    """The names in a folder are on disk only when the folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
