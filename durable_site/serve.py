"""`make serve`: the whole site on this machine, with made-up claims to try it with, until Ctrl-C.

Starts the embedded PostgreSQL (unless DATABASE_URL is set), the sandbox, the runner and the web server.
"""

import os
import secrets
import signal
import socket
import sys
import threading
from pathlib import Path

from .processes import Children, DidNotStart, free_port

HOST = "127.0.0.1"
SAMPLE = Path(__file__).parent / "claims" / "sample" / "claims.csv"


def main() -> int:
    os.environ.setdefault("DEBUG", "1")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "durable_site.settings")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        return _serve(stop)
    except DidNotStart as failure:
        sys.stderr.write(f"{failure}\n")
        return 1


def _serve(stop: threading.Event) -> int:
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    password = _password(settings.VAR_DIR)
    with Children(settings.VAR_DIR / "log", {}) as children:
        settings.SANDBOX_URL = children.environment["SANDBOX_URL"] = children.sandbox(settings.VAR_DIR / "sandbox")
        _fill(password)
        children.runner()
        address = children.web(HOST, int(os.environ.get("PORT") or _port()))
        _say(f"\nDurable Runs is at {address}  (Ctrl-C stops it)\n")
        _say("Log in as  ada or ben (adjusters), sam (senior adjuster), olga (ops), audrey (auditor),")
        _say("           admin (superuser; decides nothing)")
        _say(f"password   {password}\n")
        return _watch(children, stop)


def _fill(password: str) -> None:
    from django.core.management import CommandError, call_command

    from .people import TEAM, settle_in

    settle_in(password)
    try:
        call_command("import_claims", str(SAMPLE), "--team", TEAM, "--quiet")
    except CommandError as refused:
        # Some sample rows are there to be refused; a sandbox that is down is told here too.
        _say(str(refused))


def _watch(children: Children, stop: threading.Event) -> int:
    while not stop.wait(1):
        if name := children.dead():
            sys.stderr.write(f"The {name} ended by itself; see {children.logs / f'{name}.log'}. Stopping all.\n")
            return 1
    _say("\nStopping …")
    return 0


def _password(folder: Path) -> str:
    path = folder / "secrets" / "demo-password"
    if not path.exists():
        path.write_text(secrets.token_urlsafe(9))
        path.chmod(0o600)
    return path.read_text()


def _port() -> int:
    with socket.socket() as probe:
        # 8000 where it is free, else any free port.
        taken = probe.connect_ex((HOST, 8000)) == 0
    return free_port() if taken else 8000


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
