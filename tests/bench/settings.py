"""The site's settings as the benchmark runs it: like production, no debug cursor, and its own workflows."""

from tests.settings import *  # noqa: F403

DEBUG = False  # a debug cursor keeps every statement
INSTALLED_APPS = [*INSTALLED_APPS, "tests.bench"]  # noqa: F405
METRICS_TOKEN = "measured"  # without one nobody reads /metrics
