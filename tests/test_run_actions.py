"""What an operator does to one run from its page: with a reason, with rights, once, and told when another was first."""

import itertools
import re
from datetime import UTC, datetime, timedelta

import pytest
from browsing import browser, text
from racing import in_line, parts
from stage import Stage, change, fresh, question

from approvals import ledger
from approvals.models import LedgerEntry
from approvals.testing import answer
from runs import actions, engine, repair
from runs.errors import BadRequest, IllegalMove, NotAllowed, OutcomeUnknown, Refused, WaitIsOver
from runs.models import AuditEvent, Run
from runs.money import Money
from runs.sweep import close_overdue_waits
from runs.testing import drain, move_clock
from runs.workflows import Caps

A_DAY, ADDRESS = timedelta(days=1), "/runs/run-1/"


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        parts(stage)
        yield stage


def standing(stage, part):
    """A run that stands so."""
    run = stage.begin(part=part)
    if part == "paused":
        repair.pause(run.key, why="wait for the adjuster")
    return fresh(run)


def offered(person):
    return re.findall(r'id="act-([a-z-]+)"', browser(person).get(ADDRESS).content.decode())


def send(person, action, **words):
    """Open the form and send it."""
    client, address = browser(person), f"{ADDRESS}{action}/"
    saw = re.search(r'name="saw" value="([0-9-]+)"', client.get(address).content.decode())
    return client.post(address, {"saw": saw[1] if saw else "", "why": "as agreed"} | words)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("waiting", ["extend", "raise-cap", "pause", "cancel"]),
        ("sleeping", ["retry", "raise-cap", "pause", "cancel"]),
        ("paused", ["resume", "extend", "raise-cap", "cancel"]),
        ("dead", ["redrive", "raise-cap", "fork", "discard", "cancel"]),
        ("capped", ["retry", "extend", "raise-cap", "pause", "cancel"]),
    ],
)
def test_a_run_page_offers_ops_exactly_what_can_be_done_and_others_nothing(stage, people, part, expected):
    standing(stage, part)
    assert offered(people.ops) == expected
    assert offered(people.auditor) == offered(people.adjuster) == []


@pytest.mark.parametrize(
    ("part", "action", "status"),
    [
        ("waiting", "pause", "paused"),
        ("waiting", "cancel", "cancelled"),
        ("paused", "resume", "waiting"),
        ("sleeping", "retry", "ready"),
        ("dead", "redrive", "ready"),
        ("dead", "discard", "cancelled"),
    ],
)
def test_each_action_takes_a_reason_and_a_right_and_is_done(stage, people, part, action, status):
    run = standing(stage, part)
    assert send(people.ops, action, why=" ").status_code == 422
    assert send(people.auditor, action).status_code == 403
    assert send(people.stranger, action).status_code == 404
    assert fresh(run).status == run.status
    assert send(people.ops, action).status_code == 303
    move = fresh(run).transitions.last()
    assert (fresh(run).status, move.why, move.user, move.actor) == (status, "as agreed", people.ops, "web")


def test_an_action_that_is_not_possible_or_not_known_is_refused_with_its_page(stage, people):
    standing(stage, "waiting")
    page = browser(people.ops).get(f"{ADDRESS}redrive/")
    assert (page.status_code, "leaves nothing to redrive" in text(page)) == (409, True)
    assert browser(people.ops).get(f"{ADDRESS}explode/").status_code == 404
    assert browser(people.ops).post(f"{ADDRESS}redrive/", {"why": "x"}).status_code == 409


@pytest.mark.parametrize("action", ["pause", "cancel", "raise-cap", "extend"])
def test_of_two_operators_with_the_same_page_open_one_wins_and_the_other_is_told(stage, people, action):
    """Also where the verb by itself would be content: pausing what is paused, raising what was raised."""
    run = standing(stage, "waiting")
    saw, later = actions.seen(run), fresh(run).due_at + A_DAY
    words = {"raise-cap": {"steps": 90}, "extend": {"until": f"{later:%Y-%m-%dT%H:%M}"}}.get(action, {})
    first, second = (
        browser(people.ops).post(f"{ADDRESS}{action}/", {"saw": saw, "why": why} | words) for why in ("one", "two")
    )
    assert (first.status_code, second.status_code) == (303, 409)
    told = text(second)
    assert "Since you opened this page olga acted on it" in told
    assert "one" in told


TERMS = {
    "extend": lambda run: {"until": run.due_at + A_DAY},
    "raise-cap": lambda run: {"steps": 90},
    "fork": lambda run: {"new_key": f"{run.key}-fork"},
}


@pytest.mark.parametrize("part", ["waiting", "sleeping", "paused", "dead", "capped"])
def test_of_every_two_actions_at_once_the_first_is_done_and_the_second_is_told(stage, people, database, part):
    """Each ordered pair that a page of such a run offers, both pages drawn before either was sent."""
    pairs = itertools.product([action.name for action in actions.possible(standing(stage, part), people.ops)], repeat=2)
    for number, (first, second) in enumerate(pairs, 2):
        key = f"run-{number}"
        run = stage.begin(key, part=part)
        if part == "paused":
            run = repair.pause(key, why="wait")
        saw, run = actions.seen(run), fresh(run)

        def act(name, run=run, saw=saw):
            terms = TERMS[name](run) if name in TERMS else {}
            return actions.act(name, run.key, saw=saw, by=people.ops, why=f"to {name}", **terms)

        done, told = in_line(database, run, lambda act=act, one=first: act(one), lambda act=act, two=second: act(two))
        assert isinstance(done, Run), (first, second, done)
        assert isinstance(told, str), (first, second)
        assert told.startswith(f"Since you opened this page olga {'forked' if first == 'fork' else 'acted on'} it")
        assert f"to {first}" in told
        assert run.transitions.filter(why=f"to {second}").count() == (
            first == second and run.transitions.filter(why=f"to {first}").count()
        )


def test_two_operators_at_the_very_same_time_are_told_apart_by_the_runs_lock(stage, people, database):
    run = standing(stage, "waiting")
    saw = actions.seen(run)

    def pause(why):
        return lambda: actions.act("pause", "run-1", saw=saw, by=people.ops, why=why)

    outcomes = in_line(database, run, pause("one"), pause("two"))
    assert isinstance(outcomes[0], Run)
    assert "Since you opened this page olga acted on it (now paused: one)" in outcomes[1]
    assert fresh(run).transitions.filter(to_status="paused").count() == 1


# Extending a wait


def until(run, more=A_DAY):
    return {"until": run.due_at + more}


def test_a_wait_that_is_extended_ends_later_and_says_who_and_why(stage, people):
    run = standing(stage, "waiting")
    due = run.due_at
    assert send(people.ops, "extend", until=f"{due + A_DAY:%Y-%m-%dT%H:%M}").status_code == 303
    assert fresh(run).due_at == (due + A_DAY).replace(second=0, microsecond=0)
    kept = AuditEvent.objects.get(kind="wait-extended")
    assert (kept.user, kept.detail.endswith(": as agreed")) == (people.ops, True)
    move_clock(timedelta(hours=25))
    assert close_overdue_waits() == 0
    move_clock(timedelta(hours=49))
    assert close_overdue_waits() == 1
    assert fresh(run).status == "expired"


def test_the_question_of_an_approval_stays_open_as_long_and_the_ledger_says_so(people):
    with Stage(people) as stage:
        stage.asks_then_pays()
        approval = stage.asked("run-1")
        repair.extend("run-1", by=people.ops, why="the adjuster is ill", **until(fresh(approval.run)))
        approval = question(approval.run)
        assert approval.due_at == fresh(approval.run).due_at
        entry = LedgerEntry.objects.get()
        assert (entry.kind, "the adjuster is ill" in entry.record, ledger.verify().ok) == ("extension", True, True)
        move_clock(timedelta(days=3, hours=12))
        answer(approval, people.adjuster)
        drain()
        assert fresh(approval.run).status == "completed"
        assert ledger.verify().ok


def test_an_extension_that_fails_midway_leaves_run_and_approval_as_they_were(people, database):
    with Stage(people) as stage:
        stage.asks_then_pays()
        approval = stage.asked("run-1")
        run = fresh(approval.run)
        change(database, "UPDATE approvals_approval SET status = 'withdrawn', closed_at = now()")
        with pytest.raises(BadRequest, match="is withdrawn already"):
            repair.extend("run-1", why="x", **until(run))
        assert fresh(run).due_at == run.due_at
        assert not AuditEvent.objects.exists()


@pytest.mark.parametrize("more", [timedelta(), timedelta(hours=-1), timedelta(days=367)])
def test_a_wait_is_extended_to_a_later_time_within_a_year_only(stage, people, more):
    run = standing(stage, "waiting")
    with pytest.raises(BadRequest, match="give a later time"):
        repair.extend("run-1", by=people.ops, why="x", **until(run, more))
    assert fresh(run).due_at == run.due_at


def test_a_wait_whose_time_is_over_is_not_extended_even_before_the_sweep(stage, people):
    run = standing(stage, "waiting")
    move_clock(timedelta(hours=24))
    with pytest.raises(WaitIsOver, match="so it cannot be extended"):
        repair.extend("run-1", why="x", until=run.due_at + 2 * A_DAY)
    assert send(people.ops, "extend", until=f"{run.due_at + 2 * A_DAY:%Y-%m-%dT%H:%M}").status_code == 410


def test_what_sleeps_or_waits_for_nothing_is_not_extended_and_it_takes_the_right(stage, people):
    run, far = standing(stage, "sleeping"), datetime(2099, 1, 1, tzinfo=UTC)
    with pytest.raises(IllegalMove, match="cannot be given more time to wait"):
        repair.extend(run.key, why="x", until=far)
    with pytest.raises(NotAllowed):
        repair.extend(run.key, why="x", until=far, by=people.adjuster)
    assert AuditEvent.objects.get().kind == "verb-refused"


# Raising a cap, forking


def test_a_raised_cap_lets_the_run_go_on_and_nonsense_is_a_422(stage, people):
    run = standing(stage, "capped")
    for words in ({"steps": "many"}, {"steps": "0"}, {}):
        assert send(people.ops, "raise-cap", **words).status_code == 422
    assert send(people.ops, "raise-cap", steps="5").status_code == 303
    drain()
    assert (fresh(run).status, fresh(run).caps) == ("completed", {"steps": 5})


@pytest.fixture
def capped_spend(people):
    with Stage(people) as stage:
        stage.flow.caps = Caps(steps=1, spend=Money(2500, "USD"))
        parts(stage)
        stage.flow.caps = Caps(steps=1, spend=Money(2500, "USD"))
        yield stage


def test_the_form_raises_a_spend_cap_in_its_own_currency_and_the_page_shows_it(capped_spend, people):
    run = standing(capped_spend, "capped")
    form = browser(people.ops).get(f"{ADDRESS}raise-cap/")
    assert "Spend in all, USD 25.00 USD now. Spent 0.00 of 25.00 USD." in text(form)
    for words in ("a lot", "-1", "12.345", "12.3", "1e9", "0", "\u0665\u0660"):
        assert send(people.ops, "raise-cap", spend=words).status_code == 422, words
    assert fresh(run).caps is None
    assert send(people.ops, "raise-cap", spend="1,050.50", steps="7").status_code == 303
    assert fresh(run).caps == {"steps": 7, "spend": {"minor": 105_050, "currency": "USD"}}
    page = text(browser(people.ops).get(ADDRESS))
    assert "Spend (raised) $0.00 of $1,050.50" in page
    assert "Steps (raised) 1 of 7" in page
    assert re.search(r"Cap raised steps 7, spend 1,050\.50 USD: as agreed olga \(web\)", page)
    assert "Age with waits (raised)" not in page


def test_a_run_without_a_spend_cap_offers_none(stage, people):
    standing(stage, "capped")
    assert 'name="spend"' not in browser(people.ops).get(f"{ADDRESS}raise-cap/").content.decode()
    assert send(people.ops, "raise-cap", spend="5").status_code == 422


def test_an_extension_is_shown_with_who_and_why_as_long_as_that_wait_lasts(stage, people):
    run = standing(stage, "waiting")
    due = run.due_at + A_DAY
    repair.extend("run-1", until=due, by=people.ops, why="the adjuster is ill")
    page = text(browser(people.auditor).get(ADDRESS))
    assert re.search(rf"Due {due:%-d %b %Y, %H:%M:%S} UTC , extended by olga .*: the adjuster is ill", page)
    assert re.search(r"Wait extended 1 from .* to .*: the adjuster is ill olga", page)
    engine.deliver("run-1", "papers", {"pages": 1})
    drain()
    page = text(browser(people.auditor).get(ADDRESS))
    assert "extended by olga" not in page
    assert "Wait extended 1 from" in page


@pytest.fixture
def paying(people):
    with Stage(people) as stage:
        stage.flow.caps = Caps()
        stage.calls_then_goes_on(stage.tool())
        yield stage


def fork(person, do="fork", **words):
    sent = {"do": do, "new_key": "run-2", "position": "1", "input": '{"claim": "0042"}', "why": "wrong claim"} | words
    return browser(person).post(f"{ADDRESS}fork/", sent)


def test_a_fork_shows_its_changes_and_what_it_would_repeat_before_it_is_made(paying, people):
    paying.begin(claim="0041")
    page = text(fork(people.ops, "preview"))
    for words in ("\u2212 &quot;claim&quot;: &quot;0041&quot;", "+ &quot;claim&quot;: &quot;0042&quot;", "run-1:step1"):
        assert words in page
    assert not Run.objects.filter(key="run-2").exists()
    unnamed = fork(people.ops)
    assert (unnamed.status_code, "makes these effects again: run-1:step1" in text(unnamed)) == (422, True)
    made = fork(people.ops, repeating="run-1:step1")
    assert (made.status_code, made["Location"]) == (303, "/runs/run-2/")
    assert Run.objects.get(key="run-2").input == {"claim": "0042"}


def test_an_effect_that_is_unknown_blocks_the_fork(paying, people):
    paying.receiver.script = [OutcomeUnknown("cut off")] * 3
    paying.begin(claim="0041")
    paying.later(times=4)
    page = fork(people.ops, "preview")
    assert "It is not known whether 1 effect happened" in text(page)
    assert 'value="fork"' not in page.content.decode()
    assert fork(people.ops, repeating="run-1:step1").status_code == 422


@pytest.mark.parametrize(
    "words", [{"input": "{"}, {"input": "[]"}, {"position": "9"}, {"new_key": "No Key"}, {"new_key": "run-1"}]
)
def test_a_fork_that_makes_no_sense_is_a_422_and_makes_nothing(paying, people, words):
    paying.receiver.script = [Refused("no")]
    paying.begin(claim="0041")
    assert fork(people.ops, **words).status_code == 422
    assert Run.objects.count() == 1
