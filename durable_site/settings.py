"""Settings, all of them from the environment. docs/settings.md lists the variables.

With DEBUG off every secret must be given: a missing or weak one refuses to start and says which. With DEBUG on a
missing secret is made once and kept in var/, so that web, runner and commands agree on it.
"""

import base64
import os
import secrets
from pathlib import Path
from typing import Any

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = Path(os.environ.get("DURABLE_RUNS_VAR", BASE_DIR / "var"))


def flag(name: str, default: bool = False) -> bool:
    return os.environ.get(name, str(int(default))).strip().lower() in {"1", "true", "yes", "on"}


def number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a number, not {text!r}.") from None


def days_by_name(name: str) -> dict[str, int]:
    """Days by the name of a workflow or team, from NAME=DAYS parts with commas between them."""
    parts = [part for part in os.environ.get(name, "").split(",") if part.strip()]
    try:
        return {key.strip(): int(days) for key, days in (part.rsplit("=", 1) for part in parts)}
    except ValueError:
        raise ImproperlyConfigured(f"{name} must read like claim-payout=3650,reconcile-provider=30.") from None


DEBUG = flag("DEBUG")


def secret(name: str, make: str, least: int) -> str:
    """The secret called `name` from the environment. `make` is a fresh one for development; `least` its length."""
    value = os.environ.get(name, "")
    if value:
        if not DEBUG and (len(value) < least or len(set(value)) < 5 or value.startswith("django-insecure")):
            raise ImproperlyConfigured(
                f"{name} is too weak to start with: it needs at least {least} random characters."
            )
        return value
    if not DEBUG:
        raise ImproperlyConfigured(
            f"{name} is not set. Set it in the environment, or set DEBUG=1 on a machine of your own."
        )
    return _kept_for_development(name, make)


def _kept_for_development(name: str, make: str) -> str:
    folder = VAR_DIR / "secrets"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        # O_EXCL through a temporary name and link(): of several processes that start at once, one secret wins.
        draft = folder / f".{name}.{os.getpid()}"
        draft.write_text(make)
        draft.chmod(0o600)
        os.link(draft, folder / name)
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)
    return (folder / name).read_text()


SECRET_KEY = secret("SECRET_KEY", secrets.token_urlsafe(50), least=50)
SECRET_KEY_FALLBACKS = [key for key in os.environ.get("SECRET_KEY_FALLBACKS", "").split(",") if key]
# Decisions are signed with the key in a file, or in the environment. A missing or weak one is refused when the app
# `approvals` starts, which lets `manage.py signing_key create` make the first.
APPROVAL_SIGNING_KEY_FILE = os.environ.get("APPROVAL_SIGNING_KEY_FILE", "")
APPROVAL_SIGNING_KEY = os.environ.get("APPROVAL_SIGNING_KEY", "")
if DEBUG and not APPROVAL_SIGNING_KEY_FILE and not APPROVAL_SIGNING_KEY:
    made = base64.b64encode(secrets.token_bytes(32)).decode()
    APPROVAL_SIGNING_KEY = secret("APPROVAL_SIGNING_KEY", made, least=43)

# Signed checkpoints of the ledger: lines are appended to this file, and mailed to these addresses.
LEDGER_CHECKPOINT_FILE = os.environ.get("LEDGER_CHECKPOINT_FILE", str(VAR_DIR / "ledger-checkpoints.jsonl"))
LEDGER_CHECKPOINT_MAIL = [part for part in os.environ.get("LEDGER_CHECKPOINT_MAIL", "").split(",") if part]

ALLOWED_HOSTS = [host for host in os.environ.get("ALLOWED_HOSTS", "").split(",") if host]
if DEBUG and not ALLOWED_HOSTS:
    ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", "testserver"]
CSRF_TRUSTED_ORIGINS = [origin for origin in os.environ.get("CSRF_TRUSTED_ORIGINS", "").split(",") if origin]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django_htmx",
    "django_q",
    "runs",
    "approvals",
    "durable_site.claims",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "durable_site.middleware.ContentSecurityPolicy",
    "durable_site.middleware.DatabaseAway",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "durable_site.middleware.StaySignedIn",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "durable_site.middleware.SignInAgain",
]

ROOT_URLCONF = "durable_site.urls"
WSGI_APPLICATION = "durable_site.wsgi.application"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "approvals:inbox"
LOGOUT_REDIRECT_URL = "login"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "approvals.views.navigation",
            ],
        },
    }
]


DATABASE_POOLER = flag("DATABASE_POOLER")


def database() -> Any:
    """DATABASE_URL, or the embedded server. No pool, ever: forked workers would share its sockets."""
    url = os.environ.get("DATABASE_URL")
    if not url:
        from durable_site import embedded

        url = embedded.database_url()
    parsed = dj_database_url.parse(url, conn_max_age=60, conn_health_checks=True)
    if not parsed["ENGINE"].endswith("postgresql"):
        raise ImproperlyConfigured(
            "DATABASE_URL must name a PostgreSQL database (postgresql://…); nothing else has the locks we need."
        )
    # Prepared statements for the fixed SQL of the hot path. A pooler that pools by transaction keeps neither those nor
    # server-side cursors nor LISTEN.
    parsed.setdefault("OPTIONS", {})["prepare_threshold"] = None if DATABASE_POOLER else 1
    parsed["DISABLE_SERVER_SIDE_CURSORS"] = DATABASE_POOLER
    if not str(parsed["HOST"]).startswith("/"):
        # A connection that hangs in the network is given up by the kernel, not by whoever waits for it.
        parsed["OPTIONS"] |= {"connect_timeout": 5, "tcp_user_timeout": 20_000, "keepalives_idle": 30}
    return parsed


DATABASES = {"default": database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "qstat": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "qstat"},
}

# Who may read /metrics; empty: nobody.
METRICS_TOKEN = os.environ.get("METRICS_TOKEN", "")

# The engine's one set of numbers, in seconds.
STEP_TIMEOUT = number("STEP_TIMEOUT", 45)
LEASE_SLACK = number("LEASE_SLACK", 10)
STRETCH = number("STRETCH", 2)
WAIT_FOR_REPAIR = number("WAIT_FOR_REPAIR", 7 * 86400)
STOP_GRACE = number("STOP_GRACE", 75)
CANARY_EVERY = number("CANARY_EVERY", 15)

# Traces by OpenTelemetry (docs/telemetry.md); where to is said by its own variables, OTEL_….
TELEMETRY = flag("TELEMETRY")

# Days that final runs are kept whole (docs/retention.md); 0 keeps them for ever.
RETENTION_DAYS = int(number("RETENTION_DAYS", 0))
RETENTION_DAYS_BY_WORKFLOW = days_by_name("RETENTION_DAYS_BY_WORKFLOW")
RETENTION_DAYS_BY_TEAM = days_by_name("RETENTION_DAYS_BY_TEAM")
if min(RETENTION_DAYS, *RETENTION_DAYS_BY_WORKFLOW.values(), *RETENTION_DAYS_BY_TEAM.values(), 0) < 0:
    raise ImproperlyConfigured("RETENTION_DAYS and its kin are days: 0 (for ever), 1, 2, …")

WORKERS = int(number("WORKERS", max(2, os.cpu_count() or 2)))
WORKER_MEMORY = int(number("WORKER_MEMORY", 2048))  # MB of address space; 0 sets no limit

# Measured values; each has its reason in docs/queue.md.
Q_CLUSTER = {
    "name": "runs",
    "orm": "default",
    "broker_class": "runs.doorbell.WakeBroker",
    "workers": WORKERS,
    "timeout": int(STEP_TIMEOUT) + 15,
    "retry": 2 * (int(STEP_TIMEOUT) + 15) + 60,
    "queue_limit": 1,
    "bulk": 1,
    "ack_failures": True,
    "max_attempts": 1,
    "save_limit": -1,
    "poll": 0.2,
    "scheduler": False,
    "catch_up": False,
    "recycle": 1000,
    "max_rss": 400_000,
    "guard_cycle": 0.5,
    "cache": "qstat",
    "daemonize_workers": True,
    "compress": False,
    "sync": False,
    "log_level": os.environ.get("QUEUE_LOG_LEVEL", "WARNING"),
}

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

LANGUAGE_CODE = "en-gb"
TIME_ZONE = os.environ.get("TIME_ZONE", "UTC")
USE_I18N = False
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = VAR_DIR / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "artefacts": {
        "BACKEND": "runs.storage.DurableFiles",
        "OPTIONS": {"location": os.environ.get("ARTEFACTS", VAR_DIR / "artefacts")},
    },
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}
WHITENOISE_USE_FINDERS = DEBUG

SESSION_COOKIE_AGE = 30 * 60
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = flag("HTTPS", not DEBUG)
# Whoever probes asks the process itself, and takes a redirect for an answer.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$"]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if flag("BEHIND_PROXY") else None
SECURE_HSTS_SECONDS = 31_536_000 if SESSION_COOKIE_SECURE else 0
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

EMAIL_BACKEND = os.environ.get("EMAIL_BACKEND", "django.core.mail.backends.filebased.EmailBackend")
EMAIL_FILE_PATH = os.environ.get("EMAIL_FILE_PATH", str(VAR_DIR / "mail"))
EMAIL_HOST = os.environ.get("EMAIL_HOST", "localhost")
EMAIL_PORT = int(number("EMAIL_PORT", 25))
EMAIL_HOST_USER = os.environ.get("EMAIL_HOST_USER", "")
EMAIL_HOST_PASSWORD = os.environ.get("EMAIL_HOST_PASSWORD", "")
EMAIL_USE_TLS = flag("EMAIL_USE_TLS")
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = os.environ.get("DEFAULT_FROM_EMAIL", "claims@localhost")

# Where links in notices lead, and who is told besides by a signed webhook (Standard Webhooks).
SITE_URL = os.environ.get("SITE_URL", "http://localhost:8000")


def webhook(name: str) -> tuple[str, str]:
    """A receiver's address and the secret it knows us by; neither, or both."""
    url, known = os.environ.get(f"{name}_URL", ""), os.environ.get(f"{name}_SECRET", "")
    if url and not known.startswith("whsec_"):
        raise ImproperlyConfigured(f"{name}_URL needs {name}_SECRET: whsec_ and base64 of 24 bytes or more.")
    return url, known


NOTIFY_WEBHOOK_URL, NOTIFY_WEBHOOK_SECRET = webhook("NOTIFY_WEBHOOK")
ALARM_WEBHOOK_URL, ALARM_WEBHOOK_SECRET = webhook("ALARM_WEBHOOK")

# Where the example's tools find the outside world.
SANDBOX_URL = os.environ.get("SANDBOX_URL", "http://127.0.0.1:8099")
STRIPE_API_BASE = os.environ.get("STRIPE_API_BASE", "https://api.stripe.com")
STRIPE_API_KEY = os.environ.get("STRIPE_API_KEY", "")
STRIPE_TIMEOUT = number("STRIPE_TIMEOUT", 10)

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name} {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    # They log every address they ask, and those hold references.
    "loggers": {"httpx": {"level": "WARNING"}, "stripe": {"level": "WARNING"}},
    "root": {"handlers": ["console"], "level": os.environ.get("LOG_LEVEL", "INFO")},
}
