"""What people are told of approvals, by mail and by a signed webhook: written with the move, sent later, at least once.

A link only shows: nobody decides by following one. Neither mail nor webhook says what is asked or of whom: who may see
that signs in. May import models, and runs' webhooks.
"""

import json
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.mail import EmailMessage
from django.db.models import F
from django.urls import reverse

from runs import webhooks
from runs.models import DatabaseClock, database_clock

from .models import Approval, ApprovalStatus, Notice, Rung

TIMEOUT = webhooks.TIMEOUT
"""Seconds the webhook's receiver has to answer."""

SUBJECTS = {
    Notice.Kind.ASKED: "An approval waits for you",
    Notice.Kind.REMINDER: "Reminder: an approval waits for you",
    Notice.Kind.ESCALATION: "Escalated to you: an approval waits",
    Notice.Kind.EXPIRED: "An approval expired",
}


def write(approval: Approval, kind: str, rung: Rung | None = None) -> None:
    """Put a notice into the outbox, in the caller's transaction."""
    channels = [Notice.Channel.MAIL]
    if settings.NOTIFY_WEBHOOK_URL:
        channels.append(Notice.Channel.WEBHOOK)
    Notice.objects.bulk_create(
        (Notice(approval=approval, kind=kind, channel=channel, rung=rung) for channel in channels),
        ignore_conflicts=True,
    )


def is_anything_unsent() -> bool:
    return Notice.objects.unsent().exists()


def send_next() -> bool:
    """Send one notice, outside any transaction; False when there is none. What fails is tried again later."""
    notice = Notice.objects.unsent().order_by("pk").first()
    if notice is None:
        return False
    # Compare and swap: of two senders one finds no row. Counted before it is sent, so that a death is bounded too.
    if (
        not Notice.objects.unsent()
        .filter(pk=notice.pk, attempts=notice.attempts)
        .update(attempts=F("attempts") + 1, attempted_at=DatabaseClock())
    ):
        return True
    approval = Approval.objects.select_related("run", "team").get(pk=notice.approval_id)
    try:
        told = _send(notice, approval)
    except Exception as error:  # noqa: BLE001 (whatever a mail server or a receiver does, the next notice is sent)
        Notice.objects.filter(pk=notice.pk).update(error=type(error).__name__)
    else:
        Notice.objects.filter(pk=notice.pk).update(sent_at=DatabaseClock(), told=told, error="")
    return True


def asked_people(approval: Approval) -> list[User]:
    """Who may be asked now: members of the groups and of the team who have an address; never whoever asked."""
    members = User.objects.filter(is_active=True, is_superuser=False, groups__in=approval.groups.all())
    found = members.filter(groups=approval.team_id).exclude(email="").distinct().order_by("pk")
    return [user for user in found if user.pk != approval.requested_by_id]


def _send(notice: Notice, approval: Approval) -> int:
    over = approval.status != ApprovalStatus.OPEN or approval.due_at <= database_clock()
    if over and notice.kind != Notice.Kind.EXPIRED:
        # Decided, or too late, before it was sent: nobody is asked for what cannot be done.
        return 0
    senders: dict[str, Callable[[Notice, Approval], int]] = {
        Notice.Channel.MAIL: _mail,
        Notice.Channel.WEBHOOK: _post,
    }
    return senders[notice.channel](notice, approval)


def _mail(notice: Notice, approval: Approval) -> int:
    people = asked_people(approval)
    if not people:
        return 0
    subject = f"{SUBJECTS[Notice.Kind(notice.kind)]}: run {approval.run.key}"
    until = "It expired at" if notice.kind == Notice.Kind.EXPIRED else "It can be decided until"
    text = (
        f"{subject}, team {approval.team.name}.\n\n{until} {approval.due_at:%-d %b %Y, %H:%M} UTC.\n\n"
        f"{_link(approval)}\n\n"
        "The link shows what is asked, after signing in. Nothing is decided by opening it.\n"
    )
    # One message: a crash behind it repeats it once, not once for each who had it already.
    EmailMessage(subject, text, settings.DEFAULT_FROM_EMAIL, bcc=[user.email for user in people]).send()
    return len(people)


def _post(notice: Notice, approval: Approval) -> int:
    """Standard Webhooks: the id is the same at each try, so that the receiver can tell a repetition."""
    if not settings.NOTIFY_WEBHOOK_URL:
        return 0
    url, secret = settings.NOTIFY_WEBHOOK_URL, settings.NOTIFY_WEBHOOK_SECRET
    webhooks.post(url, secret, name=f"notice-{notice.pk}", text=_event(notice, approval))
    return 1


def _event(notice: Notice, approval: Approval) -> str:
    data: dict[str, Any] = {
        "approval": approval.pk,
        "run": approval.run.key,
        "team": approval.team.name,
        "level": approval.level,
        "due_at": approval.due_at.isoformat(),
        "url": _link(approval),
    }
    event = {"type": f"approval.{notice.kind}", "timestamp": notice.written_at.isoformat(), "data": data}
    return json.dumps(event, separators=(",", ":"))


def _link(approval: Approval) -> str:
    return settings.SITE_URL.rstrip("/") + reverse("approvals:approval", args=[approval.pk])
