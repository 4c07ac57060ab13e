"""Pages hold under what is put on them: hostile text stays text, and nothing is wider than the window."""

from datetime import timedelta

import pytest
from playwright.sync_api import expect
from visits import sideways

from approvals.models import Approval
from approvals.testing import answer
from runs import engine
from runs.testing import drain, move_clock

pytestmark = pytest.mark.browser

TAGS = "<script>alert(1)</script><img src=/x onerror=alert(2)>{{ 7|add:7 }}"
HOSTILE = f"{TAGS}\u202egnp.exe\u200b"
MARKED = f"{TAGS}\u2039U+202E\u203agnp.exe\u2039U+200B\u203a"
UNSEEN = {"\u202e", "\u200b"}
WIDTHS = (390, 768, 1280)


def assert_shown_as_text(visit, *places):
    """The text and the marks can be read; nothing of it became an element, and no hidden character is left."""
    for place in places:
        visit.sees(MARKED, within=place)
    main = visit.page.locator("main")
    expect(main.locator("img, script")).to_have_count(0)
    assert not UNSEEN & set(main.inner_text() + visit.page.title())


def test_hostile_text_is_shown_as_text_on_every_page_of_an_adjuster(visit, claim, people):
    approval, ada = claim(payee=HOSTILE), visit(people.adjuster)
    ada.go("/inbox/")
    assert_shown_as_text(ada, ".queue-row")
    ada.go(f"/approvals/{approval.pk}/")
    assert_shown_as_text(ada, "h1", ".signing", "#facts")
    ada.sees("there are characters that you could not see", "U+202E RIGHT-TO-LEFT OVERRIDE", "U+200B ZERO WIDTH SPACE")
    ada.page.get_by_label("Comment").fill(HOSTILE)
    ada.approve()
    ada.is_signed_for()
    assert_shown_as_text(ada, "h1", "dd.typed")
    ada.go("/runs/claim-0042/")
    ada.open_everything()
    assert_shown_as_text(ada, "#step-1", "#step-5")


def test_hostile_words_are_searched_for_and_nothing_more(visit, claim, people):
    claim()
    ada = visit(people.adjuster)
    for path, found in (("/inbox/", "Nothing found for"), ("/runs/", "No run found for")):
        ada.go(path)
        ada.page.get_by_role("searchbox").fill(TAGS)
        ada.sees(f"{found} \u201c{TAGS[:48]}" if path == "/runs/" else f"{found} \u201c{TAGS}\u201d")
        ada.page.reload()
        expect(ada.page.locator("main").locator("img, script")).to_have_count(0)


def test_hostile_text_is_text_in_the_admin_too(visit, claim, people):
    approval = claim(payee=HOSTILE)
    decision = answer(approval, people.adjuster, comment=HOSTILE)
    root, reordered = visit(people.superuser), []
    for path in (
        "/admin/approvals/approval/",
        f"/admin/approvals/approval/{approval.pk}/change/",
        "/admin/approvals/decision/",
        f"/admin/approvals/ledgerentry/{decision.entry_id}/change/",
        f"/admin/runs/run/{approval.run_id}/change/",
        "/admin/runs/checkpoint/",
        "/admin/claims/claim/",
    ):
        root.go(path)
        content = root.page.locator("#content")
        expect(content.locator("script:not([src]), [onerror]")).to_have_count(0)
        reordered += [path] if UNSEEN & set(content.inner_text()) else []
    root.sees("<script>alert(1)</script>", within="#content")
    assert reordered == [], "what an auditor reads there is not in the order of the bytes"


@pytest.fixture
def every_page(claim, begin, people):
    """Addresses of every page in every state, holding the longest keys and words there can be, by who may see them."""
    waiting, approved, expired, cancelled = (
        claim(f"{name}-{'9' * (41 - len(name))}", payee="W" * 100) for name in ("wait", "done", "late", "gone")
    )
    signed = answer(approved, people.adjuster, comment="M" * 300)
    engine.cancel(cancelled.run.key, by=None, why="X" * 300)
    dead = begin("dead-" + "9" * 37, amount_minor=None)
    drain()
    Approval.objects.filter(pk=expired.pk).update(due_at=expired.asked_at + timedelta(hours=1))
    move_clock(timedelta(hours=2))
    approvals = [f"/approvals/{approval.pk}/" for approval in (waiting, approved, expired, cancelled)]
    runs = [f"/runs/{approval.run.key}/" for approval in (waiting, approved, expired, cancelled)]
    return {
        None: ["/sign-in/"],
        people.adjuster: ["/inbox/", "/inbox/?scope=overdue", *approvals, f"/receipts/{signed.entry_id}/"],
        people.ops: ["/runs/", *runs, f"/runs/{dead.key}/", f"/runs/{waiting.run.key}/cancel/"],
    }


def test_no_page_is_wider_than_its_window(visit, every_page, people):
    wide = {}
    for person, paths in every_page.items():
        reader = visit(person)
        for path in paths:
            reader.go(path)
            reader.open_everything()
            wide |= too_wide(reader, path)
    stranger = visit(people.stranger)
    with stranger.refused(404):
        stranger.go("/approvals/1/")
    wide |= too_wide(stranger, "404")
    with stranger.refused(403):
        stranger.go("/admin/")
    wide |= too_wide(stranger, "403")
    assert wide == {}


def too_wide(reader, path):
    """By how many pixels, for each width of the window."""
    found = {}
    for width in WIDTHS:
        reader.page.set_viewport_size({"width": width, "height": 900})
        found[path, width] = sideways(reader.page)
    return {place: pixels for place, pixels in found.items() if pixels > 0}
