"""Values read back equal or are refused by path before anything is written; canonical text is RFC 8785 to the byte."""

import csv
import enum
import json
import math
import random
import struct
import sys
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from django.utils.safestring import mark_safe

from runs.values import BadValue, as_json, canonical, canonical_text, digest, from_json

VECTORS = Path(__file__).parent / "vectors"
CYBERPHONE = Path(__file__).parents[2] / "shared" / "vectors" / "cyberphone"


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (VECTORS / name).read_text().splitlines()]


def numbers() -> list[tuple[str, str]]:
    with (VECTORS / "jcs_numbers.csv").open(newline="") as file:
        return [(row["ieee754_hex"], row["expected"]) for row in csv.DictReader(file)]


def refusal(call, *args, **options) -> BadValue:
    with pytest.raises(BadValue) as caught:
        call(*args, **options)
    return caught.value


# RFC 8785


@pytest.mark.parametrize("pair", lines("jcs_pairs.jsonl"), ids=lambda pair: pair["id"])
def test_canonical_text_is_the_vectors_bytes_and_digest(pair):
    text = canonical_text(from_json(pair["input"]))
    assert text.encode() == pair["output"].encode()
    assert digest(text) == pair["sha256"]


@pytest.mark.parametrize("pair", lines("jcs_pairs.jsonl"), ids=lambda pair: pair["id"])
def test_canonical_gives_the_same_bytes_or_refuses_the_float(pair):
    value = from_json(pair["input"])
    if pair["id"] in {"S03", "S05", "S06", "S16", "S17"}:
        assert "is a float" in refusal(canonical, value).problem
    else:
        assert canonical(value) == pair["output"]
        assert canonical(from_json(pair["output"])) == pair["output"]


def test_there_are_150_number_vectors_and_all_are_written_as_ecmascript_does():
    assert len(numbers()) == 150
    wrong = [
        (pattern, expected, text)
        for pattern, expected in numbers()
        if (text := canonical_text(struct.unpack(">d", bytes.fromhex(pattern))[0])) != expected
    ]
    assert wrong == []


PROBLEM_OF_KIND = {
    "parse": ("not JSON",),
    "duplicate": ('has the name "amount" twice',),
    "surrogate": ("half of a surrogate pair",),
    "precision": ("an integer outside ±9007199254740991",),
    "range": ("infinite",),
}


@pytest.mark.parametrize("vector", lines("jcs_reject.jsonl"), ids=lambda vector: vector["id"])
def test_what_must_not_be_signed_is_refused_for_its_own_reason(vector):
    refused = refusal(lambda: canonical(from_json(vector["input"])))
    assert any(part in refused.problem for part in PROBLEM_OF_KIND[vector["kind"]])


@pytest.mark.skipif(not CYBERPHONE.is_dir(), reason="../shared/vectors/cyberphone is not here")
def test_the_published_pairs_agree():
    inputs = sorted(CYBERPHONE.rglob("*input*.json"))
    assert len(inputs) == 3
    for source in inputs:
        expected = Path(str(source).replace("input", "output")).read_bytes()
        assert canonical_text(from_json(source.read_text())).encode() == expected.rstrip(b"\n")


# Round trip


def some_text(rng: random.Random) -> str:
    alphabet = 'ab"\\/\n\t\x01\x7fé߷漢\u2028\ufffe\U0001f30a\U0010ffff \\u0000'
    return "".join(rng.choice(alphabet) for _ in range(rng.randrange(12)))


def some_scalar(rng: random.Random):
    exponent = rng.randrange(-300, 300)
    return rng.choice(
        [
            None,
            True,
            False,
            0,
            -0.0,
            1.0,
            rng.randrange(-(10**30), 10**30),
            rng.randrange(-1000, 1000),
            rng.uniform(-1, 1) * 10.0**exponent,
            some_text(rng),
        ]
    )


def some_value(rng: random.Random, depth: int = 0):
    kind = rng.random()
    if depth > 5 or kind < 0.4:
        return some_scalar(rng)
    if kind < 0.7:
        return [some_value(rng, depth + 1) for _ in range(rng.randrange(5))]
    return {some_text(rng): some_value(rng, depth + 1) for _ in range(rng.randrange(5))}


def exactly(value):
    """The value with every type spelled out: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(value, dict):
        return [(name, exactly(member)) for name, member in value.items()]
    if isinstance(value, list):
        return [exactly(item) for item in value]
    return type(value).__name__, repr(value)


def test_what_is_stored_reads_back_equal_with_equal_types():
    rng = random.Random(8785)
    values = [some_value(rng) for _ in range(500)]
    assert len({as_json(value) for value in values}) > 300
    for value in values:
        text = as_json(value)
        assert exactly(from_json(text)) == exactly(value)
        assert as_json(from_json(text)) == text


def test_canonical_text_is_its_own_canonical_text_whatever_the_order_of_names():
    rng = random.Random(7)
    for _ in range(200):
        pairs = [(some_text(rng), rng.randrange(100)) for _ in range(6)]
        value = dict(pairs)
        shuffled = dict(rng.sample(list(value.items()), len(value)))
        assert canonical(shuffled) == canonical(value) == canonical(from_json(canonical(value)))


def test_stored_text_is_compact_and_keeps_characters():
    assert as_json({"name": "Zoë", "n": [1, 2.5, None]}) == '{"name":"Zoë","n":[1,2.5,null]}'


# Refusals


class Verdict(enum.StrEnum):
    APPROVE = "approve"


class Level(enum.IntEnum):
    HIGH = 3


class Account:
    pass


Pair = namedtuple("Pair", "left right")

STRANGE = [
    (Decimal("1.10"), "Decimal", "minor units or text"),
    (datetime(2025, 1, 2, tzinfo=UTC), "datetime", "isoformat"),
    (date(2025, 1, 2), "date", "isoformat"),
    (time(12, 0), "time", "isoformat"),
    (timedelta(days=1), "timedelta", "seconds"),
    (UUID(int=1), "UUID", "str()"),
    ({1, 2}, "set", "sorted list"),
    (frozenset(), "frozenset", "sorted list"),
    (b"x", "bytes", "base64"),
    (bytearray(b"x"), "bytearray", "base64"),
    ((1, 2), "tuple", "list"),
    (Pair(1, 2), "Pair", "list"),
    (Verdict.APPROVE, "Verdict", ".value"),
    (Level.HIGH, "Level", ".value"),
    (OrderedDict(a=1), "OrderedDict", "plain dict"),
    (mark_safe("<b>"), "SafeString", "plain str"),
    (Account(), "Account", "primary key"),
    (Account, "type", "plain values"),
    (1j, "complex", "plain values"),
]


@pytest.mark.parametrize("write", [as_json, canonical])
@pytest.mark.parametrize(("value", "name", "advice"), STRANGE, ids=[f"{name}" for _, name, _ in STRANGE])
def test_a_type_that_json_would_change_is_refused_with_its_path_and_a_way_out(write, value, name, advice):
    refused = refusal(write, {"payee": {"amounts": [1, 2, 3, value]}}, where="output")
    assert refused.path == "output.payee.amounts[3]"
    assert f"is of type {name}," in refused.problem
    assert advice in refused.problem
    assert str(refused) == f"{refused.path} {refused.problem}"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_json_are_refused(number):
    refused = refusal(as_json, [{"rate": number}], where="input")
    assert refused.path == "input[0].rate"
    assert "NaN or infinite" in refused.problem


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_python_s_own_constants_are_not_read(text):
    assert f"holds {text}, which is not JSON" in refusal(from_json, f'{{"a":[{text}]}}').problem


@pytest.mark.parametrize("write", [as_json, canonical])
@pytest.mark.parametrize(
    ("bad", "problem"),
    [("a\0b", "NUL"), ("\ud83d", "surrogate"), ("é\udfff", "surrogate"), ("\ud83d\ude00", "surrogate")],
)
def test_text_that_the_database_or_utf8_cannot_hold_is_refused_in_values_and_names(write, bad, problem):
    in_value = refusal(write, {"note": [bad]}, where="body")
    assert in_value.path == "body.note[0]"
    assert problem in in_value.problem
    in_name = refusal(write, {"note": {bad: 1}}, where="body")
    assert in_name.path.startswith("body.note[")
    assert in_name.path.isprintable()
    assert in_name.path.isascii()
    assert problem in in_name.problem


def test_escaped_nul_and_half_pairs_are_not_read_but_whole_pairs_and_plain_backslashes_are():
    assert refusal(from_json, '{"a":["\\u0000"]}', where="body").path == "body.a[0]"
    assert refusal(from_json, '{"a\\u0000":1}').path == 'value["a\\u0000"]'
    assert "surrogate" in refusal(from_json, '"\\udc00"').problem
    assert "surrogate" in refusal(from_json, '"\ud800"').problem
    assert from_json('["\\ud83c\\udf0a","\\\\u0000"]') == ["🌊", "\\u0000"]


@pytest.mark.parametrize(
    ("name", "kind"), [(1, "int"), (None, "NoneType"), (True, "bool"), (1.5, "float"), ((), "tuple")]
)
def test_a_name_that_is_not_text_is_refused_instead_of_becoming_text(name, kind):
    for write in (as_json, canonical):
        refused = refusal(write, {"limits": {name: 1}}, where="output")
        assert refused.path == "output.limits"
        assert f"has a name of type {kind};" in refused.problem
    assert "has a name of type Verdict" in refusal(as_json, {Verdict.APPROVE: 1}).problem


def test_integers_are_stored_exactly_up_to_a_bound_and_signed_only_where_a_double_is_exact():
    assert as_json(10**30) == "1" + "0" * 30
    assert from_json(as_json({"n": 2**53 + 1})) == {"n": 2**53 + 1}
    for number in (10**30 + 1, -(10**30) - 1, 10**5000):
        assert refusal(as_json, {"n": number}).path == "value.n"
    assert canonical([2**53 - 1, -(2**53) + 1]) == "[9007199254740991,-9007199254740991]"
    for number in (2**53, -(2**53)):
        assert "write it as text" in refusal(canonical, [number]).problem
    assert "an integer outside" in refusal(from_json, "1" + "0" * 31).problem
    assert "an integer outside" in refusal(from_json, "[" + "9" * 5000 + "]").problem


@pytest.mark.parametrize("number", [0.0, 1.0, 1.5, math.nan])
def test_no_float_is_signed(number):
    refused = refusal(canonical, {"amount": number}, where="arguments")
    assert refused.path == "arguments.amount"
    assert "minor units" in refused.problem


def nested(levels: int) -> list:
    value: list = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_depth_is_bounded_and_a_deep_value_never_exhausts_the_stack():
    assert as_json(nested(100)) == "[" * 100 + "]" * 100
    assert canonical(nested(32)) == "[" * 32 + "]" * 32
    assert canonical(nested(3), depth=3) == "[[[]]]"
    assert "over 100 levels" in refusal(as_json, nested(101)).problem
    assert "over 32 levels" in refusal(canonical, nested(33)).problem
    assert "over 2 levels" in refusal(canonical, nested(3), depth=2).problem
    assert "over 100 levels" in refusal(as_json, nested(50_000)).problem
    assert "over 100 levels" in refusal(from_json, "[" * 101 + "]" * 101).problem
    assert "over 100 levels" in refusal(from_json, "[" * 200_000).problem
    assert len(refusal(as_json, nested(50_000)).path) < 100


def test_a_value_that_contains_itself_is_refused():
    circle: dict = {"name": "a"}
    circle["again"] = [circle, circle]
    for write in (as_json, canonical):
        refused = refusal(write, circle, where="output")
        assert "contains itself" in refused.problem
        assert refused.path.startswith("output.again[1].again[1]")


def test_a_nearly_used_up_stack_is_a_refusal_too():
    def below(frames: int, write, value) -> str:
        return write(value) if frames == 0 else below(frames - 1, write, value)

    def outcome(spare: int, write, value) -> str:
        try:
            below(sys.getrecursionlimit() - len(list(frames_above())) - spare, write, value)
        except BadValue as refused:
            return refused.problem
        return "written"

    cramped = "is nested too deeply for what is left of the call stack; flatten it"
    assert {outcome(spare, canonical, nested(32)) for spare in range(20, 80)} == {"written", cramped}
    assert {outcome(spare, as_json, nested(100)) for spare in range(20, 150)} <= {"written", cramped}


def frames_above():
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def test_size_is_counted_in_bytes_of_utf8_and_named():
    assert as_json("é" * 10, limit=22) == '"' + "é" * 10 + '"'
    refused = refusal(as_json, {"text": "é" * 600}, where="output", limit=1_200)
    assert refused.path == "output"
    assert "takes 1,211 bytes" in refused.problem
    assert "limit is 1,200" in refused.problem
    assert "takes 1,000,001 bytes" in refusal(as_json, "x" * 999_999, limit=1_000_000).problem
    assert "the limit is 100,000" in refusal(canonical, ["x" * 99_997]).problem
    assert len(canonical(["x" * 99_996])) == 100_000


def test_a_small_value_that_would_become_a_huge_text_is_refused_before_it_is_written():
    bomb: list = []
    for _ in range(22):
        bomb = [bomb, bomb]
    assert "more than 1,000,000 bytes" in refusal(as_json, bomb).problem
    assert "more than 1,000,000 bytes" in refusal(as_json, ["x" * 900_000] * 100_000).problem


@pytest.mark.parametrize(
    "text", ["", "{", '{"a":1,}', "[1 2]", "'a'", "\ufeff{}", "01", "1.", "tru", '"\n"', "{} {}", "// no\n1"]
)
def test_what_is_not_json_is_refused_with_its_position(text):
    refused = refusal(from_json, text, where="body")
    assert refused.path == "body"
    assert "is not JSON: " in refused.problem
    assert "at character " in refused.problem


def test_repeated_names_are_refused_at_any_depth_and_in_any_spelling():
    for text in ('{"a":1,"a":1}', '[{"b":{"a":1,"c":2,"\\u0061":3}}]'):
        assert 'has the name "a" twice' in refusal(from_json, text).problem


def test_a_refusal_never_repeats_the_value():
    secret = "DE89370400440532013000"
    values = [
        {"iban": secret + "\0"},
        {"iban": Pair(secret, 1)},
        {"iban": {secret: float("nan")}.values()},
        [secret] * 9,
    ]
    for value in values:
        assert secret not in str(refusal(as_json, value, limit=50))
    assert secret not in str(refusal(from_json, f'{{"iban": "{secret}",}}'))


def test_unusual_names_are_quoted_in_the_path():
    assert refusal(as_json, {"first name": {"straße": {"": b""}}}).path == 'value["first name"]["stra\\u00dfe"][""]'
    assert len(refusal(as_json, {"x" * 5_000: b""}).path) < 100


def test_digest_is_of_the_utf8_bytes():
    # printf 'Zoë' | sha256sum
    assert digest("Zoë") == "c6a12698582fc1104ea24107a2d7268145ff06ef859707729d01fd060897f067"
