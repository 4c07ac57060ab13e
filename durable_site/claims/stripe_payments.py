"""Payouts through Stripe: a transfer to a connected account, sent with the official `stripe` library.

Imported, and its tool registered, only where that library is installed (extra `stripe`); see apps.py. A request is
sent once, with explicit time-outs: whether it is sent again is for the engine to say. Imports of ours: `tools`, for the
limit above which a person is asked.

Stripe has no search of transfers by metadata. So the idempotency key goes where a list can be limited by it, into
`transfer_group`, and into the metadata as evidence; unlike the key itself, both are kept for ever.
"""

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from django.conf import settings

from durable_site.claims.tools import ASK_OVER
from runs.errors import KeyConflict, OutcomeUnknown, Retryable, ToolError
from runs.outcomes import error_of
from runs.tools import ProviderRecord, over, tool

SECONDS_TO_CONNECT = 3
PAGE = 100
"""Transfers in one page of a list: the most that Stripe gives."""


@tool(
    "payments.transfer_stripe",
    effect=True,
    requires_approval=over(ASK_OVER),
    once_per="claim",
    key_life=timedelta(hours=24),
    statement="Pay {amount} to {payee} through Stripe for flood claim {claim}",
)
def transfer_by_stripe(
    *, idempotency_key: str, amount_minor: int, currency: str, payee: str, claim: str
) -> dict[str, Any]:
    order = {
        "amount": amount_minor,
        "currency": currency.lower(),
        "destination": payee,
        "transfer_group": idempotency_key,
        "metadata": {"idempotency_key": idempotency_key, "reference": claim},
    }
    try:
        made = _transfers().create(params=order, options={"idempotency_key": idempotency_key})
    except _library().StripeError as error:
        raise _outcome(error) from error
    return _payment(made.last_response, amount_minor, currency)


@transfer_by_stripe.lookup
def find_transfer_by_stripe(*, idempotency_key: str) -> dict[str, Any] | None:
    """The first transfer made under this key; None when Stripe holds none."""
    try:
        listed = _transfers().list(params={"transfer_group": idempotency_key, "limit": PAGE})
    except _library().StripeError as error:
        raise Retryable(f"Stripe's transfers cannot be listed now: {type(error).__name__}") from error
    newest_first = listed.last_response.data["data"]
    ours = [transfer for transfer in newest_first if transfer["metadata"].get("idempotency_key") == idempotency_key]
    return _known(ours[-1], replayed=True) if ours else None


def list_transfers_by_stripe(since: datetime, until: datetime) -> Iterator[ProviderRecord]:
    """What Stripe transferred in this time, page after page. Stripe dates by the whole second, so a second belongs to
    the window that its beginning lies in. A claim is paid once: it is the reference."""
    window = {"gte": math.ceil(since.timestamp()), "lt": math.ceil(until.timestamp())}
    try:
        listed = _transfers().list(params={"created": window, "limit": PAGE})
        for transfer in listed.auto_paging_iter():
            yield _record(transfer.to_dict())
    except _library().StripeError as error:
        raise Retryable(f"Stripe's transfers cannot be listed now: {type(error).__name__}") from error


if settings.STRIPE_API_KEY:
    # Where Stripe is not set up nothing is listed: a daily finding that it cannot be asked would help nobody.
    transfer_by_stripe.listing(list_transfers_by_stripe)


@cache
def _library() -> Any:
    """Imported when first used: it would cost every process 20 MB."""
    import stripe

    stripe.enable_telemetry = False  # it leaves an id in the home folder and tells Stripe about this machine
    return stripe


def _transfers() -> Any:
    """A new connection each time: one that the other side closed meanwhile would make an unsent transfer look unknown.
    Raises Retryable when Stripe is not set up."""
    if not settings.STRIPE_API_KEY:
        raise Retryable("STRIPE_API_KEY is not set, so nothing was sent.")
    stripe = _library()
    client = stripe.StripeClient(
        settings.STRIPE_API_KEY,
        base_addresses={"api": settings.STRIPE_API_BASE},
        max_network_retries=0,
        http_client=stripe.RequestsClient(timeout=(SECONDS_TO_CONNECT, settings.STRIPE_TIMEOUT)),
    )
    return getattr(client, "v1", client).transfers  # before version 12.5 there is no `v1`


def _payment(answer: Any, asked_minor: int, asked_currency: str) -> dict[str, Any]:
    """Stripe's answer as an outcome: what cannot be read, or is not what was asked for, is unknown."""
    replayed = answer.headers.get("Idempotent-Replayed") == "true"
    try:
        told = answer.data["amount"], answer.data["currency"].upper()
        known = _known(answer.data, replayed=replayed)
    except (KeyError, TypeError, AttributeError) as error:
        raise OutcomeUnknown(f"Stripe's answer ({answer.code}) cannot be read.") from error
    if told != (asked_minor, asked_currency):
        raise OutcomeUnknown(f"Stripe says it paid {told[0]} {told[1]}, and was asked for {asked_minor}.")
    return known


def _known(transfer: dict[str, Any], *, replayed: bool) -> dict[str, Any]:
    return {"payment": str(transfer["id"]), "paid_minor": transfer["amount"], "replayed": replayed}


def _record(transfer: dict[str, Any]) -> ProviderRecord:
    """Metadata tells our transfers; one that was made by hand has neither key nor reference."""
    metadata = transfer["metadata"]
    return ProviderRecord(
        id=transfer["id"],
        key=metadata.get("idempotency_key", ""),
        reference=metadata.get("reference", ""),
        amount_minor=transfer["amount"],
        currency=transfer["currency"].upper(),
        created_at=datetime.fromtimestamp(transfer["created"], UTC),
    )


def _outcome(error: Any) -> ToolError:
    """What an error of the library says about the world."""
    stripe = _library()
    if isinstance(error, stripe.APIConnectionError):
        return _of_the_connection(error)
    if isinstance(error, stripe.IdempotencyError):
        return KeyConflict("Stripe knows this key with another transfer.")
    headers = error.headers or {}
    return error_of(
        error.http_status or 0,
        error.user_message or "no reason was given.",
        receiver="Stripe",
        stored=headers.get("Idempotent-Replayed") == "true",
        retry_after=_retry_after(headers),
    )


def _of_the_connection(error: Any) -> ToolError:
    cause = error.__cause__
    if _never_connected(cause):
        return Retryable(f"Stripe cannot be reached, so nothing was sent: {type(cause).__name__}")
    return OutcomeUnknown(f"Stripe did not answer: {type(cause).__name__}")


def _never_connected(cause: BaseException | None) -> bool:
    """True only when the library's HTTP client is sure that it had no connection to send anything on."""
    from requests.exceptions import ConnectTimeout
    from urllib3.exceptions import NewConnectionError

    inner = cause.args[0] if cause is not None and cause.args else None
    return isinstance(cause, ConnectTimeout) or isinstance(getattr(inner, "reason", None), NewConnectionError)


def _retry_after(headers: Any) -> float | None:
    text = headers.get("Retry-After", "")
    return float(text) if text.isdigit() else None
