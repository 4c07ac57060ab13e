"""The other answers: a counter-proposal is asked anew and voids votes, a request for changes goes back as an answer,
whoever asked may take it back. Each is one signed decision in one commit with what follows."""

import json
import re
from datetime import timedelta

import psycopg
import pytest
from browsing import browser, form, text
from stage import Party, Stage, fresh, holding_run, press, question, shown, wait_until_blocked

from approvals import ledger, proposals
from approvals.gate import ask
from approvals.models import Approval, Authority, Decision, LedgerEntry
from approvals.refusals import AlreadyDecided, Changed, Invalid, NotAnApprover, Stranger, TooLate
from runs.models import Call, Transition
from runs.testing import drain, move_clock
from runs.workflows import goto

DAY = timedelta(days=1)


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


def edit(approval, user, comment="the roof was counted twice", page=None, **changes):
    arguments = json.loads(approval.payload)["arguments"] | changes
    said = {"arguments": json.dumps(arguments), "comment": comment} | (page or shown(approval))
    return proposals.edit(approval.pk, user=user, **said)


def respond(approval, user, comment="add the photos", page=None):
    return proposals.respond(approval.pk, user=user, comment=comment, **(page or shown(approval)))


def withdraw(approval, user, comment="asked in error"):
    return proposals.withdraw(approval.pk, user=user, comment=comment, payload_digest=approval.payload_digest)


def asks_and_can_be_sent_back(stage, **terms):
    pay = stage.tool(requires_approval=True)
    heard = []

    @stage.flow.step
    def assess(ctx):
        heard.append(ctx.answer)
        return {"amount": 184_000 if ctx.answer is None else 150_000}

    @stage.flow.step
    def approve(ctx):
        action = pay.proposed(amount_minor=ctx.state["amount"])
        return ask(action, groups=["adjusters"], expires_in=DAY, on_respond=goto("assess"), **terms)

    @stage.flow.step
    def settle(ctx):
        heard.append(ctx.answer)
        return {"payment": ctx.perform(approve)}

    return heard


# Edit


def test_a_counter_proposal_is_a_new_version_that_another_approves_and_exactly_it_is_paid(stage):
    stage.asks_then_pays()
    first = stage.asked()
    decision = edit(first, stage.people.adjuster, amount_minor=150_000)
    second = question(first.run)
    first.refresh_from_db()
    assert (first.status, first.superseded_by) == ("superseded", second)
    assert (second.position, second.version, second.edited_by) == (first.position, 2, stage.people.adjuster)
    assert (second.statement, second.due_at) == ("Pay 1,500.00 USD to p-1", first.due_at)
    assert f'"proposed_digest":"{second.payload_digest}"' in decision.entry.record
    assert fresh(first.run).status == "waiting"
    press(second, stage.people.second_adjuster)
    drain()
    run = fresh(first.run)
    assert (run.status, [sent["amount_minor"] for _, sent in stage.receiver.received]) == ("completed", [150_000])
    asked = run.checkpoints.get(position=1).output
    assert (asked["action"]["arguments"]["amount_minor"], asked["approval"]) == (150_000, second.pk)
    assert ledger.verify().problems == []


def test_whoever_edited_may_not_approve_any_later_version(stage, database):
    stage.asks_then_pays()
    edit(stage.asked(), stage.people.adjuster, amount_minor=150_000)
    second = Approval.objects.get(status="open")
    edit(second, stage.people.second_adjuster, amount_minor=140_000)
    third = Approval.objects.get(status="open")
    for user in (stage.people.adjuster, stage.people.second_adjuster):
        with pytest.raises(NotAnApprover, match="Whoever changed what is asked may not approve it"):
            press(third, user)
    entry = LedgerEntry.objects.last()
    insert = (
        "INSERT INTO approvals_decision (approval_id, user_id, verdict, comment, decided_at, entry_id) "
        "VALUES (%s, %s, 'approve', '', now(), %s)"
    )
    with psycopg.connect(database.url) as other, pytest.raises(psycopg.errors.CheckViolation, match="changed it"):
        other.execute(insert, [third.pk, stage.people.adjuster.pk, entry.sequence])
    press(third, stage.people.adjuster, "reject", "neither is right")


def test_an_edit_voids_the_votes_before_it(stage):
    stage.asks_then_pays(required=2)
    first = stage.asked()
    press(first, stage.people.second_adjuster)
    other = type(stage.people.adjuster).objects.create(username="cara")
    other.groups.set(stage.people.adjuster.groups.all())
    edit(first, stage.people.adjuster, amount_minor=150_000)
    second = question(first.run)
    press(second, other)
    drain()
    assert (fresh(first.run).status, stage.receiver.received) == ("waiting", [])
    press(second, stage.people.second_adjuster)
    drain()
    assert [sent["amount_minor"] for _, sent in stage.receiver.received] == [150_000]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "must be one JSON object"),
        ('{"amount_minor": 1.5}', "amount_minor"),
        ('{"amount_minor": 1, "amount_minor": 2}', "twice"),
        ('{"amount_minor": 9007199254740992}', "integer outside"),
        ('{"amount_minor": 1, "payee": "a\\u0000"}', "NUL"),
        ('{"amount_minor": 1, "payee": "\\ud83d"}', "surrogate"),
        ('{"amount_minor": 1, "more": true}', "more"),
        ('{"amount_minor": 1, "currency": "dollars"}', "three capital letters"),
        ('{"amount_minor": 184000, "currency": "USD", "payee": "p-1", "claim": "0042"}', "asked already"),
    ],
)
def test_arguments_that_the_tool_does_not_take_are_refused_and_nothing_changes(stage, arguments, sentence):
    stage.asks_then_pays()
    approval = stage.asked()
    with pytest.raises(Invalid, match=sentence) as refused:
        proposals.edit(approval.pk, user=stage.people.adjuster, comment="so", arguments=arguments, **shown(approval))
    assert refused.value.field == "arguments"
    assert (Approval.objects.count(), Decision.objects.count(), LedgerEntry.objects.count()) == (1, 0, 0)


def test_the_same_proposal_sent_twice_is_one(stage):
    stage.asks_then_pays()
    first = stage.asked()
    page = shown(first)
    one = edit(first, stage.people.adjuster, page=page, amount_minor=150_000)
    assert edit(first, stage.people.adjuster, page=page, amount_minor=150_000) == one
    assert Approval.objects.count() == 2


@pytest.mark.parametrize("first", ["edit", "approve"])
def test_of_an_edit_and_an_approval_at_once_the_first_wins(stage, database, first):
    stage.asks_then_pays()
    approval = stage.asked()
    page = shown(approval)
    verbs = {
        "edit": lambda: edit(approval, stage.people.adjuster, page=page, amount_minor=150_000),
        "approve": lambda: press(approval, stage.people.second_adjuster, page=page),
    }
    parties = {}
    with holding_run(database, approval.run_id):
        for count, name in enumerate([first, *(set(verbs) - {first})], start=1):
            parties[name] = Party(verbs[name])
            wait_until_blocked(database, count)
    assert parties.pop(first).outcome().verdict == first
    with pytest.raises(AlreadyDecided, match=r"already (superseded|approved) by"):
        next(iter(parties.values())).outcome()
    drain()
    assert len(stage.receiver.received) == (first == "approve")
    assert ledger.verify().problems == []


def test_a_page_of_the_version_before_cannot_approve_the_one_now(stage):
    stage.asks_then_pays()
    first = stage.asked()
    page = shown(first)
    edit(first, stage.people.adjuster, amount_minor=150_000)
    with pytest.raises(Changed):
        press(question(first.run), stage.people.second_adjuster, page=page)


# Respond


def test_a_request_for_changes_goes_back_to_the_named_step_which_hears_it(stage):
    heard = asks_and_can_be_sent_back(stage)
    first = question(stage.begin())
    respond(first, stage.people.adjuster)
    drain()
    run = fresh(first.run)
    second = question(run)
    first.refresh_from_db()
    assert (first.status, first.superseded_by) == ("responded", second)
    assert (run.checkpoints.get(position=2).closed_as, second.amount_minor) == ("responded", 150_000)
    assert heard[0] is None
    assert (heard[1]["comment"], heard[1]["approval"]) == ("add the photos", first.pk)
    press(second, stage.people.second_adjuster)
    drain()
    assert heard[2] is None
    assert [sent["amount_minor"] for _, sent in stage.receiver.received] == [150_000]
    assert ledger.verify().problems == []


def test_where_no_step_is_named_changes_cannot_be_asked_for(stage):
    stage.asks_then_pays()
    approval = stage.asked()
    assert "Ask for changes" not in text(browser(stage.people.adjuster).get(f"/approvals/{approval.pk}/"))
    with pytest.raises(Invalid, match="says nothing of where a request for changes would go"):
        respond(approval, stage.people.adjuster)
    assert not Decision.objects.exists()


# Withdraw


def test_whoever_asked_withdraws_it_and_the_run_ends_so(stage):
    stage.asks_then_pays()
    approval = stage.asked()
    withdraw(approval, stage.people.requester)
    drain()
    run = fresh(approval.run)
    assert (run.status, run.outcome, stage.receiver.received) == ("completed", "withdrawn", [])
    assert Transition.objects.filter(run=run, why="withdrawn by rick").exists()
    with pytest.raises(AlreadyDecided, match="already withdrawn by rick"):
        press(approval, stage.people.adjuster)
    assert ledger.verify().problems == []


def test_a_withdrawal_goes_where_the_terms_say_and_needs_no_facts(stage):
    stage.asks_then_pays(on_withdraw="aside")

    @stage.flow.step
    def aside(ctx):
        return {"aside": ctx.state["decision"]}

    approval = stage.asked()
    stage.facts["amount"] = float("nan")
    withdraw(approval, stage.people.requester)
    drain()
    run = fresh(approval.run)
    assert (run.outcome, run.checkpoints.last().output) == ("completed", {"aside": "withdrawn"})


def test_nobody_else_withdraws_and_the_database_says_so_too(stage, database):
    stage.asks_then_pays()
    approval = stage.asked()
    for user in (stage.people.adjuster, stage.people.ops, stage.people.superuser):
        with pytest.raises(NotAnApprover, match="Only whoever asked for this may withdraw it"):
            withdraw(approval, user)
    press(stage.asked("other"), stage.people.adjuster)
    insert = (
        "INSERT INTO approvals_decision (approval_id, user_id, verdict, comment, decided_at, entry_id) "
        "VALUES (%s, %s, 'withdraw', 'x', now(), %s)"
    )
    with psycopg.connect(database.url) as other, pytest.raises(psycopg.errors.CheckViolation, match="withdrawn only"):
        other.execute(insert, [approval.pk, stage.people.ops.pk, LedgerEntry.objects.last().sequence])


# All three


@pytest.mark.parametrize("verb", [edit, respond, withdraw])
def test_each_needs_words_is_refused_late_and_to_strangers(stage, verb):
    asks_and_can_be_sent_back(stage)
    approval = question(stage.begin())
    user = stage.people.requester if verb is withdraw else stage.people.adjuster
    more = {"amount_minor": 1} if verb is edit else {}
    with pytest.raises(Invalid, match="Say w") as refused:
        verb(approval, user, comment="  ", **more)
    assert refused.value.field == "comment"
    with pytest.raises(Stranger):
        verb(approval, stage.people.stranger, **more)
    move_clock(DAY)
    with pytest.raises(TooLate):
        verb(approval, user, **more)
    assert not Decision.objects.exists()


def test_without_an_authority_nobody_proposes_or_asks_for_changes(stage):
    asks_and_can_be_sent_back(stage)
    approval = question(stage.begin())
    Authority.objects.update(valid_to=approval.asked_at)
    for verb in (
        lambda: edit(approval, stage.people.adjuster, amount_minor=1),
        lambda: respond(approval, stage.people.adjuster),
    ):
        with pytest.raises(NotAnApprover, match="no authority"):
            verb()


def test_the_forms_of_the_page_do_the_same(stage):
    asks_and_can_be_sent_back(stage)
    people, approval = stage.people, question(stage.begin())
    sent = form(approval, reader=people.adjuster, comment="less")
    ada = browser(people.adjuster)
    wrong = ada.post(f"/approvals/{approval.pk}/edit/", sent | {"act": "sign", "arguments": '{"amount_minor": "x"}'})
    assert wrong.status_code == 422
    assert "Input should be a valid integer" in text(wrong)
    arguments = json.loads(approval.payload)["arguments"] | {"amount_minor": 150_000}
    right = ada.post(f"/approvals/{approval.pk}/edit/", sent | {"act": "sign", "arguments": json.dumps(arguments)})
    assert right.status_code == 303
    second = question(approval.run)
    page = text(browser(people.second_adjuster).get(f"/approvals/{second.pk}/"))
    assert "Proposed by ada instead of" in page
    assert re.search(r"1,840\.00.{0,20}1,500\.00", page)
    old = ada.get(f"/approvals/{approval.pk}/")
    assert "ada proposed something else" in text(old)
    sent = form(second, reader=people.second_adjuster, comment="photos")
    assert browser(people.second_adjuster).post(f"/approvals/{second.pk}/respond/", sent).status_code == 303
    drain()
    third = question(approval.run)
    rick = browser(people.requester)
    assert "Sign and withdraw" in text(rick.get(f"/approvals/{third.pk}/"))
    sent = {"comment": "never mind", "payload_digest": third.payload_digest}
    assert rick.post(f"/approvals/{third.pk}/withdraw/", sent).status_code == 303
    drain()
    assert fresh(approval.run).outcome == "withdrawn"
    assert "rick withdrew this" in text(rick.get(f"/approvals/{third.pk}/"))
    assert not Call.objects.exists()


def test_the_command_line_answers_with_the_same_verbs(stage):
    from django.core.management import CommandError, call_command

    asks_and_can_be_sent_back(stage)
    first = question(stage.begin())

    def digests(approval, *names):
        return [f"--{name.replace('_', '-')}={shown(approval)[name]}" for name in names]

    both = ("payload_digest", "facts_digest")
    arguments = json.dumps(json.loads(first.payload)["arguments"] | {"amount_minor": 150_000})
    words = ["--comment", "so", "--as"]
    call_command("approvals", "edit", str(first.pk), *words, "ada", "--arguments", arguments, *digests(first, *both))
    second = question(first.run)
    call_command("approvals", "respond", str(second.pk), *words, "ben", *digests(second, *both))
    drain()
    third = question(first.run)
    with pytest.raises(CommandError, match="Only whoever asked"):
        call_command("approvals", "withdraw", str(third.pk), *words, "ada", *digests(third, "payload_digest"))
    call_command("approvals", "withdraw", str(third.pk), *words, "rick", *digests(third, "payload_digest"))
    assert list(Decision.objects.order_by("pk").values_list("verdict", flat=True)) == ["edit", "respond", "withdraw"]
