"""Signatures and hashes of the ledger: Ed25519 over exact bytes, SHA-256 for the chain. Pure; no database.

Every entry is a canonical text (its *record*), which itself holds the hash of the entry before it, its sequence and its
key id. Signed and hashed are the same bytes: a domain prefix, so that no signature can be passed off as one of another
kind, then the record in UTF-8. Keys and signatures are written in base64. An outsider verifies an entry so:

    message = b"durable-runs/ledger-entry/v1\\n" + record.encode()
    Ed25519PublicKey.from_public_bytes(b64decode(public_key)).verify(b64decode(signature), message)  # raises if forged
    assert entry_hash == sha256(message).hexdigest()
    assert key_id == "ed25519-" + sha256(b64decode(public_key)).hexdigest()[:16]
    assert previous_hash == the entry_hash of the entry before, or sixty-four zeros in the first entry

`python -m approvals.signing` prints a new key for the setting APPROVAL_SIGNING_KEY; `manage.py signing_key` makes key
files, shows what auditors trust, and hands the ledger on to a new key.

What an outsider needs too, verify, record_hash and key_id, is in verifier.py, which stands alone. May import: that, the
standard library, `cryptography`, and `django.conf.settings` when the configured key is asked for.
"""

import base64
import os
import secrets
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from .verifier import LEDGER_ENTRY, key_id, record_hash, verify

__all__ = ["GENESIS", "LEDGER_ENTRY", "BadSigningKey", "SigningKey", "key_id", "record_hash", "verify"]

GENESIS = "0" * 64
"""The previous hash of the first entry."""

SEED_BYTES = 32
FEWEST_DISTINCT_BYTES = 8
"""A random seed has fewer than once in 10**36 keys; a placeholder such as all zeros has one or two."""


class BadSigningKey(ValueError):
    """The text is no usable signing key. The sentence never repeats the text. `where`: the setting or the file."""

    def __init__(self, problem: str, where: str = "APPROVAL_SIGNING_KEY") -> None:
        super().__init__(problem, where)
        self.problem, self.where = problem, where

    def __str__(self) -> str:
        return (
            f"{self.where} {self.problem}. It must be the base64 text of {SEED_BYTES} random bytes; "
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


def parse_signing_key(text: str | None, where: str = "APPROVAL_SIGNING_KEY") -> SigningKey:
    """The key of a setting or a key file; white space around it is ignored. Raises BadSigningKey."""
    text = (text or "").strip()
    if not text:
        raise BadSigningKey("is missing", where)
    try:
        seed = base64.b64decode(text, validate=True)
    except ValueError:
        raise BadSigningKey("is not base64", where) from None
    if len(seed) != SEED_BYTES:
        raise BadSigningKey(f"holds {len(seed)} bytes", where)
    if len(set(seed)) < FEWEST_DISTINCT_BYTES:
        raise BadSigningKey("is all zeros or otherwise not random", where)
    return SigningKey(seed)


def read_key_file(path: str | Path) -> SigningKey:
    """The key of a file that nobody but its owner can read. Raises BadSigningKey."""
    where = f"The key file {path}"
    try:
        with Path(path).open() as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            text = file.read(1000)
    except (OSError, UnicodeDecodeError) as error:
        raise BadSigningKey(f"cannot be read ({type(error).__name__})", where) from None
    if mode & 0o077:
        raise BadSigningKey(f"can be read or written by others (mode {mode:04o}): `chmod 600` it, and rotate it", where)
    return parse_signing_key(text, where)


def make_key_file(path: str | Path) -> SigningKey:
    """A new key in a new file that only its owner can read. Raises FileExistsError: a key is never overwritten."""
    seed = base64.b64encode(secrets.token_bytes(SEED_BYTES))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(seed + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return parse_signing_key(seed.decode())


def configured_signing_key() -> SigningKey:
    """The key of the file APPROVAL_SIGNING_KEY_FILE, or of the setting APPROVAL_SIGNING_KEY. Raises BadSigningKey."""
    from django.conf import settings

    if path := getattr(settings, "APPROVAL_SIGNING_KEY_FILE", ""):
        return read_key_file(path)
    return parse_signing_key(getattr(settings, "APPROVAL_SIGNING_KEY", None))


def _print_new_key() -> None:
    seed = base64.b64encode(secrets.token_bytes(SEED_BYTES)).decode()
    key = parse_signing_key(seed)
    sys.stdout.write(f"{seed}\n")
    sys.stderr.write(f"key id {key.key_id}, public key {key.public_key}\n")


if __name__ == "__main__":
    _print_new_key()
