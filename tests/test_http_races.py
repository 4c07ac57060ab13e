"""Two at one approval at the same moment, through HTTP: one winner, a clear answer for the other, one decision, one
payment. A few of each kind; `make faults` plays two hundred."""

import http_races
import http_scene
import pytest
from http_races import FIRST, FREE, SECOND

pytestmark = pytest.mark.faults


@pytest.fixture
def scene(database, people, settings, tmp_path):
    with http_scene.opened(database, people, settings, tmp_path) as scene:
        yield scene


@pytest.mark.parametrize("half", [slice(0, None, 2), slice(1, None, 2)], ids=["one half", "the other"])
def test_of_two_at_once_one_wins_and_the_other_is_told(scene, half):
    """Each half of the kinds on a site of its own, so that two processes share the races."""
    for kind in http_races.KINDS[half]:
        winners = http_races.play(scene, kind(), free=3, forced=1)
        assert winners.total() == 5, kind.name
        assert {order for order, _ in winners} == {FREE, FIRST, SECOND}, kind.name
