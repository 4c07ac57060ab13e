"""What moves on an open page by itself, countdowns and polls, and when they must rest."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import expect
from runner_process import eventually
from worker_process import WorkerProcess

from approvals.models import Approval
from approvals.testing import answer
from runs.testing import move_clock

pytestmark = pytest.mark.browser

ALMOST_DUE = timedelta(days=3) - timedelta(minutes=9, seconds=45)
COUNTS, ROWS = "/nav-counts/", "/inbox/rows/"
HEADER, STEPS = "/runs/claim-0042/header/", "/runs/claim-0042/steps/"


def test_a_countdown_ticks_by_the_servers_clock_whatever_the_browsers_says(visit, claim, people):
    approval = claim()
    move_clock(ALMOST_DUE)
    places = (("/inbox/", ".queue-row"), (f"/approvals/{approval.pk}/", ".approval-head"))
    for (path, place), wrong in zip(places, (timedelta(days=1), timedelta(days=-1)), strict=True):
        ada = visit(people.adjuster)
        ada.page.clock.install(time=datetime.now(UTC) + wrong)
        ada.go(path)
        countdown = ada.page.locator(f"{place} .countdown-text")
        shown = countdown.inner_text()
        expect(countdown).not_to_have_text(shown, timeout=2000)
        assert re.fullmatch(r"9 min \d\d s left", shown)
        assert re.fullmatch(r"9 min \d\d s left", countdown.inner_text())


def test_a_countdown_that_ends_says_so_where_it_is_and_to_screen_readers(visit, claim, people):
    approval, ada = claim(), visit(people.adjuster)
    move_clock(ALMOST_DUE)
    ada.page.clock.install()
    ada.go(f"/approvals/{approval.pk}/")
    ada.wait(301)
    ada.sees("This approval: 4 min", within="#live")
    ada.wait(300)
    ada.sees("Expired", within=".approval-head .countdown-text")
    ada.sees("This approval: time is up", within="#live")


def test_a_run_page_follows_its_run_without_a_reload_and_rests_when_it_has_ended(visit, begin, people):
    run, olga = begin(), visit(people.ops)
    olga.page.clock.install()
    olga.go("/runs/claim-0042/")
    olga.sees("Ready", within="#run-header")
    olga.page.evaluate("window.loadedOnce = true")
    olga.page.locator("#step-2 summary").first.click()
    with WorkerProcess():
        eventually(Approval.objects.exists)
        olga.wait(5)
        olga.sees("Waiting for approval", within="#run-header")
        olga.sees("adjuster must approve payouts over 1000", within="#run-header")
        olga.sees("Checkpoint 2", within="#step-2")
        answer(Approval.objects.get(), people.adjuster)
        eventually(lambda: type(run).objects.get().is_final)
    olga.wait(30)
    olga.sees("Completed", within="#run-header")
    olga.sees("9 of 9 done", within="#steps")
    olga.sees("Checkpoint 2", within="#step-2")
    assert_rests(olga, HEADER, STEPS)
    assert olga.page.evaluate("window.loadedOnce")


def assert_rests(visit, *paths):
    """Those are asked for no more, however long the page stays open; the counts still are."""
    asked, counted = [visit.polled(path) for path in paths], visit.polled(COUNTS)
    visit.waits_until(lambda: visit.wait(60) or visit.polled(COUNTS) > counted + 1)
    assert [visit.polled(path) for path in paths] == asked


def test_the_inbox_brings_what_was_asked_meanwhile_and_keeps_the_focus(visit, claim, people):
    claim("0041")
    ada = visit(people.adjuster)
    ada.page.clock.install()
    ada.go("/inbox/")
    ada.page.keyboard.press("j")
    claim("0042")
    ada.wait(20)
    ada.sees("claim-0041", "claim-0042", "2 shown", within="#inbox-rows")
    ada.sees("My groups 2", within="#inbox-tabs")
    expect(ada.page.locator("#approval-1 .row-link")).to_be_focused()


def test_a_page_that_is_hidden_or_paused_asks_for_nothing_until_it_is_looked_at_again(visit, claim, people):
    claim()
    ada, olga = visit(people.adjuster), visit(people.ops)
    for reader in (ada, olga):
        reader.page.clock.install()
        reader.go("/inbox/")
    rests = {ada: lambda on: ada.page.keyboard.press("p"), olga: olga.hide_tab}
    for reader, rest in rests.items():
        rest(True)
        for _ in range(3):
            reader.wait(30)
        rest(False)
        reader.wait(30)
        reader.waits_until(lambda reader=reader: reader.polled(ROWS) and reader.polled(COUNTS))
        assert (reader.polled(ROWS), reader.polled(COUNTS)) == (1, 1)


def test_a_poll_after_the_session_has_ended_leads_the_whole_page_to_sign_in_and_back(visit, claim, people):
    approval = claim()
    for path in ("/inbox/", "/runs/", "/runs/claim-0042/", f"/approvals/{approval.pk}/"):
        ada = visit(people.adjuster)
        ada.page.clock.install()
        ada.go(path)
        # What signing out in another tab does to this one.
        Session.objects.all().delete()
        ada.wait(30)
        ada.is_at(rf"/sign-in/\?next={path}$")
        expect(ada.page.locator("form")).to_have_count(1)
        ada.sign_in("ada", people.password)
        ada.is_at(f"{path}$")


def test_signing_out_ends_the_session_in_every_tab_and_behind_the_back_button(visit, claim, people):
    claim()
    ada = visit(people.adjuster)
    ada.go("/inbox/")
    other = ada.another_tab()
    other.goto("/runs/")
    ada.page.get_by_role("button", name="Sign out").click()
    ada.is_at("/sign-in/$")
    other.reload()
    expect(other).to_have_url(re.compile(r"/sign-in/\?next=/runs/$"))
    expect(other.locator("main")).not_to_contain_text("0042")
    ada.page.go_back()
    ada.is_at(r"/sign-in/\?next=/inbox/$")


def test_a_page_that_cannot_reach_the_site_says_that_its_numbers_are_old(visit, claim, people):
    claim()
    ada = visit(people.adjuster)
    ada.page.clock.install()
    ada.go("/inbox/")
    ada.context.set_offline(True)
    ada.wait(20)
    ada.sees("Not updating: connection lost", within="#updated")
    ada.sees("claim-0042", within="#inbox-rows")
    ada.context.set_offline(False)
    ada.wait(20)
    ada.sees("Updated ", within="#updated")
    assert ada.faults
    ada.faults.clear()  # they are what this test is about
