"""Findings as data and in lines: what `manage.py findings` and `manage.py reconcile` answer with.

May import findings and console.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from runs.findings import Finding
from runs.management.console import columns, moment, name_of, shortened


def told(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.pk,
        "kind": finding.kind,
        "tool": finding.tool,
        "key": finding.key,
        "run": finding.run.key if finding.run else None,
        "team": finding.team.name,
        "sentence": finding.sentence,
        "ours": finding.ours,
        "theirs": finding.theirs,
        "opened_at": finding.opened_at,
        "seen_at": finding.seen_at,
        "resolved_at": finding.resolved_at,
        "resolved_by": name_of(finding.resolved_by),
        "resolution": finding.resolution,
    }


def lines(findings: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A table of findings; the evidences of each are in `manage.py findings show`."""
    rows = [_cells(finding) for finding in findings]
    if not rows:
        yield "No findings."
        return
    yield from columns(("ID", "KIND", "TOOL", "OPENED", "WHAT"), rows)


def whole(finding: dict[str, Any]) -> Iterator[str]:
    """One finding with both evidences."""
    yield f"{finding['id']}: {finding['kind']}. {finding['sentence']}"
    yield f"tool {finding['tool']}, run {finding['run'] or 'none'}, team {finding['team']}"
    yield f"opened {moment(finding['opened_at'])}, last seen {moment(finding['seen_at'])}"
    for side in ("ours", "theirs"):
        yield from (f"{side}: {json.dumps(item, ensure_ascii=False)}" for item in finding[side] or ["nothing"])
    if finding["resolved_at"]:
        who = finding["resolved_by"] or "itself"
        yield f"closed {moment(finding['resolved_at'])} by {who}: {finding['resolution']}"


def _cells(finding: dict[str, Any]) -> tuple[Any, ...]:
    words = finding["sentence"] if not finding["resolved_at"] else f"Closed: {finding['resolution']}"
    return finding["id"], finding["kind"], finding["tool"], moment(finding["opened_at"]), shortened(words)
