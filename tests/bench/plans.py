"""Which tables the plans behind a page read from end to end. May import Django only."""

from collections.abc import Iterator
from typing import Any

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext


def whole_tables_read(client: Client, address: str, growing: set[str], **headers: str) -> dict[str, str]:
    """Those of the `growing` tables that a plan behind this page reads whole, each with a statement that does."""
    with CaptureQueriesContext(connection) as captured:
        answer = client.get(address, headers=headers)
        # What is streamed asks while it is read.
        b"".join(answer.streaming_content) if answer.streaming else answer.content
    assert answer.status_code == 200, address
    statements = [query["sql"] for query in captured.captured_queries]
    return {table: statement for statement in statements for table in _scanned(statement) if table in growing}


def _scanned(statement: str) -> Iterator[str]:
    """The tables with a sequential scan, and functions whose statements the plan does not show."""
    if statement.lstrip().startswith(("SELECT", "WITH", "DECLARE")):
        for node in _nodes(_plan(statement)):
            if node["Node Type"] == "Seq Scan":
                yield node["Relation Name"]
            elif node["Node Type"] == "Function Scan":
                yield node.get("Function Name", "")


def _plan(statement: str) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (FORMAT JSON) " + statement)
        return cursor.fetchone()[0][0]["Plan"]


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)
