"""Idempotency keys: which were used for what, and which are being answered now. Imports `clock`, `messages`,
`payments`, `profiles`, `refusals` and `store`.

A key's first answer is derived from its payment, or from the saved failure. Keys being answered are known to this
process alone, so that a killed process leaves no key in progress: after a start a key either has its payment or its
saved failure, and gets that answer, or is free.
"""

from datetime import datetime, timedelta

from durable_site.sandbox.clock import Clock, stamp
from durable_site.sandbox.messages import canonical
from durable_site.sandbox.payments import Order, Payment, Payments
from durable_site.sandbox.profiles import Profile
from durable_site.sandbox.refusals import Failure, KeyInProgress, KeyReused
from durable_site.sandbox.store import Database

DAY = timedelta(hours=24)


class KeyBook:
    """`life`: how long, by the sandbox's clock, a key stands for its first request; after that it is as good as new."""

    def __init__(
        self, database: Database, payments: Payments, clock: Clock, profile: Profile, *, life: timedelta = DAY
    ) -> None:
        self._database, self._payments, self._clock = database, payments, clock
        self._profile, self._life = profile, life
        self._in_progress: set[str] = set()

    @property
    def are_honoured(self) -> bool:
        return self._profile.honours_keys

    def take(self, key: str | None, order: Order) -> Payment | None:
        """The payment that was made under this key; None when the key is now the caller's, who must release it.

        Raises KeyInProgress, KeyReused, Failure.
        """
        if key is None or not self.are_honoured:
            return None
        # One lock around look and take: of twenty requests at once with one key, one takes it. "In progress" is asked
        # first, so that a payment is not replayed before its first answer is on its way.
        with self._database.lock:
            if key in self._in_progress:
                raise KeyInProgress
            self._replay_failure(key, order)
            earlier = self._living_payment(key)
            if earlier is None:
                self._in_progress.add(key)
            else:
                self._compare(key, earlier.answers(order))
            return earlier

    def save_failure(self, key: str | None, order: Order, failure: Failure) -> None:
        """From now on this failure is what the key is answered with, if this provider saves failures at all."""
        if key is not None and self.are_honoured and self._profile.saves_failures:
            row = (key, stamp(self._clock.now()), canonical(order.body), failure.status, failure.kind, failure.sentence)
            self._database.write("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?, ?, ?)", row)

    def release(self, key: str | None) -> None:
        if key is not None:
            self._in_progress.discard(key)

    def _replay_failure(self, key: str, order: Order) -> None:
        for at, request, status, kind, sentence in self._database.rows(
            "SELECT at, request, status, kind, sentence FROM failures WHERE key = ?", key
        ):
            if self._lives(at):
                self._compare(key, request == canonical(order.body))
                raise Failure(status, kind, sentence, replayed=True)

    def _living_payment(self, key: str) -> Payment | None:
        latest = self._payments.latest_under(key)
        return latest if latest and self._lives(latest.members["at"]) else None

    def _lives(self, at: str) -> bool:
        return self._clock.now() - datetime.fromisoformat(at) < self._life

    def _compare(self, key: str, is_the_same: bool) -> None:
        if self._profile.compares_bodies and not is_the_same:
            raise KeyReused(key, *self._profile.conflict)
