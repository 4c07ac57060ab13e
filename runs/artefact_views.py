"""The address under which a run's artefact is downloaded: never shown in the browser, whatever it is.

May import downloads, artefacts, errors.
"""

from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_GET

from . import downloads
from .artefacts import Damaged, StorageAway
from .downloads import NoLongerKept, NoSuchArtefact
from .errors import NoSuchRun


@require_GET
def artefact(request: HttpRequest, key: str, sha256: str) -> HttpResponseBase:
    try:
        download = downloads.take(key, sha256, by=request.user, actor="web")
    except (NoSuchRun, NoSuchArtefact) as stranger:
        raise Http404(str(stranger)) from None
    except (Damaged, NoLongerKept) as gone:
        return _sorry(request, key, str(gone), 410)
    except StorageAway as away:
        return _sorry(request, key, str(away), 503)
    return StreamingHttpResponse(
        download.chunks(),
        content_type=download.artefact.media_type,
        headers={
            "Content-Disposition": content_disposition_header(True, download.name),
            "Content-Length": str(download.artefact.size),
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "sandbox; default-src 'none'",
            "Cache-Control": "private, no-store",
        },
    )


def _sorry(request: HttpRequest, key: str, sentence: str, status: int) -> HttpResponse:
    return render(request, "runs/artefact_away.html", {"key": key, "sentence": sentence}, status=status)
