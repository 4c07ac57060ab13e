"""Deciding at the page: what each answer of the form says, by its status, and the receipt that follows."""

import re
from datetime import timedelta

import pytest
from browsing import HTMX, browser, decide, form, text
from django.test import Client
from stage import Stage, fresh, tamper, withhold

from approvals.models import Decision
from approvals.testing import answer
from runs import engine
from runs.testing import move_clock


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture
def approval(stage):
    stage.asks_then_pays()
    return stage.asked("claim-0042")


def test_an_approval_leads_to_its_receipt_with_303_and_the_run_is_ready(approval, people):
    response = decide(approval, people.adjuster, comment="water line matches")
    entry = Decision.objects.get().entry_id
    assert (response.status_code, response["Location"]) == (303, f"/receipts/{entry}/")
    assert fresh(approval.run).status == "ready"
    receipt = text(browser(people.adjuster).get(response["Location"]))
    assert "Valid" in receipt
    assert "water line matches" in receipt


def test_htmx_is_told_to_go_to_the_receipt(approval, people):
    response = decide(approval, people.adjuster, HTMX)
    assert response["HX-Redirect"] == f"/receipts/{Decision.objects.get().entry_id}/"


def test_sending_the_form_twice_leads_to_the_same_receipt(approval, people):
    sent, client = form(approval, reader=people.adjuster), browser(people.adjuster)
    first, second = (client.post(f"/approvals/{approval.pk}/decide/", sent) for _ in range(2))
    assert (second.status_code, second["Location"]) == (303, first["Location"])
    assert Decision.objects.count() == 1


@pytest.mark.parametrize("headers", [None, HTMX])
def test_a_rejection_without_a_reason_is_422_and_says_so_where_it_is_missing(approval, people, headers):
    response = decide(approval, people.adjuster, headers, verdict="reject")
    page = response.content.decode()
    assert response.status_code == 422
    assert "<title>Error:" in page
    assert 'href="#reject-comment"' in page
    assert 'id="error-summary" tabindex="-1" autofocus' in page
    assert Decision.objects.count() == 0


def test_what_was_typed_is_kept_when_the_form_is_refused(approval, people):
    response = decide(approval, people.adjuster, comment="typed <text> kept", read="")
    assert response.status_code == 422
    assert "typed &lt;text&gt; kept</textarea>" in response.content.decode()
    assert "Tick that you have read" in text(response)


@pytest.mark.parametrize("headers", [None, HTMX])
def test_a_second_answer_is_409_and_says_who_was_first_and_when(approval, people, headers):
    sent = form(approval, reader=people.adjuster, comment="my draft")
    answer(approval, people.second_adjuster)
    response = browser(people.adjuster).post(f"/approvals/{approval.pk}/decide/", sent, headers=headers)
    assert response.status_code == 409
    assert re.search(r"ben approved this Approved \d+ \w+ \d{4}, \d\d:\d\d:\d\d UTC", text(response))
    assert "my draft" in text(response)


@pytest.mark.parametrize("headers", [None, HTMX])
def test_a_late_answer_is_410_though_no_sweep_has_come(approval, people, headers):
    sent = form(approval, reader=people.adjuster)
    move_clock(timedelta(days=3, minutes=1))
    response = browser(people.adjuster).post(f"/approvals/{approval.pk}/decide/", sent, headers=headers)
    assert response.status_code == 410
    assert "This approval expired at" in text(response)
    assert "Sign and approve" not in text(response)


@pytest.mark.parametrize("headers", [None, HTMX])
def test_changed_facts_are_412_with_the_new_facts_and_a_fresh_form(approval, people, stage, headers):
    sent = form(approval, reader=people.adjuster, comment="keep me")
    stage.facts["claim"] = "closed"
    response = browser(people.adjuster).post(f"/approvals/{approval.pk}/decide/", sent, headers=headers)
    page = response.content.decode()
    assert response.status_code == 412
    assert "Claim open closed ~ Changed" in text(response)
    assert "keep me</textarea>" in page
    assert sent["facts_digest"] not in page
    assert "checked" not in page.split('id="read"')[1][:60]


def test_an_action_that_is_not_the_one_shown_is_412_and_is_shown_anew(approval, people):
    response = decide(approval, people.adjuster, HTMX, payload_digest="0" * 64)
    assert response.status_code == 412
    assert "Sign and approve" not in text(response)
    assert "Show it as it is now" in text(response)


@pytest.mark.parametrize("role", ["ops", "requester", "superuser"])
def test_whoever_may_not_decide_and_sends_the_form_gets_403_with_the_rule(approval, people, role):
    sent = form(approval, reader=people.adjuster)
    response = browser(getattr(people, role)).post(f"/approvals/{approval.pk}/decide/", sent)
    assert response.status_code == 403
    assert "You may not decide this" in text(response)
    assert Decision.objects.count() == 0


def test_a_form_from_before_the_sign_in_is_refused_in_the_panels_place(approval, people):
    client = browser(people.adjuster, enforce_csrf_checks=True)
    response = client.post(f"/approvals/{approval.pk}/decide/", {"verdict": "approve"}, headers=HTMX)
    assert response.status_code == 403
    assert response.content.decode().count('id="decision"') == 1
    assert "<html" not in response.content.decode()


def test_the_signed_record_says_how_long_ago_the_person_signed_in(approval, people):
    client = Client()
    client.post("/sign-in/", {"username": "ada", "password": people.password})
    client.post(f"/approvals/{approval.pk}/decide/", form(approval, reader=people.adjuster))
    assert re.search(r'"auth_age":\d,"auth_method":"password"', Decision.objects.get().entry.record)


def test_a_receipt_says_so_when_its_record_was_altered(approval, people, database):
    entry = answer(approval, people.adjuster, comment="as signed").entry
    address = f"/receipts/{entry.pk}/"
    assert "Not valid" not in text(browser(people.adjuster).get(address))
    tamper(database, "UPDATE approvals_ledgerentry SET record = replace(record, 'approve', 'approvf')")
    altered = text(browser(people.adjuster).get(address))
    assert "Not valid" in altered
    assert "Comment as forged" not in altered


def test_a_receipt_stays_readable_when_its_record_is_no_json(approval, people, database):
    entry = answer(approval, people.adjuster).entry
    tamper(database, "UPDATE approvals_ledgerentry SET record = '{'")
    response = browser(people.adjuster).get(f"/receipts/{entry.pk}/")
    assert response.status_code == 200
    assert "Not valid" in text(response)


def test_an_approval_s_receipt_is_that_of_its_last_signature_and_names_the_others(people, stage):
    stage.asks_then_pays(required=2)
    approval = stage.asked("claim-0042")
    address, client = f"/approvals/{approval.pk}/receipt/", browser(people.adjuster)
    assert client.get(address).status_code == 404
    first, second = answer(approval, people.adjuster), answer(approval, people.second_adjuster)
    shown = client.get(address, follow=True)
    assert shown.redirect_chain == [(f"/receipts/{second.entry_id}/", 302)]
    for name, signature in (("ada", first), ("ben", second)):
        assert f"{name}, entry {signature.entry_id}" in text(shown)
    assert "manage.py export_case claim-0042" in text(shown)
    assert browser(people.stranger).get(address).status_code == 404


def test_a_receipt_whose_body_is_withheld_says_so_and_holds(approval, people):
    entry = answer(approval, people.adjuster, comment="private words").entry
    engine.cancel(approval.run.key, why="to end it")
    withhold()
    shown = text(browser(people.adjuster).get(f"/receipts/{entry.pk}/"))
    assert "What was said in clear is withheld" in shown
    assert "Not valid" not in shown
    assert "private words" not in shown
