"""One site whose web server, payment provider and worker are processes of their own, people who have signed in to it,
and claims that wait for them: the stage of races and kills through HTTP."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from fault_matrix import chance
from sandbox_process import SandboxProcess, wait_until
from stage import fresh
from web_process import Visitor, WebProcess, words

from approvals.models import Approval, ApprovalStatus
from durable_site.claims.workflows import claim_payout
from runs import engine
from runs.models import Run
from runs.states import FINAL, Status
from runs.testing import drain

AMOUNT, OTHER_AMOUNT = 184_000, 183_000
LONGEST = 60.0
"""Seconds until runs of which none ends are given up."""

Act = Callable[[], Any]


@contextmanager
def opened(database: Any, people: Any, settings: Any, folder: Path, **environment: str) -> Iterator["Scene"]:
    """A site of its own. `environment`: settings of its web server."""
    with SandboxProcess(folder / "sandbox") as sandbox:
        settings.SANDBOX_URL = environment["SANDBOX_URL"] = sandbox.url
        with WebProcess(database, folder, **environment) as web:
            scene = Scene(database, people, web, sandbox)
            yield scene
            scene.close()


class Scene:
    """One site with the people who have signed in to it, and questions for them."""

    def __init__(self, database: Any, people: Any, web: WebProcess, sandbox: SandboxProcess) -> None:
        self.database, self.people, self.web, self.sandbox = database, people, web, sandbox
        self.chance = chance()
        self._visitors: dict[int, Visitor] = {}

    def visitor(self, user: Any) -> Visitor:
        if user.pk not in self._visitors:
            self._visitors[user.pk] = Visitor(self.web, user, self.people.password)
        return self._visitors[user.pk]

    def ask(self, key: str) -> Approval:
        """A claim that waits for its adjuster."""
        from durable_site.claims.testing import made_up_claim

        claim = made_up_claim(key, amount_minor=AMOUNT)
        given = {"team": self.people.team, "by": self.people.requester}
        run = engine.start(claim_payout, key=claim.run_key, input={"claim": key}, **given)
        drain()
        # A runner may be at it as well.
        wait_until(lambda: fresh(run).status == Status.WAITING)
        return Approval.objects.select_related("run").get(run=run, status=ApprovalStatus.OPEN)

    def answering(self, user: Any, approval: Approval, verb: str, **filled: str) -> Act:
        """This person opens the page now; what is returned sends the form."""
        page, visitor = f"/approvals/{approval.pk}/", self.visitor(user)
        form = visitor.form(page, f"{page}{verb}/", **filled)
        return lambda: visitor.send(f"{page}{verb}/", form)

    def approving(self, user: Any, approval: Approval) -> Act:
        return self.answering(user, approval, "decide", verdict="approve", read="on")

    def rejecting(self, user: Any, approval: Approval) -> Act:
        return self.answering(user, approval, "decide", verdict="reject", comment="the photos do not agree")

    def proposing(self, user: Any, approval: Approval) -> Act:
        """The last of the forms with which another action is proposed: it says what was shown before."""
        visitor, address = self.visitor(user), f"/approvals/{approval.pk}/edit/"
        form = visitor.form(f"/approvals/{approval.pk}/", f"/approvals/{approval.pk}/decide/", verdict="reject")
        arguments = json.loads(approval.payload)["arguments"] | {"amount_minor": OTHER_AMOUNT}
        form |= {"act": "sign", "arguments": json.dumps(arguments), "comment": "a deductible was forgotten"}
        return lambda: visitor.send(address, form)

    def finish(self) -> None:
        """Somebody approves whatever is still asked, and the worker works until every run has ended."""
        before, until = -1, time.monotonic()
        while live := Run.objects.exclude(status__in=FINAL).count():
            if live != before:
                before, until = live, time.monotonic() + LONGEST
            assert time.monotonic() < until, f"{live} runs do not end"
            for approval in Approval.objects.decidable()[:10]:
                ada, ben = self.people.adjuster, self.people.second_adjuster
                assert won(self.approving(ben if ada.pk in approval.editors else ada, approval)())
            time.sleep(0.05)

    def paid(self, run: Run) -> list[int]:
        """What the provider paid for this run."""
        return [line["amount_minor"] for line in self.sandbox.payments() if line["key"].startswith(f"{run.key}:")]

    def close(self) -> None:
        for visitor in self._visitors.values():
            visitor.close()


def lost(answer: httpx.Response, status: int, *sentences: str) -> bool:
    """Was this the answer to whoever lost: that status, and a page that says all this?"""
    said = words(answer)
    assert answer.status_code == status, f"{answer.status_code}: {said}"
    for sentence in sentences:
        assert sentence in said, f"{sentence!r} is not in: {said}"
    return True


def won(answer: httpx.Response) -> bool:
    """Was something signed? Then the receipt is shown."""
    return answer.status_code == 303 and answer.headers["Location"].startswith("/receipts/")
