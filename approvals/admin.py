"""Approvals, decisions and the ledger in the admin: to read and search, never to change.

May import models, and the read-only base of runs.admin.
"""

from django.contrib import admin

from runs.admin import ReadOnlyAdmin

from .models import Absence, Approval, AssignmentEvent, Decision, LedgerEntry, VerifyingKey


@admin.register(Approval)
class ApprovalAdmin(ReadOnlyAdmin):
    list_display = ["id", "run", "statement", "amount_minor", "status", "team", "asked_at", "due_at"]
    list_filter = ["status", "tool"]
    list_select_related = ["run", "team"]
    search_fields = ["run__key__startswith", "payload_digest"]
    search_help_text = "The beginning of a run key, or a payload's digest."
    date_hierarchy = "asked_at"
    ordering = ["-id"]


@admin.register(Decision)
class DecisionAdmin(ReadOnlyAdmin):
    list_display = ["decided_at", "approval", "user", "verdict", "comment", "entry"]
    list_filter = ["verdict"]
    list_select_related = ["approval", "user", "entry"]
    search_fields = ["approval__run__key__startswith", "user__username"]
    search_help_text = "The beginning of a run key, or a signer's user name."
    date_hierarchy = "decided_at"
    ordering = ["-id"]


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadOnlyAdmin):
    list_display = ["sequence", "at", "kind", "key_id", "entry_hash"]
    list_filter = ["kind"]
    search_fields = ["key_id", "entry_hash", "decision__approval__run__key__startswith", "decision__user__username"]
    search_help_text = "A run key's beginning, a signer's user name, a key id or an entry's hash."
    date_hierarchy = "at"
    ordering = ["-sequence"]


@admin.register(VerifyingKey)
class VerifyingKeyAdmin(ReadOnlyAdmin):
    list_display = ["key_id", "public_key", "since"]
    ordering = ["-since"]


@admin.register(AssignmentEvent)
class AssignmentEventAdmin(ReadOnlyAdmin):
    list_display = ["at", "kind", "approval", "absence", "by", "before", "to", "actor"]
    list_filter = ["kind"]
    list_select_related = ["approval", "absence", "by", "before", "to"]
    search_fields = ["approval__run__key__startswith", "by__username", "to__username"]
    search_help_text = "The beginning of a run key, or a user name."
    date_hierarchy = "at"
    ordering = ["-id"]


@admin.register(Absence)
class AbsenceAdmin(ReadOnlyAdmin):
    list_display = ["person", "deputy", "starts_at", "ends_at"]
    list_select_related = ["person", "deputy"]
    search_fields = ["person__username", "deputy__username"]
    date_hierarchy = "starts_at"
    ordering = ["-id"]
