"""Addresses of the pages for those who watch runs. A run is named by its key."""

from django.urls import path

from . import views

app_name = "runs"

urlpatterns = [
    path("", views.run_list, name="list"),
    path("rows/", views.run_rows, name="rows"),
    path("<slug:key>/", views.run_page, name="run"),
    path("<slug:key>/header/", views.run_header, name="header"),
    path("<slug:key>/steps/", views.run_steps, name="steps"),
    path("<slug:key>/cancel/", views.run_cancel, name="cancel"),
]
