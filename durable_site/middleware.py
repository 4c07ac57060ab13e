"""What holds for every answer of the site: its content policy, a database that is away, a session that has ended.

May import Django and django_htmx only.
"""

import logging
from collections.abc import Callable

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import resolve_url
from django.template.loader import render_to_string
from django_htmx.http import HttpResponseClientRedirect
from django_htmx.middleware import HtmxDetails

logger = logging.getLogger(__name__)

Answer = Callable[[HttpRequest], HttpResponse]

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    ]
)


class ContentSecurityPolicy:
    """Nothing inline, nothing from elsewhere, on every page: the admin too keeps to it."""

    def __init__(self, get_response: Answer) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response


class DatabaseAway:
    """A database that does not answer is a plain 503, made without it.

    It is asked before anything else, because what fails inside the middleware below becomes an error page there; the
    connection's health check would ask anyway. What fails later, in a view, arrives at process_exception.
    """

    def __init__(self, get_response: Answer) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        try:
            connection.close_if_health_check_failed()
            connection.ensure_connection()
        except (OperationalError, InterfaceError) as error:
            return _away(error)
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        return _away(error) if isinstance(error, OperationalError | InterfaceError) else None


def _away(error: Exception) -> HttpResponse:
    logger.error("The database did not answer: %s", type(error).__name__)
    headers = {"Retry-After": "5", "Cache-Control": "no-store", "HX-Reswap": "none ignoreTitle:true"}
    return HttpResponse(render_to_string("503.html"), status=503, headers=headers)


class StaySignedIn:
    """Each act of the person keeps the session alive; a page that polls by itself does not."""

    def __init__(self, get_response: Answer) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        polled = request.method == "GET" and "HX-Request" in request.headers
        if not polled and not request.session.is_empty():
            request.session.modified = True
        return self.get_response(request)


class SignInAgain:
    """A request of htmx whose session has ended sends the whole page to sign in, and back to where it was: a form to
    sign in has no place inside a table."""

    def __init__(self, get_response: Answer) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        sign_in = resolve_url(settings.LOGIN_URL)
        htmx = HtmxDetails(request)
        if not htmx or response.status_code != 302 or response["Location"].partition("?")[0] != sign_in:
            return response
        query = QueryDict(mutable=True)
        query["next"] = htmx.current_url_abs_path or "/"
        return HttpResponseClientRedirect(f"{sign_in}?{query.urlencode(safe='/')}")
