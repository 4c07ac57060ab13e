"""What an adjuster sees whose page is out of date: too late, decided by another, no longer allowed, a stranger."""

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from playwright.sync_api import expect

from approvals.models import Decision
from approvals.testing import answer, answer_all
from runs.testing import move_clock

pytestmark = pytest.mark.browser

PAST_DUE = timedelta(days=3, minutes=1)


def assert_locked(ada):
    ada.sees("Decision closed", within="#decision")
    expect(ada.page.get_by_role("button", name=re.compile("^Sign"))).to_have_count(
        1
    )  # the one in the top bar, to sign out
    expect(ada.page.get_by_role("button", name="Sign out")).to_be_visible()


def test_an_answer_after_the_deadline_is_refused_and_the_page_says_expired(readers):
    move_clock(PAST_DUE)
    for ada in readers:
        with ada.refused(410):
            ada.approve()
        ada.sees("expired", within="#notice")
        assert_locked(ada)
    assert Decision.objects.count() == 0


def test_an_expired_approval_says_so_and_offers_no_button(visit, claim, people):
    approval, ada = claim(), visit(people.adjuster)
    move_clock(PAST_DUE)
    ada.go(f"/approvals/{approval.pk}/")
    ada.sees("Expired", within="#decision")
    assert_locked(ada)


def test_an_answer_after_somebody_elses_is_refused_with_who_and_when(readers, people):
    assert answer_all(people.second_adjuster) == 2
    first = Decision.objects.get(approval__run__key="claim-0041"), Decision.objects.get(approval__run__key="claim-0042")
    for ada, decision in zip(readers, first, strict=True):
        with ada.refused(409):
            ada.approve()
        ada.sees("ben approved this", f"{decision.decided_at:%H:%M:%S} UTC", within="#notice")
        ada.sees("Your answer changed nothing", within="#notice")
        assert_locked(ada)
    assert Decision.objects.count() == 2


def test_an_open_page_locks_itself_when_somebody_else_decides_and_keeps_the_draft(visit, claim, people):
    approval, ada = claim(), visit(people.adjuster)
    ada.page.clock.install()
    ada.go(f"/approvals/{approval.pk}/")
    ada.page.get_by_label("Comment").fill("half a thought")
    ada.wait_for_poll("/state/", 10)
    expect(ada.approve_button).to_be_visible()
    answer(approval, people.second_adjuster)
    ada.wait(10)
    ada.sees("ben approved this while you were reading", within="#notice")
    ada.sees("half a thought", "Not sent.", within="#decision")
    assert_locked(ada)
    polls = ada.polled(f"/approvals/{approval.pk}/state/")
    ada.wait(120)
    ada.sees("ben approved this while you were reading", within="#notice")
    assert ada.polled(f"/approvals/{approval.pk}/state/") == polls == 2


def test_an_open_page_locks_itself_when_time_is_up(visit, claim, people):
    approval, ada = claim(), visit(people.adjuster)
    ada.page.clock.install()
    ada.go(f"/approvals/{approval.pk}/")
    move_clock(PAST_DUE)
    ada.wait(10)
    ada.sees("expired", within="#notice")
    assert_locked(ada)


def test_a_stranger_is_told_that_there_is_no_page(visit, claim, people):
    approval, eve = claim(), visit(people.stranger)
    decision = answer(approval, people.adjuster)
    for path in (f"/approvals/{approval.pk}/", "/runs/claim-0042/", f"/receipts/{decision.entry_id}/"):
        with eve.refused(404):
            eve.go(path)
        eve.sees("There is no page here")
        expect(eve.page.locator("main")).not_to_contain_text("0042")


def test_whoever_left_the_group_after_opening_the_page_is_refused_with_the_rule(readers, people):
    people.adjuster.groups.remove(Group.objects.get(name="adjusters"))
    for ada in readers:
        with ada.refused(403):
            ada.approve()
        ada.sees("You may not decide this", "Only adjusters may decide this.", within="#notice")
        ada.sees("Decision locked", within="#decision")
        expect(ada.approve_button).to_have_count(0)
    assert Decision.objects.count() == 0


def test_a_form_from_before_the_last_sign_in_changes_nothing_and_says_so(readers):
    for ada in readers:
        ada.context.clear_cookies(name="csrftoken")
        with ada.refused(403):
            ada.approve()
        ada.sees("This page is older than your sign-in")
    assert Decision.objects.count() == 0
