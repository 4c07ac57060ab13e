"""The operators' pages among 1,000,000 finished and 100,000 live runs: milliseconds the server needs for each tab,
filter, search and page, for the run page of a thousand steps, the health page and /metrics; which plans read a whole
table; and the memory that all of it and a CSV of everything take.

The runs are those of `manage.py seed_runs`. May import runs.seeding, runs.console, runs.health.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.test import Client

from runs import health, seeding
from runs.console import TABS

from .figures import Figures, Goal
from .plans import whole_tables_read

GROWING = {"runs_run", "runs_checkpoint", "runs_transition", "runs_call", "runs_tag", "runs_stuck"}
"""Tables that grow with the runs, and the function that is to be a part of the plan. What the inbox asks of its own
rows is measured with the inbox."""

LISTS = {
    **{f"tab {tab.name}": f"/runs/?status={tab.name}" for tab in TABS},
    "a common workflow": "/runs/?workflow=seeded-payout",
    "an old version": "/runs/?workflow=seeded-payout&version=1",
    "an old version, completed": "/runs/?workflow=seeded-payout&version=1&status=completed",
    "a version of any workflow": "/runs/?version=1",
    "workflow, version and tab without a match": "/runs/?workflow=seeded-intake&version=2&status=completed",
    "a rare workflow": "/runs/?workflow=seeded-rare",
    "a rare workflow, completed": "/runs/?workflow=seeded-rare&status=completed",
    "a rare workflow, dead": "/runs/?workflow=seeded-rare&status=dead",
    "a workflow nobody has": "/runs/?workflow=nothing&status=completed",
    "one team": "/runs/?team=seeded-team-3",
    "one team, completed": "/runs/?team=seeded-team-3&status=completed",
    "one team, a rare workflow": "/runs/?team=seeded-team-3&workflow=seeded-rare",
    "waits for approval": "/runs/?wait=approval",
    "a rare wait": "/runs/?wait=cap&status=waiting",
    "a wait and a workflow without a match": "/runs/?wait=migration&workflow=seeded-long",
    "no such wait": "/runs/?wait=timer&status=waiting",
    "older than 1 hour": "/runs/?age=1h",
    "older than 30 days": "/runs/?age=30d",
    "older than 30 days, waiting": "/runs/?age=30d&status=waiting",
    "older than 30 days, the last version": "/runs/?age=30d&workflow=seeded-payout&version=3",
    "a common tag": "/runs/?tag=region%3Dcoast",
    "a common tag, dead": "/runs/?tag=region%3Dcoast&status=dead",
    "a common tag, a rare workflow": "/runs/?tag=region%3Dcoast&workflow=seeded-rare",
    "a common value of any tag": "/runs/?tag=coast&status=paused",
    "a tag of some": "/runs/?tag=region%3Dr7",
    "a tag of some, dead": "/runs/?tag=region%3Dr7&status=dead",
    "a rare tag": "/runs/?tag=claim%3DFL-500001",
    "search: one key": "/runs/?q=seed-500001",
    "search: a common beginning": "/runs/?q=seed-5",
    "search: a common beginning, dead": "/runs/?q=seed-5&status=dead",
    "search: the beginning of all": "/runs/?q=seed",
    "search: nothing": "/runs/?q=zzz",
    "search: a claim": "/runs/?q=FL-500001",
    "search: a claim among the dead": "/runs/?q=FL-500001&status=dead",
    "search: a value that half of them have": "/runs/?q=coast",
    "search: an idempotency key": "/runs/?q=seed-500001%3Astep2",
    "a page in the middle": "/runs/?after=500000",
    "the page before it": "/runs/?before=500000",
    "the last page": "/runs/?after=51",
    "the last page of completed": "/runs/?after=80&status=completed",
    "the last page of a workflow": "/runs/?after=300&workflow=seeded-refund",
    "the rows alone, as polled": "/runs/rows/",
}
OTHERS = {
    "what bulk would do": "/runs/bulk/new/?do=redrive&scope=all&status=dead",
    **{f"health, {window.title}": f"/health/?window={window.name}" for window in health.WINDOWS},
    "health, alarms": "/health/alarms/",
}
OF_ONE_RUN = {
    "the run of 1,000 steps": f"/runs/{seeding.LONG}/",
    "its header, as polled": f"/runs/{seeding.LONG}/header/",
    "its steps, as polled": f"/runs/{seeding.LONG}/steps/",
}
GOAL = Goal(most=200)
MOST_GROWTH = Goal(most=50)
"""Megabytes."""


@dataclass(frozen=True)
class Reader:
    """Somebody signed in, and the pages that she looks at."""

    title: str
    client: Client
    addresses: dict[str, str]
    headers: dict[str, str] = field(default_factory=dict)


def measure_console(figures: Figures, finished: int, live: int, rounds: int) -> None:
    make_runs(seeding.Amount(finished, live))
    readers = list(every_reader())
    for reader in readers:
        for name, address in reader.addresses.items():
            _measure(figures, reader, name, address, max(20, rounds))
    _measure_memory(figures, readers)


def make_runs(amount: seeding.Amount) -> None:
    began = time.monotonic()
    seeding.seed(amount, lambda made: print(f"{made:,} runs made in {time.monotonic() - began:.0f} s", flush=True))
    seeding.count_up(lambda share: None)
    print(f"and counted, {time.monotonic() - began:.0f} s in all", flush=True)


def every_reader() -> Iterator[Reader]:
    teams = list(Group.objects.filter(name__startswith=seeding.PREFIX).order_by("name"))
    yield Reader("ops of a team", _signed_in("ops-1", teams[0], _role("ops")), LISTS | OTHERS | OF_ONE_RUN)
    yield Reader("ops of a small team", _signed_in("ops-2", teams[5], _role("ops")), LISTS)
    yield Reader("ops of all teams", _signed_in("ops-3", *teams, _role("ops")), LISTS | OTHERS)
    yield Reader("an auditor", _signed_in("auditor", _role("auditors")), LISTS | OF_ONE_RUN)
    token = {"Authorization": f"Bearer {settings.METRICS_TOKEN}"}
    yield Reader("a monitor", Client(), {"/metrics": "/metrics"}, token)


def _measure(figures: Figures, reader: Reader, name: str, address: str, rounds: int) -> None:
    _milliseconds(reader, address)
    taken = [_milliseconds(reader, address) for _ in range(rounds)]
    figures.add_latencies(f"ms, {reader.title}, {name}: engine", taken, p50=None, p95=GOAL)
    read = whole_tables_read(reader.client, address, GROWING | {"runs_tally"}, **reader.headers)
    if read:
        figures.add(f"tables read whole, {reader.title}, {name}: engine", len(read), goal=Goal(most=0))


def _measure_memory(figures: Figures, readers: list[Reader]) -> None:
    """After all pages were asked for so often: what once more of each adds, and what a CSV of all runs adds."""
    process, before = psutil.Process(), _megabytes()
    for reader in readers:
        for address in reader.addresses.values():
            _milliseconds(reader, address)
    figures.add("MB more after once more of each page: engine", _megabytes() - before, goal=MOST_GROWTH)
    auditor = next(reader for reader in readers if reader.title == "an auditor")
    before, most, began = _megabytes(), 0.0, time.monotonic()
    for number, _ in enumerate(auditor.client.get("/runs/export.csv").streaming_content):
        if number % 10_000 == 0:
            most = max(most, process.memory_info().rss / 1e6)
    figures.add("MB more while a CSV of all runs is sent: engine", most - before, goal=MOST_GROWTH)
    figures.add("lines of CSV a second: engine", (number + 1) / (time.monotonic() - began))


def _megabytes() -> float:
    return psutil.Process().memory_info().rss / 1e6


def _role(name: str) -> Group:
    return Group.objects.get(name=name)


def _signed_in(name: str, *groups: Group) -> Client:
    user, _ = User.objects.get_or_create(username=name)
    user.groups.set(groups)
    client = Client()
    client.force_login(user)
    return client


def _milliseconds(reader: Reader, address: str) -> float:
    began = time.perf_counter()
    answer = reader.client.get(address, headers=reader.headers)
    assert answer.status_code in (200, 409), address
    return 1000 * (time.perf_counter() - began)
