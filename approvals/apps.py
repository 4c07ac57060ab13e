"""The engine's first client as a Django app. Its wait kind is registered when the gate is imported."""

import sys

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured


class ApprovalsConfig(AppConfig):
    name = "approvals"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from runs import sweep

        # They register system checks, the wait kind "approval", what is measured, made up and taken out by retention.
        from . import checks, escalation, gate, measures, seeding, withholding  # noqa: F401
        from .signing import BadSigningKey, configured_signing_key

        sweep.also("climbed", escalation.fire_due)
        if sys.argv[1:3] == ["signing_key", "create"]:
            # It makes the key that is missing.
            return
        try:
            configured_signing_key()
        except BadSigningKey as problem:
            raise ImproperlyConfigured(str(problem)) from None
