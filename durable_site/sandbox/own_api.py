"""The sandbox's own API in JSON: payments, tickets and the registers. Imports `catalogue`, `clock`, `desk`, `exchange`,
`messages`, `payments` and `tickets`.
"""

from durable_site.sandbox.catalogue import FLOOD_REPORT, POLICY, Catalogue
from durable_site.sandbox.clock import stamp
from durable_site.sandbox.desk import PaymentDesk
from durable_site.sandbox.exchange import NAME, Api, Call, Handler, Reply, Table
from durable_site.sandbox.messages import (
    idempotency_key,
    instant,
    json_object,
    query_values,
    readable_key,
    required_value,
    whole_number,
)
from durable_site.sandbox.payments import Order, Search
from durable_site.sandbox.store import Store
from durable_site.sandbox.tickets import TicketDesk

MOST_PAYMENTS_A_PAGE = 1000


class OwnApi(Api):
    def __init__(self, store: Store, desk: PaymentDesk, tickets: TicketDesk) -> None:
        self._desk, self._tickets = desk, tickets
        super().__init__(
            Table(
                {
                    ("health",): {"GET": lambda call: Reply.of(200, {"status": "ok"})},
                    ("payments",): {"GET": self._list_payments, "POST": self._pay},
                    ("payments", NAME): {"GET": self._show_payment},
                    ("tickets",): {"GET": self._find_tickets, "POST": self._open_ticket},
                    **_register(Catalogue(store, POLICY), "policies"),
                    **_register(Catalogue(store, FLOOD_REPORT), "flood-reports"),
                }
            )
        )

    def _pay(self, call: Call) -> Reply:
        headers = call.request.key_headers
        key = idempotency_key(headers) if self._desk.keys.are_honoured else readable_key(headers)
        payment, replayed = self._desk.pay(key, Order.of(json_object(call.request.body)), call.request.fault)
        return Reply.of(201, payment.answer, {"Idempotent-Replayed": "true"} if replayed else {})

    def _list_payments(self, call: Call) -> Reply:
        values = query_values(call.query, ("reference", "key", "from", "to", "limit", "after"))
        search = Search(
            reference=values.get("reference"),
            key=values.get("key"),
            since=_stamp_of(values, "from"),
            until=_stamp_of(values, "to"),
            after=values.get("after"),
        )
        limit = whole_number(values.get("limit", "100"), "limit", least=1, most=MOST_PAYMENTS_A_PAGE)
        page, following = self._desk.payments.page(search, limit)
        return Reply.of(200, {"payments": [payment.details for payment in page], "next": following})

    def _show_payment(self, call: Call) -> Reply:
        return Reply.of(200, self._desk.payments.one(call.name).details)

    def _open_ticket(self, call: Call) -> Reply:
        return Reply.of(201, self._tickets.open(json_object(call.request.body)))

    def _find_tickets(self, call: Call) -> Reply:
        reference = required_value(query_values(call.query, ("reference",)), "reference")
        return Reply.of(200, {"tickets": self._tickets.found(reference)})


def _register(catalogue: Catalogue, path: str) -> dict[tuple[str, ...], dict[str, Handler]]:
    def put(call: Call) -> Reply:
        document = json_object(call.request.body)
        return Reply.of(201 if catalogue.put(document) else 200, document)

    def get(call: Call) -> Reply:
        return Reply.of(200, catalogue.get(call.name))

    return {(path,): {"POST": put}, (path, NAME): {"GET": get}}


def _stamp_of(values: dict[str, str], name: str) -> str | None:
    return stamp(instant(values[name], name)) if name in values else None
