"""The part of Stripe's API v1 that pays out: transfers, in Stripe's forms, headers and error objects. Imports `desk`,
`exchange`, `messages`, `refusals` and `stripe_forms`.

Written after Stripe's public reference. Transfers are listed newest first, by `transfer_group`, `destination` and
`created`. Neither here nor there can transfers be searched by metadata: list a group, then look at what it holds.
"""

import secrets
from dataclasses import replace

from durable_site.sandbox.desk import PaymentDesk
from durable_site.sandbox.exchange import NAME, Api, Call, Reply, Request, Table
from durable_site.sandbox.messages import idempotency_key, readable_key
from durable_site.sandbox.refusals import KeyReused, Refusal
from durable_site.sandbox.stripe_forms import StripeRefusal, form, transfer_list, transfer_object, transfer_order

STRIPE_ERRORS = {
    "in_progress": (409, "invalid_request_error", "idempotency_key_in_use"),
    "too_many_requests": (429, "invalid_request_error", "rate_limit"),
    "insufficient_funds": (400, "invalid_request_error", "balance_insufficient"),
    "internal_error": (500, "api_error", None),
    "not_found": (404, "invalid_request_error", "resource_missing"),
}
"""Status, type and code of Stripe's error object, by the type of ours; every other is an `invalid_request_error`."""


class Unauthorized(Refusal):
    status = 401

    def __init__(self, why: str) -> None:
        super().__init__(f"{why} Send a test key of Stripe's form as Authorization: Bearer sk_test_...")


class StripeApi(Api):
    def __init__(self, desk: PaymentDesk) -> None:
        self._desk = desk
        super().__init__(
            Table(
                {
                    ("v1", "transfers"): {"GET": self._list, "POST": self._create},
                    ("v1", "transfers", NAME): {"GET": self._show},
                }
            )
        )

    def answer(self, request: Request) -> Reply:
        try:
            _check_secret(request.authorization)
        except Unauthorized as refusal:
            return self.refusing(refusal)
        echo = {"Idempotency-Key": request.key_headers[0]} if request.key_headers else {}
        return _with_headers(super().answer(request), echo)

    def refusing(self, refusal: Refusal) -> Reply:
        status, kind, code = STRIPE_ERRORS.get(refusal.kind, (refusal.status, "invalid_request_error", None))
        if isinstance(refusal, KeyReused):
            status, kind = 400, "idempotency_error"
        told = {"type": kind, "code": code, "message": refusal.sentence, "param": None}
        if isinstance(refusal, StripeRefusal):
            told |= {"code": refusal.code, "param": refusal.param}
        error = {member: value for member, value in told.items() if value is not None}
        return _with_headers(Reply.of(status, {"error": error}, refusal.headers), _advice(status, refusal))

    def _create(self, call: Call) -> Reply:
        headers = call.request.key_headers
        key = idempotency_key(headers) if headers and self._desk.keys.are_honoured else readable_key(headers)
        payment, replayed = self._desk.pay(key, transfer_order(form(call.request.body)), call.request.fault)
        return Reply.of(200, transfer_object(payment), {"Idempotent-Replayed": "true"} if replayed else {})

    def _list(self, call: Call) -> Reply:
        search, limit = transfer_list(form(call.query.encode("ascii")))
        page, following = self._desk.payments.page(search, limit)
        data = [transfer_object(payment) for payment in page]
        told = {"object": "list", "url": "/v1/transfers", "has_more": following is not None, "data": data}
        return Reply.of(200, told)

    def _show(self, call: Call) -> Reply:
        return Reply.of(200, transfer_object(self._desk.payments.one(call.name)))


def _check_secret(authorization: str) -> None:
    scheme, _, secret = authorization.partition(" ")
    if scheme != "Bearer" or not secret.strip():
        raise Unauthorized("You did not provide an API key.")
    if not secret.strip().startswith(("sk_test_", "rk_test_")):
        raise Unauthorized("The API key is not one for tests.")


def _advice(status: int, refusal: Refusal) -> dict[str, str]:
    """Whether sending the same once more can help; where nothing is known about that, nothing is said."""
    if "Idempotent-Replayed" in refusal.headers:
        return {"Stripe-Should-Retry": "false"}
    return {"Stripe-Should-Retry": "true"} if status == 409 else {}


def _with_headers(reply: Reply, headers: dict[str, str]) -> Reply:
    request_id = {"Request-Id": f"req_{secrets.token_hex(7)}"}
    return replace(reply, headers=request_id | headers | reply.headers)
