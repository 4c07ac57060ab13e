"""The page and the commands of findings: who sees what, both evidences side by side, and the form that resolves."""

import json
import re
from datetime import timedelta
from io import StringIO

import pytest
from browsing import Inline, browser, text
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from provider import Provider, listed, seed
from stage import Stage, fresh

from runs import reconciliation, tools
from runs.errors import Retryable
from runs.findings import Difference
from runs.models import Call, Finding, database_clock
from runs.providers import team as ops_team
from runs.reconciliation import settle_unknown
from runs.testing import move_clock

KEY = "run-1:step1"


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        tools._registry.clear()
        yield stage


@pytest.fixture
def provider(stage):
    provider = Provider()
    provider.serve(stage.tool())
    return provider


@pytest.fixture
def lost(stage, provider):
    """A run whose payment is unknown to everybody, and its finding."""
    stage.calls_then_goes_on(tools.get("test.pay"))
    stage.receiver.script = [TimeoutError("no answer")] * 9
    run = stage.begin()
    stage.later(times=3)
    move_clock(timedelta(hours=1))
    settle_unknown()
    assert Finding.objects.get().kind == "unknown"
    return run


@pytest.fixture
def differing(provider, people, database):
    """An amount that differs, of a run of the team; and a record that belongs to nobody."""
    seed(database, people.team, "test.pay", range(1, 4))
    provider.records = list(listed(range(1, 4)))
    provider.made("claim-2:step1", id="extra", reference="")
    provider.records[1] = provider.records.pop()
    provider.made("nobody:step1")
    reconciliation.compare("test.pay", *window())
    return Finding.objects.get(kind="amount-differs")


def window():
    now = database_clock()
    return now - timedelta(days=1), now


def many(number):
    about = [
        Difference(Finding.Kind.MISSING_HERE, "test.pay", f"k-{n}", theirs=[{"id": f"p-{n}"}]) for n in range(number)
    ]
    Finding.objects.note("test.pay", about, ops_team())


# The page


def test_the_page_shows_both_evidences_side_by_side_and_money_as_money(differing, people):
    page = browser(people.ops).get("/runs/findings/")
    words = text(page)
    assert page.status_code == 200
    assert "The amount of claim-2:step1 is not the one that was asked for." in words
    assert "$0.02 (2 minor units)" in words
    assert "$1,840.00 (184000 minor units)" in words
    assert re.search(r"Ours.*claim-2:step1.*Theirs.*extra", words)
    assert Inline(page.content.decode()).found == []


def test_each_sees_the_findings_of_their_teams_and_strangers_none(differing, people):
    sees = {
        name: text(browser(getattr(people, name)).get("/runs/findings/")) for name in ("ops", "adjuster", "stranger")
    }
    assert "claim-2:step1" in sees["adjuster"]
    assert "nobody:step1" not in sees["adjuster"]
    assert "nobody:step1" in sees["ops"]
    assert "claim-2:step1" not in sees["stranger"]
    gone = browser(people.stranger).post(f"/runs/findings/{differing.pk}/resolve/", {"why": "curious"})
    assert (gone.status_code, Finding.objects.open().count()) == (404, 2)


def test_resolving_takes_the_right_and_a_reason_and_happens_once(differing, people):
    address = f"/runs/findings/{differing.pk}/resolve/"
    assert address not in browser(people.adjuster).get("/runs/findings/").content.decode()
    assert browser(people.adjuster).post(address, {"why": "mine"}).status_code == 403
    refused = browser(people.ops).post(address, {"why": " "})
    assert refused.status_code == 422
    assert "Error: Findings" in text(refused)
    assert browser(people.ops).get(address).status_code == 405
    done = browser(people.ops).post(address, {"why": "paid back"})
    assert (done.status_code, done["Location"]) == (303, "/runs/findings/")
    assert browser(people.ops).post(address, {"why": "again"}).status_code == 409
    closed = text(browser(people.ops).get("/runs/findings/?show=closed"))
    assert "Resolved by olga: paid back" in closed


def test_a_refused_form_keeps_what_was_typed(lost, people):
    finding = Finding.objects.get()
    page = browser(people.ops).post(f"/runs/findings/{finding.pk}/resolve/", {"why": "x" * 2001, "outcome": "refused"})
    assert page.status_code == 422
    assert "x" * 2001 in page.content.decode()
    assert 'value="refused" checked' in page.content.decode()


def test_an_unknown_effect_is_settled_from_the_page_by_the_persons_word(lost, people):
    finding = Finding.objects.get()
    sent = {"why": "the bank says so", "outcome": "confirmed"}
    assert browser(people.ops).post(f"/runs/findings/{finding.pk}/resolve/", sent).status_code == 303
    assert (Call.objects.get(key=KEY).state, Call.objects.get(key=KEY).settled_by) == ("confirmed", "person")
    assert Finding.objects.get().resolved_by == people.ops
    assert fresh(lost).status == "dead"


def test_an_outcome_that_is_none_is_refused_and_a_finding_of_another_kind_has_none(lost, differing, people):
    unknown = Finding.objects.get(kind="unknown")
    refused = browser(people.ops).post(f"/runs/findings/{unknown.pk}/resolve/", {"why": "so", "outcome": "prepared"})
    assert (refused.status_code, Call.objects.get(key=KEY).state) == (422, "unknown")
    sent = {"why": "so", "outcome": "refused"}
    assert browser(people.ops).post(f"/runs/findings/{differing.pk}/resolve/", sent).status_code == 303
    assert Call.objects.get(key="claim-2:step1").state == "confirmed"


def test_paging_shows_every_finding_once(people, provider):
    many(120)
    client, address, seen = browser(people.superuser), "/runs/findings/", []
    while address:
        page = client.get(address).content.decode()
        seen += re.findall(r'id="finding-(\d+)"', page)
        following = re.search(r'href="(/runs/findings/\?[^"]*after=\d+[^"]*)" rel="next"', page)
        address = following and following[1].replace("&amp;", "&")
    assert (len(seen), len(set(seen))) == (120, 120)


def test_the_page_takes_as_many_queries_for_many_findings_as_for_one(people, provider):
    def queries():
        client = browser(people.superuser)
        with CaptureQueriesContext(connection) as captured:
            assert client.get("/runs/findings/").status_code == 200
        return len(captured)

    many(1)
    one = queries()
    many(40)
    assert queries() == one


@pytest.mark.parametrize("query", ["after=x", "after=" + "9" * 30, "show=everything", "after=-1"])
def test_an_address_that_makes_no_sense_shows_the_first_page(people, provider, query):
    many(1)
    assert "k-0" in text(browser(people.superuser).get(f"/runs/findings/?{query}"))


def test_the_top_bar_tells_how_many_are_open(differing, people):
    assert "Findings 2 open" in text(browser(people.ops).get("/runs/"))
    assert "Findings 1 open" in text(browser(people.adjuster).get("/inbox/"))
    Finding.objects.open().close("gone")
    assert "Everything fits" in text(browser(people.ops).get("/runs/findings/"))


def test_the_admin_shows_findings_and_changes_none(differing, people):
    client = browser(people.superuser)
    for model in ("finding", "listed", "recurring"):
        assert client.get(f"/admin/runs/{model}/").status_code == 200
    assert client.post(f"/admin/runs/finding/{differing.pk}/change/", {"resolution": "x"}).status_code == 403
    assert browser(people.auditor).get("/admin/runs/finding/").status_code == 200


# The commands


def run(*words):
    """(exit code, standard output) of a command."""
    out = StringIO()
    try:
        call_command(*words, stdout=out, stderr=StringIO())
    except CommandError as error:
        return error.returncode, out.getvalue()
    return 0, out.getvalue()


def test_reconcile_says_by_its_exit_code_whether_anything_is_open(differing, provider):
    code, printed = run("reconcile", "--json")
    answer = json.loads(printed)
    assert (code, answer["open"]) == (1, 2)
    assert answer["comparisons"][0]["listed"] == 4
    [finding] = [finding for finding in answer["findings"] if finding["kind"] == "amount-differs"]
    assert (finding["ours"][0]["amount_minor"], finding["theirs"][0]["amount_minor"]) == (2, 184_000)
    provider.records = list(listed(range(1, 4)))
    code, printed = run("reconcile")
    assert code == 0
    assert "test.pay: 3 listed, 0 new findings, 2 gone" in printed
    assert "No findings." in printed


def test_reconcile_takes_a_tool_a_time_and_only_the_unknown(differing, provider, people):
    lists = provider.lists
    assert run("reconcile", "--unknown")[0] == 1
    assert provider.lists == lists
    assert (
        run("reconcile", "--tool", "test.pay", "--since", "2020-01-01T00:00Z", "--until", "2020-02-01T00:00Z")[0] == 1
    )
    assert run("reconcile", "--tool", "test.mute")[0] == 2
    with pytest.raises(CommandError, match="with its zone"):
        call_command("reconcile", "--since", "2020-01-01T00:00")
    assert run("reconcile", "--since", "2020-02-01T00:00Z", "--until", "2020-01-01T00:00Z")[0] == 2


def test_reconcile_tells_of_a_provider_that_is_down(differing, provider):
    provider.down = Retryable("The line is dead.")
    code, printed = run("reconcile")
    assert code == 1
    assert "the provider cannot be asked: The line is dead." in printed


def test_reconcile_prints_figures(differing):
    code, printed = run("reconcile", "--figures", "--json")
    assert (code, json.loads(printed)[0]["confirmed"], json.loads(printed)[0]["open_findings"]) == (0, 3, 2)
    assert "test.pay" in run("reconcile", "--figures")[1]


def test_findings_are_listed_shown_and_resolved_by_a_named_person(differing, people):
    listing = json.loads(run("findings", "list", "--json")[1])
    assert [finding["kind"] for finding in listing] == ["amount-differs", "missing-here"]
    mine = json.loads(run("findings", "list", "--as", "ada", "--json")[1])
    assert [finding["id"] for finding in mine] == [differing.pk]
    shown = run("findings", "show", f"{differing.pk}")[1]
    assert '"amount_minor": 184000' in shown
    assert run("findings", "show", f"{differing.pk}", "--as", "eve")[0] == 3
    assert run("findings", "resolve", f"{differing.pk}", "--why", "mine", "--as", "ada")[0] == 1
    assert run("findings", "resolve", f"{differing.pk}", "--why", "paid back", "--as", "olga")[0] == 0
    assert run("findings", "resolve", f"{differing.pk}", "--why", "again", "--as", "olga")[0] == 1
    assert "Closed: paid back" in run("findings", "list", "--closed")[1]


def test_an_effect_is_settled_by_the_command_with_the_answer_that_later_steps_read(lost, people):
    words = ("findings", "settle", KEY, "--why", "the bank says so", "--as", "olga")
    assert run(*words, "--outcome", "confirmed", "--answer", "[1]")[0] == 1
    code, printed = run(*words, "--outcome", "confirmed", "--answer", '{"payment": "b-1"}')
    assert (code, "can be redriven" in printed) == (0, True)
    assert Call.objects.get(key=KEY).answer == {"payment": "b-1"}
    assert run("findings", "settle", "run-1:step9", "--why", "x", "--as", "olga", "--outcome", "refused")[0] == 3
