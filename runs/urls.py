"""Addresses of the pages for those who watch runs. A run is named by its key."""

from django.urls import path, register_converter

from . import action_views, artefact_views, bulk_views, console_views, finding_views, views

app_name = "runs"


class SHA256:
    """64 lower-case hexadecimal digits."""

    regex = "[0-9a-f]{64}"

    def to_python(self, value: str) -> str:
        return value

    to_url = to_python


register_converter(SHA256, "sha256")

urlpatterns = [
    path("", console_views.run_list, name="list"),
    path("rows/", console_views.run_rows, name="rows"),
    path("export.csv", console_views.run_export, name="export"),
    path("bulk/", bulk_views.batch_list, name="batches"),
    path("bulk/new/", bulk_views.batch_new, name="bulk"),
    path("bulk/<int:batch_id>/", bulk_views.batch_page, name="batch"),
    path("findings/", finding_views.finding_list, name="findings"),
    path("findings/<int:finding_id>/resolve/", finding_views.finding_resolve, name="resolve"),
    path("<slug:key>/", views.run_page, name="run"),
    path("<slug:key>/header/", views.run_header, name="header"),
    path("<slug:key>/steps/", views.run_steps, name="steps"),
    path("<slug:key>/artefacts/<sha256:sha256>/", artefact_views.artefact, name="artefact"),
    path("<slug:key>/<slug:action>/", action_views.run_action, name="action"),
]
