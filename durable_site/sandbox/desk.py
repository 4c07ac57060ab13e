"""The payment provider: pays once for each idempotency key, as far as its profile honours keys. Imports `faults`,
`keys`, `payments` and `refusals`.
"""

import threading
from typing import NoReturn

from durable_site.sandbox.faults import NO_FAULT, Fault
from durable_site.sandbox.keys import KeyBook
from durable_site.sandbox.payments import Order, Payment, Payments
from durable_site.sandbox.refusals import Failure


class PaymentDesk:
    """Pays and replays. `delay_seconds` lie between every payment and its answer."""

    def __init__(self, payments: Payments, keys: KeyBook, *, delay_seconds: float = 0.0) -> None:
        self.payments = payments
        self.keys = keys
        self._delay_seconds = delay_seconds
        self._closing = threading.Event()

    def pay(self, key: str | None, order: Order, fault: Fault = NO_FAULT) -> tuple[Payment, bool]:
        """The payment and whether it was made earlier. Raises KeyReused, KeyInProgress, Failure."""
        earlier = self.keys.take(key, order)
        if earlier is not None:
            self.wait(fault.delay_seconds)
            return earlier, True
        failure = fault.saved_failure()
        if failure is not None:
            self._fail(key, order, failure, pays=fault.effect)
        payment = self.payments.make(key, order)
        self.wait(self._delay_seconds + fault.delay_seconds)
        # Not in a `finally`: after an unforeseen error nobody knows whether money moved, so the key stays in progress
        # until the next start reads the truth from the journal.
        self.keys.release(key)
        return payment, False

    def _fail(self, key: str | None, order: Order, failure: Failure, *, pays: bool) -> NoReturn:
        if pays:
            self.payments.make(key, order)
        self.keys.save_failure(key, order, failure)
        self.wait(self._delay_seconds)
        self.keys.release(key)
        raise failure

    def wait(self, seconds: float) -> None:
        """Real seconds, cut short when the sandbox stops."""
        self._closing.wait(seconds)

    def hurry(self) -> None:
        """End all delays, now and from now on."""
        self._closing.set()
