"""Signed webhooks after Standard Webhooks (version 1): one event posted under an id that stays the same at each try.

May import httpx and standardwebhooks only.
"""

from datetime import UTC, datetime

import httpx
from standardwebhooks.webhooks import Webhook

TIMEOUT = 10
"""Seconds the receiver has for each part of its answer."""


def post(url: str, secret: str, *, name: str, text: str) -> None:
    """Post this JSON text to the receiver, once. `name`: the event's id, by which a repetition is known.

    Raises httpx.HTTPError when it is not taken: no answer in time, or another status than 2xx.
    """
    now = datetime.now(UTC)
    headers = {
        "content-type": "application/json",
        "webhook-id": name,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign(name, now, text),
    }
    # Streamed: whatever the receiver says beyond its status, however long it takes to say so, is not waited for.
    with httpx.stream("POST", url, content=text.encode(), headers=headers, timeout=TIMEOUT) as answer:
        answer.raise_for_status()
