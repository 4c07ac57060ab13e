"""A signature covers every byte of a record, in its own domain; keys are strong or refused; garbage is never valid."""

import base64
import os
import subprocess
import sys
from base64 import b64decode
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from approvals.signing import GENESIS, BadSigningKey, key_id, parse_signing_key, record_hash, verify

ROOT = Path(__file__).parents[1]

# Made with OpenSSL 3.0: `openssl pkeyutl -sign -rawin` and `sha256sum` over the domain line and the record.
# The seed is the SHA-256 of "a fixed key for tests, never for signing".
SEED = "UNlGP/Rp7kqeapzJMriJhVofe4JsgUt/+x9Qm+8DgIU="
PUBLIC_KEY = "QEO0DM8Qr3iu3B+faJWF+XsPOaK0y9FyuXuqkCAoJqc="
KEY_ID = "ed25519-65c683b0e0e5400e"
RECORD = (
    '{"decision":"approve","key_id":"ed25519-example","payee":"Zoë Ngô",'
    '"previous_hash":"0000000000000000000000000000000000000000000000000000000000000000","sequence":1}'
)
SIGNATURE = "VCLgCxWiysUqLyQbFbqC8Sv5/QqiaZZrT8I3GtEcXQZ3Mr/4lbpTBV7p5GPLPrbaiD07xG1G0oRlcpl6SwvrDA=="
ENTRY_HASH = "15ca41e234f62c14ef3a943fa3709e4bd1fdf434421fb8aecc95741a4bdeef19"
OTHER_DOMAIN = b"durable-runs/another-kind/v1\n"


def test_keys_signatures_and_hashes_are_those_of_openssl():
    key = parse_signing_key(SEED)
    assert key.public_key == PUBLIC_KEY
    assert key.key_id == KEY_ID == key_id(PUBLIC_KEY)
    assert key.sign(RECORD) == SIGNATURE
    assert record_hash(RECORD) == ENTRY_HASH
    assert verify(RECORD, SIGNATURE, PUBLIC_KEY)
    assert f'"previous_hash":"{GENESIS}"' in RECORD


def test_the_documented_outsider_s_lines_verify_an_entry_without_our_code():
    message = b"durable-runs/ledger-entry/v1\n" + RECORD.encode()
    outsider = Ed25519PublicKey.from_public_bytes(b64decode(PUBLIC_KEY))
    outsider.verify(b64decode(SIGNATURE), message)
    with pytest.raises(InvalidSignature):
        outsider.verify(b64decode(SIGNATURE), message + b" ")
    assert sha256(message).hexdigest() == ENTRY_HASH
    assert "ed25519-" + sha256(b64decode(PUBLIC_KEY)).hexdigest()[:16] == KEY_ID


def test_changing_any_one_character_of_the_record_is_found():
    for position, character in enumerate(RECORD):
        altered = RECORD[:position] + chr(ord(character) ^ 1) + RECORD[position + 1 :]
        assert not verify(altered, SIGNATURE, PUBLIC_KEY), position
        assert record_hash(altered) != ENTRY_HASH, position


def test_changing_any_one_byte_of_the_record_is_found():
    raw = RECORD.encode()
    readable = 0
    for position in range(len(raw)):
        for bit in range(8):
            altered = raw[:position] + bytes([raw[position] ^ (1 << bit)]) + raw[position + 1 :]
            try:
                text = altered.decode()
            except UnicodeDecodeError:
                continue
            readable += 1
            assert not verify(text, SIGNATURE, PUBLIC_KEY), (position, bit)
    assert readable > 6 * len(raw)


@pytest.mark.parametrize("altered", [RECORD[:-1], RECORD[1:], RECORD + " ", RECORD + "\0", "", RECORD * 2, "\ud83d"])
def test_removed_added_and_unwritable_text_is_found(altered):
    assert not verify(altered, SIGNATURE, PUBLIC_KEY)


def test_changing_any_one_character_of_signature_or_key_is_found_even_where_base64_ignores_bits():
    for position in range(len(SIGNATURE)):
        for replacement in "AQg_=":
            altered = SIGNATURE[:position] + replacement + SIGNATURE[position + 1 :]
            assert verify(RECORD, altered, PUBLIC_KEY) is (altered == SIGNATURE), altered
    twin = SIGNATURE[:-3] + "B=="
    assert SIGNATURE.endswith("A==")
    assert b64decode(twin) == b64decode(SIGNATURE)
    assert not verify(RECORD, twin, PUBLIC_KEY)
    for position in range(len(PUBLIC_KEY)):
        altered = PUBLIC_KEY[:position] + ("A" if PUBLIC_KEY[position] != "A" else "B") + PUBLIC_KEY[position + 1 :]
        assert not verify(RECORD, SIGNATURE, altered), altered


def test_a_signature_of_one_domain_is_worth_nothing_in_another():
    key = parse_signing_key(SEED)
    elsewhere = key.sign(RECORD, domain=OTHER_DOMAIN)
    assert verify(RECORD, elsewhere, PUBLIC_KEY, domain=OTHER_DOMAIN)
    assert not verify(RECORD, elsewhere, PUBLIC_KEY)
    assert not verify(RECORD, SIGNATURE, PUBLIC_KEY, domain=OTHER_DOMAIN)
    assert record_hash(RECORD, domain=OTHER_DOMAIN) != ENTRY_HASH


def test_another_key_s_signature_is_refused():
    other = parse_signing_key(base64.b64encode(sha256(b"another key for tests").digest()).decode())
    assert verify(RECORD, other.sign(RECORD), other.public_key)
    assert not verify(RECORD, other.sign(RECORD), PUBLIC_KEY)
    assert other.key_id != KEY_ID


@pytest.mark.parametrize(
    "garbage", [None, "", " ", "x", "====", "é", "\ud83d", 7, b"x", [], SIGNATURE + "\n", "A" * 9999]
)
def test_garbage_is_false_and_never_an_error(garbage):
    assert verify(garbage, SIGNATURE, PUBLIC_KEY) is False
    assert verify(RECORD, garbage, PUBLIC_KEY) is False
    assert verify(RECORD, SIGNATURE, garbage) is False


def encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "is missing"),
        ("", "is missing"),
        (" \n", "is missing"),
        ("change me!", "is not base64"),
        ("é" * 44, "is not base64"),
        (SEED[:-1], "is not base64"),
        (encoded(bytes(range(31))), "holds 31 bytes"),
        (encoded(bytes(range(33))), "holds 33 bytes"),
        (encoded(bytes(32)), "not random"),
        (encoded(b"\1" * 32), "not random"),
        (encoded(b"change!" * 4 + b"chan"), "not random"),
    ],
)
def test_a_missing_or_weak_key_is_refused_saying_which_and_how_to_make_one(text, problem):
    with pytest.raises(BadSigningKey) as caught:
        parse_signing_key(text)
    sentence = str(caught.value)
    assert problem in sentence
    assert "APPROVAL_SIGNING_KEY" in sentence
    assert "python -m approvals.signing" in sentence
    assert not text or not text.strip() or text not in sentence


def test_white_space_around_a_key_is_ignored():
    assert parse_signing_key(f" {SEED}\n").key_id == KEY_ID


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60
    )


def test_the_module_prints_a_new_usable_key_each_time_and_only_its_id_beside_it():
    first, second = python("-m", "approvals.signing"), python("-m", "approvals.signing")
    assert first.stdout != second.stdout
    key = parse_signing_key(first.stdout)
    assert key.key_id in first.stderr
    assert key.public_key in first.stderr
    assert first.stdout.strip() not in first.stderr


def test_the_configured_key_is_that_of_the_setting_and_a_missing_one_says_so():
    program = (
        "import sys; from django.conf import settings; settings.configure(**eval(sys.argv[1]))\n"
        "from approvals.signing import BadSigningKey, configured_signing_key\n"
        "try: print(configured_signing_key().key_id)\n"
        "except BadSigningKey as refused: print(refused)\n"
    )
    assert python("-c", program, f"dict(APPROVAL_SIGNING_KEY={SEED!r})").stdout.strip() == KEY_ID
    assert "APPROVAL_SIGNING_KEY is missing" in python("-c", program, "{}").stdout
