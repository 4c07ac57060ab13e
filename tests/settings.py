"""The site's own settings as the tests run it: on a machine of one's own, with mail kept in memory, and with the
workflows that only tests know."""

import os

os.environ.setdefault("DEBUG", "1")
os.environ.setdefault("EMAIL_BACKEND", "django.core.mail.backends.locmem.EmailBackend")

from durable_site.settings import *
from durable_site.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.flows"]
