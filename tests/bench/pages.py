"""The inbox among 100,000 waiting approvals of 50 teams: milliseconds the server needs for the page, rendering and
counts included, for each tab, order, search and page; and whether any plan reads a whole table."""

import re
import time
from dataclasses import dataclass

from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.urls import reverse

from .figures import Figures, Goal
from .plans import whole_tables_read

TEAMS = 50
GROWING = {"approvals_approval", "approvals_approval_groups", "approvals_inboxentry", "runs_run"}

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
       '{"arguments":{"amount_minor":' || id * 100 || ',"claim":"' || id || '","payee":"P-' || id %% 9000
       || '"},"tool":"payments.transfer"}', md5(id::text) || md5(key), id * 100, 'USD', 'claims', '{"open":true}',
       md5(key) || md5(key), '', '{}', 'open', 1, now(), due_at, interval '1 day'
  FROM runs_run WHERE asked = 'approval'
"""
ASKED = """
INSERT INTO approvals_approval_groups (approval_id, group_id)
SELECT id, CASE WHEN id %% 20000 = 7 THEN %(seniors)s ELSE %(adjusters)s END FROM approvals_approval;
"""
HELD = """
UPDATE approvals_inboxentry SET holder_id = %(holder)s, held_since = now()
 WHERE team_id = %(team)s AND approval_id %% 3 = 0
"""


@dataclass(frozen=True)
class Reader:
    """Somebody with an inbox, and the addresses that she looks at."""

    title: str
    client: Client
    addresses: list[str]


def measure_inbox(figures: Figures, approvals: int, rounds: int) -> None:
    teams = [Group.objects.create(name=f"team-{number}") for number in range(TEAMS)]
    adjusters, auditors = Group.objects.get(name="adjusters"), Group.objects.get(name="auditors")
    seniors = Group.objects.create(name="seniors")
    readers = [
        _reader("an adjuster's", [teams[0], adjusters]),
        _reader("an operator's", [teams[0], Group.objects.get(name="ops")]),
        _reader("an auditor's", [auditors]),
        _reader("a senior's of all teams", [auditors, seniors]),
        _reader("an adjuster's of all teams", [auditors, adjusters]),
    ]
    holder = User.objects.get(username="an-adjusters").pk
    _seed(teams, approvals, adjusters=adjusters.pk, seniors=seniors.pk, holder=holder, team=teams[0].pk)
    for reader in readers:
        reader.addresses[:] = _addresses(reader.client)
        name = f"ms, {reader.title} inbox of {approvals:,}: engine"
        for _ in range(rounds):
            taken = [_milliseconds(reader.client, address) for address in reader.addresses]
            figures.add_latencies(name, taken, p50=None, p95=Goal(most=100))
        read = {table for address in reader.addresses for table in whole_tables_read(reader.client, address, GROWING)}
        figures.add(f"tables read whole, {reader.title} inbox: engine", len(read), goal=Goal(most=0))


def _addresses(client: Client) -> list[str]:
    """Every tab in both orders, searches for what is everywhere, rare or nowhere, and a page far behind each way."""
    scopes = [f"scope={scope}" for scope in ("mine", "groups", "all", "overdue")]
    searches = ("q=pay", "q=claim-77", "q=P-4711", "q=nowhere", "q=99950&sort=amount", "q=to+acc&sort=amount")
    queries = [f"{scope}{more}" for scope in scopes for more in ("", "&sort=amount", *(f"&{q}" for q in searches))]
    addresses = [f"{reverse('approvals:inbox')}?{query}" for query in queries]
    for sort in ("time", "amount"):
        address = f"{reverse('approvals:inbox')}?scope=all&sort={sort}"
        last = _far_behind(client, address)
        addresses += [f"{address}&after={last}", f"{address}&before={last}"]
    return [*addresses, reverse("approvals:inbox_rows"), reverse("approvals:nav_counts")]


def _far_behind(client: Client, address: str, pages: int = 20) -> str:
    """The key of a page far behind, as the links to it say it."""
    key = ""
    for _ in range(pages):
        page = client.get(f"{address}&after={key}").content.decode()
        following = re.search(r'after=([^"&]+)" rel="next"', page)
        key = following[1] if following else key
    return key


def _seed(teams: list[Group], approvals: int, **more: int) -> None:
    values = {"teams": [team.pk for team in teams], "many": len(teams), "approvals": approvals} | more
    with connection.cursor() as cursor:
        for statement in (RUNS, APPROVALS, ASKED, HELD):
            cursor.execute(statement, values)
        cursor.execute("VACUUM ANALYZE")


def _reader(title: str, groups: list[Group]) -> Reader:
    user = User.objects.create(username=title.replace("'", "").replace(" ", "-"))
    user.groups.set(groups)
    client = Client()
    client.force_login(user)
    return Reader(title, client, [])


def _milliseconds(client: Client, url: str) -> float:
    began = time.perf_counter()
    answer = client.get(url)
    assert answer.status_code == 200
    return 1000 * (time.perf_counter() - began)
