"""The console among 1,000,000 finished and 100,000 live runs: seconds the server needs for each tab, filter and search.

The runs are made inside the database; each has the moves, checkpoints and tags that one of its kind would have.
"""

import time
from collections.abc import Callable, Iterator

from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client

from runs.console import TABS

from .figures import Figures, Goal

TEAMS, PART = 20, 50_000

RUNS = """
INSERT INTO runs_run (key, workflow, version, team_id, input, tags, status, outcome, reason, position, next_step,
       attempt, fence, worker, lease_until, asked, wait_terms, wait_kind, wait_name, wait_since, due_at, created_at,
       finished_at)
SELECT 'claim-' || n, CASE WHEN n %% 100000 = 7 THEN 'rare-flow' ELSE 'claim-payout' END, 1 + n %% 3,
       (%(teams)s::int[])[1 + n / 8 %% %(many)s], '{"claim":"' || n || '"}',
       '{"claim":"FL-' || n || '","region":"' || n %% 50 || '"}', kind.status,
       CASE WHEN kind.final THEN kind.status ELSE '' END,
       CASE WHEN kind.status = 'dead' THEN 'Step pay failed' ELSE '' END,
       2, 'pay', 0, 2, CASE WHEN kind.status = 'running' THEN 'bench:1:1' ELSE '' END,
       CASE WHEN kind.status = 'running' THEN now() + interval '1 day' END, '', NULL, kind.wait,
       CASE WHEN kind.wait <> '' THEN 'papers' ELSE '' END, CASE WHEN kind.wait <> '' THEN now() END,
       CASE WHEN kind.wait <> '' THEN now() + (n %% 1000 - 10) * interval '1 hour' END,
       now() - (%(runs)s - n) * interval '5 seconds', CASE WHEN kind.final THEN now() END
  FROM generate_series(%(first)s, %(last)s) AS n,
       LATERAL (SELECT n > %(finished)s AS live) AS age,
       LATERAL (SELECT CASE WHEN live THEN
                              ('{waiting,waiting,waiting,sleeping,dead,paused,ready,running}'::text[])[1 + n %% 8]
                         ELSE ('{completed,completed,completed,expired,cancelled}'::text[])[1 + n %% 5]
                         END AS status) AS drawn,
       LATERAL (SELECT drawn.status, NOT live AS final, CASE drawn.status WHEN 'sleeping' THEN 'timer' WHEN 'waiting'
                       THEN CASE WHEN n %% 997 = 0 THEN 'cap' ELSE 'event' END ELSE '' END AS wait) AS kind
"""
CHECKPOINTS = """
INSERT INTO runs_checkpoint (run_id, position, step, output, wait_kind, closed_as, attempt, started_at, committed_at)
SELECT id, number, 'step-' || number, '{"amount_minor":184000}', '', '', 1, created_at, created_at
  FROM runs_run, generate_series(1, 2) AS number WHERE runs_run.id > %(after)s
"""
MOVES = """
INSERT INTO runs_transition (run_id, at, from_status, to_status, position, step, why, actor)
SELECT id, created_at, '', 'ready', 1, 'start', 'started', 'bench' FROM runs_run WHERE id > %(after)s
"""

ADDRESSES = {
    **{f"tab {tab.name}": f"/runs/?status={tab.name}" for tab in TABS},
    "a common workflow": "/runs/?workflow=claim-payout",
    "a rare workflow": "/runs/?workflow=rare-flow",
    "a rare workflow, completed": "/runs/?workflow=rare-flow&status=completed",
    "a workflow nobody has": "/runs/?workflow=nothing&status=completed",
    "one version": "/runs/?workflow=claim-payout&version=2&status=completed",
    "one team": "/runs/?team=team-3",
    "one team, completed": "/runs/?team=team-3&status=completed",
    "a rare wait": "/runs/?wait=cap&status=waiting",
    "no such wait": "/runs/?wait=migration&status=waiting",
    "older than 30 days": "/runs/?age=30d",
    "older than 30 days, waiting": "/runs/?age=30d&status=waiting",
    "a common tag": "/runs/?tag=region%3D7",
    "a common tag, dead": "/runs/?tag=region%3D7&status=dead",
    "a rare tag": "/runs/?tag=claim%3DFL-500001",
    "search: one key": "/runs/?q=claim-500001",
    "search: a common beginning": "/runs/?q=claim-5",
    "search: nothing": "/runs/?q=zzz",
    "search: a claim": "/runs/?q=FL-500001",
    "search: a claim among the dead": "/runs/?q=FL-500001&status=dead",
    "search: an idempotency key": "/runs/?q=claim-500001%3Astep2",
    "a page in the middle": "/runs/?after=500000",
    "the page before it": "/runs/?before=500000",
    "what bulk would do": "/runs/bulk/new/?do=redrive&scope=all&status=dead",
}
GOAL = Goal(most=200)


def measure_console(figures: Figures, finished: int, live: int, rounds: int) -> None:
    teams = [Group.objects.create(name=f"team-{number}") for number in range(TEAMS)]
    seed(teams, finished, live, lambda done: print(f"{done:,} runs made", flush=True))
    clients = {"ops of a team": [teams[3], _role("ops")], "an auditor": [_role("auditors")]}
    for whose, groups in clients.items():
        client = _signed_in(whose, groups)
        for name, address in ADDRESSES.items():
            if "bulk" in address and whose != "ops of a team":
                continue
            _milliseconds(client, address)
            times = sorted(_milliseconds(client, address) for _ in range(max(20, rounds)))
            figures.add(f"ms p95, {whose}, {name}: engine", times[int(0.95 * len(times))], goal=GOAL)


def seed(teams: list[Group], finished: int, live: int, tell: Callable[[int], object]) -> None:
    """Make the runs in parts, and tell after each how many there are."""
    runs = finished + live
    values = {"teams": [team.pk for team in teams], "many": len(teams), "finished": finished, "runs": runs}
    with connection.cursor() as cursor:
        for first, last in _parts(runs):
            cursor.execute("SELECT coalesce(max(id), 0) FROM runs_run")
            after = cursor.fetchone()[0]
            cursor.execute(RUNS, values | {"first": first, "last": last})
            cursor.execute(CHECKPOINTS, {"after": after})
            cursor.execute(MOVES, {"after": after})
            tell(last)
        cursor.execute("VACUUM ANALYZE")


def _parts(runs: int) -> Iterator[tuple[int, int]]:
    for first in range(1, runs + 1, PART):
        yield first, min(runs, first + PART - 1)


def _role(name: str) -> Group:
    return Group.objects.get(name=name)


def _signed_in(name: str, groups: list[Group]) -> Client:
    user = User.objects.create(username=name.replace(" ", "-"))
    user.groups.set(groups)
    client = Client()
    client.force_login(user)
    return client


def _milliseconds(client: Client, address: str) -> float:
    began = time.perf_counter()
    answer = client.get(address)
    assert answer.status_code == 200, address
    return 1000 * (time.perf_counter() - began)
