"""Approvals, decisions and the ledger in the admin: to read and search, never to change. Authorities and the rules of
alarms: to make and change, by the verbs that enter it in the ledger.

May import authority, alarm_rules, people_admin, models, runs' alerts and models, runs' tools, and its base of
every admin of audit rows.
"""

from typing import Any

from django import forms
from django.contrib import admin
from django.core.validators import validate_email
from django.db.models import Model
from django.http import HttpRequest

from runs import alerts, tools
from runs.audit_admin import Known, ReadOnlyAdmin, mark, proven
from runs.models import AlarmRule

from . import alarm_rules, authority, ledger, people_admin  # noqa: F401 (it registers people, teams and roles)
from .models import (
    Absence,
    Approval,
    AssignmentEvent,
    Authority,
    Decision,
    LedgerBody,
    LedgerCheckpoint,
    LedgerEntry,
    Notice,
    Rung,
    StatementTemplate,
    VerifyingKey,
)


class ByTool(Known):
    title, parameter_name = "tool", "tool"

    @staticmethod
    def names() -> list[str]:
        return [tool.name for tool in tools.registered()]


class ByKind(Known):
    title, parameter_name = "kind", "kind"

    @staticmethod
    def names() -> list[str]:
        return list(ledger.KINDS)


@admin.display(description="Signed entry, verified")
def entry_proof(row: Any) -> Any:
    """Whether the ledger entry of this row is whole, and says what the row does."""
    entry = row if isinstance(row, LedgerEntry) else row.entry
    words = f"Entry {entry.sequence}: record, body, hash, signature and the rows it tells of"
    return mark(is_whole := ledger.check_entry(entry), f"{words} agree." if is_whole else f"{words} do not agree.")


@admin.register(Approval)
class ApprovalAdmin(ReadOnlyAdmin):
    list_display = ["id", "run", "statement", "amount_minor", "status", "team", "asked_at", "due_at", "bytes_whole"]
    list_filter = ["status", ByTool]
    list_select_related = ["run", "team"]
    search_fields = ["run__key__startswith", "payload_digest"]
    search_help_text = "The beginning of a run key, or a payload's digest."
    date_hierarchy = "asked_at"
    personal = frozenset({"statement", "payload", "facts", "payee", "signed_facts"})
    proofs = (("payload", "payload_digest"), ("facts", "facts_digest"))
    bytes_whole = proven("payload", "payload_digest")
    ordering = ["-id"]


@admin.register(Decision)
class DecisionAdmin(ReadOnlyAdmin):
    list_display = ["decided_at", "approval", "user", "verdict", "comment", "entry"]
    list_filter = ["verdict"]
    list_select_related = ["approval", "user", "entry"]
    search_fields = ["approval__run__key__startswith", "user__username"]
    search_help_text = "The beginning of a run key, or a signer's user name."
    date_hierarchy = "decided_at"
    personal = frozenset({"comment", "facts"})
    ordering = ["-id"]

    def told(self) -> list[Any]:
        return [entry_proof]


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadOnlyAdmin):
    list_display = ["sequence", "at", "kind", "key_id", "entry_hash"]
    list_filter = [ByKind]
    search_fields = ["key_id", "entry_hash", "decision__approval__run__key__startswith", "decision__user__username"]
    search_help_text = "A run key's beginning, a signer's user name, a key id or an entry's hash."
    date_hierarchy = "at"
    ordering = ["-sequence"]

    def told(self) -> list[Any]:
        return [entry_proof]


@admin.register(VerifyingKey)
class VerifyingKeyAdmin(ReadOnlyAdmin):
    list_display = ["key_id", "public_key", "since"]
    search_fields = ["key_id"]
    ordering = ["-since"]


@admin.register(LedgerBody)
class LedgerBodyAdmin(ReadOnlyAdmin):
    list_display = ["id", "entry", "text"]
    search_fields = ["entry__decision__approval__run__key__startswith"]
    search_help_text = "The beginning of a run key."
    personal = frozenset({"text"})
    list_select_related = ["entry"]
    ordering = ["-id"]


@admin.register(LedgerCheckpoint)
class LedgerCheckpointAdmin(ReadOnlyAdmin):
    list_display = ["id", "at", "size", "key_id"]
    search_fields = ["key_id", "size"]
    date_hierarchy = "at"
    ordering = ["-id"]


@admin.register(AssignmentEvent)
class AssignmentEventAdmin(ReadOnlyAdmin):
    list_display = ["at", "kind", "approval", "absence", "by", "before", "to", "actor"]
    list_filter = ["kind"]
    list_select_related = ["approval", "absence", "by", "before", "to"]
    search_fields = ["approval__run__key__startswith", "by__username", "to__username"]
    search_help_text = "The beginning of a run key, or a user name."
    date_hierarchy = "at"
    ordering = ["-id"]


@admin.register(StatementTemplate)
class StatementTemplateAdmin(ReadOnlyAdmin):
    list_display = ["version", "text"]
    search_fields = ["version", "text"]
    ordering = ["version"]


@admin.register(Authority)
class AuthorityAdmin(admin.ModelAdmin):
    """To end one, let it be valid until now; none is ever deleted."""

    actions = None
    fields = authority.COLUMNS
    list_display = ["id", "user", "group", "workflow", "team", "currency", "limit_minor", "valid_from", "valid_to"]
    list_select_related = ["user", "group", "team"]
    list_filter = ["workflow", "team"]
    search_fields = ["user__username", "group__name", "workflow"]
    ordering = ["-id"]

    def save_model(self, request: HttpRequest, obj: Authority, form: forms.ModelForm, change: bool) -> None:
        said = {name: form.cleaned_data[name] for name in authority.COLUMNS}
        if change:
            authority.change(obj.pk, by=request.user, **said)
        else:
            obj.pk = authority.grant(by=request.user, **said).pk

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"valid_from": authority.database_clock()}

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class AlarmRuleForm(forms.ModelForm):
    """Offers the conditions that this code knows."""

    condition = forms.ChoiceField(choices=lambda: [(known.name, known.title) for known in alerts.conditions.values()])

    class Meta:
        model = AlarmRule
        fields = ["name", *alarm_rules.COLUMNS]

    def clean_mail_to(self) -> str:
        given = [address.strip() for address in self.cleaned_data["mail_to"].split(",")]
        addresses = [address for address in given if address]
        for address in addresses:
            validate_email(address)
        return ", ".join(addresses)


@admin.register(AlarmRule)
class AlarmRuleAdmin(admin.ModelAdmin):
    """Edited by whoever has the right; a rule that has opened alarms is switched off, never deleted."""

    form = AlarmRuleForm
    list_display = ["name", "condition", "is_on", "after", "mail_to", "is_posted"]
    search_fields = ["name", "condition"]
    ordering = ["name"]
    actions = None

    def save_model(self, request: HttpRequest, obj: AlarmRule, form: forms.ModelForm, change: bool) -> None:
        said = {name: form.cleaned_data[name] for name in alarm_rules.COLUMNS}
        if change:
            alarm_rules.change(obj.pk, by=request.user, **said)
        else:
            alarm_rules.make(form.cleaned_data["name"], by=request.user, **said)

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        return ["name"] if obj else []

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(Rung)
class RungAdmin(ReadOnlyAdmin):
    list_display = ["approval", "number", "kind", "to", "due_at", "fired_at", "is_void"]
    list_filter = ["kind"]
    list_select_related = ["approval", "to"]
    search_fields = ["approval__run__key__startswith"]
    search_help_text = "The beginning of a run key."
    ordering = ["-id"]


@admin.register(Notice)
class NoticeAdmin(ReadOnlyAdmin):
    list_display = ["written_at", "approval", "kind", "channel", "sent_at", "told", "attempts", "error"]
    list_filter = ["kind", "channel"]
    list_select_related = ["approval"]
    search_fields = ["approval__run__key__startswith"]
    search_help_text = "The beginning of a run key."
    date_hierarchy = "written_at"
    ordering = ["-id"]


@admin.register(Absence)
class AbsenceAdmin(ReadOnlyAdmin):
    list_display = ["person", "deputy", "starts_at", "ends_at"]
    list_select_related = ["person", "deputy"]
    search_fields = ["person__username", "deputy__username"]
    date_hierarchy = "starts_at"
    ordering = ["-id"]
