"""The inbox worked by keyboard alone, with and without a script, and held to the rules of accessibility at each width
and in both schemes."""

from datetime import UTC, datetime, timedelta

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from visits import sideways

from approvals import assignment
from approvals.models import Absence, AssignmentEvent, InboxEntry
from approvals.testing import answer
from runs.testing import move_clock

pytestmark = pytest.mark.browser

ROWS = "/inbox/rows/"
WIDTHS = (390, 768, 1280)
SEVERE = {"serious", "critical"}


def holders():
    return {entry.approval.run.key: str(entry.holder or "") for entry in InboxEntry.objects.select_related("holder")}


def test_the_inbox_is_worked_without_a_mouse(visit, claim, people):
    approvals = [claim(f"004{number}") for number in (1, 2, 3)]
    ada = visit(people.adjuster)
    keyboard = ada.page.keyboard
    ada.go("/inbox/")
    for key in "jxjx":
        keyboard.press(key)
    ada.sees("2 selected", within=".bulk-bar")
    keyboard.press("k")
    expect(ada.page.locator(f"#approval-{approvals[0].pk} .row-link")).to_be_focused()
    ada.page.locator("#assign-to").focus()
    keyboard.press("Tab")
    keyboard.press("Enter")
    ada.sees("2 approvals assigned to ada (you)", within="#inbox-panel")
    ada.sees("Mine 2", within="#inbox-tabs")
    ada.sees("2 assigned to ada", within="#live")
    expect(ada.page.locator(".bulk-bar")).to_be_hidden()
    keyboard.press("/")
    keyboard.type("0043")
    ada.sees("1 shown", within="#inbox-rows")
    for key in ("Tab", "Tab", "j"):
        keyboard.press(key)
    expect(ada.page.locator(f"#approval-{approvals[2].pk} .row-link")).to_be_focused()
    keyboard.press("Enter")
    ada.is_at(f"/approvals/{approvals[2].pk}/$")
    keyboard.press("[")
    ada.is_at(f"/approvals/{approvals[1].pk}/$")
    keyboard.press("u")
    ada.is_at("/inbox/$")
    assert holders() == {"claim-0041": "ada", "claim-0042": "ada", "claim-0043": ""}


@pytest.mark.parametrize("script", [True, False])
def test_one_is_claimed_released_and_given_to_somebody(visit, claim, people, script):
    approval, ada = claim(), visit(people.adjuster, java_script_enabled=script)
    ada.go(f"/approvals/{approval.pk}/")
    section = ada.page.locator("#assignee")
    for button, words in (("Claim", "Assigned to you since"), ("Release", "Unassigned")):
        section.get_by_role("button", name=button).click()
        ada.sees(words, within="#assignee")
    section.get_by_label("Assign to").select_option(label="ben")
    section.get_by_role("button", name="Assign").click()
    ada.sees("Assigned to ben since", within="#assignee")
    assert [event.kind for event in AssignmentEvent.objects.order_by("pk")] == ["claimed", "released", "assigned"]


@pytest.mark.parametrize("script", [True, False])
def test_whoever_claims_second_is_told_who_was_first(visit, claim, people, script):
    approval, ada = claim(), visit(people.adjuster, java_script_enabled=script)
    ada.go(f"/approvals/{approval.pk}/")
    assignment.claim(approval.pk, by=people.second_adjuster)
    with ada.refused(409):
        ada.page.get_by_role("button", name="Claim").click()
    ada.sees("changed hands since you saw it: ben holds it since", "Assigned to ben since", within="#assignee")


@pytest.mark.parametrize("script", [True, False])
def test_ticked_rows_are_assigned_at_once_and_nothing_there_decides(visit, claim, people, script):
    claim("0041"), claim("0042")
    ada = visit(people.adjuster, java_script_enabled=script)
    ada.go("/inbox/")
    expect(ada.page.locator(".bulk-bar")).to_be_hidden()
    for box in ada.page.get_by_label("Select run").all():
        box.check()
    ada.sees("Approvals are opened and signed one at a time", within=".bulk-bar")
    ada.page.get_by_label("Assign to").select_option(label="ben")
    ada.page.locator(".bulk-bar").get_by_role("button", name="Assign").click()
    ada.sees("2 approvals assigned to ben", within="#told")
    assert set(holders().values()) == {"ben"}
    expect(ada.page.get_by_role("button", name="approve")).to_have_count(0)


@pytest.mark.parametrize("script", [True, False])
def test_a_deputy_is_named_and_has_what_the_one_away_holds(visit, claim, people, script):
    approval, today = claim(), datetime.now(UTC).date()
    assignment.claim(approval.pk, by=people.adjuster)
    ada = visit(people.adjuster, java_script_enabled=script)
    ada.go("/inbox/")
    ada.page.get_by_role("link", name="Name a deputy").click()
    ada.page.get_by_label("Deputy", exact=True).select_option(label="ben")
    ada.page.get_by_label("First day away").fill(today.isoformat())
    ada.page.get_by_label("Last day away").fill((today + timedelta(days=2)).isoformat())
    ada.page.get_by_role("button", name="Name deputy").click()
    ada.sees("ada (you)", "ben")
    ben = visit(people.second_adjuster, java_script_enabled=script)
    ben.go("/inbox/?scope=mine")
    ben.sees("You", "for ada", within=f"#approval-{approval.pk}")
    ada.page.get_by_role("button", name="End now").click()
    ada.sees("Nobody here is away")
    assert not Absence.objects.current().exists()


def test_ticks_and_the_chosen_assignee_outlive_a_poll_and_a_hidden_tab_asks_for_nothing(visit, claim, people):
    claim("0041")
    ada = visit(people.adjuster)
    ada.page.clock.install()
    ada.go("/inbox/")
    ada.page.get_by_label("Select run").check()
    ada.page.get_by_label("Assign to").select_option(label="ben")
    ada.hide_tab(True)
    for _ in range(3):
        ada.wait(30)
    assert ada.polled(ROWS) == 0
    ada.hide_tab(False)
    claim("0042")
    ada.wait_for_poll(ROWS, 20)
    ada.sees("claim-0042", within="#inbox-rows")
    ada.sees("1 selected", within=".bulk-bar")
    expect(ada.page.get_by_label("Select run claim-0041")).to_be_checked()
    expect(ada.page.get_by_label("Select run claim-0042")).not_to_be_checked()
    expect(ada.page.get_by_label("Assign to").locator("option:checked")).to_have_text("ben")


@pytest.fixture
def worked(claim, people):
    """An inbox with one of each: held, free, overdue, decided before; and somebody away. The paths to look at."""
    before, held, _ = (claim(f"004{number}") for number in (1, 2, 3))
    answer(before, people.adjuster, comment="fine")
    assignment.claim(held.pk, by=people.second_adjuster)
    today = datetime.now(UTC).date()
    assignment.delegate(to=people.adjuster, first=today, last=today + timedelta(days=5), by=people.second_adjuster)
    move_clock(timedelta(hours=60))
    paths = [f"/inbox/?scope={scope}" for scope in ("mine", "groups", "all", "overdue")]
    return [*paths, "/inbox/?q=nothing", "/inbox/absences/", f"/approvals/{held.pk}/", f"/approvals/{before.pk}/"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_its_window(visit, worked, people, scheme):
    ada, axe, found = visit(people.adjuster, color_scheme=scheme), Axe(), {}
    for path in worked:
        ada.go(path)
        for width in WIDTHS:
            ada.page.set_viewport_size({"width": width, "height": 900})
            ada.open_everything()
            for box in ada.page.locator(".row-select").all():
                box.check()
            severe = [each for each in axe.run(ada.page).response["violations"] if each["impact"] in SEVERE]
            told = [f"{each['id']}: {node['html'][:120]}" for each in severe for node in each["nodes"]]
            if told or sideways(ada.page) > 0:
                found[path, width] = [*told, f"{sideways(ada.page)} px too wide"]
    assert found == {}
