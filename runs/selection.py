"""A selection of audit rows leaves the house as an archive: the rows, and a manifest that says what they are.

An export is an audited act: the manifest's digest stays in a row that nobody can change. May import models.
"""

import hashlib
import io
import json
import zipfile
from typing import Any

from django.core import serializers
from django.db.models import QuerySet

from .errors import BadRequest
from .models import AuditEvent, database_clock

SCHEMA = "durable-runs/selection/1"
MOST = 10_000
"""Rows that one archive holds."""


def pack(rows: QuerySet[Any], *, chosen: str, by: Any, actor: str) -> bytes:
    """The archive of these rows: rows.jsonl, one row a line with every column, and manifest.json. `chosen`: from what,
    in words. Raises BadRequest for more rows than MOST."""
    found = list(rows.order_by("pk")[: MOST + 1])
    if len(found) > MOST:
        raise BadRequest(f"More than {MOST:,} rows are chosen, and nothing was exported: narrow the list.")
    model = rows.model._meta.label_lower
    content = serializers.serialize("jsonl", found, ensure_ascii=False).encode()
    manifest = {
        "schema": SCHEMA,
        "model": model,
        "chosen": chosen,
        "rows": len(found),
        "exported_at": database_clock().isoformat(),
        "exported_by": by.get_username(),
        "files": {"rows.jsonl": hashlib.sha256(content).hexdigest()},
    }
    text = (json.dumps(manifest, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode()
    detail = f"{model}: {len(found)} rows of {chosen}, manifest {hashlib.sha256(text).hexdigest()}"
    AuditEvent.objects.create(kind=AuditEvent.Kind.EXPORTED, detail=detail, actor=actor, user=by)
    return _packed({"manifest.json": text, "rows.jsonl": content})


def _packed(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), content)
    return packed.getvalue()
