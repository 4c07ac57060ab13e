"""The runs console: what each tab and filter lists, that pages lose nothing, and what leaves it as CSV."""

import csv
import io
from datetime import timedelta

import pytest
from browsing import HTMX, browser, text
from django.db import connection
from django.test.utils import CaptureQueriesContext
from racing import parts
from stage import Stage

from runs import console, engine, repair
from runs.console import Choice
from runs.models import AuditEvent, Run, Tag
from runs.testing import drain, move_clock


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        parts(stage)
        yield stage


def start(stage, key, part="waiting", **more):
    return engine.start(stage.flow, key=key, input={"part": part}, team=more.pop("team", stage.people.team), **more)


def listed(person, query=""):
    page = browser(person).get(f"/runs/{query}")
    assert page.status_code == 200
    return [row.run.key for row in page.context["rows"]]


@pytest.fixture
def zoo(stage):
    for part in ("waiting", "sleeping", "dead", "capped"):
        start(stage, part, part)
    start(stage, "paused", "waiting")
    start(stage, "gone", "waiting")
    drain()
    repair.pause("paused", why="x")
    engine.cancel("gone", why="x")
    start(stage, "fresh")
    return stage


@pytest.mark.parametrize(
    ("tab", "expected"),
    [
        ("all", ["fresh", "gone", "paused", "capped", "dead", "sleeping", "waiting"]),
        ("working", ["fresh"]),
        ("waiting", ["capped", "waiting"]),
        ("sleeping", ["sleeping"]),
        ("stuck", []),
        ("overdue", []),
        ("dead", ["dead"]),
        ("paused", ["paused"]),
        ("completed", []),
        ("expired", []),
        ("cancelled", ["gone"]),
    ],
)
def test_each_tab_lists_its_runs_and_counts_them(zoo, people, tab, expected):
    page = browser(people.ops).get(f"/runs/?status={tab}")
    assert [row.run.key for row in page.context["rows"]] == expected
    counts = {shown.name: total for shown, total in page.context["tabs"]}
    assert counts[tab] == len(expected)


def test_overdue_lists_waits_past_their_due_time(zoo, people):
    move_clock(timedelta(days=2))
    assert listed(people.ops, "?status=overdue") == ["waiting"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("workflow=under-test&status=waiting", ["capped", "waiting"]),
        ("workflow=another", []),
        ("version=1&status=dead", ["dead"]),
        ("version=2", []),
        ("team=claims&status=dead", ["dead"]),
        ("team=other-claims", []),
        ("team=nobody", []),
        ("wait=cap", ["capped"]),
        ("wait=event&status=waiting", ["waiting"]),
        ("age=1h", []),
        ("q=wai", ["waiting"]),
        ("q=WAI", ["waiting"]),
        ("q=aiting", []),
        ("q=\u00fc", []),
    ],
)
def test_filters_and_search_narrow_the_list(zoo, people, query, expected):
    assert listed(people.ops, f"?{query}") == expected


def test_runs_are_found_by_age_to_the_second_even_where_ids_and_times_differ(zoo, people):
    move_clock(timedelta(hours=1, seconds=30))
    start(zoo, "newer")
    Run.objects.filter(key="sleeping").update(created_at=Run.objects.get(key="newer").created_at)
    assert sorted(listed(people.ops, "?age=1h")) == ["capped", "dead", "fresh", "gone", "paused", "waiting"]
    assert listed(people.ops, "?age=1d") == []


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("q=0041", ["by-claim"]),
        ("q=41", ["by-number"]),
        ("q=004", []),
        ("tag=claim%3D0041", ["by-claim"]),
        ("tag=order%3D0041", []),
        ("tag=order%3D41", ["by-number"]),
        ("tag=0041", ["by-claim"]),
        ("tag=claim%3D", []),
    ],
)
def test_a_run_is_found_by_the_value_of_a_tag(stage, people, query, expected):
    start(stage, "by-claim", tags={"claim": "0041", "flag": None})
    start(stage, "by-number", tags={"order": 41, "long": "x" * 5000})
    start(stage, "by-nothing")
    assert listed(people.ops, f"?{query}") == expected


def test_a_fork_is_found_by_the_tags_that_it_takes_over(stage, people):
    start(stage, "first", "dead", tags={"claim": "0041"})
    drain()
    repair.fork("first", "second", why="x")
    assert listed(people.ops, "?q=0041") == ["second", "first"]
    Run.objects.filter(key="first").update(tags={"claim": "0042"})
    assert sorted(Tag.objects.values_list("run__key", "value")) == [("first", "0042"), ("second", "0041")]


def test_a_run_is_found_by_an_idempotency_key_or_its_beginning(people):
    with Stage(people) as stage:
        stage.calls_then_goes_on(stage.tool())
        stage.begin("claim-1")
        stage.begin("claim-10")
        for query, expected in (
            ("claim-1:step1", ["claim-1"]),
            ("claim-1:", ["claim-1"]),
            ("CLAIM-1:step1", []),
            ("claim-1:step2", []),
            ("claim-10:s", ["claim-10"]),
        ):
            assert listed(people.ops, f"?q={query}") == expected, query


def test_a_stranger_finds_nothing_by_any_way(stage, people):
    start(stage, "hidden", tags={"claim": "0041"})
    for query in ("", "?q=hidden", "?q=0041", "?tag=0041", "?team=claims", "?status=working"):
        assert listed(people.stranger, query) == []
        assert len(exported(people.stranger, query)) == 1
    page = browser(people.stranger).get("/runs/")
    assert {total for _, total in page.context["tabs"]} == {0}


def test_paging_goes_both_ways_and_shows_each_run_once(stage, people):
    for number in range(120):
        start(stage, f"run-{number:03}")
    client, address, seen = browser(people.ops), "/runs/?status=working", []
    expected = [f"run-{number:03}" for number in reversed(range(120))]
    pages = []
    for _ in range(3):
        page = client.get(address)
        pages.append([row.run.key for row in page.context["rows"]])
        address = f"/runs/?status=working&after={page.context['older']}"
    seen = [key for shown in pages for key in shown]
    assert (seen, page.context["older"]) == (expected, 0)
    start(stage, "run-new")
    back = client.get(f"/runs/?status=working&before={page.context['newer']}")
    assert [row.run.key for row in back.context["rows"]] == pages[1]
    first = client.get(f"/runs/?status=working&before={back.context['newer']}")
    assert [row.run.key for row in first.context["rows"]] == pages[0]
    assert first.context["newer"] != 0
    assert client.get("/runs/?status=working").context["newer"] == 0


@pytest.mark.parametrize(
    "query",
    [
        "after=x",
        "before=-1",
        "status=x&age=x&wait=x",
        "version=1e9",
        "after=99999999999999999999",
        "q=%00&tag=%00",
        "q=%3A",
    ],
)
def test_an_address_that_makes_no_sense_is_no_error(stage, people, query):
    start(stage, "run-1")
    assert browser(people.ops).get(f"/runs/?{query}").status_code == 200


def test_all_that_was_chosen_is_in_the_address(people):
    from django.http import QueryDict

    asked = "status=waiting&q=claim&workflow=w&version=2&team=t&tag=a%3Db&age=1d&wait=cap"
    choice = Choice.of(QueryDict(asked))
    assert Choice.of(QueryDict(choice.address()[1:])) == choice
    assert choice.address() == f"?{asked}"


def test_a_waiting_run_shows_its_sentence_and_a_countdown(zoo, people):
    page = browser(people.ops).get("/runs/?status=waiting")
    assert "Waits at step 1 (play) for the event papers" in text(page)
    assert page.content.decode().count('role="timer"') == 2


def test_only_who_may_act_is_offered_to(zoo, people):
    assert 'class="row-select"' in browser(people.ops).get("/runs/").content.decode()
    for person in (people.auditor, people.adjuster):
        page = browser(person).get("/runs/").content.decode()
        assert "row-select" not in page
        assert "bulk-bar" not in page


def test_the_list_takes_as_many_queries_for_fifty_rows_as_for_one(stage, people):
    client = browser(people.ops)

    def queries():
        with CaptureQueriesContext(connection) as captured:
            client.get("/runs/rows/?status=working&q=run&tag=a", headers=HTMX)
        return len(captured)

    start(stage, "run-x", tags={"t": "a"})
    queries()
    one = queries()
    for number in range(60):
        start(stage, f"run-{number}", tags={"t": "a"})
    assert queries() == one


# CSV


def exported(person, query=""):
    response = browser(person).get(f"/runs/export.csv{query}")
    assert response["Content-Type"].startswith("text/csv")
    return list(csv.reader(io.StringIO(b"".join(response.streaming_content).decode())))


def test_the_export_holds_the_list_that_was_shown_and_is_recorded(zoo, people):
    rows = exported(people.auditor, "?status=waiting")
    assert [row[0] for row in rows] == ["run", "capped", "waiting"]
    assert dict(zip(rows[0], rows[2], strict=True))["why"].startswith("Waits at step 1 (play) for the event papers")
    kept = AuditEvent.objects.get(kind="exported")
    assert (kept.user, kept.detail) == (people.auditor, "runs as CSV: ?status=waiting")


def test_the_export_holds_no_run_of_others(zoo, people):
    assert len(exported(people.stranger)) == 1
    assert len(exported(people.ops)) == 8


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "=cmd|' /C calc'!A0"])
def test_no_cell_is_a_formula(stage, people, value):
    assert console.harmless(value) == f"'{value}"
    start(stage, "run-1", "dead")
    drain()
    Run.objects.update(reason=value)
    row = dict(zip(*exported(people.ops), strict=True))
    assert row["why"] == f"'{value}"
    assert not [cell for cell in row.values() if cell[:1] in "=+-@\t\r" and cell]


def test_the_export_streams_over_a_cursor_in_the_server(stage, people):
    for number in range(5):
        start(stage, f"run-{number}")
    with CaptureQueriesContext(connection) as captured:
        lines = console.export(people.ops, Choice())
        assert next(lines).startswith("run,")
        assert next(lines).startswith("run-4,")
        list(lines)
    assert not [query for query in captured if 'FROM "runs_run"' in query["sql"] and "LIMIT" in query["sql"]]
