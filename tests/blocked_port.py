"""A port before PostgreSQL that can be blocked: connections stay open, and nothing passes any more, in neither way."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg


class BlockedPort:
    """Use as a context manager. `url` is the database as it is reached through the port."""

    def __init__(self, url: str) -> None:
        info = psycopg.conninfo.conninfo_to_dict(url)
        self._server = str(info["host"]), int(info.get("port") or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        user = quote(str(info["user"])) + (f":{quote(str(info['password']))}" if "password" in info else "")
        address = f"{user}@127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = urlunsplit(urlsplit(url)._replace(netloc=address, query="sslmode=disable"))
        self._is_open = threading.Event()
        self._is_open.set()
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> "BlockedPort":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._is_open.set()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def blocked(self) -> Iterator[None]:
        self._is_open.clear()
        try:
            yield
        finally:
            self._is_open.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        far = self._dial()
        self._sockets += [near, far]
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _dial(self) -> socket.socket:
        host, port = self._server
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        far = socket.socket(socket.AF_UNIX)
        far.connect(f"{host}/.s.PGSQL.{port}")
        return far

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._is_open.wait()
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
