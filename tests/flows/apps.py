"""Workflows for tests that need real runner processes. Installed by tests.settings only."""

from django.apps import AppConfig

from . import cures


class FlowsConfig(AppConfig):
    name = "tests.flows"

    def ready(self) -> None:
        cures.switch_off()
