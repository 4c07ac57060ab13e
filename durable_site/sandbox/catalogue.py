"""The policy register and the flood-report service: documents put in by name and read back. Imports `messages`,
`refusals` and `store`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from durable_site.sandbox.messages import (
    require_amount_or_null,
    require_currency,
    require_number_or_null,
    require_text,
    require_text_or_null,
)
from durable_site.sandbox.refusals import NotFound
from durable_site.sandbox.store import Store


@dataclass(frozen=True)
class DocumentKind:
    """What one register holds: the member that names a document, and how each obligatory member is checked."""

    register: str
    name_member: str
    called: str
    checks: dict[str, Callable[[dict[str, Any], str], object]]


POLICY = DocumentKind(
    register="policies",
    name_member="policy",
    called="policy",
    checks={
        "policy": require_text,
        "status": require_text,
        "holder": require_text_or_null,
        "building_cover_minor": require_amount_or_null,
        "contents_cover_minor": require_amount_or_null,
        "building_deductible_minor": require_amount_or_null,
        "contents_deductible_minor": require_amount_or_null,
        "currency": require_currency,
    },
)

FLOOD_REPORT = DocumentKind(
    register="flood-reports",
    name_member="claim",
    called="flood report for claim",
    checks={
        "claim": require_text,
        "event": require_text_or_null,
        "water_depth_inches": require_number_or_null,
        "building_damage_minor": require_amount_or_null,
        "contents_damage_minor": require_amount_or_null,
        "cause": require_text_or_null,
    },
)


class Catalogue:
    """All documents of one kind. Money is in minor units; null means that the amount is not known."""

    def __init__(self, store: Store, kind: DocumentKind) -> None:
        self._database = store.database
        self._kind = kind

    def put(self, document: dict[str, Any]) -> bool:
        """Store the document, replacing an earlier one of its name; true when there was none. Raises Refusal."""
        for member, check in self._kind.checks.items():
            check(document, member)
        name = document[self._kind.name_member]
        with self._database.lock:
            is_new = not self._found(name)
            row = (self._kind.register, name, json.dumps(document))
            self._database.write("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", row)
        return is_new

    def get(self, name: str) -> dict[str, Any]:
        """Raises NotFound."""
        found = self._found(name)
        if not found:
            raise NotFound(self._kind.called, name)
        document: dict[str, Any] = json.loads(found[0][0])
        return document

    def _found(self, name: str) -> list[tuple[str]]:
        sql = "SELECT document FROM documents WHERE register = ? AND name = ?"
        return self._database.rows(sql, self._kind.register, name)
