"""The workflows that come with approvals: a signed checkpoint of the ledger each hour, and the notices that the outbox
holds, started by the sweep when there is something to send. May import checkpoints, notices, models, and runs'
recurring and workflows."""

from typing import Any

from runs import recurring
from runs.workflows import Caps, Finish, Goto, Workflow, finish, goto

from . import checkpoints, notices
from .models import LedgerCheckpoint

IN_ONE_STEP = 20
MARGIN = 2 * notices.TIMEOUT
"""Seconds that must be left of the step before another is sent."""

ledger_checkpoint = Workflow("ledger-checkpoint", title="Sign a checkpoint of the ledger")


@ledger_checkpoint.step(atomic=True)
def sign(ctx: Any) -> dict[str, Any]:
    """Sign how many entries there are, and what they are"""
    made = checkpoints.make()
    return {"checkpoint": made.pk, "size": made.size}


@ledger_checkpoint.step
def write(ctx: Any) -> dict[str, Any]:
    """Append it to the file of checkpoints"""
    return {"file": checkpoints.write_to_file(_made(ctx))}


@ledger_checkpoint.step
def mail(ctx: Any) -> Finish:
    """Mail it to those who keep checkpoints elsewhere"""
    mailed = checkpoints.mail(_made(ctx))
    return finish(f"{ctx.state['size']} entries signed", {"mailed": mailed})


def _made(ctx: Any) -> LedgerCheckpoint:
    return LedgerCheckpoint.objects.get(pk=ctx.state["checkpoint"])


send_notices = Workflow("approval-notices", title="Tell people of approvals", caps=Caps(steps=10_000))

recurring.only_when("approval-notices", notices.is_anything_unsent)


@send_notices.step
def send(ctx: Any) -> Goto | Finish:
    """Send what is waiting to be sent"""
    for _ in range(IN_ONE_STEP):
        if not notices.send_next():
            return finish("all sent")
        if ctx.remaining < MARGIN:
            break
    return goto(send)
