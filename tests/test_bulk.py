"""Bulk work: chosen once, confirmed, done once to each run as the person who asked, whatever dies in between."""

import re
import signal
import time

import pytest
from browsing import HTMX, browser, text
from racing import parts
from stage import Party, Stage, fresh
from worker_process import WorkerProcess

from runs import bulk, engine
from runs.models import AuditEvent, Batch, BatchItem, Run, Transition
from runs.testing import drain

NEW = "/runs/bulk/new/"


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        parts(stage)
        yield stage


def begin(stage, count, part="dead", prefix="dead"):
    whose = {"team": stage.people.team, "by": stage.people.requester}
    for number in range(count):
        engine.start(stage.flow, key=f"{prefix}-{number}", input={"part": part}, **whose)
    drain()


def hidden(page):
    """What the form of a page would send."""
    return re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.content.decode())


def form(person, query):
    sent = {}
    for name, value in hidden(browser(person).get(f"{NEW}?{query}")):
        sent.setdefault(name, []).append(value)
    sent.pop("csrfmiddlewaretoken", None)
    return sent


def confirm(person, query, **words):
    return browser(person).post(NEW, form(person, query) | {"why": "the provider is back"} | words)


def made(response):
    assert response.status_code == 303, text(response)
    return Batch.objects.get(pk=int(response["Location"].split("/")[-2]))


def test_the_page_says_how_many_and_which_before_anything_is_done(stage, people):
    begin(stage, 3)
    begin(stage, 2, "waiting", "waits")
    page = text(browser(people.ops).get(f"{NEW}?do=redrive&scope=all"))
    for words in ("Redrive: 3 runs?", "dead-0", "2 of the runs chosen are in no state for that and are left out"):
        assert words in page
    assert "waits-0" not in page
    assert not Batch.objects.exists()


@pytest.mark.parametrize(
    ("action", "part", "status"),
    [
        ("redrive", "dead", "dead"),  # it fails again
        ("discard", "dead", "cancelled"),
        ("cancel", "waiting", "cancelled"),
        ("pause", "waiting", "paused"),
        ("retry", "sleeping", "sleeping"),
    ],
)
def test_each_verb_is_done_once_to_each_run_with_the_reason_and_as_the_person(stage, people, action, part, status):
    begin(stage, 3, part, "some")
    batch = made(confirm(people.ops, f"do={action}&scope=all&q=some-"))
    drain()
    assert (fresh(batch.run).status, batch.tally()) == ("completed", {"": 0, "done": 3, "refused": 0})
    moves = Transition.objects.filter(run__key__startswith="some-", actor=f"batch {batch.pk}")
    assert {(move.user, move.why) for move in moves} == {(people.ops, "the provider is back")}
    assert sorted(moves.values_list("run__key", flat=True)) == ["some-0", "some-1", "some-2"]
    assert set(Run.objects.filter(key__startswith="some-").values_list("status", flat=True)) == {status}
    assert fresh(batch.run).outcome.startswith("3 ")


def test_only_those_that_were_ticked_are_treated(stage, people):
    begin(stage, 3)
    batch = made(confirm(people.ops, "do=discard&scope=ticked&run=dead-0&run=dead-2&run=of-nobody"))
    drain()
    assert (batch.total, Run.objects.get(key="dead-1").status) == (2, "dead")


def test_the_choice_is_frozen_when_it_is_confirmed(stage, people):
    begin(stage, 2)
    batch = made(confirm(people.ops, "do=discard&scope=all&status=dead"))
    engine.cancel("dead-0", why="somebody was faster")
    engine.start(stage.flow, key="late", input={"part": "dead"}, team=people.team)
    drain()
    assert Run.objects.get(key="late").status == "dead"
    refused = batch.items.get(outcome="refused")
    assert (refused.run.key, Run.objects.get(key="dead-1").status) == ("dead-0", "cancelled")
    assert "is cancelled, so it cannot be discarded" in refused.sentence


def test_more_runs_than_were_shown_are_not_treated_unseen(stage, people):
    begin(stage, 2)
    sent = form(people.ops, "do=discard&scope=all&status=dead") | {"why": "x"}
    begin(stage, 1, prefix="more")
    page = browser(people.ops).post(NEW, sent)
    assert (page.status_code, Batch.objects.count()) == (412, 0)
    assert "You were shown 2 runs, and 3 would be chosen now" in text(page)
    assert not Run.objects.filter(workflow="bulk-work").exists()


def test_the_same_form_sent_twice_is_one_batch(stage, people):
    begin(stage, 2)
    sent = form(people.ops, "do=discard&scope=all&status=dead") | {"why": "x"}
    first, second = (browser(people.ops).post(NEW, sent) for _ in range(2))
    assert first["Location"] == second["Location"]
    assert Batch.objects.count() == 1


def test_rights_are_looked_at_again_for_each_run_when_it_is_its_turn(stage, people):
    begin(stage, 2)
    batch = made(confirm(people.ops, "do=discard&scope=all&status=dead"))
    people.ops.groups.remove(people.ops.groups.get(name="ops"))
    drain()
    assert batch.tally() == {"": 0, "done": 0, "refused": 2}
    assert AuditEvent.objects.filter(kind="verb-refused", user=people.ops).count() == 2
    assert set(Run.objects.filter(key__startswith="dead").values_list("status", flat=True)) == {"dead"}


def test_whoever_left_the_team_reaches_none_of_its_runs_any_more(stage, people):
    begin(stage, 1)
    batch = made(confirm(people.ops, "do=discard&scope=all&status=dead"))
    people.ops.groups.remove(people.team)
    drain()
    assert "There is no run dead-0" in batch.items.get().sentence


def test_strangers_choose_nothing_of_others_and_see_no_batch(stage, people):
    begin(stage, 1)
    page = browser(people.stranger).get(f"{NEW}?do=discard&scope=all")
    assert (page.status_code, "dead-0" in text(page)) == (409, False)
    assert browser(people.stranger).get(f"{NEW}?do=discard&scope=ticked&run=dead-0").status_code == 409
    batch = made(confirm(people.ops, "do=discard&scope=all&status=dead"))
    assert browser(people.stranger).get(f"/runs/bulk/{batch.pk}/").status_code == 404
    assert "dead" not in text(browser(people.stranger).get("/runs/bulk/"))
    assert browser(people.auditor).get(f"/runs/bulk/{batch.pk}/").status_code == 200


def test_it_takes_the_right_a_reason_a_verb_and_at_least_one_run(stage, people):
    begin(stage, 1)
    assert browser(people.auditor).get(f"{NEW}?do=discard&scope=all").status_code == 403
    sent = form(people.ops, "do=discard&scope=all&status=dead")
    assert browser(people.auditor).post(NEW, sent | {"why": "x"}).status_code == 403
    assert browser(people.ops).post(NEW, sent | {"why": " "}).status_code == 422
    assert browser(people.ops).post(NEW, sent | {"why": "x", "token": "short"}).status_code == 422
    assert browser(people.ops).get(f"{NEW}?do=explode&scope=all").status_code == 422
    ticked = browser(people.ops).get(f"{NEW}?do=discard&scope=ticked")
    assert (ticked.status_code, "Tick at least one run" in text(ticked)) == (409, True)
    assert not Batch.objects.exists()


def test_the_page_tells_how_far_it_is_and_rests_when_it_has_ended(stage, people, monkeypatch):
    begin(stage, 3)
    batch = made(confirm(people.ops, "do=discard&scope=all&status=dead"))
    client, address = browser(people.ops), f"/runs/bulk/{batch.pk}/"
    page = client.get(address)
    assert "0 of 3 treated, 0 %" in text(page)
    assert "every 2s" in page.content.decode()
    drain()
    page = client.get(address, headers=HTMX)
    assert "3 of 3 treated, 100 %" in text(page)
    assert "every 2s" not in page.content.decode()
    assert "Discarded" in text(page)
    assert f"/runs/bulk/{batch.pk}/" in client.get("/runs/bulk/").content.decode()


def test_a_bulk_run_that_is_paused_stops_before_the_next_run_and_goes_on_when_resumed(stage, people):
    begin(stage, 3)
    batch = made(confirm(people.ops, "do=discard&scope=all&status=dead"))
    Run.objects.filter(pk=batch.run_id).get().move("paused", why="wait", actor="test")
    assert bulk.work(batch.run.key, 0) == 0
    assert batch.tally()["done"] == 0
    fresh(batch.run).move("ready", why="go on", actor="test")
    drain()
    assert batch.tally() == {"": 0, "done": 3, "refused": 0}


def test_what_became_of_a_run_stays_in_the_database(stage, people):
    begin(stage, 1)
    batch = made(confirm(people.ops, "do=discard&scope=all&status=dead"))
    drain()
    for change in (lambda items: items.update(outcome=""), lambda items: items.delete()):
        with pytest.raises(Exception, match=r"stays as it is|append-only"):
            change(BatchItem.objects.filter(batch=batch))


def test_three_hundred_dead_runs_are_each_redriven_once_though_the_worker_is_killed_twice(stage, people):
    begin(stage, 300)
    batch = made(confirm(people.ops, "do=redrive&scope=all&status=dead"))
    kills, until = 0, time.monotonic() + 240
    while fresh(batch.run).status != "completed":
        with WorkerProcess() as worker:
            came = batch.tally()["done"]
            while kills < 2 and batch.tally()["done"] < came + 40 and fresh(batch.run).status != "completed":
                time.sleep(0.005)
            if kills < 2:
                worker.signal(signal.SIGKILL)
                kills += 1
            while kills == 2 and worker_lives(worker) and fresh(batch.run).status != "completed":
                assert time.monotonic() < until
                time.sleep(0.05)
    assert kills == 2
    assert batch.tally() == {"": 0, "done": 300, "refused": 0}
    redriven = Transition.objects.filter(actor=f"batch {batch.pk}", to_status="ready")
    assert (redriven.count(), redriven.values("run").distinct().count()) == (300, 300)
    assert fresh(batch.run).transitions.filter(why__contains="was lost").count() == 2


def worker_lives(worker):
    return not worker.was_killed


def test_two_workers_at_one_batch_treat_no_run_twice(stage, people):
    """A frozen worker that wakes after its lease goes on beside the next one until its step ends."""
    begin(stage, 60)
    batch = made(confirm(people.ops, "do=discard&scope=all&status=dead"))
    Run.objects.filter(pk=batch.run_id).update(
        status="running", worker="elsewhere:1:1", lease_until="2099-01-01T00:00:00Z"
    )
    parties = [Party(lambda: bulk.work(batch.run.key, 0, 30)) for _ in range(3)]
    for party in parties:
        party.outcome()
    assert batch.tally() == {"": 0, "done": 60, "refused": 0}
    assert Transition.objects.filter(actor=f"batch {batch.pk}").count() == 60
