"""How a payment provider treats idempotency keys: five manners that are met in the wild. Imports nothing of ours."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """`conflict`: status and error type of an answer to a key that was used with another body."""

    name: str
    honours_keys: bool = True
    compares_bodies: bool = True
    saves_failures: bool = True
    conflict: tuple[int, str] = (422, "idempotency_key_reused")


PROFILES = {
    profile.name: profile
    for profile in (
        # draft-ietf-httpapi-idempotency-key-header-06: the first outcome is told again, another body is a 422.
        Profile("ietf"),
        # Stripe's API v1: once execution has begun the first answer is saved, 500s included; another body is a 400.
        Profile("stripe", conflict=(400, "idempotency_error")),
        # A request that failed is attempted again under its key; only successes are saved.
        Profile("success_only", saves_failures=False),
        # The body is not looked at: the same key gets the first answer, whatever is asked for now.
        Profile("lax", compares_bodies=False),
        # Keys are written into the journal and change nothing.
        Profile("none", honours_keys=False),
    )
}
