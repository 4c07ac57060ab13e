"""What ops do in the console and on a run's page, and that an auditor sees all of it and is offered nothing of it."""

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from racing import parts
from stage import Stage, fresh
from visits import sideways
from worker_process import WorkerProcess

from runs import engine, repair
from runs.actions import ACTIONS
from runs.models import Batch, Run
from runs.testing import drain

pytestmark = pytest.mark.browser

WIDTHS = (390, 768, 1280)
AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
"""What the dark scheme can change."""
PICTURES = os.environ.get("PICTURES")
"""A folder: there each page is kept as a picture, for people to look at."""


@pytest.fixture
def zoo(people):
    """Runs in every state that an operator meets."""
    with Stage(people) as stage:
        parts(stage)
        for key, part in (
            ("dead-1", "dead"),
            ("dead-2", "dead"),
            ("dead-3", "dead"),
            ("sleeps-1", "sleeping"),
            ("capped-1", "capped"),
            ("waits-1", "waiting"),
            ("waits-2", "waiting"),
            ("paused-1", "waiting"),
            ("done-1", "waiting"),
        ):
            given = {"part": part, "claim": "0042"}
            engine.start(stage.flow, key=key, input=given, team=people.team, by=people.ops, tags={"claim": "0042"})
        drain()
        engine.cancel("done-1", by=people.ops, why="entered twice")
        repair.pause("paused-1", by=people.ops, why="wait for the adjuster")
        later = fresh(Run.objects.get(key="waits-2")).due_at + timedelta(days=1)
        repair.extend("waits-2", until=later, by=people.ops, why="the adjuster is ill")
        repair.raise_cap("waits-2", steps=90, by=people.ops, why="it loops more than most")
        yield stage


def begun(people):
    """Bulk work that has ended."""
    from runs import bulk

    return bulk.begin(
        "discard", Run.objects.filter(status="dead"), shown=3, token="0" * 16, by=people.ops, why="x", chosen="3 ticked"
    )


PAGES = (
    "/runs/?status=waiting",
    "/runs/?status=stuck",
    "/runs/?status=overdue",
    "/runs/?q=nothing&status=dead",
    "/runs/bulk/new/?do=discard&scope=all&status=dead",
    "/runs/bulk/new/?do=discard&scope=ticked",
    "/runs/dead-1/",
    "/runs/waits-2/",
    "/runs/sleeps-1/",
    "/runs/capped-1/",
    "/runs/paused-1/",
    "/runs/done-1/",
    "/runs/findings/",
    "/runs/waits-1/cancel/",
    "/runs/waits-1/extend/",
    "/runs/paused-1/resume/",
    "/runs/dead-1/discard/",
    "/runs/capped-1/raise-cap/",
    "/runs/waits-1/redrive/",
    "/runs/dead-1/fork/",
    "/runs/bulk/",
    "/runs/bulk/1/",
    "/health/?window=1h",
    "/health/?window=7d",
    "/health/?window=30d",
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_of_ops_is_accessible_and_fits_at_three_widths(visit, zoo, people, scheme):
    begun(people)
    olga, axe, found = visit(people.ops, color_scheme=scheme), AXE if scheme == "light" else COLOURS, {}
    for path in PAGES:
        if path.endswith(("scope=ticked", "/redrive/")):
            with olga.refused(409):
                olga.go(path)
        else:
            olga.go(path)
        for width in WIDTHS:
            olga.page.set_viewport_size({"width": width, "height": 900})
            violations = Axe().run(olga.page, options=axe).response["violations"]
            told = [f"{each['id']}: {node['html'][:120]}" for each in violations for node in each["nodes"]]
            if told or sideways(olga.page) > 0:
                found[path, width] = [*told, f"{sideways(olga.page)} px too wide"]
        keep_picture(olga, f"{path.strip('/').replace('/', '-').replace('?', '-')}-{scheme}")
    assert found == {}


def keep_picture(visit, name):
    if PICTURES:
        for width in (390, 1280):
            visit.page.set_viewport_size({"width": width, "height": 900})
            visit.page.screenshot(path=Path(PICTURES) / f"{name}-{width}.png", full_page=True)


def test_an_auditor_sees_the_runs_and_is_offered_no_action(visit, zoo, people):
    aud = visit(people.auditor)
    aud.go("/runs/?status=dead")
    aud.sees("dead-1", "3 shown")
    expect(aud.page.locator("input[type=checkbox].row-select, .bulk-bar")).to_have_count(0)
    aud.page.get_by_role("link", name="dead-1").click()
    aud.sees("Dead letter", within="#run-header")
    expect(aud.page.locator("[id^=act-]")).to_have_count(0)
    for path in (*(f"/runs/dead-1/{action}/" for action in ACTIONS), "/runs/bulk/new/?do=discard&status=dead"):
        with aud.refused(403):
            aud.go(path)
        aud.sees("takes the right to operate runs")
        expect(aud.page.locator("main form")).to_have_count(0)
    with aud.page.expect_download() as download:
        aud.go("/runs/?status=dead")
        aud.page.get_by_role("link", name="All as CSV").click()
    assert len(download.value.path().read_text().splitlines()) == 4


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_ops_redrive_what_is_ticked_and_watch_it_to_its_end(visit, zoo, people, script):
    olga = visit(people.ops, java_script_enabled=script)
    olga.go("/runs/?status=dead")
    olga.page.get_by_label("Tick run dead-1").check()
    olga.page.get_by_label("Tick run dead-3").check()
    olga.page.get_by_label("Act on many").select_option("Discard")
    olga.page.get_by_role("button", name=re.compile("Those ticked")).click()
    olga.sees("Discard: 2 runs?", "dead-1", "dead-3")
    olga.page.get_by_label("Reason").fill("entered twice")
    olga.page.get_by_role("button", name="Discard: 2 runs").click()
    olga.is_at(r"/runs/bulk/\d+/$")
    olga.sees("of 2 treated")
    with WorkerProcess():
        if not script:
            olga.waits_until(lambda: Batch.objects.get().run.is_final)
            olga.page.reload()
        olga.sees("2 of 2 treated, 100 %", "Discarded")
    statuses = dict(Run.objects.filter(key__startswith="dead").values_list("key", "status"))
    assert statuses == {"dead-1": "cancelled", "dead-2": "dead", "dead-3": "cancelled"}


def test_a_tick_survives_the_poll_and_the_search(visit, zoo, people):
    olga = visit(people.ops)
    olga.page.clock.install()
    olga.go("/runs/?status=dead")
    olga.page.get_by_label("Tick run dead-2").check()
    olga.sees("Those ticked (1)")
    olga.wait_for_poll("/runs/rows/", 10)
    olga.sees("Updated")
    expect(olga.page.get_by_label("Tick run dead-2")).to_be_checked()


def test_filters_change_the_address_so_that_a_link_is_the_view(visit, zoo, people):
    olga = visit(people.ops)
    olga.go("/runs/")
    olga.page.get_by_label("Waits for").select_option("Cap")
    olga.is_at(r"/runs/\?.*wait=cap")
    olga.sees("capped-1", "1 shown")
    olga.page.get_by_role("searchbox").fill("0042")
    olga.is_at(r"/runs/\?.*q=0042")
    address = olga.page.url
    other = visit(people.auditor)
    other.go(address[address.index("/runs/") :])
    other.sees("capped-1", "1 shown")


def test_one_walk_without_a_mouse_from_the_list_to_a_resumed_run(visit, zoo, people):
    olga = visit(people.ops)
    keys = olga.page.keyboard
    olga.go("/runs/?status=paused")
    keys.press("j")
    keys.press("x")
    expect(olga.page.get_by_label("Tick run paused-1")).to_be_checked()
    keys.press("Enter")
    olga.is_at("/runs/paused-1/$")
    olga.page.locator("#act-resume").focus()
    keys.press("Enter")
    olga.is_at("/runs/paused-1/resume/$")
    olga.page.get_by_label("Reason").focus()
    keys.type("the adjuster is back")
    keys.press("Enter")
    olga.is_at("/runs/paused-1/$")
    olga.sees("Waiting for event", within="#run-header")
    assert fresh(Run.objects.get(key="paused-1")).transitions.last().why == "the adjuster is back"


def test_the_operator_who_comes_second_is_told_who_was_first(visit, zoo, people):
    olga = visit(people.ops)
    olga.go("/runs/waits-1/pause/")
    repair.pause("waits-1", by=people.superuser, why="the flood office called")
    olga.page.get_by_label("Reason").fill("too")
    with olga.refused(409):
        olga.page.get_by_role("button", name="Pause", exact=True).click()
    olga.sees("root acted on it (now paused: the flood office called)")


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_a_fork_with_a_corrected_input_is_seen_before_it_is_made(visit, zoo, people, script):
    olga = visit(people.ops, java_script_enabled=script)
    olga.go("/runs/dead-1/fork/")
    olga.page.get_by_label("Key of the new run").fill("mended-1")
    olga.page.get_by_label("Input").fill('{"part": "waiting", "claim": "0043"}')
    olga.page.get_by_role("button", name="See what it would do").click()
    olga.sees("Input: corrected", '+   "claim": "0043"', "No effect would happen a second time")
    olga.page.get_by_label("Reason").fill("the claim was mistyped")
    olga.page.get_by_role("button", name="Fork at step 1").click()
    olga.is_at("/runs/mended-1/$")
    assert Run.objects.get(key="mended-1").input == {"part": "waiting", "claim": "0043"}
