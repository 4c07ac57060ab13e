"""What is neither yes nor no, in real Chromium: propose otherwise, ask for changes, withdraw, and two who must sign;
with a script, without one, and without a mouse. And a case that is taken away verifies."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.core.management import call_command
from playwright.sync_api import expect
from stage import Stage, fresh, question
from visits import sideways

from approvals import proposals, verifier
from approvals.facts import current
from approvals.models import Approval, Decision
from approvals.testing import answer
from runs.testing import drain, move_clock

pytestmark = pytest.mark.browser

WIDTHS = (390, 768, 1280)
SEVERE = {"serious", "critical"}
SCRIPT = pytest.mark.parametrize("script", [True, False])


def begin_to_propose(ada, approval):
    ada.go(f"/approvals/{approval.pk}/")
    ada.page.locator("summary", has_text="Propose otherwise").click()
    ada.page.get_by_role("link", name="Change what is asked").click()
    ada.is_at(f"/approvals/{approval.pk}/edit/$")


@SCRIPT
def test_another_amount_is_typed_seen_signed_approved_by_another_and_paid(visit, claim, people, sandbox, script):
    approval, ada = claim(), visit(people.adjuster, java_script_enabled=script)
    begin_to_propose(ada, approval)
    expect(ada.page.get_by_label("Amount in USD")).to_have_value("1,840.00")
    ada.page.get_by_label("Amount in USD").fill("1.500,00")
    ada.page.get_by_label("Why do you propose this?").fill("the cellar was counted twice")
    with ada.refused(422):
        ada.page.get_by_role("button", name="See what would change").click()
    expect(ada.page.locator("#error-summary")).to_be_focused()
    ada.page.locator("#error-summary").get_by_role("link", name="Amount: Write an amount of USD").click()
    expect(ada.page.get_by_label("Amount in USD")).to_be_focused()
    expect(ada.page.get_by_label("Amount in USD")).to_have_value("1.500,00")
    ada.page.get_by_label("Amount in USD").fill("1,500.00")
    ada.page.get_by_role("button", name="See what would change").click()
    ada.sees("$1,840.00", "$1,500.00", "~ Changed", within="section:has(#changes-title)")
    ada.page.get_by_role("button", name="Change it").click()
    ada.page.get_by_label("Amount in USD").fill("1,499.00")
    ada.page.get_by_role("button", name="See what would change").click()
    assert not Decision.objects.exists()
    ada.page.get_by_role("button", name="Sign and propose $1,499.00").click()
    ada.is_signed_for()
    second = question(approval.run)
    ada.go(f"/approvals/{second.pk}/")
    ada.sees("Whoever changed what is asked may not approve it", within="#decision")
    ben = visit(people.second_adjuster, java_script_enabled=script)
    ben.go(f"/approvals/{second.pk}/")
    ben.sees("Proposed by ada instead of", "$1,840.00", "$1,499.00", within="section:has(#replaces-title)")
    ben.approve()
    ben.is_signed_for()
    drain()
    assert fresh(approval.run).status == "completed"
    assert [line["amount_minor"] for line in sandbox.payments()] == [149_900]


def test_the_keyboard_alone_proposes(visit, claim, people):
    approval, ada = claim(), visit(people.adjuster)
    press, typed = ada.page.keyboard.press, ada.page.keyboard.type
    ada.go(f"/approvals/{approval.pk}/")
    press("e")
    expect(ada.page.get_by_role("link", name="Change what is asked")).to_be_focused()
    press("Enter")
    ada.is_at("/approvals/1/edit/$")
    ada.page.locator("#main").focus()
    while ada.page.evaluate("document.activeElement.id") != "id_argument-amount_minor":
        press("Tab")
    press("Control+a")
    typed("1,500.00")
    for _ in range(4):
        press("Tab")
    expect(ada.page.get_by_label("Why do you propose this?")).to_be_focused()
    typed("less")
    press("Tab")
    press("Enter")
    ada.sees("$1,500.00", within="section:has(#changes-title)")
    ada.page.locator("#decision a, #decision button").first.focus()
    expect(ada.page.get_by_role("button", name="Sign and propose")).to_be_focused()
    press("Enter")
    ada.is_signed_for()
    assert question(approval.run).amount_minor == 150_000


@SCRIPT
def test_changes_are_asked_for_and_the_run_goes_back_with_the_words(visit, claim, people, script):
    approval, ada = claim(), visit(people.adjuster, java_script_enabled=script)
    ada.go(f"/approvals/{approval.pk}/")
    ada.page.locator("summary", has_text="Ask for changes").click()
    with ada.refused(422):
        ada.page.get_by_role("button", name="Sign and send back").click()
    ada.sees("Say which changes you ask for", within="#error-summary")
    ada.page.get_by_label("Which changes do you ask for?").fill("add the photos of the cellar")
    ada.page.get_by_role("button", name="Sign and send back").click()
    ada.is_signed_for()
    ada.sees("add the photos of the cellar")
    drain()
    second = question(approval.run)
    ada.go(f"/approvals/{approval.pk}/")
    ada.sees("ada asked for changes", within="#notice")
    ada.page.get_by_role("link", name="Open what is asked now").click()
    ada.is_at(f"/approvals/{second.pk}/$")


@SCRIPT
def test_whoever_asked_withdraws_and_the_run_ends_unpaid(visit, claim, people, sandbox, script):
    approval, rick = claim(), visit(people.requester, java_script_enabled=script)
    rick.go(f"/approvals/{approval.pk}/")
    rick.sees("Whoever asked for this may not approve it", within="#decision")
    rick.page.locator("summary", has_text="Withdraw").click()
    rick.page.get_by_label("Why do you withdraw it?").fill("asked in error")
    rick.page.get_by_role("button", name="Sign and withdraw").click()
    rick.is_signed_for()
    drain()
    rick.go("/runs/claim-0042/")
    rick.sees("withdrawn", within="#run-header")
    assert sandbox.payments() == []


@SCRIPT
def test_two_must_sign_and_the_first_is_told_that_another_has_to(visit, people, sandbox, script):
    with Stage(people) as stage:
        stage.asks_then_pays(facts=None, required=2)
        approval = stage.asked("claim-0042")
        ada, ben = (visit(each, java_script_enabled=script) for each in (people.adjuster, people.second_adjuster))
        ada.go(f"/approvals/{approval.pk}/")
        ada.sees("0 of 2 people have approved", within="section:has(#who-title)")
        ada.approve()
        ada.is_signed_for()
        ada.go(f"/approvals/{approval.pk}/")
        ada.sees("You have signed. Another person has to as well.", within="#decision")
        assert fresh(approval.run).status == "waiting"
        ben.go(f"/approvals/{approval.pk}/")
        ben.sees("ada approved", "1 of 2 people have approved", within="section:has(#who-title)")
        ben.approve()
        ben.is_signed_for()
        ben.sees("Signatures under this approval", "ada, entry 1", "ben, entry 2")
        drain()
        assert (fresh(approval.run).status, len(stage.receiver.received)) == ("completed", 1)


@SCRIPT
def test_a_page_whose_action_was_changed_meanwhile_cannot_sign_the_new_one(visit, claim, people, script):
    approval, ada = claim(), visit(people.adjuster, java_script_enabled=script)
    ada.go(f"/approvals/{approval.pk}/")
    arguments = approval.payload.split('"arguments":')[1].split(',"tool"')[0].replace("184000", "9100000")
    digests = {"payload_digest": approval.payload_digest, "facts_digest": current(approval).digest}
    proposals.edit(approval.pk, user=people.second_adjuster, comment="more", arguments=arguments, **digests)
    with ada.refused(409):
        ada.approve()
    ada.sees("ben proposed something else", "Your answer changed nothing", within="#notice")
    ada.page.get_by_role("link", name="Open what is asked now").click()
    ada.sees("$91,000.00", "Proposed by ben instead of")
    assert list(Decision.objects.values_list("verdict", flat=True)) == ["edit"]


@SCRIPT
def test_a_case_taken_away_in_the_browser_verifies_elsewhere(visit, claim, people, tmp_path, script):
    decision = answer(claim(), people.adjuster)
    drain()
    ada = visit(people.adjuster, java_script_enabled=script)
    ada.go(f"/receipts/{decision.entry_id}/")
    ada.page.get_by_role("link", name="download the case").click()
    ada.is_at("/cases/claim-0042/$")
    with ada.page.expect_download() as taken:
        ada.page.get_by_role("button", name="Download claim-0042.zip").click()
    taken.value.save_as(tmp_path / "claim-0042.zip")
    call_command("signing_key", "show", "--trust-file", str(tmp_path / "trust.json"))
    (tmp_path / "verifier.py").write_bytes(Path(verifier.__file__).read_bytes())
    command = [sys.executable, "-I", "verifier.py", "claim-0042.zip", "trust.json"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0


@pytest.fixture
def pages(claim, people):
    """The form and what leads to it, and an approval closed in each way that has a page of its own."""
    waiting, sent_back, withdrawn, changed, expired = (claim(f"004{number}") for number in range(1, 6))
    shown = {each: {"payload_digest": each.payload_digest} for each in (sent_back, withdrawn, changed)}
    with_facts = {each: shown[each] | {"facts_digest": current(each).digest} for each in (sent_back, changed)}
    proposals.respond(sent_back.pk, user=people.adjuster, comment="photos", **with_facts[sent_back])
    proposals.withdraw(withdrawn.pk, user=people.requester, comment="in error", **shown[withdrawn])
    arguments = changed.payload.split('"arguments":')[1].split(',"tool"')[0].replace("184000", "150000")
    said = {"comment": "less", "arguments": arguments}
    proposals.edit(changed.pk, user=people.second_adjuster, **said, **with_facts[changed])
    drain()
    Approval.objects.filter(pk=expired.pk).update(due_at=expired.asked_at + timedelta(hours=1))
    move_clock(timedelta(hours=2))
    closed = [f"/approvals/{each.pk}/" for each in (sent_back, withdrawn, changed, expired)]
    newer = f"/approvals/{question(changed.run).pk}/"
    return waiting, [*closed, newer, "/cases/claim-0041/", f"/approvals/{waiting.pk}/edit/"]


def faults(visit):
    """What axe finds serious at each width, and how much the page is wider than it."""
    found = {}
    for width in WIDTHS:
        visit.page.set_viewport_size({"width": width, "height": 900})
        visit.open_everything()
        severe = [each for each in Axe().run(visit.page).response["violations"] if each["impact"] in SEVERE]
        told = [f"{each['id']}: {node['html'][:120]}" for each in severe for node in each["nodes"]]
        if told or sideways(visit.page) > 0:
            found[visit.page.url, width] = [*told, f"{sideways(visit.page)} px too wide"]
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_the_form_the_preview_and_closed_pages(visit, pages, people, scheme):
    (waiting, addresses), ada, found = pages, visit(people.adjuster, color_scheme=scheme), {}
    for address in addresses:
        ada.go(address)
        found |= faults(ada)
    ada.page.get_by_label("Amount in USD").fill("x")
    with ada.refused(422):
        ada.page.get_by_role("button", name="See what would change").click()
    found |= faults(ada)
    ada.page.get_by_label("Amount in USD").fill("1,500.00")
    ada.page.get_by_label("Why do you propose this?").fill("w" * 300)
    ada.page.get_by_role("button", name="See what would change").click()
    ada.sees("Sign your proposal")
    found |= faults(ada)
    assert found == {}
    assert waiting.decisions.count() == 0
