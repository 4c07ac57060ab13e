"""The engine's first client as a Django app. Its wait kind is registered when the gate is imported."""

from django.apps import AppConfig


class ApprovalsConfig(AppConfig):
    name = "approvals"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import gate  # noqa: F401  (registers the wait kind "approval" with the engine)
