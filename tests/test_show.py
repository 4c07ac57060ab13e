"""How values are shown: money, times, and characters that would otherwise not be seen."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from approvals.reading import comparisons, payload_lines
from runs.templatetags import show


@pytest.mark.parametrize(
    ("minor", "currency", "shown"),
    [
        (184_000, "USD", "$1,840.00"),
        (184_000, "EUR", "1,840.00 EUR"),
        (5, "USD", "$0.05"),
        (-184_000, "USD", "\u2212$1,840.00"),
        (1840, "JPY", "1,840 JPY"),
        (1_840_000, "KWD", "1,840.000 KWD"),
        (None, "USD", ""),
    ],
)
def test_money_is_written_from_minor_units(minor, currency, shown):
    assert show.money(minor, currency) == shown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0354, "35 ms"),
        (8.24, "8.2 s"),
        (42, "42 s"),
        (2530, "42 min 10 s"),
        (68_947, "19 h 09 min"),
        (212_400, "2 d 11 h"),
    ],
)
def test_a_duration_is_said_in_the_units_that_matter(seconds, words):
    assert show.duration(seconds) == show.duration(timedelta(seconds=seconds)) == words


def test_times_are_utc_and_say_so():
    elsewhere = datetime.fromisoformat("2026-11-29T11:14:07+02:00")
    assert show.when(elsewhere) == '<time datetime="2026-11-29T09:14:07.000Z">29 Nov 2026, 09:14 UTC</time>'


@pytest.mark.parametrize(
    ("left", "state", "words"),
    [
        (200_000, "ok", "2 d 7 h left"),
        (50_000, "soon", "13 h 53 min left"),
        (7200, "urgent", "2 h 00 min left"),
        (0, "over", "Expired"),
    ],
)
def test_a_countdown_says_in_words_and_state_how_long_is_left(left, state, words):
    now = datetime(2026, 12, 1, tzinfo=UTC)
    due = now + timedelta(seconds=left)
    shown = show.countdown(due, due - timedelta(days=3), now)
    assert (shown["state"], shown["text"]) == (state, words)


@pytest.mark.parametrize(
    "character",
    [
        "\u202e",
        "\u2066",
        "\u200b",
        "\u00ad",
        "\ufeff",
        "\u2028",
        "\x7f",
        "\u3164",
        "\u00a0",
        "\ufe0f",
        "\U000e0041",
        "\x1b",
    ],
)
def test_a_character_that_cannot_be_seen_is_spelled_out(character):
    spelled = f"\u2039U+{ord(character):04X}\u203a"
    assert show.spelled(f"a{character}b") == f"a{spelled}b"
    assert spelled in show.revealed(f"a{character}b")
    assert character not in show.revealed(f"a{character}b")


@pytest.mark.parametrize("text", ["Zoë Müller-Lüdenscheidt", "株式会社", "مؤسسة", "a & b", "1,840.00 €"])
def test_what_can_be_seen_is_left_as_it_is(text):
    assert show.spelled(text) == text


def test_what_is_revealed_is_escaped_all_the_same():
    assert show.revealed("<b>\u202e</b>").startswith("&lt;b&gt;<mark")


def test_every_member_of_the_payload_is_in_the_words():
    arguments = {
        "amount_minor": 5,
        "currency": "EUR",
        "to": {"names": ["a", "b"], "none": None},
        "empty": {},
        "urgent": True,
        "count": 0,
    }
    lines = payload_lines(json.dumps({"arguments": arguments, "tool": "pay"}))
    assert [(line.label, line.text) for line in lines] == [
        ("Amount", "0.05 EUR"),
        ("Currency", "EUR"),
        ("To, Names 1", "a"),
        ("To, Names 2", "b"),
        ("To, None", "none"),
        ("Empty", "empty object"),
        ("Urgent", "yes"),
        ("Count", "0"),
        ("Tool", "pay"),
    ]
    assert lines[0].raw == "amount_minor 5"


def test_text_that_says_none_is_told_apart_from_nothing():
    said, nothing = payload_lines('{"arguments":{"a":"none","b":null}}')
    assert (said.plain, nothing.plain) == (False, True)


def test_facts_are_compared_with_differences_first():
    then, now = '{"a":1,"amount_minor":100,"currency":"USD"}', '{"amount_minor":200,"b":true,"currency":"USD"}'
    compared = [(fact.label, fact.then.text, fact.now.text, fact.change) for fact in comparisons(then, now)]
    assert compared == [
        ("A", "1", "none", "removed"),
        ("Amount", "$1.00", "$2.00", "changed"),
        ("B", "none", "yes", "added"),
        ("Currency", "USD", "USD", "same"),
    ]
