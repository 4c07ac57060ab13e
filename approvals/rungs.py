"""The rows of deadlines: what happens at which time while a question is open, and what people are told of it.

Lives here: columns, constraints, the questions a sweep asks. Imported by models, where Django looks; may import
runs.models.
"""

from datetime import timedelta

from django.contrib.auth.models import Group
from django.db import models
from django.db.models import Q

from runs.models import DatabaseNow

MOST_ATTEMPTS = 5
"""Times a notice is tried; then it is given up, and its row says why."""
TRY_AGAIN_AFTER = timedelta(minutes=5)


class RungQuerySet(models.QuerySet["Rung"]):
    def pending(self) -> "RungQuerySet":
        return self.filter(fired_at=None)

    def due(self) -> "RungQuerySet":
        return self.pending().filter(due_at__lte=DatabaseNow())


class Rung(models.Model):
    """One step of an approval's ladder. Fired once, with the approval's row locked; late when nobody swept in time."""

    class Kind(models.TextChoices):
        REMIND = "remind", "Remind"
        ESCALATE = "escalate", "Escalate"

    approval = models.ForeignKey("approvals.Approval", on_delete=models.PROTECT, related_name="rungs", db_index=False)
    number = models.PositiveSmallIntegerField()
    kind = models.CharField(max_length=8, choices=Kind)
    to = models.ForeignKey(Group, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    earlier_may_decide = models.BooleanField(default=True)
    due_at = models.DateTimeField()
    fired_at = models.DateTimeField(null=True, blank=True)
    is_void = models.BooleanField(default=False, help_text="The question was settled before: nothing was done.")

    objects = RungQuerySet.as_manager()

    class Meta:
        indexes = [models.Index(fields=["due_at"], name="rung_due", condition=Q(fired_at__isnull=True))]
        constraints = [
            models.UniqueConstraint(fields=["approval", "number"], name="rung_once_per_number"),
            models.CheckConstraint(
                condition=Q(kind="remind", to__isnull=True) | Q(kind="escalate", to__isnull=False),
                name="rung_escalates_to_somebody",
            ),
        ]
        ordering = ["approval_id", "due_at", "number"]

    def __str__(self) -> str:
        return f"{self.kind} {self.number} of approval {self.approval_id}"


class NoticeQuerySet(models.QuerySet["Notice"]):
    def unsent(self) -> "NoticeQuerySet":
        """Still to be tried: not sent, not given up, and not tried just now."""
        rested = Q(attempted_at=None) | Q(attempted_at__lte=DatabaseNow() - TRY_AGAIN_AFTER)
        return self.filter(rested, sent_at=None, attempts__lt=MOST_ATTEMPTS)


class Notice(models.Model):
    """What people are to be told, written with the move that they are told of and sent later: neither is lost without
    the other. Sent at least once: a crash between sending and noting it sends it again."""

    class Kind(models.TextChoices):
        ASKED = "asked", "Asked"
        REMINDER = "reminder", "Reminder"
        ESCALATION = "escalation", "Escalation"
        EXPIRED = "expired", "Expired"

    class Channel(models.TextChoices):
        MAIL = "mail", "E-mail"
        WEBHOOK = "webhook", "Webhook"

    approval = models.ForeignKey("approvals.Approval", on_delete=models.PROTECT, related_name="notices", db_index=False)
    kind = models.CharField(max_length=10, choices=Kind)
    channel = models.CharField(max_length=7, choices=Channel)
    rung = models.ForeignKey(Rung, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    written_at = models.DateTimeField(db_default=DatabaseNow())
    attempts = models.PositiveSmallIntegerField(default=0)
    attempted_at = models.DateTimeField(null=True, blank=True)
    sent_at = models.DateTimeField(null=True, blank=True)
    told = models.PositiveIntegerField(default=0, help_text="How many were told. None: nobody could be, or need be.")
    error = models.CharField(max_length=200, blank=True)

    objects = NoticeQuerySet.as_manager()

    class Meta:
        indexes = [models.Index(fields=["id"], name="notice_unsent", condition=Q(sent_at__isnull=True, attempts__lt=5))]
        constraints = [
            models.UniqueConstraint(
                fields=["approval", "kind", "channel", "rung"], name="notice_once", nulls_distinct=False
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} of approval {self.approval_id} by {self.channel}"
