"""The engine's first client as a Django app. Its wait kind is registered when the gate is imported."""

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured


class ApprovalsConfig(AppConfig):
    name = "approvals"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import gate, measures  # noqa: F401  (they register the wait kind "approval" and what is measured)
        from .signing import BadSigningKey, configured_signing_key

        try:
            configured_signing_key()
        except BadSigningKey as problem:
            raise ImproperlyConfigured(str(problem)) from None
