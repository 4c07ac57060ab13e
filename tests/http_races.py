"""Two at one approval at the same moment, through HTTP: who wins, what the other is told, and what is true afterwards.

Each kind is raced freely (both let go by a barrier) and in either order, forced by a lock that somebody else holds. A
web server with several processes and threads, a worker and the payment provider are processes of their own; what was
paid is read from the provider's journal.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

import httpx
from django.db import connection
from http_scene import Act, Scene, lost, won
from racing import at_once, in_line, is_whole
from sandbox_process import wait_until
from stage import Party, fresh, holding, holding_ledger, holding_run, wait_until_blocked
from worker_process import WorkerProcess

from approvals import ledger
from approvals.models import Approval, ApprovalStatus, Decision, LedgerEntry
from durable_site.claims.models import Claim
from runs.models import AuditEvent
from runs.states import Status
from runs.testing import drain, move_clock

REFUSED = (403, 409, 410, 412)
FREE, FIRST, SECOND = "both at once", "the first before", "the second before"


class Kind:
    """What two do at once with one approval. `wins` says who won, having seen that the other was told so clearly."""

    name: ClassVar[str]

    def prepare(self, scene: Scene, count: int) -> list[Approval]:
        return [scene.ask(self.key(number)) for number in range(count)]

    def key(self, number: int) -> str:
        return f"{type(self).__name__.lower()}-{number}"

    def acts(self, scene: Scene, approval: Approval) -> tuple[Act, Act]:
        raise NotImplementedError

    def race(self, scene: Scene, approval: Approval, order: str) -> list[Any]:
        first, second = self.acts(scene, approval)
        if order == FREE:
            return at_once(first, second)
        if order == FIRST:
            return self.forced(scene, approval, first, second)
        return self.forced(scene, approval, second, first)[::-1]

    def forced(self, scene: Scene, approval: Approval, *acts: Act) -> list[Any]:
        return in_line(scene.database, approval.run, *acts)

    def wins(self, approval: Approval, first: Any, second: Any) -> str:
        raise NotImplementedError

    def decisions(self, winner: str) -> int:
        """How many there are then on the approval that was raced for."""
        return 1


class DoubleClick(Kind):
    name = "double click"

    def acts(self, scene: Scene, approval: Approval) -> tuple[Act, Act]:
        press = scene.approving(scene.people.adjuster, approval)
        return press, press

    def wins(self, approval: Approval, first: Any, second: Any) -> str:
        assert won(first)
        assert won(second)
        assert first.headers["Location"] == second.headers["Location"]
        return "one decision for both"


class TwoApprovers(Kind):
    name = "two approvers"

    def acts(self, scene: Scene, approval: Approval) -> tuple[Act, Act]:
        return (
            scene.approving(scene.people.adjuster, approval),
            scene.approving(scene.people.second_adjuster, approval),
        )

    def wins(self, approval: Approval, first: Any, second: Any) -> str:
        winner, other = ("ada", second) if won(first) else ("ben", first)
        assert lost(other, 409, f"{winner} approved this", "Your answer changed nothing")
        return winner


class ApproveReject(Kind):
    name = "approve and reject"

    def acts(self, scene: Scene, approval: Approval) -> tuple[Act, Act]:
        return (
            scene.approving(scene.people.adjuster, approval),
            scene.rejecting(scene.people.second_adjuster, approval),
        )

    def wins(self, approval: Approval, first: Any, second: Any) -> str:
        if won(first):
            assert lost(second, 409, "ada approved this", "Your answer changed nothing")
            return "approve"
        assert won(second)
        assert lost(first, 409, "ben rejected this", "Your answer changed nothing")
        return "reject"


class ApproveExpiry(Kind):
    """The worker sweeps; the moment is the database's clock, which is moved to just before the deadline."""

    name = "approve and expiry"
    APART = timedelta(seconds=30)
    JUST_BEFORE = 0.08
    """Seconds before the deadline, at most, that the press begins: about as long as it takes."""

    def prepare(self, scene: Scene, count: int) -> list[Approval]:
        asked = []
        for number in range(count):
            move_clock(number * self.APART)
            asked.append(scene.ask(self.key(number)))
        set_clock(asked[0].due_at - self.APART)
        drain()  # their ladders' rungs, which are due before
        return asked

    def race(self, scene: Scene, approval: Approval, order: str) -> list[Any]:
        press = scene.approving(scene.people.adjuster, approval)
        if order == FREE:
            set_clock(approval.due_at - timedelta(seconds=scene.chance.uniform(0, self.JUST_BEFORE)))
            return [press(), None]
        with holding_ledger(scene.database):
            if order == FIRST:
                party = Party(press)
                wait_until_blocked(scene.database)
                set_clock(approval.due_at)
            else:
                set_clock(approval.due_at)
                wait_until_blocked(scene.database)
                party = Party(press)
                wait_until_blocked(scene.database, 2)
        return [party.outcome(), None]

    def wins(self, approval: Approval, first: Any, second: Any) -> str:
        if won(first):
            return "approve"
        assert lost(first, 410, "This approval expired at", "Nobody answered in time")
        wait_until(lambda: fresh(approval.run).status == Status.EXPIRED)
        return "expiry"

    def decisions(self, winner: str) -> int:
        return int(winner == "approve")


def set_clock(moment: datetime) -> None:
    """Move the database's clock so that it is this moment now."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        move_clock(moment - cursor.fetchone()[0])


class ApproveCancel(Kind):
    name = "approve and cancel"

    def acts(self, scene: Scene, approval: Approval) -> tuple[Act, Act]:
        page, olga = f"/runs/{approval.run.key}/cancel/", scene.visitor(scene.people.ops)
        form = olga.form(page, page, why="the claimant withdrew")
        return scene.approving(scene.people.adjuster, approval), lambda: olga.send(page, form)

    def wins(self, approval: Approval, first: Any, second: Any) -> str:
        if won(first):
            assert lost(second, 409, "ada acted on it")
            return "approve"
        assert second.status_code == 303
        assert lost(first, 409, "The run was cancelled while this waited")
        return "cancel"

    def decisions(self, winner: str) -> int:
        return int(winner == "approve")


class ApproveEdit(Kind):
    name = "approve and payload change"

    def acts(self, scene: Scene, approval: Approval) -> tuple[Act, Act]:
        return (
            scene.approving(scene.people.adjuster, approval),
            scene.proposing(scene.people.second_adjuster, approval),
        )

    def wins(self, approval: Approval, first: Any, second: Any) -> str:
        if won(first):
            assert lost(second, 409, "ada approved this", "Your answer changed nothing")
            return "approve"
        assert won(second)
        assert lost(first, 409, "ben proposed something else", "Your answer changed nothing")
        return "change"


class ApproveFacts(Kind):
    """What the payload rests on is changed in the system of record."""

    name = "approve and change of facts"

    def acts(self, scene: Scene, approval: Approval) -> tuple[Act, Act]:
        claim = Claim.objects.filter(reference=approval.run.input["claim"])
        change = lambda: claim.update(policy_number="NFIP-OTHER")  # noqa: E731
        return scene.approving(scene.people.adjuster, approval), change

    def race(self, scene: Scene, approval: Approval, order: str) -> list[Any]:
        press, change = self.acts(scene, approval)
        if order == FREE:
            return at_once(press, change)
        if order == SECOND:
            changed = change()
            return [press(), changed]
        # By then the facts are read, and the deciding transaction waits.
        with holding_run(scene.database, approval.run_id):
            party = Party(press)
            wait_until_blocked(scene.database)
            changed = change()
        return [party.outcome(), changed]

    def wins(self, approval: Approval, first: Any, second: Any) -> str:
        assert second == 1
        if won(first):
            return "approve"
        assert lost(first, 412, "The facts changed since you saw them", "Nothing was decided")
        return "change"


class ApproveRole(Kind):
    """An admin takes the role away, lets the person leave the team, or switches the account off, in the admin."""

    name = "approve and role removed"
    TAKEN = ("role", "team", "account")

    def __init__(self) -> None:
        self._turn = 0

    def acts(self, scene: Scene, approval: Approval) -> tuple[Act, Act]:
        ada, root = scene.people.adjuster, scene.visitor(scene.people.superuser)
        page = f"/admin/auth/user/{ada.pk}/change/"
        form = root.form(page, page)
        self.taken = self.TAKEN[self._turn % len(self.TAKEN)]
        self._turn += 1
        gone = {"role": "adjusters", "team": scene.people.team.name}.get(self.taken)
        form["groups"] = [str(group.pk) for group in ada.groups.exclude(name=gone)]
        if self.taken == "account":
            del form["is_active"]
        return scene.approving(ada, approval), lambda: root.send(page, form)

    def race(self, scene: Scene, approval: Approval, order: str) -> list[Any]:
        ada, groups = scene.people.adjuster, list(scene.people.adjuster.groups.all())
        answers = super().race(scene, approval, order)
        ada.groups.set(groups)
        ada.save(update_fields=["is_active"])
        return answers

    def forced(self, scene: Scene, approval: Approval, *acts: Act) -> list[Any]:
        ada = scene.people.adjuster
        with holding(scene.database, "SELECT FROM auth_user WHERE id = %s FOR NO KEY UPDATE", ada.pk):
            parties = []
            for number, act in enumerate(acts, 1):
                parties.append(Party(act))
                wait_until_blocked(scene.database, number)
        return [party.outcome() for party in parties]

    def wins(self, approval: Approval, first: Any, second: Any) -> str:
        assert second.status_code == 302
        if won(first):
            return "approve"
        assert not approval.decisions.exists()
        assert Approval.objects.get(pk=approval.pk).status == ApprovalStatus.OPEN
        if self.taken == "account" and first.status_code == 302:
            assert first.headers["Location"].startswith("/sign-in/")
        elif self.taken == "team":
            assert first.status_code in (403, 404)
        else:
            assert lost(first, 403, "You may not decide this")
        return f"{self.taken} removed"


KINDS: list[type[Kind]] = [
    DoubleClick,
    TwoApprovers,
    ApproveReject,
    ApproveCancel,
    ApproveEdit,
    ApproveFacts,
    ApproveRole,
    ApproveExpiry,
]
"""The last one moves the clock, for good."""


@dataclass(frozen=True)
class Raced:
    """`refused`: how many answers of this race the deciding verb refused. `strangers`: how many were answered as if
    there were no such approval, which may have been found before the verb or in it."""

    approval: Approval
    decisions: int
    refused: int
    strangers: int

    def assert_whole(self, scene: Scene) -> None:
        """One decision, one move away from the question, one payment where the run says that it paid, all of them told
        by the ledger."""
        run = fresh(self.approval.run)
        assert is_whole(run)
        assert Decision.objects.filter(approval=self.approval).count() == self.decisions
        assert run.transitions.filter(from_status="waiting", position=self.approval.position).count() == 1
        told = AuditEvent.objects.filter(run=run, kind=AuditEvent.Kind.DECISION_REFUSED).count()
        assert self.refused <= told <= self.refused + self.strangers
        has_paid = (run.status, run.outcome) == (Status.COMPLETED, "completed")
        spent = Approval.objects.filter(run=run, spent_at__isnull=False)
        assert scene.paid(run) == list(spent.values_list("amount_minor", flat=True))
        assert len(scene.paid(run)) == has_paid
        expired = LedgerEntry.objects.filter(kind="expiry", record__contains=f'"approval":{self.approval.pk},')
        assert expired.count() == (run.status == Status.EXPIRED)


def play(scene: Scene, kind: Kind, *, free: int, forced: int) -> Counter[tuple[str, str]]:
    """So many races, and so many in either order; how often who won."""
    orders = [FREE] * free + [FIRST, SECOND] * forced
    questions, races, winners = kind.prepare(scene, len(orders)), [], Counter[tuple[str, str]]()
    with WorkerProcess():
        for approval, order in zip(questions, orders, strict=True):
            answers = kind.race(scene, approval, order)
            winner = kind.wins(approval, *answers)
            winners[order, winner] += 1
            counts = [_statuses(answers, *REFUSED), _statuses(answers, 404)]
            races.append(Raced(approval, kind.decisions(winner), *counts))
        scene.finish()
    for race in races:
        race.assert_whole(scene)
    assert ledger.verify().problems == []
    return winners


def _statuses(answers: list[Any], *statuses: int) -> int:
    """How many answers to forms of an approval had one of these."""
    sent = [answer for answer in answers if isinstance(answer, httpx.Response)]
    return len([answer for answer in sent if "/approvals/" in str(answer.url) and answer.status_code in statuses])
