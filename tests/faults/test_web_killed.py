"""The web server killed while somebody answers: fifty times before, inside and after the deciding transaction, and
fifty times at any moment."""

import time
from collections import Counter
from itertools import cycle, islice

import http_scene
import pytest
import web_kills
from web_kills import AFTER, BEFORE, INSIDE, VERBS

pytestmark = pytest.mark.faults_long

TIMES = 50


@pytest.fixture
def points(tmp_path):
    folder = tmp_path / "points"
    folder.mkdir()
    return folder


@pytest.fixture
def scene(database, people, settings, tmp_path, points):
    with http_scene.opened(database, people, settings, tmp_path, FAILPOINTS=str(points)) as scene:
        yield scene


@pytest.mark.parametrize("places", [BEFORE, INSIDE, AFTER], ids=["before", "inside", "after"])
def test_killed_there_50_times_all_of_an_answer_happened_or_nothing(scene, points, places, counted):
    began, asked = time.monotonic(), [scene.ask(f"{number:04}") for number in range(TIMES)]
    for approval, boundary, verb in zip(asked, cycle(places), cycle(["approve", "reject"]), strict=False):
        web_kills.kill_at(scene, points, VERBS[verb], approval, boundary)
    web_kills.finish(scene, asked)
    counted("killed at", Counter(islice(cycle(places), TIMES)), time.monotonic() - began)


@pytest.mark.parametrize("verb", ["edit", "respond", "withdraw"])
def test_killed_at_every_place_of_the_other_answers_all_happened_or_nothing(scene, points, verb, counted):
    began, places = time.monotonic(), [*BEFORE, *INSIDE, *AFTER] * 4
    asked = [scene.ask(f"{number:04}") for number in range(len(places))]
    for approval, boundary in zip(asked, places, strict=True):
        web_kills.kill_at(scene, points, VERBS[verb], approval, boundary)
    web_kills.finish(scene, asked)
    counted(f"killed while answering by {verb}", Counter(places), time.monotonic() - began)


def test_killed_at_any_moment_50_times_all_of_an_answer_happened_or_nothing(scene, counted):
    began, (first, *asked) = time.monotonic(), [scene.ask(f"{number:04}") for number in range(TIMES + 1)]
    takes = web_kills.seconds_for(scene, VERBS["approve"], first)
    outcomes = Counter(
        web_kills.kill_at_any_moment(scene, VERBS[verb], approval, takes)
        for approval, verb in zip(asked, cycle(VERBS), strict=False)
    )
    web_kills.finish(scene, asked)
    counted("killed at any moment", outcomes, time.monotonic() - began)
