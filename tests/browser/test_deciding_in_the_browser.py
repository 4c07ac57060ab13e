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
    return [(line["key"], line["amount_minor"], line["payee"]) for line in sandbox.payments()]


ONE_PAYMENT = [("claim-0042:step6", 184_000, "policyholder-0042")]


def open_from_the_inbox(ada, people):
    """From the front door to the open approval."""
    ada.go("/")
    ada.is_at(r"/sign-in/\?next=/$")
    ada.sign_in("ada", people.password)
    ada.is_at("/inbox/$")
    ada.page.get_by_role("link", name="Pay 1,840.00 USD to policyholder-0042").click()
    ada.is_at(r"/approvals/\d+/$")


def see_the_run_completed(ada):
    ada.page.get_by_role("link", name="claim-0042", exact=True).first.click()
    ada.is_at("/runs/claim-0042/$")
    ada.sees("Completed", within="#run-header")


def test_signing_in_and_approving_completes_the_run_within_seconds(visit, claim, people, runner, sandbox):
    approval, ada = claim(), visit()
    open_from_the_inbox(ada, people)
    ada.sees(approval.payload, approval.payload_digest, within="section:has(#sign-title)")
    ada.approve()
    ada.is_signed_for()
    see_the_run_completed(ada)
    assert paid(sandbox) == ONE_PAYMENT


def test_without_javascript_plain_forms_lead_all_the_way(visit, claim, people, worker, sandbox):
    ada = visit(java_script_enabled=False)
    claim()
    open_from_the_inbox(ada, people)
    ada.approve()
    ada.is_signed_for()
    eventually(lambda: Run.objects.get().is_final)
    see_the_run_completed(ada)
    assert paid(sandbox) == ONE_PAYMENT


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


@pytest.mark.parametrize("script", [True, False], ids=["with-script", "without-script"])
def test_a_rejection_needs_a_reason_and_then_ends_the_run_unpaid(visit, claim, people, sandbox, script):
    approval, ada = claim(), visit(people.adjuster, java_script_enabled=script)
    ada.go(f"/approvals/{approval.pk}/")
    with ada.refused(422):
        ada.reject("  ")
    summary = ada.page.locator("#error-summary")
    expect(summary).to_be_focused()
    ada.sees("There is a problem", "Say why you reject this.", within="#error-summary")
    assert ada.page.title().startswith("Error: ")
    summary.get_by_role("link").click()
    expect(ada.reason).to_be_focused()
    assert Decision.objects.count() == 0
    ada.reason.fill("the water line does not match")
    ada.reject_button.click()
    ada.is_signed_for()
    ada.sees("Rejected and signed", "the water line does not match")
    drain()
    ada.go("/runs/claim-0042/")
    ada.sees("Completed: rejected", within="#run-header")
    assert sandbox.payments() == []


@pytest.mark.parametrize("script", [True, False], ids=["with-script", "without-script"])
def test_what_was_typed_survives_a_refused_form(visit, claim, people, script):
    approval, ada = claim(), visit(people.adjuster, java_script_enabled=script)
    ada.go(f"/approvals/{approval.pk}/")
    long = "x" * 4001
    with ada.refused(422):
        ada.reject(long)
    ada.sees("The comment has 4001 characters; 4000 is the most.", within="#error-summary")
    expect(ada.reason).to_have_value(long)


def test_a_double_click_signs_once(visit, claim, people, sandbox):
    approval, ada = claim(), visit(people.adjuster)
    ada.go(f"/approvals/{approval.pk}/")
    ada.tick()
    ada.approve_button.dblclick()
    ada.is_signed_for()
    drain()
    assert Decision.objects.count() == 1
    assert paid(sandbox) == ONE_PAYMENT


def test_a_double_click_without_javascript_signs_once(visit, claim, people):
    approval, ada = claim(), visit(people.adjuster, java_script_enabled=False)
    ada.go(f"/approvals/{approval.pk}/")
    ada.tick()
    ada.approve_button.dblclick()
    ada.is_signed_for()
    assert Decision.objects.count() == 1


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


@pytest.mark.parametrize("script", [True, False], ids=["with-script", "without-script"])
def test_a_fact_that_changed_since_it_was_shown_is_shown_and_asked_again(visit, claim, people, sandbox, script):
    approval, ada = claim(), visit(people.adjuster, java_script_enabled=script)
    ada.go(f"/approvals/{approval.pk}/")
    Claim.objects.update(payee="somebody-else")
    with ada.refused(412):
        ada.approve()
    ada.sees("The facts changed since you saw them", "Nothing was decided", within="#notice")
    ada.sees("policyholder-0042", "somebody-else", "~ Changed", within="tr:has-text('Payee')")
    expect(ada.page.get_by_label("I have read the action")).not_to_be_checked()
    assert Decision.objects.count() == 0
    ada.approve()
    ada.is_signed_for()
    drain()
    # The run compares with the facts that were signed, and sends the bytes that were approved.
    assert Run.objects.get().status == "completed"
    assert paid(sandbox) == ONE_PAYMENT
