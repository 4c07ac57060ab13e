"""The health page in a real browser: at three widths, light and dark, without a fault that axe finds."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from visits import sideways

from runs import upkeep
from runs.models import Beat, Run, Upkeep, database_clock
from runs.testing import drain

pytestmark = pytest.mark.browser

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
PICTURES = os.environ.get("PICTURES")
"""A folder: there each page is kept as a picture, for people to look at."""


@pytest.fixture
def watched(begin, people):
    """A run that waits, one in the dead letters, a runner that beats, and everything counted."""
    begin("0041")
    broken = begin("0042")
    drain()
    now = database_clock()
    Run.objects.filter(pk=broken.pk).update(
        status="dead", reason="Nobody mended it.", due_at=None, wait_kind="", wait_name="", wait_since=None
    )
    Beat.objects.create(host="host-a", pid=1, workers=2, started_at=now, beat_at=now, canary_at=now)
    for name in ("tallies", "alarms"):
        Upkeep.objects.create(name=name, every=timedelta(minutes=1), due_at=now)
        upkeep.do(name)


def assert_accessible(visit, name: str) -> None:
    assert sideways(visit.page) <= 0
    found = Axe().run(visit.page, options=RULES).response["violations"]
    assert [(fault["id"], [node["html"] for node in fault["nodes"]]) for fault in found] == []
    if PICTURES:
        visit.page.screenshot(path=Path(PICTURES) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_health_and_alarms_are_accessible(visit, watched, people, width, scheme):
    olga = visit(people.ops, viewport={"width": width, "height": 900}, color_scheme=scheme)
    olga.go("/health/")
    olga.sees("Resume rate", "Step time", "Audit chain", "claim-0042")
    assert_accessible(olga, f"health-{scheme}-{width}")
    olga.open_everything()
    assert_accessible(olga, f"health-open-{scheme}-{width}")
    olga.go("/health/alarms/")
    assert_accessible(olga, f"alarms-{scheme}-{width}")


def test_ops_acknowledges_an_alarm_and_the_bar_counts_it_no_more(visit, watched, people):
    olga = visit(people.ops)
    olga.go("/health/")
    expect(olga.page.locator("#nav-counts")).to_contain_text("1 alarm")
    olga.page.get_by_role("link", name="See the alarms").click()
    olga.page.get_by_role("button", name="Acknowledge").click()
    olga.sees("Acknowledged by olga")
    expect(olga.page.locator("#nav-counts")).not_to_contain_text("alarm")


def test_an_open_page_brings_itself_up_to_date_and_keeps_what_is_unfolded(visit, watched, people):
    olga = visit(people.ops)
    olga.page.clock.install()
    olga.go("/health/?window=1h")
    olga.page.get_by_text("Step time in figures").click()
    Beat.objects.update(host="host-b")
    olga.wait_for_poll("/health/?window=1h", 31)
    olga.sees("host-b")
    expect(olga.page.locator("details[open]")).to_have_count(1)


def test_the_page_is_whole_without_a_script(visit, watched, people):
    olga = visit(people.ops, java_script_enabled=False)
    olga.go("/health/?window=7d")
    olga.sees("Resume rate", "Stuck runs", "Runners alive", "host-a")
    olga.page.get_by_role("link", name="30 days").click()
    expect(olga.page.get_by_role("link", name="30 days")).to_have_attribute("aria-current", "page")
