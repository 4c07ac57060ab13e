"""The site's own doors: signing in, the health check, and the page for a failure.

Lives here because it belongs to no app. May import Django only.
"""

import logging
import secrets
import time

from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

logger = logging.getLogger(__name__)


class SignIn(LoginView):
    """Keeps in the session when the person proved who they are: a signed decision says how long ago that was."""

    redirect_authenticated_user = True

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        response = super().form_valid(form)
        self.request.session["signed_in_at"] = int(time.time())
        return response


@login_not_required
def admin_sign_in(request: HttpRequest) -> HttpResponse:
    """The admin has no sign-in of its own. Whoever has signed in and still comes here may not see it."""
    if request.user.is_authenticated:
        raise PermissionDenied("The audit pages are for accounts that are marked as staff.")
    return redirect_to_login(request.GET.get(REDIRECT_FIELD_NAME, reverse("admin:index")))


@login_not_required
@never_cache
@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """200 while this process serves and its database answers; the middleware answers 503 when it does not."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return HttpResponse("ok\n", content_type="text/plain")


def server_error(request: HttpRequest) -> HttpResponse:
    """The page for a failure of ours: needs no database. Its number stands in the log beside the trace."""
    number = secrets.token_hex(4)
    logger.error("Error page %s was shown.", number)
    return HttpResponse(render_to_string("500.html", {"number": number}), status=500)
