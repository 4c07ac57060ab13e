"""Claims and reserve entries in the admin: the facts of a claim can be changed here, and nothing else.

Imports of ours: the app's own modules.
"""

import json
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from durable_site.claims.models import Claim, ReserveEntry
from durable_site.claims.money import dollars

CHANGEABLE = ("status", "amount_minor", "payee", "email")
IMPORTED = (
    "currency",
    "policy_number",
    "non_payment_reason",
    "date_of_loss",
    "state",
    "event",
    "imported_at",
    "imported_row",
)


class NeitherAddedNorDeleted(admin.ModelAdmin):
    """Rows come from the import and from runs, and they stay."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Claim)
class ClaimAdmin(NeitherAddedNorDeleted):
    list_display = ["reference", "status", "amount", "to_whom", "date_of_loss", "state", "event"]
    list_filter = ["status", "state"]
    search_fields = ["reference", "policy_number", "payee"]
    ordering = ["-imported_at", "reference"]
    fields = ["reference", *CHANGEABLE, *IMPORTED]
    readonly_fields = ["reference", *IMPORTED]

    @admin.display(ordering="amount_minor", empty_value="not known")
    def amount(self, claim: Claim) -> str | None:
        return None if claim.amount_minor is None else f"{dollars(claim.amount_minor)} {claim.currency}"

    @admin.display(description="Payee", ordering="payee")
    def to_whom(self, claim: Claim) -> str:
        """The payee, with what could not be seen, or would reorder its neighbours, spelled."""
        return "".join(sign if sign.isprintable() else f"\u2039U+{ord(sign):04X}\u203a" for sign in claim.payee)

    @admin.display(description="The imported row")
    def imported_row(self, claim: Claim) -> SafeString:
        return format_html("<pre>{}</pre>", json.dumps(claim.row, indent=1, ensure_ascii=False))


@admin.register(ReserveEntry)
class ReserveEntryAdmin(NeitherAddedNorDeleted):
    list_display = ["claim", "amount", "payment", "booked_at"]
    list_select_related = ["claim"]
    search_fields = ["claim__reference", "payment"]
    ordering = ["-booked_at"]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @admin.display(ordering="amount_minor")
    def amount(self, entry: ReserveEntry) -> str:
        return f"{dollars(entry.amount_minor)} {entry.currency}"
