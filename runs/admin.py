"""The engine's rows in the admin: to read, search and follow, never to change; and the rules of alarms, to edit.

May import models, alerts and how pages show values. Counts of whole tables are left out: they grow without end.
"""

import json
from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin
from django.db import models
from django.db.models import Model
from django.http import HttpRequest

from . import alerts
from .models import (
    Alarm,
    AlarmRule,
    Artefact,
    AuditEvent,
    Beat,
    Call,
    Checkpoint,
    Delivery,
    Finding,
    Hold,
    JSONText,
    Listed,
    Recurring,
    Run,
    Transition,
    Withholding,
)
from .templatetags import show


class ReadOnlyAdmin(admin.ModelAdmin):
    """Shows rows and lets nobody add, change or delete one, whatever rights they have.

    What is shown is the bytes in their order: characters that could not be seen, or would reorder their neighbours, are
    spelled; times have seconds and their zone, money its currency, JSON is JSON.
    """

    actions = None
    show_full_result_count = False
    list_per_page = 50

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        return [_shown(self.model, str(name)) for name in self.list_display]

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        return [_shown(self.model, field.name) for field in self.model._meta.fields]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def _shown(model: type[Model], name: str) -> Any:
    """How a column is displayed: by its name, or by a function that puts its value into words."""
    field: Any = model._meta.get_field(name)
    words = _words_for(field)
    if words is None:
        return name

    @admin.display(description=str(field.verbose_name), ordering=name, empty_value="-")
    def shown(row: Any) -> Any:
        value = getattr(row, name)
        return None if value is None or value == "" else words(row, value)

    return shown


def _words_for(field: Any) -> Callable[[Any, Any], Any] | None:
    if field.name == "amount_minor":
        return lambda row, value: show.money(value, row.currency)
    if isinstance(field, JSONText):
        return lambda row, value: show.revealed(json.dumps(value, ensure_ascii=False))
    if isinstance(field, models.DateTimeField):
        return lambda row, value: show.when_exactly(value)
    if isinstance(field, models.CharField | models.TextField) and not field.choices:
        return lambda row, value: show.revealed(value)
    return None


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    list_display = ["key", "workflow", "version", "status", "outcome", "position", "next_step", "team", "created_at"]
    list_filter = ["status", "workflow"]
    list_select_related = ["team"]
    search_fields = ["key__startswith"]
    search_help_text = "The beginning of a run key."
    ordering = ["-id"]


@admin.register(Checkpoint)
class CheckpointAdmin(ReadOnlyAdmin):
    list_display = ["run", "position", "step", "wait_kind", "closed_as", "attempt", "committed_at"]
    list_select_related = ["run"]
    search_fields = ["run__key__startswith"]
    search_help_text = "The beginning of a run key."
    date_hierarchy = "committed_at"
    ordering = ["-id"]


@admin.register(Call)
class CallAdmin(ReadOnlyAdmin):
    list_display = ["key", "run", "tool", "kind", "state", "replayed", "sends", "prepared_at"]
    list_filter = ["kind", "state", "replayed"]
    list_select_related = ["run"]
    search_fields = ["run__key__startswith", "key__startswith"]
    search_help_text = "The beginning of a run key or of an idempotency key."
    date_hierarchy = "prepared_at"
    ordering = ["-id"]


@admin.register(Artefact)
class ArtefactAdmin(ReadOnlyAdmin):
    list_display = ["run", "position", "place", "size", "media_type", "sha256", "kept_at"]
    list_select_related = ["run"]
    search_fields = ["run__key__startswith", "sha256__startswith"]
    search_help_text = "The beginning of a run key or of a SHA-256."
    ordering = ["-id"]


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    list_display = ["run", "name", "position", "delivered_by", "delivered_at"]
    list_select_related = ["run", "delivered_by"]
    search_fields = ["run__key__startswith", "name"]
    date_hierarchy = "delivered_at"
    ordering = ["-id"]


@admin.register(Transition)
class TransitionAdmin(ReadOnlyAdmin):
    list_display = ["at", "run", "from_status", "to_status", "position", "step", "why", "actor", "user"]
    list_filter = ["to_status"]
    list_select_related = ["run", "user"]
    search_fields = ["run__key__startswith"]
    search_help_text = "The beginning of a run key."
    date_hierarchy = "at"
    ordering = ["-id"]


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnlyAdmin):
    list_display = ["at", "kind", "run", "position", "detail", "actor", "user"]
    list_filter = ["kind"]
    list_select_related = ["run", "user"]
    search_fields = ["run__key__startswith", "detail"]
    date_hierarchy = "at"
    ordering = ["-id"]


@admin.register(Finding)
class FindingAdmin(ReadOnlyAdmin):
    list_display = ["id", "kind", "tool", "key", "run", "team", "opened_at", "seen_at", "resolved_at", "resolved_by"]
    list_filter = ["kind", ("resolved_at", admin.EmptyFieldListFilter)]
    list_select_related = ["run", "team", "resolved_by"]
    search_fields = ["key__startswith", "run__key__startswith"]
    search_help_text = "The beginning of a run key or of an idempotency key."
    date_hierarchy = "opened_at"
    ordering = ["-id"]


@admin.register(Listed)
class ListedAdmin(ReadOnlyAdmin):
    list_display = ["tool", "record", "key", "reference", "amount_minor", "currency", "created_at", "seen_at"]
    search_fields = ["key__startswith", "reference__startswith", "record__startswith"]
    search_help_text = "The beginning of a key, a reference or the provider's own name."
    ordering = ["-id"]


@admin.register(Recurring)
class RecurringAdmin(ReadOnlyAdmin):
    list_display = ["name", "workflow", "every", "due_at", "team"]
    list_select_related = ["team"]
    ordering = ["name"]


@admin.register(Withholding)
class WithholdingAdmin(ReadOnlyAdmin):
    list_display = ["id", "at", "rule", "actor", "user"]
    list_select_related = ["user"]
    date_hierarchy = "at"
    ordering = ["-id"]


@admin.register(Hold)
class HoldAdmin(ReadOnlyAdmin):
    list_display = ["run", "why", "at", "user"]
    list_select_related = ["run", "user"]
    search_fields = ["run__key__startswith"]
    search_help_text = "The beginning of a run key."
    ordering = ["-at"]


@admin.register(Beat)
class BeatAdmin(ReadOnlyAdmin):
    list_display = ["host", "pid", "workers", "started_at", "beat_at", "canary_at", "restarts"]
    ordering = ["host"]


@admin.register(Alarm)
class AlarmAdmin(ReadOnlyAdmin):
    list_display = ["id", "rule", "subject", "run", "team", "opened_at", "acknowledged_at", "closed_at"]
    list_filter = ["rule", ("closed_at", admin.EmptyFieldListFilter)]
    list_select_related = ["rule", "run", "team"]
    search_fields = ["subject__startswith"]
    search_help_text = "The beginning of a run key, an idempotency key or a host."
    date_hierarchy = "opened_at"
    ordering = ["-id"]


class AlarmRuleForm(forms.ModelForm):
    """Offers the conditions that this code knows."""

    condition = forms.ChoiceField(choices=lambda: [(known.name, known.title) for known in alerts.conditions.values()])

    class Meta:
        model = AlarmRule
        fields = ["name", "condition", "is_on", "after", "mail_to"]


@admin.register(AlarmRule)
class AlarmRuleAdmin(admin.ModelAdmin):
    """Edited by whoever has the right; a rule that has opened alarms is switched off, never deleted."""

    form = AlarmRuleForm
    list_display = ["name", "condition", "is_on", "after", "mail_to"]
    ordering = ["name"]
    actions = None

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        return ["name"] if obj else []

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False
