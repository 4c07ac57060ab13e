"""An adjuster's day in real Chromium: sign in, open, decide; with a script, without one, and without a mouse."""

import pytest
from playwright.sync_api import expect
from runner_process import eventually

from approvals.models import Decision
from durable_site.claims.models import Claim
from runs.models import Run
from runs.testing import drain

pytestmark = pytest.mark.browser


def paid(sandbox):
    return sorted((line["key"], line["amount_minor"], line["payee"]) for line in sandbox.payments())


PAYMENTS = [(f"claim-{claim}:step6", 184_000, f"policyholder-{claim}") for claim in ("0041", "0042")]


def open_from_the_inbox(ada, people):
    """From the front door to the open approval."""
    ada.go("/")
    ada.is_at(r"/sign-in/\?next=/$")
    ada.sign_in("ada", people.password)
    ada.is_at("/inbox/$")
    ada.page.get_by_role("link", name="Pay 1,840.00 USD to policyholder-0042").click()
    ada.is_at(r"/approvals/\d+/$")


def see_the_run(ada, status):
    """From the receipt on to the run."""
    ada.page.get_by_role("link", name="claim-00").first.click()
    ada.is_at(r"/runs/claim-\d+/$")
    ada.sees(status, within="#run-header")


def test_signing_in_and_approving_completes_the_run_within_seconds(visit, claim, people, runner, sandbox):
    approval, ada = claim(), visit()
    open_from_the_inbox(ada, people)
    ada.sees(approval.payload, approval.payload_digest, within="section:has(#sign-title)")
    ada.approve()
    ada.is_signed_for()
    see_the_run(ada, "Completed")
    assert paid(sandbox) == PAYMENTS[1:]


def test_without_javascript_plain_forms_lead_all_the_way(visit, claim, people, worker, sandbox):
    ada = visit(java_script_enabled=False)
    claim()
    open_from_the_inbox(ada, people)
    ada.approve()
    ada.is_signed_for()
    eventually(lambda: Run.objects.get().is_final)
    see_the_run(ada, "Completed")
    assert paid(sandbox) == PAYMENTS[1:]


def test_the_keyboard_alone_is_enough(visit, claim, people):
    claim("0041")
    claim("0042")
    ada = visit()
    press, typed = ada.page.keyboard.press, ada.page.keyboard.type
    ada.go("/sign-in/")
    typed("ada")
    press("Tab")
    typed(people.password)
    press("Enter")
    ada.is_at("/inbox/$")
    for key in ("j", "j", "k", "j"):
        press(key)
    press("Enter")
    ada.is_at(r"/approvals/\d+/$")
    ada.sees("claim-0042")
    press("a")
    expect(ada.page.get_by_label("I have read the action")).to_be_focused()
    press("Space")
    press("Tab")
    typed("seen on site")
    press("Tab")
    expect(ada.approve_button).to_be_focused()
    press("Enter")
    ada.is_signed_for()
    assert [(d.user, d.comment) for d in Decision.objects.all()] == [(people.adjuster, "seen on site")]


def test_no_key_signs_anything(visit, claim, people):
    claim()
    ada = visit(people.adjuster)
    ada.go("/inbox/")
    ada.page.keyboard.press("j")
    ada.page.keyboard.press("Enter")
    ada.is_at(r"/approvals/\d+/$")
    for key in ("a", "Enter", "Escape", "r"):
        ada.page.keyboard.press(key)
    expect(ada.reason).to_be_focused()
    assert Decision.objects.count() == 0


def test_a_rejection_needs_a_reason_and_then_ends_the_run_unpaid(readers, sandbox):
    for ada in readers:
        with ada.refused(422):
            ada.reject("  ")
        summary = ada.page.locator("#error-summary")
        expect(summary).to_be_focused()
        ada.sees("There is a problem", "Say why you reject this.", within="#error-summary")
        assert ada.page.title().startswith("Error: ")
        summary.get_by_role("link").click()
        expect(ada.reason).to_be_focused()
    assert Decision.objects.count() == 0
    for ada in readers:
        ada.reason.fill("the water line does not match")
        ada.reject_button.click()
        ada.is_signed_for()
        ada.sees("Rejected and signed", "the water line does not match")
    drain()
    for ada in readers:
        see_the_run(ada, "Completed: rejected")
    assert sandbox.payments() == []


def test_what_was_typed_survives_a_refused_form(readers):
    long = "x" * 4001
    for ada in readers:
        with ada.refused(422):
            ada.reject(long)
        ada.sees("The comment has 4001 characters; 4000 is the most.", within="#error-summary")
        expect(ada.reason).to_have_value(long)


def test_a_double_click_signs_once(readers, sandbox):
    for ada in readers:
        ada.tick()
        ada.approve_button.dblclick()
        ada.is_signed_for()
    drain()
    assert Decision.objects.count() == 2
    assert paid(sandbox) == PAYMENTS


def test_going_back_and_sending_the_form_again_leads_calmly_to_the_same_receipt(visit, claim, people):
    approval, ada = claim(), visit(people.adjuster, java_script_enabled=False)
    ada.go("/inbox/")
    ada.go(f"/approvals/{approval.pk}/")
    ada.approve()
    ada.is_signed_for()
    receipt = ada.page.url
    ada.page.go_back()
    ada.is_at(r"/approvals/\d+/$")
    ada.approve()
    ada.is_signed_for()
    assert ada.page.url == receipt
    assert Decision.objects.count() == 1


def test_a_fact_that_changed_since_it_was_shown_is_shown_and_asked_again(readers, sandbox):
    Claim.objects.update(payee="somebody-else")
    for ada in readers:
        with ada.refused(412):
            ada.approve()
        ada.sees("The facts changed since you saw them", "Nothing was decided", within="#notice")
        ada.sees("policyholder-004", "somebody-else", "~ Changed", within="tr:has-text('Payee')")
        expect(ada.page.get_by_label("I have read the action")).not_to_be_checked()
    assert Decision.objects.count() == 0
    for ada in readers:
        ada.approve()
        ada.is_signed_for()
    drain()
    # The runs compare with the facts that were signed, and send the bytes that were approved.
    assert {run.status for run in Run.objects.all()} == {"completed"}
    assert paid(sandbox) == PAYMENTS
