"""Addresses of the health page and its alarms."""

from django.urls import path

from . import health_views

app_name = "health"

urlpatterns = [
    path("", health_views.page, name="page"),
    path("alarms/", health_views.alarm_list, name="alarms"),
    path("alarms/<int:alarm_id>/acknowledge/", health_views.acknowledge, name="acknowledge"),
]
