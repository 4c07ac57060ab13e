"""The pages: who sees what, that each is whole without a script and inline of nothing, and what each one says."""

import re
from datetime import timedelta

import pytest
from browsing import HTMX, Inline, browser, form, text
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from stage import Stage, freeze_clock, fresh, holding

from approvals.models import Approval, Decision
from approvals.testing import answer
from runs import engine
from runs.models import database_clock
from runs.testing import drain, move_clock


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture
def approval(stage):
    stage.asks_then_pays()
    return stage.asked("claim-0042")


def pages_of(approval, entry_id=None):
    run = f"/runs/{approval.run.key}/"
    return [
        "/inbox/",
        "/inbox/?scope=all&sort=amount",
        "/inbox/?scope=overdue&q=nothing",
        f"/approvals/{approval.pk}/",
        "/runs/",
        "/runs/?status=stuck",
        run,
        *([f"/receipts/{entry_id}/"] if entry_id else []),
    ]


# Who sees what


def test_whoever_has_not_signed_in_is_sent_to_sign_in_and_back(approval):
    for address in pages_of(approval):
        response = Client().get(address)
        assert response.status_code == 302
        assert response["Location"].startswith("/sign-in/?next=/")


def test_a_fragment_after_the_session_has_ended_sends_the_whole_page_to_sign_in(database):
    response = Client().get("/inbox/rows/", headers=HTMX)
    assert response["HX-Redirect"] == "/sign-in/?next=/inbox/%3Fscope%3Dteam"
    assert response.content == b""


def test_a_stranger_gets_404_for_everything_of_another_team(approval, people):
    decision = answer(approval, people.adjuster)
    drain()
    of_approval = ("", "state/?seen=x", "payload.json")
    hidden = [f"/approvals/{approval.pk}/{part}" for part in of_approval]
    hidden += [f"/receipts/{decision.entry_id}/", f"/receipts/{decision.entry_id}/record.json"]
    hidden += [f"/runs/{approval.run.key}/{part}" for part in ("", "header/", "steps/", "cancel/")]
    for address in hidden:
        assert browser(people.stranger).get(address).status_code == 404, address
        assert browser(people.adjuster).get(address).status_code in (200, 204, 403), address
    assert "claim-0042" not in text(browser(people.stranger).get("/inbox/?scope=all"))
    assert "claim-0042" not in text(browser(people.stranger).get("/runs/"))


def test_a_stranger_who_sends_the_form_gets_404_and_decides_nothing(approval, people):
    sent = form(approval, reader=people.adjuster)
    assert browser(people.stranger).post(f"/approvals/{approval.pk}/decide/", sent).status_code == 404
    assert Decision.objects.count() == 0


@pytest.mark.parametrize("role", ["ops", "requester", "superuser"])
def test_whoever_may_not_decide_sees_the_rule_instead_of_the_form(approval, people, role):
    page = browser(getattr(people, role)).get(f"/approvals/{approval.pk}/")
    assert page.status_code == 200
    assert "Decision locked" in text(page)
    assert f"/approvals/{approval.pk}/decide/" not in page.content.decode()


def test_the_audit_pages_refuse_those_who_are_not_staff_instead_of_sending_them_round(people):
    response = browser(people.adjuster).get("/admin/", follow=True)
    assert response.status_code == 403
    assert len(response.redirect_chain) == 1


def test_the_health_check_needs_no_sign_in(database):
    assert Client().get("/healthz").status_code == 200


# One view, two answers; nothing inline


def test_every_page_obeys_its_content_policy(approval, people):
    decision = answer(approval, people.adjuster)
    drain()
    addresses = [*pages_of(approval, decision.entry_id), "/admin/", "/admin/runs/run/", "/runs/nothing/"]
    for address in addresses:
        response = browser(people.superuser).get(address)
        assert "default-src 'none'" in response["Content-Security-Policy"]
        assert Inline(response.content.decode()).found == [], address


@pytest.mark.parametrize(
    ("page", "fragment"),
    [("/inbox/", "/inbox/rows/"), ("/runs/", "/runs/rows/"), ("/runs/claim-0042/", "/runs/claim-0042/steps/")],
)
def test_a_page_includes_the_very_fragment_that_htmx_gets(approval, people, page, fragment):
    client = browser(people.adjuster)
    # Else what is left of the time could differ between the two.
    freeze_clock(database_clock())
    whole, part = client.get(page), client.get(fragment, headers=HTMX)
    block = part.content.decode().split("<nav")[0].strip()
    steady = re.compile(
        r'value="(\d+|\w{64})"|<text.*?</text>|<rect.*?/>|<svg x.*?</svg>|<line.*?/>|[\d.]+ m?s\b|\d+ min'
    )
    assert "<html" not in block
    assert steady.sub("", block) in steady.sub("", whole.content.decode())
    assert "HX-Request" in part["Vary"]
    assert part["Cache-Control"] == "no-store"


def test_a_run_that_has_ended_is_looked_at_no_more(approval, people):
    client = browser(people.ops)
    assert "every 30s" in client.get("/runs/claim-0042/header/", headers=HTMX).content.decode()
    answer(approval, people.adjuster)
    drain()
    for part in ("header", "steps"):
        assert "hx-trigger" not in client.get(f"/runs/claim-0042/{part}/", headers=HTMX).content.decode()


def test_lists_and_run_pages_take_as_many_queries_for_many_rows_as_for_one(stage, people):
    stage.asks_then_pays()
    stage.asked("first")
    client = browser(people.adjuster)
    addresses = ["/inbox/", "/inbox/rows/", "/runs/", "/runs/rows/"]

    def queries(address):
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert client.get(address).status_code == 200
        return len(captured)

    for address in addresses:
        queries(address)
    few = [queries(address) for address in addresses]
    for number in range(8):
        stage.begin(f"more-{number}")
    assert [queries(address) for address in addresses] == few


# The inbox


def copies(approval, count):
    """More open approvals of the same run, for a list to page through."""
    for number in range(1, count + 1):
        approval.pk, approval.position = None, approval.position + 1
        approval.amount_minor = None if number % 7 == 0 else 1000 * (number % 5)
        approval.due_at += timedelta(minutes=number % 3)
        approval._state.adding = True
        approval.save()
        approval.groups.set(approval.run.team.user_set.get(username="ada").groups.all())


@pytest.mark.parametrize("sort", ["time", "amount"])
def test_paging_shows_every_approval_once_and_in_order(approval, people, sort):
    copies(approval, 119)
    client, address, seen = browser(people.adjuster), f"/inbox/?scope=all&sort={sort}", []
    for _ in range(3):
        page = client.get(address)
        seen += [row.pk for row in page.context["listed"].rows]
        address = f"/inbox/?scope=all&sort={sort}&after={page.context['listed'].after}".replace("+", "%2B")
    ordered = Approval.objects.order_by("due_at", "pk")
    if sort == "amount":
        ordered = ordered.order_by(F("amount_minor").desc(nulls_last=True), "pk")
    assert seen == [row.pk for row in ordered]
    assert page.context["listed"].after == ""


def test_the_tabs_tell_mine_from_my_teams_and_from_what_is_overdue(approval, people):
    approval.groups.clear()
    assert "claim-0042" not in text(browser(people.adjuster).get("/inbox/"))
    assert "claim-0042" in text(browser(people.adjuster).get("/inbox/?scope=all"))
    move_clock(timedelta(days=4))
    page = browser(people.adjuster).get("/inbox/?scope=overdue")
    assert "Expired" in text(page)
    assert "1 overdue" in text(page)


NONSENSE = (
    "after=nonsense",
    "after=,",
    "after=2026-01-01,1",
    "q=%00",
    "sort=x&scope=y",
    "after=1,99999999999999999999",
)


@pytest.mark.parametrize("query", NONSENSE)
def test_an_address_that_makes_no_sense_shows_the_first_page(approval, people, query):
    assert "claim-0042" in text(browser(people.adjuster).get(f"/inbox/?{query}"))


def test_the_countdown_runs_on_the_databases_clock(approval, people):
    move_clock(timedelta(days=3) - timedelta(minutes=30))
    page = browser(people.adjuster).get("/inbox/").content.decode()
    assert 'data-state="urgent"' in page
    assert re.search(r"(29|30) min \d\d s left", page)


# The approval page


def test_the_page_shows_the_exact_bytes_their_number_and_their_digest(approval, people):
    page = browser(people.adjuster).get(f"/approvals/{approval.pk}/")
    assert f"{len(approval.payload.encode())} bytes in all" in text(page)
    assert approval.payload_digest in text(page)
    assert "$1,840.00" in text(page)
    for argument in ("Payee p-1", "Claim 0042", "Currency USD", "Tool test.pay"):
        assert argument in text(page)
    download = browser(people.adjuster).get(f"/approvals/{approval.pk}/payload.json")
    assert download.content == approval.payload.encode()


def test_characters_that_cannot_be_seen_are_spelled_out_and_the_bytes_stay_as_they_are(stage, people):
    stage.asks_then_pays()
    approval = stage.asked("claim-0043", payee="Acme \u202egnp.exe\u202c\u200b <b>")
    page = browser(people.adjuster).get(f"/approvals/{approval.pk}/").content.decode()
    shown = re.sub(r'data-raw="[^"]*"', "", page)
    assert "\u202e" not in shown
    assert "\u200b" not in shown
    assert "\u2039U+202E\u203a" in shown
    assert "U+202E RIGHT-TO-LEFT OVERRIDE" in shown
    assert "<b>" not in re.search(r"<pre.*?</pre>", shown, re.DOTALL)[0]
    download = browser(people.adjuster).get(f"/approvals/{approval.pk}/payload.json").content.decode()
    assert "\u202egnp.exe\u202c\u200b <b>" in download


def test_facts_are_shown_then_and_now_with_what_changed(approval, people, stage):
    stage.facts["claim"] = "closed"
    stage.facts["hold"] = True
    page = text(browser(people.adjuster).get(f"/approvals/{approval.pk}/"))
    assert "Claim open closed ~ Changed" in page
    assert "Hold not there yes + Added" in page
    assert "3 read, 2 differ from when it was asked" in page


def test_facts_read_again_renew_what_the_form_sends_only_when_they_changed(approval, people, stage):
    client, address = browser(people.adjuster), f"/approvals/{approval.pk}/facts/?seen={approval.facts_digest}"
    assert "shown-approve" not in client.get(address, headers=HTMX).content.decode()
    stage.facts["claim"] = "closed"
    assert "shown-approve" in client.get(address, headers=HTMX).content.decode()


def test_the_watcher_is_silent_while_nothing_changed_and_locks_the_panel_when_somebody_decided(approval, people):
    client, address = browser(people.adjuster), f"/approvals/{approval.pk}/state/?seen={approval.payload_digest}"
    assert client.get(address, headers=HTMX).status_code == 204
    answer(approval, people.second_adjuster)
    told = client.get(address, headers=HTMX)
    assert "ben approved this while you were reading" in text(told)
    assert "Decision closed" in text(told)
    assert "hx-trigger" not in told.content.decode()


# Runs


def test_the_list_says_where_each_run_is_and_why(approval, people):
    page = text(browser(people.ops).get("/runs/?status=waiting"))
    for words in ("claim-0042", "under-test v1", "Waiting for approval", "1 of 2", "Waits at step 1"):
        assert words in page


def test_the_list_is_searched_by_the_beginning_of_a_key(approval, people):
    assert "claim-0042" in text(browser(people.ops).get("/runs/?q=claim-00"))
    assert "No run found" in text(browser(people.ops).get("/runs/?q=0042"))


def test_a_run_page_shows_outputs_calls_approvals_and_moves(approval, people):
    answer(approval, people.adjuster)
    drain()
    page = text(browser(people.ops).get("/runs/claim-0042/"))
    for words in ("claim-0042:step2", "test.pay", "Confirmed", "approved by ada", "receipt 1", "Checkpoint 2"):
        assert words in page


def test_cancelling_takes_the_right_and_a_reason(approval, people):
    address = "/runs/claim-0042/cancel/"
    assert "Cancel run" not in text(browser(people.adjuster).get("/runs/claim-0042/"))
    assert browser(people.adjuster).post(address, {"why": "because"}).status_code == 403
    refused = browser(people.ops).post(address, {"why": " "})
    assert (refused.status_code, fresh(approval.run).status) == (422, "waiting")
    done = browser(people.ops).post(address, {"why": "claim withdrawn"})
    assert (done.status_code, fresh(approval.run).status) == (303, "cancelled")
    assert "The run was cancelled while this waited" in text(browser(people.adjuster).get(f"/approvals/{approval.pk}/"))


def test_a_run_that_has_ended_cannot_be_cancelled(approval, people):
    answer(approval, people.adjuster)
    drain()
    assert browser(people.ops).post("/runs/claim-0042/cancel/", {"why": "late"}).status_code == 409


def test_a_run_whose_workflow_this_code_does_not_know_has_its_page(approval, people, stage):
    run = engine.find("claim-0042", None)
    stage.__exit__()
    assert "Approve" in text(browser(people.ops).get(f"/runs/{run.key}/"))
    assert run.key in text(browser(people.ops).get("/runs/"))


# The admin and the database


def test_the_admin_shows_our_rows_and_changes_none(approval, people):
    client = browser(people.superuser)
    answer(approval, people.adjuster)
    drain()
    models = ["run", "checkpoint", "call", "delivery", "transition", "auditevent"]
    addresses = [f"/admin/runs/{model}/" for model in models]
    addresses += [f"/admin/approvals/{model}/" for model in ("approval", "decision", "ledgerentry", "verifyingkey")]
    for address in addresses:
        assert client.get(address).status_code == 200, address
        assert client.get(f"{address}?q=claim").status_code == 200, address
        assert client.get(f"{address}add/").status_code == 403, address
    run = f"/admin/runs/run/{approval.run_id}/"
    assert client.get(f"{run}change/").status_code == 200
    assert client.post(f"{run}change/", {"status": "ready"}).status_code == 403
    assert client.post(f"{run}delete/", {"post": "yes"}).status_code == 403
    assert "django_q" not in client.get("/admin/").content.decode().lower()


def test_a_database_that_fails_within_a_page_is_the_same_plain_503(approval, people, database):
    client = browser(people.adjuster)
    connection.cursor().execute("SET lock_timeout = '50ms'")
    with holding(database, "LOCK TABLE approvals_approval IN ACCESS EXCLUSIVE MODE"):
        response = client.get("/inbox/")
    assert response.status_code == 503
    assert "The database does not answer" in text(response)


def test_a_database_that_is_away_is_a_plain_503(people):
    client, place = browser(people.adjuster), dict(connection.settings_dict)
    connection.close()
    connection.settings_dict.update(HOST="127.0.0.1", PORT="1")
    try:
        for address in ("/inbox/", "/healthz", "/sign-in/"):
            response = client.get(address, headers=HTMX)
            assert response.status_code == 503
            assert "The database does not answer" in text(response)
            assert "Traceback" not in text(response)
            assert response["HX-Reswap"].startswith("none")
    finally:
        connection.settings_dict.update(place)
    assert client.get("/inbox/").status_code == 200
