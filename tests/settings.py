"""The site's own settings as the tests run it: on a machine of one's own, with mail kept in memory."""

import os

os.environ.setdefault("DEBUG", "1")
os.environ.setdefault("EMAIL_BACKEND", "django.core.mail.backends.locmem.EmailBackend")

from durable_site.settings import *
