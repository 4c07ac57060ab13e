"""Two at one approval at the same moment, through HTTP: two hundred of each kind, and ten more in either order."""

import time
from collections import Counter

import http_races
import http_scene
import pytest

pytestmark = pytest.mark.faults_long

TIMES, FORCED = 200, 10


@pytest.fixture
def scene(database, people, settings, tmp_path):
    with http_scene.opened(database, people, settings, tmp_path) as scene:
        yield scene


@pytest.mark.parametrize("kind", http_races.KINDS, ids=lambda kind: kind.__name__)
def test_of_two_at_once_one_wins_and_the_other_is_told_200_times(scene, kind, counted):
    began = time.monotonic()
    winners = http_races.play(scene, kind(), free=TIMES, forced=FORCED)
    counted(kind.name, Counter({": ".join(how): count for how, count in winners.items()}), time.monotonic() - began)
    assert winners.total() == TIMES + 2 * FORCED
