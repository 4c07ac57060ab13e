"""confirm: the person at the page gives their password again, because an amount asks for it.

A few wrong ones, and for a while none is tried any more, not even the right one. May import models, refusals and
runs' models.
"""

from datetime import timedelta
from typing import Any

from django.contrib.auth import authenticate, get_user_model
from django.db import transaction
from django.http import HttpRequest

from runs.models import DatabaseNow

from .models import PasswordFailure
from .refusals import Invalid, TooManyTries

MOST_FAILURES = 5
WINDOW = timedelta(minutes=15)

WRONG = "That is not your password. Nothing was decided."


def confirm(request: HttpRequest, password: str) -> None:
    """Returns when it is the password of who is signed in. Raises Invalid with field "password", TooManyTries."""
    user: Any = request.user
    if not _is_right(request, user, password):
        raise Invalid("password", WRONG)


def _is_right(request: HttpRequest, user: Any, password: str) -> bool:
    with transaction.atomic():
        # One try at a time of one person: many at once would all see the same few failures.
        get_user_model().objects.select_for_update(no_key=True).get(pk=user.pk)
        recent = PasswordFailure.objects.filter(user=user, at__gt=DatabaseNow() - WINDOW)
        if recent.count() >= MOST_FAILURES:
            raise TooManyTries(int(WINDOW.total_seconds()) // 60)
        proved = authenticate(request, username=user.get_username(), password=password)
        if proved is not None and proved.pk == user.pk:
            return True
        PasswordFailure.objects.create(user=user)
    return False
