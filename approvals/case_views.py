"""The page that a case is taken away from: what the archive holds, how it is verified, and its download.

Taking it is an act (a checkpoint is signed, the reading is recorded), so it takes a POST. May import export, ledger,
and runs' engine and errors.
"""

from io import BytesIO

from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from runs import engine
from runs.errors import NoSuchRun

from . import export
from .ledger import CannotSign


@require_http_methods(["GET", "HEAD", "POST"])
def case(request: HttpRequest, key: str) -> HttpResponseBase:
    try:
        return _archive(request, key) if request.method == "POST" else _page(request, key)
    except NoSuchRun as stranger:
        raise Http404(str(stranger)) from None
    except export.NotAllowed as refusal:
        return _page(request, key, str(refusal), 403)
    except CannotSign as refusal:
        return _page(request, key, str(refusal), 503)


def _archive(request: HttpRequest, key: str) -> FileResponse:
    packed = export.take(key, by=request.user, actor="web")
    answer = FileResponse(BytesIO(packed), as_attachment=True, filename=f"{key}.zip", content_type="application/zip")
    answer["X-Content-Type-Options"] = "nosniff"
    answer["Cache-Control"] = "private, no-store"
    return answer


def _page(request: HttpRequest, key: str, problem: str = "", status: int = 200) -> HttpResponse:
    run = engine.find(key, request.user)
    context = {"run": run, "problem": problem, "may_take": export.may_take(request.user), "rule": export.RULE}
    return render(request, "approvals/case.html", context, status=status)
