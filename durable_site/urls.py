"""Every address of the site, and what the admin shows of it."""

from django.apps import apps
from django.contrib import admin
from django.contrib.auth.views import LogoutView
from django.urls import include, path
from django.views.generic import RedirectView

from runs import health_views

from .front_door import SignIn, admin_sign_in, healthz

# The queue only rings: its tables say nothing that our rows do not say better. By now every app has registered.
for model in apps.get_app_config("django_q").get_models():
    if admin.site.is_registered(model):
        admin.site.unregister(model)

handler500 = "durable_site.front_door.server_error"

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="approvals:inbox")),
    path("sign-in/", SignIn.as_view(), name="login"),
    path("sign-out/", LogoutView.as_view(), name="logout"),
    path("healthz", healthz),
    path("readyz", health_views.readyz),
    path("metrics", health_views.metrics_text),
    path("health/", include("runs.health_urls")),
    path("admin/login/", admin_sign_in),
    path("admin/", admin.site.urls),
    path("runs/", include("runs.urls")),
    path("", include("approvals.urls")),
]
