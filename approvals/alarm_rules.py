"""Rules of alarms: made and changed here, each time with a ledger entry that says what the rule was from then on.

May import ledger, and runs' models.
"""

from typing import Any

from django.db import transaction

from runs.models import AlarmRule, database_clock

from . import ledger

COLUMNS = ("condition", "is_on", "after", "mail_to", "is_posted")


def make(name: str, *, by: Any, **columns: Any) -> AlarmRule:
    """Make a rule, with its ledger entry. `by`: who does; None for the system. Raises ValidationError."""
    with transaction.atomic():
        rule = AlarmRule(name=name, **columns)
        rule.full_clean()
        rule.save(force_insert=True)
        _enter(rule, "made", by)
    return rule


def change(name: str, *, by: Any, **columns: Any) -> AlarmRule:
    """Change a rule, with its ledger entry; none where nothing is changed. Raises ValidationError,
    AlarmRule.DoesNotExist."""
    with transaction.atomic():
        rule = AlarmRule.objects.select_for_update().get(pk=name)
        before = {column: getattr(rule, column) for column in columns}
        if before == columns:
            return rule
        for column, value in columns.items():
            setattr(rule, column, value)
        rule.full_clean()
        rule.save()
        _enter(rule, "changed", by)
    return rule


def _enter(rule: AlarmRule, act: str, by: Any) -> None:
    """Addresses are persons': they stand in the body."""
    said = {"rule": rule.name, "act": act, "by": by.pk if by else None, "after": int(rule.after.total_seconds())}
    plain = {name: getattr(rule, name) for name in ("condition", "is_on", "is_posted", "mail_to")}
    ledger.append("alarm-rule", said | plain, at=database_clock())
