"""Addresses of the pages for those who watch runs. A run is named by its key."""

from django.urls import path, register_converter

from . import artefact_views, finding_views, views

app_name = "runs"


class SHA256:
    """64 lower-case hexadecimal digits."""

    regex = "[0-9a-f]{64}"

    def to_python(self, value: str) -> str:
        return value

    to_url = to_python


register_converter(SHA256, "sha256")

urlpatterns = [
    path("", views.run_list, name="list"),
    path("rows/", views.run_rows, name="rows"),
    path("findings/", finding_views.finding_list, name="findings"),
    path("findings/<int:finding_id>/resolve/", finding_views.finding_resolve, name="resolve"),
    path("<slug:key>/", views.run_page, name="run"),
    path("<slug:key>/header/", views.run_header, name="header"),
    path("<slug:key>/steps/", views.run_steps, name="steps"),
    path("<slug:key>/artefacts/<sha256:sha256>/", artefact_views.artefact, name="artefact"),
    path("<slug:key>/cancel/", views.run_cancel, name="cancel"),
]
