"""The web server killed by SIGKILL while somebody answers: before, inside and after the deciding transaction, or at any
moment. Either all of an answer happened or nothing, and whoever sends the form again is shown the same result."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_scene import Act, Scene, won
from stage import Party, fresh
from worker_process import WorkerProcess

from approvals import ledger
from approvals.models import Approval, ApprovalStatus, Decision, LedgerEntry
from runs.states import Status

BEFORE, INSIDE, AFTER = ("answering",), ("locked", "signing", "signed"), ("answered",)
"""Where a web process can die round the deciding transaction, by the names of its failpoints."""

LONGER = 1.2
"""When it is killed at any moment, that is within so many times as long as an answer takes."""


@dataclass(frozen=True)
class Verb:
    """One answer to a question. `begin`: opens the page. `status`: what the approval is when it was given."""

    begin: Callable[[Scene, Approval], Act]
    status: ApprovalStatus
    moves: bool = True

    def signer(self, scene: Scene) -> Any:
        is_withdrawal = self.status == ApprovalStatus.WITHDRAWN
        return scene.people.requester if is_withdrawal else scene.people.adjuster


def _responding(scene: Scene, approval: Approval) -> Act:
    return scene.answering(scene.people.adjuster, approval, "respond", comment="look at the cellar again")


def _withdrawing(scene: Scene, approval: Approval) -> Act:
    return scene.answering(scene.people.requester, approval, "withdraw", comment="asked too early")


VERBS = {
    "approve": Verb(lambda scene, approval: scene.approving(scene.people.adjuster, approval), ApprovalStatus.APPROVED),
    "reject": Verb(lambda scene, approval: scene.rejecting(scene.people.adjuster, approval), ApprovalStatus.REJECTED),
    "edit": Verb(
        lambda scene, approval: scene.proposing(scene.people.adjuster, approval), ApprovalStatus.SUPERSEDED, moves=False
    ),
    "respond": Verb(_responding, ApprovalStatus.RESPONDED),
    "withdraw": Verb(_withdrawing, ApprovalStatus.WITHDRAWN),
}


def kill_at(scene: Scene, points: Path, verb: Verb, approval: Approval, boundary: str) -> None:
    """The web process that takes this answer dies there; then the person sends the form again, twice."""
    send = verb.begin(scene, approval)
    dies(points, approval, boundary, send)
    assert_all_or_nothing(verb, approval, has_happened=boundary in AFTER)
    assert_sent_again_it_is_the_same(scene, verb, approval, send)


def dies(points: Path, approval: Approval, boundary: str, send: Act) -> None:
    """The web process that takes what is sent dies there, so that nobody is answered."""
    point = f"{approval.run.key}:step{approval.position}:{boundary}"
    (points / "kill").write_text(point)
    with pytest.raises(httpx.TransportError):
        send()
    assert (points / f"kill-{point.replace(':', '-')}").exists()


def seconds_for(scene: Scene, verb: Verb, approval: Approval) -> float:
    """How long this answer takes, when nobody is killed."""
    send = verb.begin(scene, approval)
    began = time.monotonic()
    assert won(send())
    return time.monotonic() - began


def kill_at_any_moment(scene: Scene, verb: Verb, approval: Approval, answer_takes: float) -> str:
    """Every web process dies some time after the form was sent; what had come of it by then."""
    send = verb.begin(scene, approval)
    party = Party(send)
    time.sleep(scene.chance.uniform(0, LONGER * answer_takes))
    scene.web.kill_workers()
    try:
        answer = party.outcome()
    except httpx.TransportError:
        answer = None
    decided = Decision.objects.filter(approval=approval).exists()
    assert_all_or_nothing(verb, approval, has_happened=decided)
    assert decided or answer is None
    assert_sent_again_it_is_the_same(scene, verb, approval, send)
    return "answered" if answer is not None else "decided, and not answered" if decided else "nothing decided"


def assert_all_or_nothing(verb: Verb, approval: Approval, *, has_happened: bool) -> None:
    """The decision, its ledger entry, the approval and the run's move: all of them, or none."""
    now, run = Approval.objects.get(pk=approval.pk), fresh(approval.run)
    told = LedgerEntry.objects.filter(kind="decision", record__contains=f'"approval":{approval.pk},')
    assert now.decisions.count() == told.count() == has_happened
    assert now.status == (verb.status if has_happened else ApprovalStatus.OPEN)
    left = run.transitions.filter(from_status=Status.WAITING, position=approval.position).count()
    assert left == (has_happened and verb.moves)
    followers = Approval.objects.filter(run=run, position=approval.position, version=approval.version + 1)
    assert followers.filter(status=ApprovalStatus.OPEN).count() == (has_happened and not verb.moves)


def assert_sent_again_it_is_the_same(scene: Scene, verb: Verb, approval: Approval, send: Act) -> None:
    answers = [send(), send()]
    decision = Decision.objects.get(approval=approval)
    assert decision.user == verb.signer(scene)
    for answer in answers:
        assert won(answer), answer.status_code
        assert answer.headers["Location"] == f"/receipts/{decision.entry_id}/"
    assert_all_or_nothing(verb, approval, has_happened=True)


def finish(scene: Scene, approvals: list[Approval]) -> None:
    """What is asked still is approved, every run ends, and what was approved is paid, once."""
    with WorkerProcess():
        scene.finish()
    for approval in approvals:
        run = fresh(approval.run)
        has_paid = (run.status, run.outcome) == (Status.COMPLETED, "completed")
        assert len(scene.paid(run)) == has_paid == Approval.objects.filter(run=run, spent_at__isnull=False).count()
    assert ledger.verify().problems == []
