"""The workflow that comes with approvals: a signed checkpoint of the ledger each hour. May import checkpoints, models
and runs.workflows."""

from typing import Any

from runs.workflows import Finish, Workflow, finish

from . import checkpoints
from .models import LedgerCheckpoint

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
