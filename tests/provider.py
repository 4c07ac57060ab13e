"""A provider for tests to script: what it made, whether it answers, and how often it was asked.

Only the far side is played: what compares and settles is the real thing.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import psycopg

from runs.models import database_clock
from runs.tools import ProviderRecord, Tool

SEED = """
WITH numbers AS (SELECT n, runs_clock() - interval '12 hours' + n * interval '1 second' AS at
                   FROM generate_series(%(first)s::int, %(last)s::int) AS n),
made AS (
  INSERT INTO runs_run (key, workflow, version, team_id, input, tags, status, outcome, reason, position, next_step,
         attempt, fence, worker, asked, wait_kind, wait_name, created_at, finished_at)
  SELECT 'claim-' || n, 'seeded', 1, %(team)s, '{}', '{}', 'completed', 'completed', '', 1, 'pay', 0, 1, '', '', '', '',
         at, at FROM numbers RETURNING id, key
)
INSERT INTO runs_call (run_id, position, step, tool, kind, key, request, digest, state, answer, replayed, error, sends,
       prepared_at, sent_at, settled_at)
SELECT made.id, 1, 'pay', %(tool)s::text, 'effect', made.key || ':step1',
       '{"arguments":{"amount_minor":' || n || ',"claim":"' || n || '","currency":"USD"},"tool":"seeded"}',
       md5(n::text), 'confirmed', '{}', false, '', 1, at, at, at
  FROM numbers JOIN made ON made.key = 'claim-' || n
"""


class Provider:
    """What the far side of a tool did. `records` may be changed at will; `down` is raised whenever it is asked."""

    def __init__(self) -> None:
        self.records: list[ProviderRecord] = []
        self.down: Exception | None = None
        self.looked_up: list[str] = []
        self.lists = 0

    def serve(self, tool: Tool) -> Tool:
        tool.lookup(self.find)
        tool.listing(self.list)
        return tool

    def find(self, *, idempotency_key: str) -> dict[str, Any] | None:
        self.looked_up.append(idempotency_key)
        if self.down:
            raise self.down
        return next(({"payment": record.id} for record in self.records if record.key == idempotency_key), None)

    def list(self, since: datetime, until: datetime) -> Iterator[ProviderRecord]:
        self.lists += 1
        if self.down:
            raise self.down
        yield from (record for record in self.records if since <= record.created_at < until)

    def made(self, key: str, **changes: Any) -> ProviderRecord:
        """One more record, an hour old, with these members changed."""
        at = database_clock() - timedelta(hours=1)
        plain = ProviderRecord(f"made-{len(self.records)}", key, f"for-{key}", 184_000, "USD", at)
        self.records.append(replace(plain, **changes))
        return self.records[-1]


def seed(database: Any, team: Any, tool: str, numbers: range) -> None:
    """Confirmed effects claim-N:step1 of N cents each, one a second from twelve hours ago, each in a run that ended."""
    with psycopg.connect(database.url, autocommit=True) as other:
        other.execute(SEED, {"first": numbers[0], "last": numbers[-1], "team": team.pk, "tool": tool})
        other.execute("ANALYZE runs_call, runs_run")


def listed(numbers: range) -> Iterator[ProviderRecord]:
    """What the provider lists of the seeded effects."""
    start = database_clock() - timedelta(hours=12)
    for n in numbers:
        at = start + timedelta(seconds=n)
        yield ProviderRecord(f"pay-{n}", f"claim-{n}:step1", f"claim-{n}", n, "USD", at)
