"""The web server killed while somebody answers: never a decision without its run moving, never the reverse, and whoever
sends the form again is shown the same result. A few times; `make faults` does it fifty times at each place."""

import http_scene
import psycopg
import pytest
import web_kills
from racing import at_once
from runner_process import RunnerProcess, eventually
from stage import Party, fresh, holding_ledger, wait_until_blocked
from web_kills import AFTER, BEFORE, INSIDE, VERBS
from worker_process import WorkerProcess

from approvals.authority import FRESH
from approvals.models import ApprovalStatus, Authority, Decision

pytestmark = pytest.mark.faults

LOST = "RETURN NULL"
REFUSED = "RAISE EXCEPTION 'the queue takes nothing'"
NO_BELLS = """
CREATE FUNCTION no_bells() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {instead}; END $$;
CREATE TRIGGER no_bells BEFORE INSERT ON django_q_ormq FOR EACH ROW WHEN (NEW.key = 'runs') EXECUTE FUNCTION no_bells()
"""


def execute(database, statement: str) -> None:
    with psycopg.connect(database.url, autocommit=True) as other:
        other.execute(statement)


@pytest.fixture
def points(tmp_path):
    folder = tmp_path / "points"
    folder.mkdir()
    return folder


@pytest.fixture
def scene(database, people, settings, tmp_path, points):
    with http_scene.opened(database, people, settings, tmp_path, FAILPOINTS=str(points)) as scene:
        yield scene


PLACES = [("approve", place) for place in (*BEFORE, *INSIDE, *AFTER)]
PLACES += [(verb, place) for verb in VERBS if verb != "approve" for place in ("signed", "answered")]


def test_killed_at_each_place_all_of_an_answer_happened_or_nothing(scene, points):
    asked = [scene.ask(f"{verb}-{place}") for verb, place in PLACES]
    for approval, (verb, place) in zip(asked, PLACES, strict=True):
        web_kills.kill_at(scene, points, VERBS[verb], approval, place)
    web_kills.finish(scene, asked)


def test_killed_at_any_moment_all_of_an_answer_happened_or_nothing(scene):
    first, *asked = [scene.ask(f"{number:04}") for number in range(4)]
    takes = web_kills.seconds_for(scene, VERBS["approve"], first)
    for approval in asked:
        web_kills.kill_at_any_moment(scene, VERBS["approve"], approval, takes)
    web_kills.finish(scene, asked)


@pytest.mark.parametrize("place", ["answering", "answered"])
def test_whoever_gave_the_password_again_stays_signed_in_when_the_answer_was_lost(scene, people, points, place):
    """The same form from the same session: it is not the session that has to prove anything."""
    approval, ada = scene.ask("0042"), scene.visitor(people.adjuster)
    Authority.objects.update(currency="USD", password_above_minor=0)
    ada.signed_in_ago(FRESH + 60)
    send = scene.answering(people.adjuster, approval, "decide", verdict="approve", read="on", password=people.password)
    web_kills.dies(points, approval, place, send)
    web_kills.assert_sent_again_it_is_the_same(scene, VERBS["approve"], approval, send)
    assert len({answer.headers["Location"] for answer in at_once(send, send)}) == 1
    web_kills.finish(scene, [approval])


# C10: queue and rows out of step


@pytest.fixture
def runner(database, settings, scene, tmp_path):
    with RunnerProcess(database, tmp_path / "runner.log", SANDBOX_URL=settings.SANDBOX_URL) as runner:
        yield runner


def test_the_run_goes_on_by_itself_when_the_web_server_died_between_commit_and_answer(scene, points, runner):
    approval = scene.ask("0042")
    send = VERBS["approve"].begin(scene, approval)
    web_kills.dies(points, approval, "answered", send)
    eventually(lambda: fresh(approval.run).status == "completed")
    assert scene.paid(approval.run) == [http_scene.AMOUNT]


@pytest.mark.parametrize("instead", [LOST, REFUSED], ids=["lost", "refused"])
def test_a_bell_that_is_lost_or_that_the_queue_refuses_costs_no_decision_and_the_sweep_rings(
    scene, database, runner, instead
):
    approval = scene.ask("0042")
    send = VERBS["approve"].begin(scene, approval)
    execute(database, NO_BELLS.format(instead=instead))
    assert http_scene.won(send())
    assert (fresh(approval.run).status, Decision.objects.count()) == ("ready", 1)
    execute(database, "DROP TRIGGER no_bells ON django_q_ormq")
    eventually(lambda: fresh(approval.run).status == "completed")
    assert scene.paid(approval.run) == [http_scene.AMOUNT]


def test_a_worker_that_is_quicker_than_the_commit_sees_nothing_before_it(scene, database):
    approval = scene.ask("0042")
    send = VERBS["approve"].begin(scene, approval)
    with WorkerProcess():
        with holding_ledger(database):
            party = Party(send)
            wait_until_blocked(database)
            approval.refresh_from_db()
            assert (approval.status, fresh(approval.run).status) == (ApprovalStatus.OPEN, "waiting")
        assert http_scene.won(party.outcome())
        eventually(lambda: fresh(approval.run).status == "completed")
    assert scene.paid(approval.run) == [http_scene.AMOUNT]
