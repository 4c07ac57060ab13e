"""The engine's rows in the admin: to read, search, follow, verify and export, never to change. The rules of alarms are
edited in the admin of whoever keeps the ledger.

May import audit_admin, actions, workflows, models.
"""

from django.contrib import admin

from . import workflows
from .actions import BULK
from .audit_admin import Known, ReadOnlyAdmin, proven
from .models import (
    Alarm,
    Artefact,
    AuditEvent,
    Batch,
    BatchItem,
    Beat,
    Call,
    Checkpoint,
    Delivery,
    Finding,
    Hold,
    Listed,
    Recurring,
    Run,
    Sending,
    Transition,
    Withholding,
)


class ByWorkflow(Known):
    title, parameter_name = "workflow", "workflow"

    @staticmethod
    def names() -> list[str]:
        return [known.name for known in workflows.registered()]


class ByAction(Known):
    title, parameter_name = "action", "action"

    @staticmethod
    def names() -> list[str]:
        return list(BULK)


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    list_display = ["key", "workflow", "version", "status", "outcome", "position", "next_step", "team", "created_at"]
    list_filter = ["status", ByWorkflow]
    list_select_related = ["team"]
    search_fields = ["key__startswith"]
    search_help_text = "The beginning of a run key."
    date_hierarchy = "created_at"
    personal = frozenset({"input", "tags"})
    ordering = ["-id"]


@admin.register(Checkpoint)
class CheckpointAdmin(ReadOnlyAdmin):
    list_display = ["run", "position", "step", "wait_kind", "closed_as", "attempt", "committed_at"]
    list_select_related = ["run"]
    search_fields = ["run__key__startswith"]
    search_help_text = "The beginning of a run key."
    date_hierarchy = "committed_at"
    personal = frozenset({"output"})
    ordering = ["-id"]


@admin.register(Call)
class CallAdmin(ReadOnlyAdmin):
    list_display = ["key", "run", "tool", "kind", "state", "replayed", "sends", "prepared_at", "bytes_whole"]
    list_filter = ["kind", "state", "replayed"]
    list_select_related = ["run"]
    search_fields = ["run__key__startswith", "key__startswith"]
    search_help_text = "The beginning of a run key or of an idempotency key."
    date_hierarchy = "prepared_at"
    personal = frozenset({"request", "answer"})
    proofs = (("request", "digest"),)
    bytes_whole = proven("request", "digest")
    ordering = ["-id"]


@admin.register(Artefact)
class ArtefactAdmin(ReadOnlyAdmin):
    list_display = ["run", "position", "place", "size", "media_type", "sha256", "kept_at"]
    list_select_related = ["run"]
    search_fields = ["run__key__startswith", "sha256__startswith"]
    search_help_text = "The beginning of a run key or of a SHA-256."
    date_hierarchy = "kept_at"
    ordering = ["-id"]


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    list_display = ["run", "name", "position", "delivered_by", "delivered_at"]
    list_select_related = ["run", "delivered_by"]
    search_fields = ["run__key__startswith", "name"]
    search_help_text = "The beginning of a run key, or an event's name."
    date_hierarchy = "delivered_at"
    personal = frozenset({"body"})
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
    search_fields = ["run__key__startswith", "user__username"]
    search_help_text = "The beginning of a run key, or a user name."
    date_hierarchy = "at"
    personal = frozenset({"request"})
    ordering = ["-id"]


@admin.register(Finding)
class FindingAdmin(ReadOnlyAdmin):
    list_display = ["id", "kind", "tool", "key", "run", "team", "opened_at", "seen_at", "resolved_at", "resolved_by"]
    list_filter = ["kind", ("resolved_at", admin.EmptyFieldListFilter)]
    list_select_related = ["run", "team", "resolved_by"]
    search_fields = ["key__startswith", "run__key__startswith"]
    search_help_text = "The beginning of a run key or of an idempotency key."
    date_hierarchy = "opened_at"
    personal = frozenset({"ours", "theirs"})
    ordering = ["-id"]


@admin.register(Listed)
class ListedAdmin(ReadOnlyAdmin):
    list_display = ["tool", "record", "key", "reference", "amount_minor", "currency", "created_at", "seen_at"]
    search_fields = ["key__startswith", "reference__startswith", "record__startswith"]
    search_help_text = "The beginning of a key, a reference or the provider's own name."
    date_hierarchy = "seen_at"
    ordering = ["-id"]


@admin.register(Recurring)
class RecurringAdmin(ReadOnlyAdmin):
    list_display = ["name", "workflow", "every", "due_at", "team"]
    list_select_related = ["team"]
    search_fields = ["name", "workflow"]
    ordering = ["name"]


@admin.register(Withholding)
class WithholdingAdmin(ReadOnlyAdmin):
    list_display = ["id", "at", "rule", "actor", "user"]
    list_select_related = ["user"]
    search_fields = ["actor__startswith"]
    search_help_text = "The beginning of the actor: web, command, or a run's key."
    date_hierarchy = "at"
    ordering = ["-id"]


@admin.register(Hold)
class HoldAdmin(ReadOnlyAdmin):
    list_display = ["run", "why", "at", "user"]
    list_select_related = ["run", "user"]
    search_fields = ["run__key__startswith"]
    search_help_text = "The beginning of a run key."
    date_hierarchy = "at"
    ordering = ["-at"]


@admin.register(Beat)
class BeatAdmin(ReadOnlyAdmin):
    list_display = ["host", "pid", "workers", "started_at", "beat_at", "canary_at", "restarts", "silent_from"]
    search_fields = ["host"]
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


@admin.register(Sending)
class SendingAdmin(ReadOnlyAdmin):
    list_display = ["id", "notice", "channel", "tries", "next_try_at", "sent_at", "error"]
    list_filter = ["channel", ("sent_at", admin.EmptyFieldListFilter)]
    list_select_related = ["notice"]
    search_fields = ["notice__rule__name"]
    search_help_text = "The name of an alarm's rule."
    ordering = ["-id"]


@admin.register(Batch)
class BatchAdmin(ReadOnlyAdmin):
    list_display = ["id", "action", "run", "total", "why", "asked_by", "asked_at"]
    list_filter = [ByAction]
    list_select_related = ["run", "asked_by"]
    search_fields = ["run__key__startswith", "asked_by__username"]
    search_help_text = "The beginning of the key of its own run, or a user name."
    date_hierarchy = "asked_at"
    ordering = ["-id"]


@admin.register(BatchItem)
class BatchItemAdmin(ReadOnlyAdmin):
    list_display = ["id", "batch", "run", "outcome", "sentence", "done_at"]
    list_filter = ["outcome"]
    list_select_related = ["batch", "run"]
    search_fields = ["run__key__startswith"]
    search_help_text = "The beginning of a run key."
    ordering = ["-id"]
