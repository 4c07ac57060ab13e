"""People, teams and roles in the admin: each change of what one stands for is an entry of the ledger. None is deleted:
what they did stays theirs, so an account is made inactive and a group emptied. May import standing.
"""

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import Model
from django.http import HttpRequest, HttpResponse

from . import standing

admin.site.unregister([User, Group])


class StandingAdmin(admin.ModelAdmin):
    """Enters in the ledger what a form changes, in the transaction that changes it."""

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        form.stood_for = standing.before(obj) if change else {}
        super().save_model(request, obj, form, change)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        standing.enter(form.instance, form.stood_for, by=request.user)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(User)
class PersonAdmin(StandingAdmin, UserAdmin):
    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:
        with transaction.atomic():
            before = User.objects.filter(pk=id).values_list("password", flat=True).first() if id.isdecimal() else None
            response = super().user_change_password(request, id, form_url)
            person = User.objects.filter(pk=id).first() if before else None
            if person is not None and person.password != before:
                standing.password_set(person, by=request.user)
        return response


@admin.register(Group)
class TeamAdmin(StandingAdmin, GroupAdmin):
    pass
