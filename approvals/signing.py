"""Signatures and hashes of the ledger: Ed25519 over exact bytes, SHA-256 for the chain. Pure; no database.

Every entry is a canonical text (its *record*), which itself holds the hash of the entry before it, its sequence and its
key id. Signed and hashed are the same bytes: a domain prefix, so that no signature can be passed off as one of another
kind, then the record in UTF-8. Keys and signatures are written in base64. An outsider verifies an entry so:

    message = b"durable-runs/ledger-entry/v1\\n" + record.encode()
    Ed25519PublicKey.from_public_bytes(b64decode(public_key)).verify(b64decode(signature), message)  # raises if forged
    assert entry_hash == sha256(message).hexdigest()
    assert key_id == "ed25519-" + sha256(b64decode(public_key)).hexdigest()[:16]
    assert previous_hash == the entry_hash of the entry before, or sixty-four zeros in the first entry

`python -m approvals.signing` prints a new key for the setting APPROVAL_SIGNING_KEY.

May import: the standard library, `cryptography`, and `django.conf.settings` when the configured key is asked for.
"""

import base64
import hashlib
import secrets
import sys

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

LEDGER_ENTRY = b"durable-runs/ledger-entry/v1\n"
"""The domain of ledger entries. Its line feed cannot occur in canonical JSON, so prefix and record cannot blend."""

GENESIS = "0" * 64
"""The previous hash of the first entry."""

SEED_BYTES = 32
FEWEST_DISTINCT_BYTES = 8
"""A random seed has fewer than once in 10**36 keys; a placeholder such as all zeros has one or two."""


class BadSigningKey(ValueError):
    """The text is no usable signing key. The sentence never repeats the text."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"APPROVAL_SIGNING_KEY {self.problem}. It must be the base64 text of {SEED_BYTES} random bytes; "
            "`python -m approvals.signing` prints a new one. Keep it secret, and keep it: decisions are signed with it."
        )


class SigningKey:
    """An Ed25519 private key. `public_key` is its raw public half in base64, `key_id` the short name of that."""

    def __init__(self, seed: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = base64.b64encode(self._private.public_key().public_bytes_raw()).decode()
        self.key_id = key_id(self.public_key)

    def sign(self, record: str, *, domain: bytes = LEDGER_ENTRY) -> str:
        """The signature over the domain and the record's UTF-8 bytes: 88 characters of base64."""
        return base64.b64encode(self._private.sign(domain + record.encode())).decode()


def parse_signing_key(text: str | None) -> SigningKey:
    """The key of a setting or a key file; white space around it is ignored. Raises BadSigningKey."""
    text = (text or "").strip()
    if not text:
        raise BadSigningKey("is missing")
    try:
        seed = base64.b64decode(text, validate=True)
    except ValueError:
        raise BadSigningKey("is not base64") from None
    if len(seed) != SEED_BYTES:
        raise BadSigningKey(f"holds {len(seed)} bytes")
    if len(set(seed)) < FEWEST_DISTINCT_BYTES:
        raise BadSigningKey("is all zeros or otherwise not random")
    return SigningKey(seed)


def configured_signing_key() -> SigningKey:
    """The key of the setting APPROVAL_SIGNING_KEY. Raises BadSigningKey."""
    from django.conf import settings

    return parse_signing_key(getattr(settings, "APPROVAL_SIGNING_KEY", None))


def verify(record: str, signature: str, public_key: str, *, domain: bytes = LEDGER_ENTRY) -> bool:
    """Whether `public_key` (base64, raw) signed exactly this record in this domain. Garbage is False, no error."""
    try:
        key = Ed25519PublicKey.from_public_bytes(_only_spelling(public_key))
        key.verify(_only_spelling(signature), domain + record.encode())
    except (InvalidSignature, ValueError, TypeError, AttributeError):
        return False
    return True


def record_hash(record: str, *, domain: bytes = LEDGER_ENTRY) -> str:
    """The entry's hash, which the next entry's record must hold: SHA-256 of domain and record, in hexadecimal.

    The hash of the entry before is not mixed in: the record already holds it.
    """
    return hashlib.sha256(domain + record.encode()).hexdigest()


def key_id(public_key: str) -> str:
    """The short name of a public key (base64, raw). Raises ValueError if the text is not base64."""
    return "ed25519-" + hashlib.sha256(_only_spelling(public_key)).hexdigest()[:16]


def _only_spelling(text: str) -> bytes:
    """The bytes of a base64 text, which must be their only spelling.

    The last character before the padding has bits that decoders ignore: without this, altering them would go unnoticed.
    """
    raw = base64.b64decode(text, validate=True)
    if base64.b64encode(raw).decode() != text:
        raise ValueError("not the one base64 spelling of its bytes")
    return raw


def _print_new_key() -> None:
    seed = base64.b64encode(secrets.token_bytes(SEED_BYTES)).decode()
    key = parse_signing_key(seed)
    sys.stdout.write(f"{seed}\n")
    sys.stderr.write(f"key id {key.key_id}, public key {key.public_key}\n")


if __name__ == "__main__":
    _print_new_key()
