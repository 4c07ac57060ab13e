"""What the watch keeps: how long steps take, tallies per slot of time, what is kept up, alarms and their rules.

Lives here: the columns, constraints and questions of those rows. What fills the tallies is in tallies, what opens and
closes alarms in alerts. Imports columns only. `runs.models` brings these models to Django.
"""

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import models
from django.db.models import Q

from .columns import DatabaseNow, JSONText


class StepTime(models.Model):
    """How long one step of one version has taken lately; the measure of what is stuck."""

    workflow = models.CharField(max_length=64)
    version = models.SmallIntegerField()
    step = models.CharField(max_length=64)
    number = models.BigIntegerField(help_text="Times it was finished within the days looked at.")
    p95 = models.DurationField(help_text="95 of 100 times it took no longer.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["workflow", "version", "step"], name="step_time_once")]

    def __str__(self) -> str:
        return f"{self.workflow}/{self.version}/{self.step}"


class Tally(models.Model):
    """What was counted of one figure within one slot of time.

    `bucket` sorts measured values by their size, eight buckets to a doubling, so that slots can be added up and still
    tell a median; a plain count has bucket 0. `total` and `most`: the sum and the greatest of the values.
    """

    class Width(models.TextChoices):
        MINUTES = "m", "Five minutes"
        HOUR = "h", "An hour"
        QUARTER = "q", "Six hours"
        DAY = "d", "A day"

    figure = models.CharField(max_length=16)
    width = models.CharField(max_length=1, choices=Width)
    slot = models.DateTimeField(help_text="When it begins.")
    name = models.CharField(max_length=200, help_text="Of what: a step as workflow/version/step, a tool, a reason.")
    bucket = models.SmallIntegerField()
    number = models.BigIntegerField()
    total = models.FloatField()
    most = models.FloatField()

    class Meta:
        verbose_name_plural = "tallies"
        constraints = [models.UniqueConstraint(fields=["figure", "width", "slot", "name", "bucket"], name="tally_once")]

    def __str__(self) -> str:
        return f"{self.figure} {self.name} {self.slot:%Y-%m-%d %H:%M}"


class Upkeep(models.Model):
    """One thing that the sweep keeps up, once however many runners there are. A row that is deleted keeps up nothing.
    One without a due time is reported by a command; the row says when that last was, and what it found."""

    name = models.CharField(max_length=32, primary_key=True)
    every = models.DurationField(null=True, blank=True)
    due_at = models.DateTimeField(null=True, blank=True)
    done_at = models.DateTimeField(null=True, blank=True)
    state = JSONText(default=dict, help_text="How far it came, or what it found.")

    class Meta:
        verbose_name_plural = "upkeep"

    def __str__(self) -> str:
        return self.name


class AlarmRule(models.Model):
    """What opens an alarm, and who is told. People edit these rows in the admin."""

    name = models.SlugField(max_length=40, primary_key=True)
    condition = models.CharField(max_length=32, help_text="One of the conditions that this code knows.")
    is_on = models.BooleanField("on", default=True)
    after = models.DurationField(
        default=timedelta(),
        help_text="How long it must have been so. Of a wait for approval: how long before its due time.",
    )
    mail_to = models.TextField(
        blank=True, help_text="Addresses with commas between; empty: the members of the group ops who have one."
    )
    is_posted = models.BooleanField(
        "webhook", default=True, help_text="Also by the signed webhook, where ALARM_WEBHOOK_URL names one."
    )

    class Meta:
        permissions = [("view_health", "Can see the health page and alarms")]
        constraints = [
            models.CheckConstraint(condition=Q(after__gte=timedelta()), name="alarm_rule_after_not_negative")
        ]

    def __str__(self) -> str:
        return self.name


class Notice(models.Model):
    """Word of the alarms that one look opened for one rule: written with them."""

    rule = models.ForeignKey(AlarmRule, on_delete=models.PROTECT, related_name="notices", db_index=False)
    title = models.CharField(max_length=100, help_text="What the rule is about, in words.")
    made_at = models.DateTimeField(db_default=DatabaseNow())

    def __str__(self) -> str:
        return f"notice {self.pk}"


class Sending(models.Model):
    """One notice on its way by one channel. `tries` counts before each."""

    class Channel(models.TextChoices):
        MAIL = "mail", "Mail"
        WEBHOOK = "webhook", "Webhook"

    notice = models.ForeignKey(Notice, on_delete=models.PROTECT, related_name="sendings", db_index=False)
    channel = models.CharField(max_length=7, choices=Channel)
    tries = models.SmallIntegerField(default=0)
    next_try_at = models.DateTimeField(db_default=DatabaseNow())
    sent_at = models.DateTimeField(null=True, blank=True)
    error = models.TextField(blank=True)

    class Meta:
        indexes = [models.Index(fields=["next_try_at"], name="sending_unsent", condition=Q(sent_at__isnull=True))]
        constraints = [models.UniqueConstraint(fields=["notice", "channel"], name="sending_once_per_channel")]

    def __str__(self) -> str:
        return f"{self.channel} of notice {self.notice_id}"


class AlarmQuerySet(models.QuerySet["Alarm"]):
    def visible_to(self, user: Any) -> "AlarmQuerySet":
        """Those of nobody's team and of the user's teams, for whoever may see the health page."""
        if not (user.is_active and user.has_perm("runs.view_health")):
            return self.none()
        if user.has_perm("runs.view_all_teams"):
            return self
        return self.filter(Q(team__isnull=True) | Q(team__in=user.groups.all()))

    def open(self) -> "AlarmQuerySet":
        return self.filter(closed_at__isnull=True)

    def closed(self) -> "AlarmQuerySet":
        return self.filter(closed_at__isnull=False)

    def unacknowledged(self) -> "AlarmQuerySet":
        return self.open().filter(acknowledged_at__isnull=True)

    def acknowledge(self, user: Any) -> bool:
        """Say in a person's name that it is seen to; False when it is over, or somebody said so before."""
        return bool(self.unacknowledged().update(acknowledged_at=DatabaseNow(), acknowledged_by=user))


class Alarm(models.Model):
    """One condition that came true, from then until it is over. Kept when it is closed."""

    rule = models.ForeignKey(AlarmRule, on_delete=models.PROTECT, related_name="alarms", db_index=False)
    subject = models.CharField(max_length=255, help_text="What it is about: a run, an effect's key, a host.")
    run = models.ForeignKey(
        "runs.Run", null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    team = models.ForeignKey(Group, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    sentence = models.TextField()
    opened_at = models.DateTimeField(db_default=DatabaseNow())
    notice = models.ForeignKey(Notice, null=True, on_delete=models.SET_NULL, related_name="alarms")
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    closed_at = models.DateTimeField(null=True, blank=True)

    objects = AlarmQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["-id"], name="alarm_closed", condition=Q(closed_at__isnull=False))]
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "subject"], name="alarm_open_once", condition=Q(closed_at__isnull=True)
            )
        ]

    def __str__(self) -> str:
        return f"{self.rule_id}: {self.subject}"
