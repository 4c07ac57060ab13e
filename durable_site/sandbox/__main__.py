"""The sandbox's command: `python -m durable_site.sandbox --port N --store DIR`.

Imports `routes`, `server` and `store`.
"""

import argparse
import json
import os
import signal
import sqlite3
import sys
import threading
from pathlib import Path

from durable_site.sandbox.routes import Routes
from durable_site.sandbox.server import SandboxServer
from durable_site.sandbox.store import Store, StoreDamaged, StoreInUse

LAST_PORT = 65535
LONGEST_DELAY = 3600.0
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def main() -> int:
    """Serve until SIGTERM or SIGINT, then answer who is waiting and return 0; when it cannot: a sentence, and 1."""
    options = _options()
    # Blocked before any thread exists, so that the signal reaches `sigwait` and nobody else, however early it comes.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        store = Store(options.store)
        routes = Routes(store, payment_delay_seconds=options.payment_delay)
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
    return parser.parse_args()


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= LAST_PORT:
        raise argparse.ArgumentTypeError(f"must be from 0 to {LAST_PORT}")
    return port


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= LONGEST_DELAY:
        raise argparse.ArgumentTypeError(f"must be from 0 to {LONGEST_DELAY:g} seconds")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
