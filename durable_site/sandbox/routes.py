"""What each address of the sandbox answers; knows requests and replies, no sockets. Imports `catalogue`, `messages`,
`payments`, `refusals` and `store`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from durable_site.sandbox.catalogue import FLOOD_REPORT, POLICY, Catalogue
from durable_site.sandbox.messages import idempotency_key, json_bytes, json_object, query_values, whole_number
from durable_site.sandbox.payments import Order, PaymentDesk
from durable_site.sandbox.refusals import MethodNotAllowed, NotFound, Refusal
from durable_site.sandbox.store import Store

MOST_PAYMENTS_A_PAGE = 1000
NAME = "{name}"  # stands for any one segment of a path


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    key_headers: list[str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

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


@dataclass(frozen=True)
class Call:
    """A request whose address is known: the name in its path, if that has one, and its query."""

    request: Request
    name: str
    query: str


class Routes:
    """The three services behind their addresses."""

    def __init__(self, store: Store, *, payment_delay_seconds: float = 0.0) -> None:
        self.desk = PaymentDesk(store, delay_seconds=payment_delay_seconds)
        policies, flood_reports = Catalogue(store, POLICY), Catalogue(store, FLOOD_REPORT)
        self._table: dict[tuple[str, ...], dict[str, Callable[[Call], Reply]]] = {
            ("health",): {"GET": self._health},
            ("payments",): {"GET": self._list_payments, "POST": self._pay},
            ("payments", NAME): {"GET": self._show_payment},
            ("policies",): {"POST": lambda call: _put(policies, call)},
            ("policies", NAME): {"GET": lambda call: Reply.of(200, policies.get(call.name))},
            ("flood-reports",): {"POST": lambda call: _put(flood_reports, call)},
            ("flood-reports", NAME): {"GET": lambda call: Reply.of(200, flood_reports.get(call.name))},
        }

    def answer(self, request: Request) -> Reply:
        """Raises Refusal."""
        path, query = _path_and_query(request.target)
        methods = self._table.get(path) or self._table.get((*path[:-1], NAME))
        if methods is None:
            raise NotFound("resource at", "/" + "/".join(path))
        handle = methods.get("GET" if request.method == "HEAD" else request.method)
        if handle is None:
            raise MethodNotAllowed(request.method, {*methods, *(["HEAD"] if "GET" in methods else [])})
        return handle(Call(request, path[-1], query))

    def _health(self, call: Call) -> Reply:
        return Reply.of(200, {"status": "ok"})

    def _pay(self, call: Call) -> Reply:
        key = idempotency_key(call.request.key_headers)
        payment, replayed = self.desk.pay(key, Order(json_object(call.request.body)))
        return Reply.of(201, payment.answer, {"Idempotent-Replayed": "true"} if replayed else {})

    def _list_payments(self, call: Call) -> Reply:
        values = query_values(call.query, ("reference", "key", "limit", "after"))
        page, following = self.desk.payments(
            reference=values.get("reference"),
            key=values.get("key"),
            after=values.get("after"),
            limit=whole_number(values.get("limit", "100"), "limit", least=1, most=MOST_PAYMENTS_A_PAGE),
        )
        return Reply.of(200, {"payments": [payment.details for payment in page], "next": following})

    def _show_payment(self, call: Call) -> Reply:
        return Reply.of(200, self.desk.payment(call.name).details)


def _put(catalogue: Catalogue, call: Call) -> Reply:
    document = json_object(call.request.body)
    return Reply.of(201 if catalogue.put(document) else 200, document)


def _path_and_query(target: str) -> tuple[tuple[str, ...], str]:
    """The path's segments, unquoted one by one (so that a name may hold a slash as %2F), and the query as it came."""
    try:
        parts = urlsplit(target)
        return tuple(unquote(segment, errors="strict") for segment in parts.path.split("/")[1:]), parts.query
    except ValueError:
        raise Refusal("The address of the request is not valid.") from None
