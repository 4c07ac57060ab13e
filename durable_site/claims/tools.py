"""What the claims workflow does to the outside world: policy register, flood reports, payment provider, mail."""

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import httpx
from django.conf import settings
from django.core.mail import send_mail

from runs.errors import OutcomeUnknown, Refused, Retryable, ToolError
from runs.outcomes import Outcome, error_of, outcome_of
from runs.tools import ProviderRecord, over, tool

TIMEOUT = httpx.Timeout(10, connect=3)
PAGE = 200
"""Payments in one page of the provider's list."""
KEY_CONFLICTS = {"idempotency_key_reused", "idempotency_error"}
ASK_OVER = 100_000
"""Payouts above this many cents are approved by a person first."""


@tool("policies.read")
def read_policy(*, policy: str) -> dict[str, Any]:
    return _get(f"/policies/{policy}")


@tool("floods.report")
def fetch_flood_report(*, claim: str) -> dict[str, Any]:
    return _get(f"/flood-reports/{claim}")


@tool(
    "payments.transfer",
    effect=True,
    requires_approval=over(ASK_OVER),
    once_per="claim",
    key_life=timedelta(hours=24),
    statement="Pay {amount} to {payee} for flood claim {claim}",
)
def transfer(*, idempotency_key: str, amount_minor: int, currency: str, payee: str, claim: str) -> dict[str, Any]:
    body = {"amount_minor": amount_minor, "currency": currency, "payee": payee, "reference": claim, "claim": claim}
    try:
        answer = _world().post(
            f"{settings.SANDBOX_URL}/payments", json=body, headers={"Idempotency-Key": idempotency_key}
        )
    except httpx.ConnectError as error:
        raise Retryable(f"The payment provider cannot be reached, so nothing was sent: {error}") from error
    except httpx.HTTPError as error:
        raise OutcomeUnknown(f"The payment provider did not answer: {type(error).__name__}") from error
    return _payment(answer, amount_minor)


@transfer.lookup
def find_transfer(*, idempotency_key: str) -> dict[str, Any] | None:
    payments = _get("/payments", key=idempotency_key)["payments"]
    return (
        {"payment": payments[0]["payment"], "paid_minor": payments[0]["amount_minor"], "replayed": True}
        if payments
        else None
    )


@transfer.listing
def list_transfers(since: datetime, until: datetime) -> Iterator[ProviderRecord]:
    """What the provider paid in this time, a page at a time. A claim is paid once: it is the reference."""
    window = {"from": since.isoformat(), "to": until.isoformat(), "limit": str(PAGE)}
    page: dict[str, Any] = {"next": ""}
    while page["next"] is not None:
        page = _get("/payments", **window, **({"after": page["next"]} if page["next"] else {}))
        yield from (_record(payment) for payment in page["payments"])


@tool(
    "mail.notify",
    effect=True,
    delivery="at-most-once",
    statement="Write to {to}: {subject}",
)
def notify(*, idempotency_key: str, to: str, subject: str, text: str) -> dict[str, Any]:
    sent = send_mail(subject, text, settings.DEFAULT_FROM_EMAIL, [to])
    return {"sent": sent}


@tool(
    "tickets.open",
    effect=True,
    delivery="check-then-act",
    settle_delay=timedelta(seconds=5),
    statement="Open a ticket about flood claim {claim}: {subject}",
)
def open_ticket(*, idempotency_key: str, claim: str, subject: str, text: str) -> dict[str, Any]:
    """The ticket system has no keys: ours is its reference, by which it can be searched."""
    body = {"reference": idempotency_key, "subject": subject, "text": f"{text} (claim {claim})"}
    try:
        answer = _world().post(f"{settings.SANDBOX_URL}/tickets", json=body)
    except httpx.ConnectError as error:
        raise Retryable(f"The ticket system cannot be reached, so nothing was sent: {error}") from error
    except httpx.HTTPError as error:
        raise OutcomeUnknown(f"The ticket system did not answer: {type(error).__name__}") from error
    if outcome_of(answer.status_code) != Outcome.DONE:
        raise _error(answer)
    return {"ticket": _ticket(answer.json())}


@open_ticket.lookup
def find_ticket(*, idempotency_key: str) -> dict[str, Any] | None:
    tickets = _get("/tickets", reference=idempotency_key)["tickets"]
    return {"ticket": _ticket(tickets[0]), "replayed": True} if tickets else None


def _ticket(ticket: dict[str, Any]) -> str:
    return str(ticket["ticket"])


def _payment(answer: httpx.Response, asked: int) -> dict[str, Any]:
    """The provider's answer as an outcome: what cannot be read, or is not what was asked for, is unknown."""
    if outcome_of(answer.status_code) != Outcome.DONE:
        raise _error(answer)
    try:
        payment = answer.json()
        made, paid = str(payment["payment"]), payment["amount_minor"]
    except (ValueError, KeyError, TypeError) as error:
        raise OutcomeUnknown(f"The payment provider's answer ({answer.status_code}) cannot be read.") from error
    if paid != asked:
        raise OutcomeUnknown(f"The payment provider says it paid {paid}, and was asked for {asked}.")
    return {"payment": made, "paid_minor": paid, "replayed": _is_replay(answer)}


def _error(answer: httpx.Response) -> ToolError:
    return error_of(
        answer.status_code,
        _sentence(answer),
        key_conflict=_type(answer) in KEY_CONFLICTS,
        stored=_is_replay(answer),
        retry_after=_retry_after(answer),
    )


def _is_replay(answer: httpx.Response) -> bool:
    return answer.headers.get("Idempotent-Replayed") == "true"


def _type(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["type"])
    except (ValueError, KeyError, TypeError):
        return ""


def _record(payment: dict[str, Any]) -> ProviderRecord:
    return ProviderRecord(
        id=payment["payment"],
        key=payment["key"] or "",
        reference=payment["reference"],
        amount_minor=payment["amount_minor"],
        currency=payment["currency"],
        created_at=datetime.fromisoformat(payment["created_at"]),
    )


def _get(path: str, **parameters: str) -> Any:
    try:
        answer = _world().get(f"{settings.SANDBOX_URL}{path}", params=parameters)
    except httpx.HTTPError as error:
        raise Retryable(f"{path.split('/')[1]} cannot be read now: {type(error).__name__}") from error
    if answer.status_code == 404:
        raise Refused(_sentence(answer))
    if answer.status_code != 200:
        raise Retryable(f"{path.split('/')[1]} cannot be read now: status {answer.status_code}")
    return answer.json()


def _world() -> httpx.Client:
    return _client_of(os.getpid())


@cache
def _client_of(pid: int) -> httpx.Client:
    """One client per process: making one reads all root certificates. No connection is kept: one that the other side
    closed meanwhile would make an unsent payment look unknown."""
    return httpx.Client(timeout=TIMEOUT, limits=httpx.Limits(max_keepalive_connections=0))


def _sentence(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "no reason was given."


def _retry_after(answer: httpx.Response) -> float | None:
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isdigit() else None
