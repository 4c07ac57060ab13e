from importlib.util import find_spec

from django.apps import AppConfig


class ClaimsConfig(AppConfig):
    name = "durable_site.claims"
    label = "claims"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        if find_spec("stripe"):
            from durable_site.claims import stripe_payments  # noqa: F401  (registers its tool)
