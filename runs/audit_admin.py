"""The base of every admin of audit rows: they are read, searched, followed, verified and exported, and never changed.

What is shown is the bytes in their order: characters that could not be seen, or would reorder their neighbours, are
spelled; times have seconds and their zone, money its currency, JSON is JSON. Lists count up to MOST_COUNTED and look at
no more rows than they show. May import selection, models and how pages show values.
"""

import json
from collections.abc import Callable
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.options import ShowFacets
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db import models
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, reverse
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from . import selection
from .dates import Dates, dates_of
from .errors import BadRequest
from .models import AuditEvent, JSONText, Run
from .templatetags import show
from .values import digest

MOST_COUNTED = 10_000
"""Rows up to which a list says how many there are, and has pages."""


class CappedPaginator(Paginator):
    """Counts no further than MOST_COUNTED."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return rows.order_by().values("pk")[:MOST_COUNTED].count()


class LongList(ChangeList):
    """A list whose dates are told from its first and its last row: no look goes over all of them."""

    def dates(self) -> Dates:
        return dates_of(self)


class Known(admin.SimpleListFilter):
    """A filter by what this code knows of, asked of no table. Set `title`, `parameter_name` and `names`."""

    names: ClassVar[Callable[[], list[str]]]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in sorted({*type(self).names(), self.value() or ""} - {""})]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(**{str(self.parameter_name): self.value()}) if self.value() else queryset


class ReadOnlyAdmin(admin.ModelAdmin):
    """Shows rows and lets nobody add, change or delete one, whatever rights they have.

    `personal`: columns that say something of persons: that somebody read or exported them is recorded. `proofs`: a
    column of text, and the one that holds the SHA-256 of its bytes.
    """

    actions = ["export_selected"]
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    list_per_page = 50
    personal: ClassVar[frozenset[str]] = frozenset()
    proofs: ClassVar[tuple[tuple[str, str], ...]] = ()

    # What is shown

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LongList

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        return [self._cell(str(name)) for name in self.list_display]

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        columns = [self._cell(field.name, linked=False) for field in self.model._meta.fields]
        return [*columns, *self.told(), *([_rows_about] if links_to(self.model) else [])]

    def told(self) -> list[Any]:
        """What the page of a row says beyond its columns."""
        return [_proof(text, sha256) for text, sha256 in self.proofs]

    def _cell(self, name: str, *, linked: bool = True) -> Any:
        return name if hasattr(self, name) else _shown(self.model, name, linked=linked)

    # What nobody may

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    # What is recorded

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        response = super().changelist_view(request, extra_context)
        if request.method == "GET" and response.status_code == 200 and self.personal & {*map(str, self.list_display)}:
            self._record(request, f"{self.model._meta.label_lower}: a list, {_chosen(request)}")
        return response

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().change_view(request, object_id, form_url, extra_context)
        if request.method == "GET" and response.status_code == 200 and self.personal:
            row = self.get_object(request, object_id)
            run = row if isinstance(row, Run) else getattr(row, "run", None)
            self._record(request, f"{self.model._meta.label_lower} {object_id}", run=run)
        return response

    def _record(self, request: HttpRequest, detail: str, run: Run | None = None) -> None:
        reader: Any = request.user
        AuditEvent.objects.create(
            kind=AuditEvent.Kind.READ, run=run, detail=show.spelled(detail), actor="admin", user=reader
        )

    @admin.action(description="Export the selected rows, with a manifest", permissions=["view"])
    def export_selected(self, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        try:
            packed = selection.pack(rows, chosen=_chosen(request), by=request.user, actor="admin")
        except BadRequest as refusal:
            self.message_user(request, str(refusal), messages.ERROR)
            return None
        response = HttpResponse(packed, content_type="application/zip")
        response["Content-Disposition"] = f'attachment; filename="{self.model._meta.model_name}-selection.zip"'
        response["Cache-Control"] = "no-store"
        return response


def _chosen(request: HttpRequest) -> str:
    query = request.META.get("QUERY_STRING", "")
    return f"?{query}"[:500] if query else "all rows"


# Values in words


def _shown(model: type[Model], name: str, *, linked: bool) -> Any:
    """How a column is displayed: by its name, or by a function that puts its value into words."""
    field: Any = model._meta.get_field(name)
    words = _words_for(field, linked=linked)
    if words is None:
        return name

    @admin.display(description=str(field.verbose_name), ordering=name, empty_value="-")
    def shown(row: Any) -> Any:
        value = getattr(row, name)
        return None if value is None or value == "" else words(row, value)

    return shown


def _words_for(field: Any, *, linked: bool) -> Callable[[Any, Any], Any] | None:
    if field.name == "amount_minor":
        return lambda row, value: show.money(value, row.currency)
    if isinstance(field, JSONText):
        return lambda row, value: show.revealed(json.dumps(value, ensure_ascii=False))
    if isinstance(field, models.DateTimeField):
        return lambda row, value: show.when_exactly(value)
    if isinstance(field, models.CharField | models.TextField) and not field.choices:
        return lambda row, value: show.revealed(value)
    if isinstance(field, models.ForeignKey) and linked:
        return lambda row, value: link_to(value)
    return None


def link_to(row: Model) -> SafeString | str:
    """A row's name, which leads to its page where it has one in the admin."""
    try:
        address = reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])
    except NoReverseMatch:
        return str(row)
    return format_html('<a href="{}">{}</a>', address, show.revealed(str(row)))


def links_to(model: type[Model]) -> list[tuple[str, str, str]]:
    """The rows that refer to rows of this model: their name, the address of their list, and the column."""
    found = []
    for relation in model._meta.get_fields(include_hidden=True):
        related: Any = relation
        if not (related.auto_created and (related.one_to_many or related.one_to_one)) or related.concrete:
            continue
        other = related.related_model
        if admin.site.is_registered(other) and isinstance(admin.site.get_model_admin(other), ReadOnlyAdmin):
            address = reverse(f"admin:{other._meta.app_label}_{other._meta.model_name}_changelist")
            name = f"{other._meta.verbose_name_plural}, by {related.field.verbose_name}"
            column = f"{related.field.name}__{related.field.target_field.name}__exact"
            found.append((name.capitalize(), address, column))
    return sorted(found)


@admin.display(description="Rows that refer to it")
def _rows_about(row: Model) -> SafeString:
    links = ((f"{address}?{column}={row.pk}", name) for name, address, column in links_to(type(row)))
    return format_html_join(mark_safe("<br>"), '<a href="{}">{}</a>', links)


# Proofs


def mark(is_whole: bool, words: str) -> SafeString:
    """Verified or broken, by sign and word, and what that rests on."""
    tone, state = ("proof-ok", "✓ Verified") if is_whole else ("proof-broken", "✗ Broken")
    return format_html('<strong class="{}">{}</strong> {}', tone, state, words)


def _proof(text: str, sha256: str) -> Callable[[Any], SafeString]:
    @admin.display(description=f"{text.replace('_', ' ')}, verified")
    def proof(row: Any) -> SafeString:
        now, kept = digest(getattr(row, text)), getattr(row, sha256)
        if now == kept:
            return mark(True, f"These bytes give the SHA-256 that is kept: {kept}.")
        return mark(False, f"These bytes give SHA-256 {now}, and {kept} is kept: somebody changed one of them.")

    return proof


def proven(text: str, sha256: str) -> Callable[[Any, Any], SafeString]:
    """A list's column that says whether the bytes of a column still have their digest."""

    @admin.display(description="bytes")
    def shown(self: Any, row: Any) -> SafeString:
        return mark(digest(getattr(row, text)) == getattr(row, sha256), "")

    return shown
