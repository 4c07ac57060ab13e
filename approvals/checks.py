"""System checks of the ledger: its triggers, its key, and statements that others can recompute.

The checks of the database run with `manage.py check --database default` and with every migrate. May import
guards, models, signing and verifier.
"""

from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError, connection
from django.db.migrations.recorder import MigrationRecorder

from runs import tools

from . import guards
from .models import LedgerHead
from .signing import BadSigningKey, configured_signing_key
from .verifier import has_plain_places

SINCE = ("approvals", "0017_withholding")
"""The migration with which all triggers are there; before it is applied nothing is missing."""


@register(Tags.database)
def ledger_is_guarded(app_configs: Any = None, databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    if "default" not in (databases or []) or not _is_migrated():
        return []
    cure = "Somebody dropped or disabled it. Find out who, verify the ledger, and create it as its migration does."
    missing = [Error(one.sentence, hint=cure, id="approvals.E001") for one in guards.faults()]
    return missing + _key_faults()


@register()
def statements_can_be_recomputed(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    cure = "Use {argument} and {amount} alone, without a format, an index or an attribute: auditors fill it too."
    bad = [tool for tool in tools.registered() if not has_plain_places(tool.statement)]
    return [
        Error(f"The statement of tool {tool.name} has places that are not plain.", hint=cure, id="approvals.E003")
        for tool in bad
    ]


def _is_migrated() -> bool:
    try:
        return SINCE in MigrationRecorder(connection).applied_migrations()
    except DatabaseError:
        return False


def _key_faults() -> list[CheckMessage]:
    head = LedgerHead.objects.first()
    try:
        configured = configured_signing_key().key_id
    except BadSigningKey as problem:
        return [Error(str(problem), id="approvals.E002")]
    if head is None or head.key_id in ("", configured):
        return []
    cure = "Configure that key again, or hand the ledger on to another with `manage.py signing_key rotate`."
    sentence = f"The signing key {configured} is not the ledger's, which is {head.key_id}: nothing can be decided."
    return [Error(sentence, hint=cure, id="approvals.E002")]
