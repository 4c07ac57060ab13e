"""The sandbox's command: `python -m durable_site.sandbox --port N --store DIR`.

Imports `profiles`, `routes`, `server` and `store`.
"""

import argparse
import json
import os
import signal
import sqlite3
import sys
import threading
from datetime import timedelta
from pathlib import Path

from durable_site.sandbox.profiles import PROFILES
from durable_site.sandbox.routes import Routes, Terms
from durable_site.sandbox.server import SandboxServer
from durable_site.sandbox.store import Store, StoreDamaged, StoreInUse

LAST_PORT = 65535
LONGEST_DELAY = 3600.0
DAY, YEAR = 86_400.0, 366 * 86_400.0
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def main() -> int:
    """Serve until SIGTERM or SIGINT, then answer who is waiting and return 0; when it cannot: a sentence, and 1."""
    options = _options()
    # Blocked before any thread exists, so that the signal reaches `sigwait` and nobody else, however early it comes.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        store = Store(options.store)
        routes = Routes(store, _terms(options))
        server = SandboxServer(options.host, options.port, routes, store.requests)
    except (StoreInUse, StoreDamaged) as error:
        sys.exit(str(error))
    except (OSError, sqlite3.Error) as error:
        sys.exit(f"The sandbox cannot use {options.store} and {options.host}:{options.port}: {error}.")
    _serve_until_told(server, store)
    return 0


def _serve_until_told(server: SandboxServer, store: Store) -> None:
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    store.publish_url(server.url)
    sys.stdout.write(json.dumps({"listening": server.url, "pid": os.getpid()}) + "\n")
    sys.stdout.flush()
    signal.sigwait(STOP_SIGNALS)
    if server.finish():
        store.database.close()


def _terms(options: argparse.Namespace) -> Terms:
    return Terms(
        profile=PROFILES[options.profile],
        key_life=timedelta(seconds=options.key_life),
        payment_delay_seconds=options.payment_delay,
        ticket_delay=timedelta(seconds=options.ticket_delay),
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m durable_site.sandbox",
        description="A payment provider, a policy register and a flood-report service to develop and test against.",
    )
    parser.add_argument("--store", type=Path, required=True, metavar="DIR", help="folder of its journal and database")
    parser.add_argument("--port", type=_port, default=0, help="0, the default, means any free port")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--payment-delay", type=_seconds, default=0.0, metavar="SECONDS", help="wait between a payment and its answer"
    )
    parser.add_argument(
        "--profile", choices=PROFILES, default="ietf", help="how idempotency keys are treated (default: %(default)s)"
    )
    parser.add_argument(
        "--key-life", type=_life, default=DAY, metavar="SECONDS", help="how long a key is known (default: 24 hours)"
    )
    parser.add_argument(
        "--ticket-delay", type=_life, default=0.0, metavar="SECONDS", help="wait until a search finds a new ticket"
    )
    return parser.parse_args()


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= LAST_PORT:
        raise argparse.ArgumentTypeError(f"must be from 0 to {LAST_PORT}")
    return port


def _seconds(text: str) -> float:
    return _number(text, LONGEST_DELAY)


def _life(text: str) -> float:
    return _number(text, YEAR)


def _number(text: str, most: float) -> float:
    seconds = float(text)
    if not 0 <= seconds <= most:
        raise argparse.ArgumentTypeError(f"must be from 0 to {most:g} seconds")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
