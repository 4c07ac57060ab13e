"""What an approver reads: the whole action whatever its size, hostile text as text, who else must sign, and what was
decided before on the like of it."""

import re
from datetime import timedelta

import pytest
from browsing import browser, text
from stage import Stage, freeze_clock

from approvals import reading
from approvals.precedents import MOST, similar
from approvals.testing import answer
from runs.models import database_clock
from runs.tools import tool
from runs.values import canonical

HOSTILE = "<script>x</script><img src=x onerror=y>{{ 7|add:7 }}{% now 'Y' %}\" hx-get='/x' javascript:z"


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


def page(person, approval):
    return browser(person).get(f"/approvals/{approval.pk}/").content.decode()


# All of it can be read (nothing is cut)


@pytest.fixture
def with_notes(stage):
    """A tool whose action says much more than its amount and payee."""

    @tool("test.noted", effect=True, requires_approval=True, statement="Pay {amount} to {payee}")
    def noted(
        *, idempotency_key: str, amount_minor: int, currency: str = "USD", payee: str = "p-1", zz_last: str = "",
        notes: dict[str, str] | None = None,
    ) -> dict:  # fmt: skip
        return stage.receiver(idempotency_key, {})

    stage.asks_then_pays(noted)
    return stage


def test_a_note_of_fifty_thousand_characters_is_all_there_behind_a_fold_that_says_how_much(with_notes, people):
    note = "n" * 49_980 + " THE PAYEE IS p-666."
    approval = with_notes.asked("long", zz_last=note)
    shown = page(people.adjuster, approval)
    assert "and 49700 more characters, of 50000" in text(browser(people.adjuster).get(f"/approvals/{approval.pk}/"))
    words, _, exact = shown.partition("Exact bytes")
    assert words.count("n" * 300) >= 1
    assert "THE PAYEE IS p-666." in words
    assert "THE PAYEE IS p-666." in exact
    outside = re.sub(r"<details class=\"fold-small\">.*?</details>", "", words, flags=re.DOTALL)
    assert "THE PAYEE" not in outside
    assert "$1,840.00" in outside
    assert ">p-1<" in outside
    assert f"{len(approval.payload.encode())} bytes in all" in shown


def test_of_three_hundred_members_the_fold_says_how_many_it_hides_and_money_and_payee_stay_outside(with_notes, people):
    notes = {f"n{number:03}": f"value {number}" for number in range(300)}
    shown = page(people.adjuster, with_notes.asked("wide", notes=notes, zz_last="the very last"))
    words = shown.split("Exact bytes")[0]
    outside, _, folded = words.partition('<details class="fold-small"><summary>Show the other ')
    lines = len(re.findall("<dt>", outside)) + len(re.findall("<dt>", folded))
    assert int(folded.split(" ")[0]) == folded.count("<dt>")
    assert lines == 300 + 5
    for number in range(300):
        assert f">value {number}<" in words
    for always in ("$1,840.00", ">p-1<", "test.noted"):
        assert always in outside


@pytest.mark.parametrize(("length", "folds"), [(reading.LONG, False), (reading.LONG + 1, True)])
def test_only_what_is_longer_than_the_limit_is_folded_and_never_payee_or_money(length, folds):
    payload = canonical({"arguments": {"note": "x" * length, "payee": "y" * length}, "tool": "t"}, where="test")
    lines = {line.label: line for line in reading.payload_lines(payload)}
    assert bool(lines["Note"].folded) == folds
    assert lines["Note"].shown + lines["Note"].folded == "x" * length
    assert lines["Payee"].folded == ""


def test_words_that_mix_alphabets_are_pointed_out_and_plain_foreign_words_are_not(stage, people):
    moscow, athens = "\u041c\u043e\u0441\u043a\u0432\u0430", "\u0391\u03b8\u03ae\u03bd\u03b1"
    assert reading.look_alikes(f"P\u0430yPal Z\u00fcrich {moscow} {athens}") == ["P\u0430yPal"]
    stage.asks_then_pays()
    shown = page(people.adjuster, stage.asked("alike", payee="P\u0430yPal"))
    assert "Words here mix letters of different alphabets" in shown
    assert "mix letters" not in page(people.adjuster, stage.asked("plain"))


# Hostile text


def test_hostile_text_is_text_in_every_part_of_the_page(stage, people):
    stage.asks_then_pays()
    before = stage.asked("before", payee=HOSTILE)
    answer(before, people.adjuster, "reject", HOSTILE)
    shown = page(people.adjuster, stage.asked("now", payee=HOSTILE))
    assert shown.count("&lt;script&gt;x&lt;/script&gt;&lt;img src=x onerror=y&gt;") >= 4
    assert "<img" not in shown
    assert "<script>" not in shown
    assert "{{ 7|add:7 }}{% now" in shown
    assert "hx-get='/x'" not in shown


# Who else must sign


def test_the_page_says_how_many_must_sign_who_has_and_how_many_are_missing(stage, people):
    stage.asks_then_pays(required=2)
    approval = stage.asked("two")
    first = text(browser(people.adjuster).get(f"/approvals/{approval.pk}/"))
    assert "0 of 2 people have approved" in first
    assert "2 different members of adjusters in team claims" in first
    answer(approval, people.adjuster)
    second = text(browser(people.second_adjuster).get(f"/approvals/{approval.pk}/"))
    assert "1 of 2 people have approved" in second
    assert "ada approved" in second
    assert "1 more member of adjusters" in second
    assert "one rejection ends it" in second


# What happens at expiry, and what was before


def test_the_page_says_in_words_what_follows_when_nobody_answers(stage, people):
    stage.asks_then_pays()
    shown = text(browser(people.adjuster).get(f"/approvals/{stage.asked('due').pk}/"))
    assert "Silence is never consent: the run ends as expired and nothing is done." in shown


def test_the_newest_decisions_with_the_same_payee_or_claim_are_shown_and_only_what_one_may_see(stage, people):
    stage.asks_then_pays()
    start = database_clock()
    for number in range(MOST + 2):
        freeze_clock(start + timedelta(minutes=number))
        answer(stage.asked(f"payee-{number}", payee="p-9", claim=f"c{number}"), people.adjuster)
    freeze_clock(start + timedelta(minutes=30))
    rejected = stage.asked("claim", payee="p-8", claim="c-now")
    answer(rejected, people.adjuster, "reject", "not insured")
    stage.asked("open", payee="p-9", claim="c-now")
    answer(stage.asked("unlike", payee="p-7", claim="c-7"), people.adjuster)
    approval = stage.asked("now", payee="p-9", claim="c-now")
    found = similar(people.adjuster, approval)
    assert [row.run.key for row in found] == ["claim", "payee-6", "payee-5", "payee-4", "payee-3"]
    assert [(row.same_payee, row.same_claim) for row in found][:2] == [(False, True), (True, False)]
    shown = text(browser(people.adjuster).get(f"/approvals/{approval.pk}/"))
    assert "Decided before" in shown
    assert "ada: not insured" in shown
    assert similar(people.stranger, approval) == []


def test_an_action_that_names_neither_payee_nor_claim_has_nothing_before_it(stage, people):
    @tool("test.bare", effect=True, requires_approval=True, statement="Do {what}")
    def bare(*, idempotency_key: str, what: str, amount_minor: int = 0) -> dict:
        return stage.receiver(idempotency_key, {})

    stage.asks_then_pays(bare)
    answer(stage.asked("one", what="x"), people.adjuster)
    approval = stage.asked("two", what="x")
    assert similar(people.adjuster, approval) == []
    assert "Nothing with the same payee or about the same claim" in page(people.adjuster, approval)
