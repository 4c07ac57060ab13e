"""The workflow that sends what the outbox of notices holds. Registered at start-up, started by the sweep when there is
something to send. May import notices, and runs' recurring and workflows.
"""

from typing import Any

from runs import recurring
from runs.workflows import Caps, Finish, Goto, Workflow, finish, goto

from . import notices

IN_ONE_STEP = 20
MARGIN = 2 * notices.TIMEOUT
"""Seconds that must be left of the step before another is sent."""

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
