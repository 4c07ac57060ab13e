"""The whole sandbox without sockets: its services, their terms, and what scripted faults make of their answers.
Imports every other module of the sandbox but `server`.
"""

from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from durable_site.sandbox.clock import Clock
from durable_site.sandbox.control import control_api
from durable_site.sandbox.desk import PaymentDesk
from durable_site.sandbox.exchange import Api, Reply, Request
from durable_site.sandbox.faults import NO_FAULT, CutOff, Fault, FaultScript, is_payment
from durable_site.sandbox.keys import DAY, KeyBook
from durable_site.sandbox.messages import readable_key
from durable_site.sandbox.own_api import OwnApi
from durable_site.sandbox.payments import Payments
from durable_site.sandbox.profiles import PROFILES, Profile
from durable_site.sandbox.refusals import Refusal
from durable_site.sandbox.store import Store
from durable_site.sandbox.stripe_api import StripeApi
from durable_site.sandbox.tickets import TicketDesk

CONTROL_PATHS = {"/faults", "/clock"}


@dataclass(frozen=True)
class Terms:
    """How the services of this sandbox behave while nothing is scripted."""

    profile: Profile = PROFILES["ietf"]
    key_life: timedelta = DAY
    payment_delay_seconds: float = 0.0
    ticket_delay: timedelta = timedelta()


class Routes:
    """All services behind their addresses."""

    def __init__(self, store: Store, terms: Terms) -> None:
        clock = Clock(store.database)
        payments = Payments(store, clock)
        keys = KeyBook(store.database, payments, clock, terms.profile, life=terms.key_life)
        self._script = FaultScript(store.database)
        self._desk = PaymentDesk(payments, keys, delay_seconds=terms.payment_delay_seconds)
        self._control = control_api(clock, self._script)
        self._stripe = StripeApi(self._desk)
        self._own = OwnApi(store, self._desk, TicketDesk(store, clock, delay=terms.ticket_delay))

    def fault_for(self, method: str, target: str, key_headers: list[str]) -> Fault:
        """What is scripted to go wrong with a request of which only the head was read."""
        if is_control(target):
            return NO_FAULT
        return self._script.draw(method, _path(target), readable_key(key_headers))

    def answer(self, request: Request) -> Reply:
        """Carries the request out as far as its fault lets it."""
        api, fault = self._api_of(request.target), request.fault
        try:
            fault.before_acting()
            reply = api.answer(request)
            self._wait_unless_the_desk_did(request)
            fault.after_acting()
        except Refusal as refusal:
            return api.refusing(refusal)
        except CutOff as cut_off:
            return Reply(None, resets=cut_off.reset)
        return reply.spoiled_by(fault)

    def hurry(self) -> None:
        """End all delays, now and from now on."""
        self._desk.hurry()

    def _api_of(self, target: str) -> Api:
        if is_control(target):
            return self._control
        return self._stripe if _path(target).startswith("/v1/") else self._own

    def _wait_unless_the_desk_did(self, request: Request) -> None:
        if not is_payment(request.method, _path(request.target)):
            self._desk.wait(request.fault.delay_seconds)


def is_control(target: str) -> bool:
    """Whether this address is the tests' own, and none of the services'."""
    return _path(target) in CONTROL_PATHS


def _path(target: str) -> str:
    try:
        return urlsplit(target).path
    except ValueError:
        return ""
