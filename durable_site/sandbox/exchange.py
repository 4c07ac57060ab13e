"""Requests, replies, and the table that leads from an address to whoever answers it; knows no sockets. Imports
`faults`, `messages` and `refusals`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, urlsplit

from durable_site.sandbox.faults import NO_FAULT, Fault
from durable_site.sandbox.messages import json_bytes
from durable_site.sandbox.refusals import MethodNotAllowed, NotFound, Refusal

NAME = "{name}"  # stands for any one segment of a path


@dataclass(frozen=True)
class Request:
    """`fault` is what is scripted to go wrong with it."""

    method: str
    target: str
    key_headers: list[str]
    body: bytes
    authorization: str = ""
    fault: Fault = NO_FAULT


@dataclass(frozen=True)
class Reply:
    """What is sent back. Without a status nothing is, and the connection ends: reset, if `resets`."""

    status: int | None
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    resets: bool = False

    @classmethod
    def of(cls, status: int, value: Any, headers: dict[str, str] | None = None) -> "Reply":
        return cls(status, json_bytes(value), headers or {})

    @classmethod
    def refusing(cls, refusal: Refusal) -> "Reply":
        return cls.error(refusal.status, refusal.kind, refusal.sentence, refusal.headers)

    @classmethod
    def error(cls, status: int, kind: str, sentence: str, headers: dict[str, str] | None = None) -> "Reply":
        return cls.of(status, {"error": {"type": kind, "message": sentence}}, headers)

    @property
    def replayed(self) -> bool:
        return "Idempotent-Replayed" in self.headers

    def spoiled_by(self, fault: Fault) -> "Reply":
        return replace(self, body=fault.on_the_way(self.body))


@dataclass(frozen=True)
class Call:
    """A request whose address is known: the name in its path, if that has one, and its query."""

    request: Request
    name: str
    query: str


Handler = Callable[[Call], Reply]


class Table:
    """What is answered at each address. A path is its segments, and NAME in one that has a name at its end."""

    def __init__(self, handlers: Mapping[tuple[str, ...], Mapping[str, Handler]]) -> None:
        self._handlers = handlers

    def __contains__(self, path: tuple[str, ...]) -> bool:
        return path in self._handlers

    def answer(self, request: Request) -> Reply:
        """Raises Refusal."""
        path, query = path_and_query(request.target)
        methods = self._handlers.get(path) or self._handlers.get((*path[:-1], NAME))
        if methods is None:
            raise NotFound("resource at", "/" + "/".join(path))
        handle = methods.get("GET" if request.method == "HEAD" else request.method)
        if handle is None:
            raise MethodNotAllowed(request.method, {*methods, *(["HEAD"] if "GET" in methods else [])})
        return handle(Call(request, path[-1], query))


class Api:
    """A table of addresses, and the form that refusals have there."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def answer(self, request: Request) -> Reply:
        try:
            return self.table.answer(request)
        except Refusal as refusal:
            return self.refusing(refusal)

    def refusing(self, refusal: Refusal) -> Reply:
        return Reply.refusing(refusal)


def path_and_query(target: str) -> tuple[tuple[str, ...], str]:
    """The path's segments, unquoted one by one (so that a name may hold a slash as %2F), and the query as it came."""
    try:
        parts = urlsplit(target)
        return tuple(unquote(segment, errors="strict") for segment in parts.path.split("/")[1:]), parts.query
    except ValueError:
        raise Refusal("The address of the request is not valid.") from None
