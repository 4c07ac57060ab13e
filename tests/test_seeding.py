"""Seeded runs are runs as the engine would have left them; who seeds a site that is in use is refused; and among very
many of them no page of the operators reads a whole table."""

from collections import Counter
from dataclasses import replace

import pytest
from django.core.management import CommandError, call_command
from racing import is_whole

from approvals.models import Approval, InboxEntry
from runs import console as lists
from runs import seeding
from runs.choice import Choice
from runs.engine import start
from runs.models import Call, Checkpoint, Run, Tag, Tally
from runs.narrowing import LOOKED, chosen
from runs.seeding import Amount
from runs.states import EffectState, Status, WaitKind
from tests.bench import console
from tests.bench.plans import whole_tables_read
from tests.flows.workflows import plain

FEW = Amount(finished=700, live=300, days=2, long_steps=60)


def seed(amount: Amount, tell=lambda made: None) -> None:
    seeding.seed(amount, tell)


def test_every_seeded_run_is_whole_and_every_state_and_wait_is_there(database):
    seed(FEW)
    made = Run.objects.exclude(key=seeding.LONG)
    assert (made.count(), made.live().count()) == (1000, 300)
    assert all(is_whole(run) for run in Run.objects.all())
    assert set(made.values_list("status", flat=True)) == set(Status)
    assert set(made.values_list("wait_kind", flat=True)) == {"", *WaitKind}
    assert set(Call.objects.values_list("state", flat=True)) >= {
        EffectState.CONFIRMED,
        EffectState.REFUSED,
        EffectState.UNKNOWN,
    }
    assert Checkpoint.objects.filter(run__in=made).count() == 2000
    assert Tag.objects.filter(run__in=made).count() == 2000
    assert len(set(made.values_list("workflow", "version"))) > 5


def test_every_seeded_wait_for_approval_has_its_question(database):
    seed(FEW)
    waiting = set(Run.objects.filter(status="waiting", wait_kind="approval").values_list("pk", flat=True))
    assert set(Approval.objects.values_list("run_id", flat=True)) == waiting
    assert InboxEntry.objects.count() == len(waiting) > 0


def test_runs_are_as_old_as_they_were_started_and_ids_grow_with_time(database):
    seed(FEW)
    ages = list(Run.objects.exclude(key=seeding.LONG).order_by("pk").values_list("created_at", flat=True))
    assert ages == sorted(ages)
    assert 1.9 < (ages[-1] - ages[0]).total_seconds() / 86_400 < 2.1


def test_seeding_that_was_stopped_goes_on_where_it_is_and_again_makes_nothing(database):
    def stop(made: int) -> None:
        raise KeyboardInterrupt

    amount = Amount(finished=150, live=50, days=1, long_steps=60, part=80)
    with pytest.raises(KeyboardInterrupt):
        seed(amount, stop)
    assert Run.objects.count() == 80
    told: list[int] = []
    seed(amount, told.append)
    assert told == [160, 200]
    seed(amount, told.append)
    assert (told, Run.objects.count()) == ([160, 200], 201)
    assert Counter(Run.objects.values_list("key", flat=True)).most_common(1)[0][1] == 1


def command(*words: str) -> None:
    call_command("seed_runs", "--finished=40", "--live=10", "--days=1", "--quiet", *words)


def test_a_database_that_holds_real_runs_is_seeded_only_by_who_means_it(people):
    start(plain, key="run-1", input={}, team=people.team)
    with pytest.raises(CommandError, match="holds runs of workflows of its own"):
        command()
    assert Run.objects.count() == 1
    command("--yes-really", "--no-tallies")
    assert Run.objects.count() == 52


def test_the_command_counts_what_it_made(database):
    command()
    assert Tally.objects.filter(figure="ended", width="d").exists()


@pytest.fixture
def very_many(database, settings):
    settings.METRICS_TOKEN = "measured"
    seed(Amount(finished=50_000, live=5_000))


def test_no_page_reads_a_whole_table_among_very_many_runs(very_many):
    for reader in console.every_reader():
        if reader.title not in ("ops of a team", "an auditor", "a monitor"):
            continue
        for name, address in reader.addresses.items():
            read = whole_tables_read(reader.client, address, console.GROWING, **reader.headers)
            assert read == {}, f"{reader.title}: {name}"


def walked(user, choice: Choice) -> tuple[list[int], int]:
    """Every run on the pages from the newest to the oldest, or back, and how many of the pages were looked in part."""
    back, seen, parts = choice.before is not None, [], 0
    while True:
        page = lists.page(user, choice)
        keys = [row.run.pk for row in page.rows]
        seen = keys + seen if back else seen + keys
        parts += page.found.looked_to is not None
        following = page.newer if back else page.older
        if not following:
            return seen, parts
        choice = replace(choice, before=following) if back else replace(choice, after=following)


def test_what_very_many_runs_have_is_looked_through_in_parts_and_no_run_is_skipped_or_shown_twice(people):
    seed(Amount(finished=43_000, live=2_000))
    assert Tag.objects.filter(name="region", value="coast").count() > LOOKED
    choice = Choice(tag="region=coast", workflow="seeded-payout", version="1", status="cancelled")
    expected = list(chosen(people.auditor, choice).order_by("-pk").values_list("pk", flat=True))
    assert len(expected) > 100
    # The newest LOOKED runs with this tag have later versions: the first page finds none, and says where to go on.
    assert lists.page(people.auditor, choice).rows == []
    for start_at in (choice, replace(choice, before=0), replace(choice, tag="coast")):
        seen, parts = walked(people.auditor, start_at)
        assert seen == expected
        assert parts > 0
    assert lists.page(people.auditor, Choice(search="seed-")).found.is_part
    assert not lists.page(people.auditor, Choice(search="seed-4499")).found.is_part
    assert next(row.run.key for row in lists.page(people.auditor, Choice(search="seed-4499")).rows) == "seed-44999"
