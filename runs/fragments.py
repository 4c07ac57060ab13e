"""One view, two answers: the whole page, or, to a request of htmx, the very fragment that the page includes.

Lives here: that choice, paging by key, and counts that stop counting. May import Django only.
"""

from collections.abc import Callable
from typing import Any

from django.db import models
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers

COUNT_LIMIT = 1000
"""Counts on tabs are taken no further: nobody needs the exact number of what is more, nor the long look for it."""

ROWS = 50


def wants_fragment(request: HttpRequest) -> bool:
    """Whether htmx asks for a part. A page restored from history is asked for as a whole."""
    return request.headers.get("HX-Request") == "true" and "HX-History-Restore-Request" not in request.headers


def answer(
    request: HttpRequest, page: str, fragment: str, context: dict[str, Any] | None = None, *, status: int = 200
) -> HttpResponse:
    """Render `page`, or `fragment` when htmx asks; caches keep the two apart, and never keep a fragment."""
    part = wants_fragment(request)
    response = render(request, fragment if part else page, {**(context or {}), "is_fragment": part}, status=status)
    patch_vary_headers(response, ["HX-Request"])
    if part:
        response["Cache-Control"] = "no-store"
    return response


def count(rows: models.QuerySet[Any], limit: int = COUNT_LIMIT) -> int:
    """How many rows, up to the limit."""
    return rows.order_by().values("pk")[:limit].count()


def first_rows(rows: models.QuerySet[Any], key: Callable[[Any], str]) -> tuple[list[Any], str]:
    """The first ROWS of them, and the key behind which the next page begins: empty when there is none."""
    found = list(rows[: ROWS + 1])
    return found[:ROWS], key(found[ROWS - 1]) if len(found) > ROWS else ""
