"""The engine as a Django app: finds every installed app's workflows.py and tools.py, like the admin does."""

from django.apps import AppConfig
from django.conf import settings
from django.utils.module_loading import autodiscover_modules


class RunsConfig(AppConfig):
    name = "runs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # They register workflows, checks, upkeep and what the health page shows.
        from . import alerts, builtin, checks, health_cards, tallies  # noqa: F401

        if settings.TELEMETRY:
            # Registers its upkeep.
            from . import telemetry  # noqa: F401

        autodiscover_modules("tools", "workflows")
