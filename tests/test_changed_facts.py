"""Facts that changed since they were signed: asked again with the difference, as good as rejected, or harmless."""

from datetime import timedelta
from inspect import Parameter, signature

import pytest
from browsing import browser, text
from stage import Stage, change, fresh, press, question

from approvals.gate import ask
from approvals.models import Approval
from runs.testing import drain


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


def approved_and_changed(stage, fact="claim", required=1, **terms):
    stage.asks_then_pays(required=required, **terms)
    approval = stage.asked()
    press(approval, stage.people.adjuster)
    if required == 2:
        press(approval, stage.people.second_adjuster)
    stage.facts[fact] = "another"
    drain()
    approval.refresh_from_db()
    return approval


def test_asked_again_the_first_is_superseded_and_linked_and_the_page_shows_the_difference(stage):
    first = approved_and_changed(stage)
    second = question(first.run)
    assert (first.status, first.superseded_by, first.spent_at) == ("superseded", second, None)
    page = text(browser(stage.people.adjuster).get(f"/approvals/{second.pk}/"))
    assert "Asked again instead of" in page
    assert "Fact: Claim open another" in page
    assert "This was" in text(browser(stage.people.adjuster).get(f"/approvals/{first.pk}/"))
    press(second, stage.people.adjuster)
    drain()
    assert stage.receiver.keys == ["run-1:step3"]


def test_a_superseded_approval_cannot_be_spent_or_opened_again(stage, database):
    first = approved_and_changed(stage)
    for put in ("status = 'approved'", "status = 'open', closed_at = NULL", "spent_at = now(), spent_key = 'x'"):
        with pytest.raises(Exception, match=r"frozen|spent_only_when_given|too few"):
            change(database, f"UPDATE approvals_approval SET {put} WHERE id = %s", first.pk)


def test_on_change_reject_ends_the_run_as_rejected_and_nothing_is_done(stage):
    approval = approved_and_changed(stage, on_change="reject")
    run = fresh(approval.run)
    assert (run.status, run.outcome, stage.receiver.received) == ("completed", "rejected", [])
    assert run.checkpoints.get(position=1).closed_as == "changed"


def test_on_change_reject_goes_where_a_rejection_goes(stage):
    stage.asks_then_pays(on_change="reject", on_reject="aside")
    stage.flow.step(aside)
    approval = stage.asked()
    press(approval, stage.people.adjuster)
    stage.facts["claim"] = "another"
    drain()
    assert (fresh(approval.run).outcome, stage.receiver.received) == ("completed", [])
    assert fresh(approval.run).checkpoints.last().step == "aside"


def aside(ctx):
    return {"aside": True}


@pytest.mark.parametrize("required", [1, 2])
@pytest.mark.parametrize(("fact", "paid"), [("claim", True), ("amount", False)])
def test_a_change_that_is_declared_harmless_is_acted_on_and_any_other_is_not(stage, fact, paid, required):
    approval = approved_and_changed(stage, fact, required, harmless=["claim"])
    assert bool(stage.receiver.received) == paid
    assert (approval.spent_at is not None) == paid
    assert fresh(approval.run).status == ("completed" if paid else "waiting")


def test_a_harmless_change_between_two_signatures_is_acted_on(stage):
    stage.asks_then_pays(required=2, harmless=["claim"])
    approval = stage.asked()
    press(approval, stage.people.adjuster)
    stage.facts["claim"] = "another"
    press(approval, stage.people.second_adjuster)
    drain()
    assert len(stage.receiver.received) == 1


def test_any_other_change_between_two_signatures_is_asked_again(stage):
    stage.asks_then_pays(required=2, harmless=["claim"])
    approval = stage.asked()
    press(approval, stage.people.adjuster)
    stage.facts["amount"] = 1
    press(approval, stage.people.second_adjuster)
    drain()
    assert (stage.receiver.received, question(approval.run).position) == ([], 2)


def test_the_digests_of_evidence_are_kept_and_frozen(stage, database):
    stage.asks_then_pays(evidence={"photo": "a" * 64})
    approval = stage.asked()
    assert approval.evidence == '{"photo":"' + "a" * 64 + '"}'
    with pytest.raises(Exception, match="frozen"):
        change(database, "UPDATE approvals_approval SET evidence = '{}' WHERE id = %s", approval.pk)


def test_every_question_has_a_deadline(stage):
    assert signature(ask).parameters["expires_in"].default is Parameter.empty
    with pytest.raises(TypeError, match="expires_in"):
        ask(stage.tool().proposed(amount_minor=1), groups=["adjusters"])


@pytest.mark.parametrize(
    "amount",
    [1.5, 2**53, -(2**53), "1", True],
)
def test_what_cannot_be_signed_is_refused_when_it_is_asked(stage, amount):
    stage.asks_then_pays(expires_in=timedelta(hours=1))
    run = stage.begin(amount_minor=amount)
    assert (run.status, Approval.objects.count()) == ("dead", 0)
