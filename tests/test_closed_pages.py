"""The page of an approval that was closed says how, by whom, when, and where it goes on; for each way of closing."""

import re
from datetime import timedelta
from html import unescape

import pytest
from browsing import HTMX, browser, form, text
from stage import Stage, question, shown

from approvals import proposals
from approvals.models import Approval
from approvals.testing import answer
from runs import engine
from runs.sweep import close_overdue_waits
from runs.testing import drain, move_clock
from runs.workflows import goto

AT = r"\d+ \w+ \d{4}, \d\d:\d\d:\d\d UTC"


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


def asks(stage, **terms):
    stage.asks_then_pays(**terms)
    return stage.asked("claim-0042")


def edits(stage):
    approval = asks(stage)
    arguments = approval.payload.split('"arguments":')[1].split(',"tool"')[0].replace("184000", "150000")
    said = {"comment": "counted twice", "arguments": arguments}
    proposals.edit(approval.pk, user=stage.people.adjuster, **said, **shown(approval))
    return approval, rf"ada proposed something else Superseded {AT}\."


def approves(stage):
    approval = asks(stage)
    answer(approval, stage.people.adjuster)
    return approval, rf"ada approved this Approved {AT}\."


def rejects(stage):
    approval = asks(stage)
    answer(approval, stage.people.adjuster, "reject")
    return approval, rf"ada rejected this Rejected {AT}\."


def sends_back(stage):
    approval = asks(stage, on_respond=goto("approve"))
    proposals.respond(approval.pk, user=stage.people.adjuster, comment="photos", **shown(approval))
    drain()
    return approval, rf"ada asked for changes Sent back {AT}\."


def withdraws(stage):
    approval = asks(stage)
    said = {"comment": "in error", "payload_digest": approval.payload_digest}
    proposals.withdraw(approval.pk, user=stage.people.requester, **said)
    return approval, rf"rick withdrew this Withdrawn {AT}\."


def cancels(stage):
    approval = asks(stage)
    engine.cancel("claim-0042", by=stage.people.ops, why="the claim was <b>withdrawn</b>")
    return approval, (
        rf"The run was cancelled while this waited Cancelled by olga {AT}: the claim was <b>withdrawn</b>\. "
        "The question is withdrawn"
    )


def expires(stage):
    approval = asks(stage)
    move_clock(timedelta(days=3))
    close_overdue_waits()
    return approval, rf"This approval expired at {AT} Nobody answered in time\. Nothing was decided"


def expires_half_signed(stage):
    approval = asks(stage, required=2)
    answer(approval, stage.people.adjuster)
    move_clock(timedelta(days=3))
    close_overdue_waits()
    return approval, rf"expired at {AT} 1 of 2 people had approved it: too few answered in time\."


def is_asked_again(stage):
    approval = asks(stage)
    answer(approval, stage.people.adjuster)
    stage.facts["claim"] = "disputed"
    drain()
    return approval, rf"This was asked again ada approved it {AT}, but before it was acted on .* Superseded {AT}\."


CLOSED = [approves, rejects, edits, sends_back, withdraws, cancels, expires, expires_half_signed, is_asked_again]
STATUS = {
    approves: "approved",
    rejects: "rejected",
    edits: "superseded",
    sends_back: "responded",
    withdraws: "withdrawn",
    cancels: "withdrawn",
    expires: "expired",
    expires_half_signed: "expired",
    is_asked_again: "superseded",
}


def spoken(response):
    """What is read, with its brackets, and without the space that a tag leaves before a point."""
    return re.sub(r" ([.,:])", r"\1", unescape(text(response)))


@pytest.mark.parametrize("close", CLOSED)
def test_a_closed_approval_says_how_by_whom_and_when_and_offers_nothing_to_sign(stage, close):
    approval, sentence = close(stage)
    approval.refresh_from_db()
    assert approval.status == STATUS[close]
    page = browser(stage.people.second_adjuster).get(f"/approvals/{approval.pk}/")
    assert re.search(sentence, spoken(page)), spoken(page).split("Inbox")[2][:900]
    assert "Sign and" not in text(page)
    assert "/decide/" not in page.content.decode()
    later = approval.superseded_by_id
    assert (later is not None) == (close in (edits, sends_back, is_asked_again))
    assert ("Open what is asked now" in text(page)) == (later is not None)
    if later:
        assert f'class="btn btn-primary" href="/approvals/{later}/"' in page.content.decode()


@pytest.mark.parametrize("close", CLOSED)
@pytest.mark.parametrize("headers", [None, HTMX])
def test_an_answer_from_a_page_drawn_before_is_refused_with_the_same_sentence(stage, close, headers):
    sent = {}
    original = Stage.asked

    def asked(self, *args, **more):
        approval = original(self, *args, **more)
        sent.update(form(approval, reader=self.people.second_adjuster, comment="my draft"))
        return approval

    stage.asked = asked.__get__(stage)
    approval, sentence = close(stage)
    ben = browser(stage.people.second_adjuster)
    refused = ben.post(f"/approvals/{approval.pk}/decide/", sent, headers=headers)
    assert refused.status_code == (410 if close in (expires, expires_half_signed) else 409)
    assert re.search(sentence, spoken(refused))
    assert "nothing you typed was sent" in text(refused)
    assert "my draft" in text(refused)
    assert Approval.objects.get(pk=approval.pk).status == STATUS[close]


@pytest.mark.parametrize("close", CLOSED)
def test_the_watcher_of_an_open_page_brings_the_sentence_and_a_locked_panel(stage, close):
    approval, sentence = close(stage)
    address = f"/approvals/{approval.pk}/state/?seen={approval.payload_digest}"
    brought = browser(stage.people.second_adjuster).get(address, headers=HTMX)
    assert brought.status_code == 200
    page = spoken(brought)
    is_quiet = close in (cancels, expires, expires_half_signed)
    assert re.search(sentence, page.replace(" while you were reading", "", 0 if is_quiet else 1))
    assert ("while you were reading" in page) != is_quiet
    assert "Decision closed" in page
    assert "/decide/" not in brought.content.decode()


def test_the_newest_of_several_versions_is_reached_by_following_the_links(stage):
    first, _ = edits(stage)
    second = question(first.run)
    arguments = second.payload.split('"arguments":')[1].split(',"tool"')[0].replace("150000", "140000")
    said = {"comment": "less still", "arguments": arguments}
    proposals.edit(second.pk, user=stage.people.second_adjuster, **said, **shown(second))
    third, client, address = question(first.run), browser(stage.people.ops), f"/approvals/{first.pk}/"
    for _ in range(2):
        page = client.get(address).content.decode()
        address = re.search(r'class="btn btn-primary" href="(/approvals/\d+/)">Open what is asked now', page)[1]
    assert address == f"/approvals/{third.pk}/"
    assert "Open what is asked now" not in text(client.get(address))
