"""The sandbox on a socket: HTTP/1.1 with keep-alive, one thread per connection. Imports `exchange`, `faults`,
`messages`, `refusals`, `routes` and `store`.
"""

import json
import logging
import os
import re
import socket
import socketserver
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from durable_site.sandbox.exchange import Reply, Request
from durable_site.sandbox.faults import NO_FAULT, CutOff, Fault
from durable_site.sandbox.messages import readable_key
from durable_site.sandbox.refusals import BodyTooLarge, LengthRequired, Refusal, Stopping
from durable_site.sandbox.routes import Routes, is_control
from durable_site.sandbox.store import AppendOnlyFile

LARGEST_BODY = 1_000_000
LARGEST_BODY_READ_TO_REFUSE = 64_000_000
SECONDS_TO_FINISH = 10.0

logger = logging.getLogger(__name__)


class FrontDoor:
    """Lets requests in until it is closed, and knows when the last one has left."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextmanager
    def request(self) -> Iterator[None]:
        """Raises Stopping when the door is closed."""
        with self._changed:
            if self._closed:
                raise Stopping
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True

    def wait_until_empty(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._inside == 0, seconds)


class SandboxServer(ThreadingHTTPServer):
    """Accepts connections as soon as it exists; answers them once `serve_forever` runs."""

    daemon_threads = True  # an idle keep-alive connection must not hold up the end
    request_queue_size = 128

    def __init__(self, host: str, port: int, routes: Routes, request_log: AppendOnlyFile) -> None:
        self.routes = routes
        self.request_log = request_log
        self.door = FrontDoor()
        super().__init__((host, port), SandboxHandler)

    @property
    def url(self) -> str:
        host, port = self.socket.getsockname()[:2]
        return f"http://{host}:{port}"

    def server_bind(self) -> None:
        # Not HTTPServer's: that one asks the name service for the host's name, which can take seconds.
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is its own affair; anything else is written to stderr."""
        if not isinstance(sys.exception(), ConnectionError):
            logger.error("a connection failed", exc_info=True)

    def finish(self) -> bool:
        """Let nobody in any more, answer who is inside, stop accepting; true when all were answered in time."""
        self.door.close()
        self.routes.hurry()
        self.shutdown()
        everybody_answered = self.door.wait_until_empty(SECONDS_TO_FINISH)
        self.server_close()
        return everybody_answered


class SandboxHandler(BaseHTTPRequestHandler):
    """Reads the requests of one connection, has `Routes` answer them, logs each, then sends its reply."""

    server: SandboxServer
    _fault: Fault = NO_FAULT
    protocol_version = "HTTP/1.1"
    server_version = "sandbox"
    sys_version = ""
    disable_nagle_algorithm = True
    timeout = 120  # seconds a connection may stay silent

    def answer_request(self) -> None:
        self._fault = self.server.routes.fault_for(self.command, self.path, self._key_headers())
        try:
            self._fault.before_reading()
            body = self._read_body()
            with self.server.door.request():
                self._send(self._logged(self._reply(body)))
        except CutOff as cut_off:
            self._send(self._logged(Reply(None, resets=cut_off.reset)))
        except Refusal as refusal:
            self.close_connection = True  # the rest of this request may still be on its way
            self._send(self._logged(Reply.refusing(refusal)))

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = answer_request

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses (a malformed request line, an unknown method) is refused in JSON too."""
        self.close_connection = True
        self.request_version = self.protocol_version  # else http.server leaves out the headers
        self._send(Reply.error(code, "invalid_request", message or self.responses[code][0]))

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: requests.jsonl is the log."""

    def _reply(self, body: bytes) -> Reply:
        authorization = self.headers.get("Authorization", "")
        request = Request(self.command, self.path, self._key_headers(), body, authorization, self._fault)
        try:
            return self.server.routes.answer(request)
        except Exception:
            logger.exception("a request failed")
            return Reply.error(
                500, "internal_error", "The sandbox failed to answer; look the payment up or send it again."
            )

    def _read_body(self) -> bytes:
        """Raises Refusal when the body has no clear end or is too large."""
        lengths = self.headers.get_all("Content-Length", [])
        if "Transfer-Encoding" in self.headers or (self.command == "POST" and not lengths):
            raise LengthRequired
        if len(lengths) > 1 or not all(re.fullmatch(r"[0-9]{1,15}", length) for length in lengths):
            raise Refusal("The header Content-Length is not one number.")
        length = int(lengths[0]) if lengths else 0
        if length > LARGEST_BODY:
            self._discard(min(length, LARGEST_BODY_READ_TO_REFUSE))
            raise BodyTooLarge(LARGEST_BODY)
        body = self.rfile.read(length)
        if len(body) < length:
            raise Refusal("The body ended before its Content-Length.")
        return body

    def _discard(self, length: int) -> None:
        # A client that is still sending when the connection closes would lose the answer to a reset.
        while length > 0 and (piece := self.rfile.read(min(length, 65536))):
            length -= len(piece)

    def _logged(self, reply: Reply) -> Reply:
        """The reply, after its line is in the request log: what a client was told is always on record. The status is
        null where it was told nothing."""
        if is_control(self.path):
            return reply
        line = {
            "at": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "method": self.command,
            "path": self.path,
            "key": readable_key(self._key_headers()),
            "status": reply.status,
            "replayed": reply.replayed,
            "fault": self._fault.name or None,
        }
        self.server.request_log.append(json.dumps(line))
        return reply

    def _key_headers(self) -> list[str]:
        return self.headers.get_all("Idempotency-Key", [])

    def _send(self, reply: Reply) -> None:
        if reply.status is None:
            self._hang_up(reset=reply.resets)
            return
        self.send_response(reply.status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(reply.body)), **reply.headers}
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def _hang_up(self, *, reset: bool) -> None:
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # Closed here and now: http.server would first say goodbye in order, and the client see the end, no reset.
            os.close(self.connection.detach())
