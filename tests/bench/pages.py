"""The inbox among 100,000 waiting approvals of 50 teams: seconds the server needs for the page, rendering included."""

import time
from statistics import median

from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.urls import reverse

from .figures import Figures, Goal

TEAMS = 50

RUNS = """
INSERT INTO runs_run (key, workflow, version, team_id, input, tags, status, outcome, reason, position, next_step,
       attempt, fence, worker, asked, wait_terms, wait_kind, wait_name, wait_since, due_at)
SELECT 'claim-' || n, 'claim-payout', 1, (%(teams)s::int[])[1 + n %% %(many)s], '{"claim":"' || n || '"}', '{}',
       'waiting', '', '', 4, 'approve_payout', 0, 2, '', 'approval', '{}', 'approval', 'approval by adjusters', now(),
       now() + n * interval '1 second' + interval '1 hour'
  FROM generate_series(1, %(approvals)s) AS n
"""
APPROVALS = """
INSERT INTO approvals_approval (run_id, position, step, version, team_id, tool, statement, statement_version, payload,
       payload_digest, amount_minor, currency, facts_source, facts, facts_digest, signed_facts, terms, status, required,
       asked_at, due_at, act_within)
SELECT id, 5, 'approve_payout', 1, team_id, 'payments.transfer', 'Pay USD ' || id || '.00 to an account', 'v1',
       '{"arguments":{"amount_minor":' || id * 100 || '},"tool":"payments.transfer"}', md5(id::text) || md5(key),
       id * 100, 'USD', 'claims', '{"open":true}', md5(key) || md5(key), '', '{}', 'open', 1, now(), due_at,
       interval '1 day'
  FROM runs_run WHERE asked = 'approval'
"""
ASKED = """
INSERT INTO approvals_approval_groups (approval_id, group_id) SELECT id, %(adjusters)s FROM approvals_approval;
"""


def measure_inbox(figures: Figures, approvals: int, rounds: int) -> None:
    teams = [Group.objects.create(name=f"team-{number}") for number in range(TEAMS)]
    adjusters, auditors = Group.objects.get(name="adjusters"), Group.objects.get(name="auditors")
    _seed(teams, adjusters, approvals)
    everybody = {"an adjuster's": [teams[0], adjusters], "an auditor's": [auditors]}
    for whose, groups in everybody.items():
        client, url = _signed_in(whose, groups), reverse("approvals:inbox")
        for query, name in (("?scope=team", "by time"), ("?scope=team&sort=amount", "by amount")):
            _milliseconds(client, url + query)
            values = [median(_milliseconds(client, url + query) for _ in range(5)) for _ in range(rounds)]
            figures.add(f"ms, {whose} inbox of {approvals:,}, {name}: engine", *values, goal=Goal(most=100))


def _seed(teams: list[Group], adjusters: Group, approvals: int) -> None:
    values = {
        "teams": [team.pk for team in teams],
        "many": len(teams),
        "approvals": approvals,
        "adjusters": adjusters.pk,
    }
    with connection.cursor() as cursor:
        for statement in (RUNS, APPROVALS, ASKED):
            cursor.execute(statement, values)
        cursor.execute("ANALYZE")


def _signed_in(name: str, groups: list[Group]) -> Client:
    user = User.objects.create(username=name.replace("'", "").replace(" ", "-"))
    user.groups.set(groups)
    client = Client()
    client.force_login(user)
    return client


def _milliseconds(client: Client, url: str) -> float:
    began = time.perf_counter()
    answer = client.get(url)
    assert answer.status_code == 200
    assert b"Pay USD" in answer.content
    return 1000 * (time.perf_counter() - began)
