"""The one function that a bell may run. Its path is part of the queue's format: never rename it without keeping the
old name for a release."""

import logging

from django.db import InterfaceError, OperationalError, connection

from .advance import advance

logger = logging.getLogger(__name__)


def advance_run(run_id: int) -> None:
    """Answer a bell. A database that went away is no failure of the run: the sweep will find it and ring again."""
    try:
        advance(run_id)
    except (OperationalError, InterfaceError) as error:
        logger.error("Run %s: the database went away (%s). The sweep will ring again.", run_id, type(error).__name__)
        connection.close()
