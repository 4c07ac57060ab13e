from django.apps import AppConfig


class ClaimsConfig(AppConfig):
    name = "durable_site.claims"
    label = "claims"
    default_auto_field = "django.db.models.BigAutoField"
