"""Every way the outside world says no: HTTP status, error type and one sentence. Imports the standard library only."""


class Refusal(Exception):
    """A request that was not carried out: nothing was paid, nothing was stored, no idempotency key was taken. Failure
    is the exception."""

    status = 400
    kind = "invalid_request"

    def __init__(self, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.headers = headers or {}


class KeyMissing(Refusal):
    kind = "idempotency_key_missing"

    def __init__(self) -> None:
        super().__init__("The header Idempotency-Key is missing: a payment is only made under a key.")


class KeyInvalid(Refusal):
    kind = "idempotency_key_invalid"

    def __init__(self, why: str) -> None:
        super().__init__(f"The header Idempotency-Key {why}.")


class KeyReused(Refusal):
    """Status and type are those of the provider's profile."""

    def __init__(self, key: str, status: int, kind: str) -> None:
        super().__init__(f"The key {key} was used with another body; the first answer stands and nothing was done now.")
        self.status, self.kind = status, kind


class KeyInProgress(Refusal):
    status = 409
    kind = "in_progress"

    def __init__(self) -> None:
        super().__init__("A request with this key is still being answered; send it again.", {"Retry-After": "1"})


class NotFound(Refusal):
    status = 404
    kind = "not_found"

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"There is no {what} {name}.")


class MethodNotAllowed(Refusal):
    status = 405
    kind = "method_not_allowed"

    def __init__(self, method: str, allowed: set[str]) -> None:
        listed = ", ".join(sorted(allowed))
        super().__init__(f"{method} is not allowed here; use {listed}.", {"Allow": listed})


class BodyTooLarge(Refusal):
    status = 413
    kind = "body_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The body is larger than {limit} bytes.")


class LengthRequired(Refusal):
    status = 411
    kind = "length_required"

    def __init__(self) -> None:
        super().__init__("The body needs a Content-Length; transfer encodings are not read here.")


class TooManyRequests(Refusal):
    status = 429
    kind = "too_many_requests"

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__("Too many requests; nothing was done.", {"Retry-After": str(retry_after_seconds)})


class Failure(Refusal):
    """The request was being carried out and failed. The only refusal that can be saved under a key and told again;
    whether money moved before it failed, it does not say."""

    def __init__(self, status: int, kind: str, sentence: str, *, replayed: bool = False) -> None:
        super().__init__(sentence, {"Idempotent-Replayed": "true"} if replayed else {})
        self.status, self.kind, self.replayed = status, kind, replayed


class Stopping(Refusal):
    status = 503
    kind = "stopping"

    def __init__(self) -> None:
        super().__init__("The sandbox is stopping; nothing was done.", {"Retry-After": "1"})
