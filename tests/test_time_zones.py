"""Deadlines over both changes of the clocks, in whatever zone the server and the reader are: elapsed time, kept as an
instant. Pages say UTC, and where a time can be typed one without a zone is refused."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from browsing import browser, text
from django.core.management import CommandError, call_command
from django.utils import timezone
from stage import Stage, freeze_clock, press, question, shown

from approvals import assignment
from approvals.gate import escalate, remind
from approvals.models import Absence, Decision, Rung
from approvals.refusals import TooLate
from runs.sweep import close_overdue_waits, sweep

DAY, MOMENT = timedelta(hours=24), timedelta(microseconds=1)
BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
ASKED = [
    (BERLIN, datetime(2026, 3, 29, 1, 30)),  # the hour from two is missing
    (BERLIN, datetime(2026, 3, 28, 2, 30)),  # a day later this wall clock is never seen
    (BERLIN, datetime(2026, 10, 25, 1, 30)),
    (BERLIN, datetime(2026, 10, 24, 2, 30)),  # a day later it is seen twice
    (NEW_YORK, datetime(2026, 3, 8, 1, 30)),
    (NEW_YORK, datetime(2026, 3, 7, 2, 30)),
    (NEW_YORK, datetime(2026, 11, 1, 1, 30)),
    (NEW_YORK, datetime(2026, 10, 31, 1, 30)),
]


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture(params=ASKED, ids=lambda asked: f"{asked[0]} {asked[1]:%d %b %H:%M}")
def asked_at(request, settings):
    """The instant of that wall clock; server and reader live by it."""
    zone, wall = request.param
    settings.TIME_ZONE = zone
    with timezone.override(zone):
        yield wall.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


def utc(at):
    return f"{at.astimezone(UTC):%-d %b %Y, %H:%M UTC}"


def test_a_day_to_answer_is_86400_seconds_also_over_a_change_of_the_clocks(stage, asked_at, database):
    stage.asks_then_pays(expires_in=DAY)
    freeze_clock(asked_at)
    approval, late = stage.asked("in-time"), stage.asked("late")
    kept = "extract(epoch FROM due_at - asked_at)::int, extract(epoch FROM due_at)::bigint"
    expected = (86_400, int((asked_at + DAY).timestamp()))
    assert database.query(f"SELECT {kept} FROM approvals_approval") == [expected] * 2
    freeze_clock(asked_at + DAY - MOMENT)
    assert close_overdue_waits() == 0
    page = shown(late)
    press(approval, stage.people.adjuster)
    freeze_clock(asked_at + DAY)
    with pytest.raises(TooLate):
        press(late, stage.people.adjuster, page=page)
    assert close_overdue_waits() == 1
    assert Decision.objects.count() == 1


def test_pages_say_the_instant_in_utc_and_say_so(stage, asked_at, people):
    stage.asks_then_pays(expires_in=DAY)
    freeze_clock(asked_at)
    approval, ada = stage.asked("claim-0042"), browser(people.adjuster)
    page = text(ada.get(f"/approvals/{approval.pk}/"))
    assert f"Asked {utc(asked_at)}" in page
    assert f"Expires {utc(asked_at + DAY)}" in page
    assert "24 h 00 min left" in page
    assert "All times are UTC" in text(ada.get("/inbox/"))
    receipt = press(approval, people.adjuster).entry_id
    assert f"{asked_at:%-d %b %Y, %H:%M:%S UTC}" in text(ada.get(f"/receipts/{receipt}/"))


def test_a_ladder_is_climbed_after_elapsed_time_and_each_rung_once(stage, asked_at):
    hour = timedelta(hours=1)
    ladder = [remind(after=hour), escalate(to="senior-adjusters", after=2 * hour)]
    stage.asks_then_pays(expires_in=DAY, ladder=ladder)
    freeze_clock(asked_at)
    approval = stage.asked("claim-0042")
    for late, fired in ((hour - MOMENT, 0), (hour, 1), (2 * hour - MOMENT, 1), (2 * hour, 2), (4 * hour, 2)):
        freeze_clock(asked_at + late)
        sweep()
        sweep()
        assert Rung.objects.filter(fired_at__isnull=False).count() == fired
    assert question(approval.run).level == 1


def test_days_away_are_days_of_utc_whatever_the_clocks_do(asked_at, people):
    freeze_clock(asked_at)
    first = asked_at.date()
    absence = assignment.delegate(to=people.second_adjuster, first=first, last=first + DAY, by=people.adjuster)
    assert absence.ends_at - absence.starts_at == 2 * DAY
    assert absence.starts_at == datetime(first.year, first.month, first.day, tzinfo=UTC)
    page = text(browser(people.adjuster).get("/inbox/absences/"))
    assert f"{utc(absence.starts_at)} {utc(absence.ends_at)}" in page


# Typed


def test_a_day_away_is_no_time_of_a_day(people):
    today = datetime.now(UTC).date().isoformat()
    for typed in (f"{today}T10:00", f"{today} 10:00:00", f"{today}T10:00:00+01:00"):
        sent = {"to": people.second_adjuster.pk, "first": typed, "last": today}
        refused = browser(people.adjuster).post("/inbox/absences/new/", sent)
        assert refused.status_code == 422
        assert "Say a day, such as" in text(refused)
    assert not Absence.objects.exists()


def test_a_page_key_without_a_zone_is_the_first_page(stage, people):
    stage.asks_then_pays()
    stage.asked("claim-0042")
    listed = browser(people.adjuster).get("/inbox/?after=2036-01-01T00:00:00,1").context["listed"]
    assert [row.run.key for row in listed.rows] == ["claim-0042"]
    listed = browser(people.adjuster).get("/inbox/?after=2036-01-01T00:00:00%2B00:00,1").context["listed"]
    assert listed.rows == []


def test_the_command_line_takes_no_time_without_a_zone(people):
    with pytest.raises(CommandError, match="zone"):
        call_command("reconcile", "--since", "2026-10-25T02:30")
