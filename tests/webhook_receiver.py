"""The far side of a signed webhook: a real HTTP server that keeps what it was posted, and can hang. Imports nothing of
ours: it verifies with the library that receivers use."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks.webhooks import Webhook

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Receiver:
    """Use as a context manager. `answers`: the statuses of the next answers, then 204. `hangs`: it takes what it is
    sent, and answers nothing until the block is left."""

    def __init__(self, *answers: int, hangs: bool = False) -> None:
        self.answers, self.received = list(answers), []
        self._is_hung, self._over = hangs, threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def __enter__(self) -> "Receiver":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for _, headers in self.received]

    @property
    def events(self) -> list[dict[str, Any]]:
        """What was posted, each verified. Raises WebhookVerificationError."""
        return [Webhook(SECRET).verify(body, headers) for body, headers in self.received]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.received.append((body, {name.lower(): value for name, value in self.headers.items()}))
                if receiver._is_hung:
                    receiver._over.wait(60)
                    return
                self.send_response(receiver.answers.pop(0) if receiver.answers else 204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler
