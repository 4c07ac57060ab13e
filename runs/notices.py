"""What people are told of alarms: written with the alarms, sent afterwards by mail and by signed webhook.

Nothing here is sent by the sweep or by the queue: a receiver that hangs holds up neither, and word that the queue hangs
does not wait for the queue. Each runner carries for each channel in a thread of its own. May import webhooks, models.
"""

import json
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.mail import EmailMessage
from django.db import Error as DatabaseFault
from django.db import connection, transaction
from django.db.models import F
from django.urls import reverse

from . import webhooks
from .models import AlarmRule, DatabaseClock, DatabaseNow, Notice, Sending

logger = logging.getLogger(__name__)

NAMED = 20
"""Alarms that one message spells out."""
WAIT_BEFORE_RETRY, LONGEST_WAIT = timedelta(minutes=1), timedelta(hours=1)
DEFAULT_GROUP = "ops"
LOOK_EVERY = 1.0
"""Seconds between two looks for what is to be sent."""


def write(rule: AlarmRule, title: str) -> Notice:
    """A notice of the alarms that this look opens, with a sending for each channel, in the caller's transaction."""
    notice = Notice.objects.create(rule=rule, title=title)
    channels = [Sending.Channel.MAIL]
    if rule.is_posted and settings.ALARM_WEBHOOK_URL:
        channels.append(Sending.Channel.WEBHOOK)
    Sending.objects.bulk_create(Sending(notice=notice, channel=channel) for channel in channels)
    return notice


def carry(channel: str, stop: threading.Event) -> None:
    """Send what is due by this channel, again and again, until told to stop. A database that is away is waited for."""
    while not stop.wait(LOOK_EVERY):
        try:
            while not stop.is_set() and send_one(channel):
                pass
        except DatabaseFault as error:
            logger.error("Notices wait: the database does not answer (%s).", type(error).__name__)
            connection.close()


def send_due() -> int:
    """Send what is due by every channel, here and now; how many were tried."""
    tried = 0
    for channel in Sending.Channel.values:
        while send_one(channel):
            tried += 1
    return tried


def send_one(channel: str) -> bool:
    """Send what is due next by this channel, outside any transaction; False when nothing is.

    It is tried later before it is tried: a process that dies in between sends it once more, under the same id, and two
    never send it at the same time.
    """
    with transaction.atomic():
        unsent = Sending.objects.select_for_update(skip_locked=True).filter(channel=channel, sent_at__isnull=True)
        sending = unsent.filter(next_try_at__lte=DatabaseNow()).order_by("next_try_at").first()
        if sending is None:
            return False
        pause = min(LONGEST_WAIT, WAIT_BEFORE_RETRY * 2 ** min(sending.tries, 10))
        Sending.objects.filter(pk=sending.pk).update(tries=F("tries") + 1, next_try_at=DatabaseClock() + pause)
    try:
        _SENDERS[channel](Notice.objects.select_related("rule").get(pk=sending.notice_id))
    except Exception as error:  # noqa: BLE001 (whatever a mail server or a receiver does, it is tried again)
        logger.error("Notice %s could not be sent by %s: %s.", sending.notice_id, channel, type(error).__name__)
        Sending.objects.filter(pk=sending.pk).update(error=f"{type(error).__name__}: {error}"[:500])
    else:
        Sending.objects.filter(pk=sending.pk).update(sent_at=DatabaseClock(), error="")
    return True


def recipients(rule: AlarmRule) -> list[str]:
    """Who is told by mail: the rule's own addresses, or the active members of the group ops."""
    if named := [address.strip() for address in rule.mail_to.split(",") if address.strip()]:
        return named
    members = get_user_model().objects.filter(groups__name=DEFAULT_GROUP, is_active=True).exclude(email="")
    return sorted(set(members.values_list("email", flat=True)))


def _mail(notice: Notice) -> None:
    alarms = list(notice.alarms.order_by("id"))
    subject = f"[Durable Runs] {notice.title}" + (f": {alarms[0].subject}" if len(alarms) == 1 else "")
    lines = [f"{alarm.subject}: {alarm.sentence}" for alarm in alarms[:NAMED]]
    if len(alarms) > NAMED:
        lines.append(f"… and {len(alarms) - NAMED} more.")
    body = "\n\n".join([*lines, f"All alarms: {_address()} Each closes by itself once it is over."])
    # The same name each time it is tried: a mailbox that got it twice can tell.
    name = {"Message-ID": f"<{_name(notice)}@durable-runs>"}
    EmailMessage(" ".join(subject.split())[:150], body, bcc=recipients(notice.rule), headers=name).send()


def _post(notice: Notice) -> None:
    if settings.ALARM_WEBHOOK_URL:
        webhooks.post(
            settings.ALARM_WEBHOOK_URL, settings.ALARM_WEBHOOK_SECRET, name=_name(notice), text=_event(notice)
        )


_SENDERS: dict[str, Callable[[Notice], None]] = {Sending.Channel.MAIL: _mail, Sending.Channel.WEBHOOK: _post}


def _event(notice: Notice) -> str:
    alarms = list(notice.alarms.order_by("id"))
    told: list[dict[str, Any]] = [
        {
            "alarm": alarm.pk,
            "subject": alarm.subject,
            "sentence": alarm.sentence,
            "opened_at": alarm.opened_at.isoformat(),
        }
        for alarm in alarms[:NAMED]
    ]
    data = {"rule": notice.rule_id, "title": notice.title, "number": len(alarms), "alarms": told, "url": _address()}
    event = {"type": "alarm.opened", "timestamp": notice.made_at.isoformat(), "data": data}
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))


def _name(notice: Notice) -> str:
    return f"alarm-notice-{notice.pk}-{notice.made_at:%Y%m%d%H%M%S}"


def _address() -> str:
    return settings.SITE_URL.rstrip("/") + reverse("health:alarms")
