"""What an HTTP answer to an effect says about the world: the one table that every connector uses.

Only an answer that is known to mean "nothing happened" may be called a refusal; whatever cannot be read is unknown.
Sources: RFC 9110 (status codes), draft-ietf-httpapi-idempotency-key-header-06 (400, 409, 422), the providers' own pages
for keys. May import errors.
"""

from enum import Enum

from .errors import KeyConflict, OutcomeUnknown, Refused, Retryable, ToolError


class Outcome(Enum):
    """What is known after an answer."""

    DONE = "done"
    """It happened; read the answer."""
    REFUSED = "refused"
    """It did not happen, and asking again would not change that."""
    COME_BACK = "come back"
    """It did not happen now: the first request with this key is still under way, or there were too many. Same key."""
    KEY_CONFLICT = "key conflict"
    """The key stands for another request there: alarm, and nothing is sent again."""
    UNKNOWN = "unknown"
    """It may have happened."""


TABLE: dict[int, Outcome] = {
    200: Outcome.DONE,
    201: Outcome.DONE,
    202: Outcome.DONE,
    400: Outcome.REFUSED,
    401: Outcome.REFUSED,
    402: Outcome.REFUSED,
    403: Outcome.REFUSED,
    404: Outcome.REFUSED,
    405: Outcome.REFUSED,
    409: Outcome.COME_BACK,
    413: Outcome.REFUSED,
    422: Outcome.REFUSED,
    425: Outcome.COME_BACK,
    429: Outcome.COME_BACK,
}
"""Every other status, all 5xx among them, is UNKNOWN. A connector whose provider uses 422 or 400 for a key that stands
for another request says so by `key_conflict`."""


def outcome_of(status: int, *, key_conflict: bool = False) -> Outcome:
    """The outcome of an answer with this status."""
    return Outcome.KEY_CONFLICT if key_conflict else TABLE.get(status, Outcome.UNKNOWN)


def error_of(
    status: int,
    sentence: str,
    *,
    receiver: str = "the receiver",
    key_conflict: bool = False,
    stored: bool = False,
    retry_after: float | None = None,
) -> ToolError:
    """The error to raise for an answer that is not DONE, with the provider's own sentence. `stored`: the provider marks
    it as its first answer to this key, repeated. `retry_after`: seconds it asked us to wait."""
    words = f"{receiver} answers {status}: {sentence}"
    match outcome_of(status, key_conflict=key_conflict):
        case Outcome.REFUSED:
            return Refused(words, stored=stored)
        case Outcome.COME_BACK:
            return Retryable(words, retry_after=retry_after)
        case Outcome.KEY_CONFLICT:
            return KeyConflict(words)
    return OutcomeUnknown(words)
