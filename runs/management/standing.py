"""How one run stands: as data, and in a line. What every verb of `manage.py runs` on one run answers with.

May import engine, models and console.
"""

from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandParser

from runs import engine
from runs.management import console
from runs.management.console import name_of
from runs.models import Run


def say_key(parser: CommandParser) -> None:
    parser.add_argument("key", metavar="KEY", type=console.text)


def say_why(parser: CommandParser) -> None:
    parser.add_argument("--why", metavar="TEXT", type=console.text, required=True, help="kept in the run's history")


def summary(run: Run) -> dict[str, Any]:
    return {
        "key": run.key,
        "workflow": run.workflow,
        "version": run.version,
        "team": run.team.name,
        "requested_by": name_of(run.requested_by),
        "status": run.status,
        "outcome": run.outcome,
        "why": engine.explain(run),
        "position": run.position,
        "next_step": None if run.is_final else run.next_step,
        "attempt": run.attempt,
        "wait": _wait(run),
        "tags": run.tags,
        "created_at": run.created_at,
        "finished_at": run.finished_at,
    }


def line(run: dict[str, Any]) -> Iterator[str]:
    """A summary in words."""
    yield f"{run['key']}: {run['status']}. {run['why']}"


def _wait(run: Run) -> dict[str, Any] | None:
    if not run.wait_kind:
        return None
    return {"kind": run.wait_kind, "for": run.wait_name, "since": run.wait_since, "due_at": run.due_at}
