"""A key that stands for another request: refused before sending, counted, and both requests shown side by side."""

import re

import pytest
from browsing import Inline, browser, text
from stage import Stage, change, fresh

from runs import figures, repair
from runs.alarms import Alarm
from runs.errors import KeyConflict
from runs.models import AuditEvent, Call, Finding
from runs.testing import drain
from runs.values import canonical, digest

HOSTILE = "<script>alert(1)</script>\u202egnp.exe"


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


def asks_for(stage, *orders) -> None:
    """A step that pays another order each time it is entered, and whose first send brings no answer."""
    pay, left = stage.tool(), list(orders)

    @stage.flow.step
    def settle(ctx):
        return {"payment": ctx.call(pay, **(left.pop(0) if len(left) > 1 else left[0]))}

    stage.receiver.script = [TimeoutError("no answer")]


@pytest.fixture
def reused(stage):
    """A run in the dead letters: it asked for 1,840.00 first, and for one cent more to somebody else then."""
    asks_for(stage, {"amount_minor": 184_000}, {"amount_minor": 184_001, "payee": HOSTILE})
    run = stage.begin()
    stage.later()
    return fresh(run)


def page(run, person, part=""):
    return browser(person).get(f"/runs/{run.key}/{part}")


def test_the_second_request_is_not_sent_and_both_digests_and_the_second_text_are_kept(stage, reused):
    call, alarm = Call.objects.get(), AuditEvent.objects.get()
    arguments = {"amount_minor": 184_001, "claim": "0042", "currency": "USD", "payee": HOSTILE}
    second = canonical({"arguments": arguments, "tool": "test.pay"}, where="test")
    assert (reused.status, call.state, call.sends, len(stage.receiver.received)) == ("dead", "unknown", 1, 1)
    assert (alarm.kind, alarm.call, alarm.request) == ("key-reused", call, second)
    assert call.digest[:12] in reused.reason
    assert digest(second)[:12] in reused.reason
    [figure] = [row for row in figures.of_effects() if row["tool"] == "test.pay"]
    assert figure["key_reused_with_another_request"] == 1


def test_the_page_shows_both_requests_side_by_side_with_what_differs_first(reused, people):
    answer = page(reused, people.ops)
    words, alarm = text(answer), AuditEvent.objects.get()
    assert "Two requests under one key" in words
    assert "They differ in 2 members" in words
    assert Call.objects.get().digest in words
    assert digest(alarm.request) in words
    assert re.search(r"arguments\.amount_minor 184000 \$1,840\.00 184001 \$1,840\.01 ~ Different", words)
    assert re.search(r"arguments\.payee .*~ Different.*arguments\.claim .*= Same", words)
    assert "&lt;script&gt;" in words
    assert "\u2039U+202E\u203a" in words
    assert "\u202e" not in answer.content.decode()
    assert Inline(answer.content.decode()).found == []
    assert "Two requests under one key" in text(page(reused, people.ops, "steps/"))


def test_strangers_see_neither_request(reused, people):
    assert [page(reused, people.stranger, part).status_code for part in ("", "steps/", "header/")] == [404] * 3


def test_of_a_receivers_conflict_only_our_side_is_shown_and_that_is_said(stage, people):
    stage.calls_then_goes_on(stage.tool())
    stage.receiver.script = [KeyConflict("used with another body")]
    run = stage.begin()
    words = text(page(run, people.ops))
    assert "A key that stands for something else" in words
    assert "The receiver knows run-1:step1 with another request" in words
    assert "Only our own request is recorded here" in words
    assert "arguments.amount_minor 184000" in words
    assert "Second" not in words


def test_a_stored_request_that_somebody_changed_is_shown_as_that(stage, database, people):
    stage.calls_then_goes_on(stage.tool())
    stage.receiver.script = [TimeoutError("no answer")]
    run = stage.begin()
    changed = Call.objects.get().request.replace("184000", "184001")
    change(database, "UPDATE runs_call SET request = %s", changed)
    stage.later()
    words = text(page(run, people.ops))
    assert (fresh(run).status, len(stage.receiver.received)) == ("dead", 1)
    assert f"its bytes now give SHA-256 {digest(changed)} . Somebody changed it." in words


def test_neither_an_alarm_nor_its_request_can_be_changed(reused, database):
    with pytest.raises(Exception, match="append-only"):
        change(database, "UPDATE runs_auditevent SET request = '{}'")


def test_a_redrive_that_asks_for_something_else_again_is_refused_again_and_the_page_counts(stage, reused, people):
    repair.redrive("run-1", why="perhaps now")
    drain()
    assert (fresh(reused).status, len(stage.receiver.received)) == ("dead", 1)
    assert AuditEvent.objects.filter(kind="key-reused").count() == 2
    words = text(page(reused, people.ops))
    assert "the last of 2 alarms" in words
    assert words.count("Two requests under one key") == 1


def test_a_redrive_of_the_mended_step_keeps_its_first_request_and_the_alarm_stays_on_the_page(stage, people):
    asks_for(stage, {"amount_minor": 1}, {"amount_minor": 2}, {"amount_minor": 1})
    run = stage.begin()
    stage.later()
    assert fresh(run).status == "dead"
    repair.redrive("run-1", why="the step is mended")
    drain()
    assert fresh(run).status == "completed"
    assert [arguments["amount_minor"] for _, arguments in stage.receiver.received] == [1, 1]
    assert "Two requests under one key" in text(page(run, people.ops))


# How two requests are compared


def compared(first: str, second: str) -> list[tuple]:
    members = Alarm(AuditEvent(request=second), Call(request=first), 1).members
    return [(member.path, member.change, _text(member.first), _text(member.now)) for member in members]


def _text(value):
    return value and value.head + value.middle + value.tail


def test_members_are_compared_by_their_json_so_that_a_number_is_not_a_text():
    assert compared('{"a":1,"b":[1,{"c":null}]}', '{"a":"1","b":[1,{}],"d":[]}') == [
        ("a", "changed", "1", '"1"'),
        ("b[2].c", "removed", "null", None),
        ("b[2]", "added", None, "{}"),
        ("d", "added", None, "[]"),
        ("b[1]", "same", "1", "1"),
    ]


@pytest.mark.parametrize(
    ("one", "other", "marked"),
    [
        ("x" * 200, "x" * 100 + "y" + "x" * 99, ("x", "y")),
        ("x" * 200, "x" * 201, ("", "x")),
        ("ab" * 100, "ab" * 101, ("", "ab")),
        ("short", "shore", ('"short"', '"shore"')),
    ],
)
def test_of_a_long_text_only_what_differs_is_marked_and_none_of_it_is_lost(one, other, marked):
    [member] = Alarm(AuditEvent(request=f'{{"a":"{other}"}}'), Call(request=f'{{"a":"{one}"}}'), 1).members
    assert (member.first.middle, member.now.middle) == marked
    assert (_text(member.first), _text(member.now)) == (f'"{one}"', f'"{other}"')


def test_what_is_no_json_is_shown_as_it_is():
    assert compared("not json", '{"a":1}') == [("", "removed", '"not json"', None), ("a", "added", None, "1")]


# Findings of a run


def found(stage, number=1):
    from runs.findings import Difference

    run = stage.begin()
    about = [Difference(Finding.Kind.AMOUNT_DIFFERS, "test.pay", f"run-1:step{n}", run) for n in range(1, number + 1)]
    Finding.objects.note("test.pay", about, stage.people.team)
    return run


@pytest.fixture
def paid(stage):
    stage.calls_then_goes_on(stage.tool())
    return stage


def test_a_run_with_an_open_finding_says_so_and_the_link_leads_to_it(paid, people):
    run = found(paid)
    [finding] = Finding.objects.all()
    for part in ("", "header/"):
        answer = page(run, people.adjuster, part)
        assert f"Finding {finding.pk}, amount differs : The amount of run-1:step1 is not" in text(answer)
    address = f"/runs/findings/?after={finding.pk + 1}"
    assert f'href="{address}#finding-{finding.pk}"' in answer.content.decode()
    assert f'id="finding-{finding.pk}"' in browser(people.adjuster).get(address).content.decode()


def test_a_closed_finding_is_not_told_and_of_many_the_newest_are(paid, people):
    run = found(paid, number=5)
    words = text(page(run, people.ops))
    assert [f"of run-1:step{n} is not" in words for n in (1, 2, 3, 4, 5)] == [False, False, True, True, True]
    assert "More findings of this run are open" in words
    Finding.objects.open().close("gone")
    assert "finding" not in text(page(run, people.ops, "header/")).lower()
