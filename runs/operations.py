"""What the operators' pages keep: tags in the form that lists are searched by, and bulk work with a row per run.

Lives here: the columns, constraints and questions of those rows. What does bulk work is in bulk. Imports columns only.
`runs.models` brings these models to Django.
"""

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Count, Q

from .columns import DatabaseNow


class Tag(models.Model):
    """One tag of a run, for searching. A trigger writes it from the run's own column, which stays what is true."""

    run = models.ForeignKey("runs.Run", on_delete=models.CASCADE, related_name="tag_rows", db_index=False)
    name = models.CharField(max_length=100, db_collation="C")
    value = models.CharField(max_length=200, db_collation="C", help_text="As text; cut off after 200 characters.")

    class Meta:
        indexes = [models.Index(fields=["value", "name", "run"], name="tag_of_run")]
        constraints = [models.UniqueConstraint(fields=["run", "name"], name="tag_once_per_name")]

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


class BatchQuerySet(models.QuerySet["Batch"]):
    def visible_to(self, user: Any) -> "BatchQuerySet":
        """Those of the user's own, and those whose run the user sees."""
        if not user.is_active:
            return self.none()
        if user.has_perm("runs.view_all_teams"):
            return self
        return self.filter(Q(asked_by=user) | Q(run__team__in=user.groups.all()))


class Batch(models.Model):
    """One action on many runs, which were chosen once and for all when it was confirmed. A run of a built-in workflow
    works it off, as the person who asked."""

    run = models.OneToOneField("runs.Run", on_delete=models.PROTECT, related_name="batch")
    action = models.CharField(max_length=16)
    why = models.TextField()
    chosen = models.TextField(blank=True, help_text="What was chosen from: the list's address, or a selection.")
    total = models.PositiveIntegerField(default=0)
    asked_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False)
    asked_at = models.DateTimeField(db_default=DatabaseNow())

    objects = BatchQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "batches"

    def __str__(self) -> str:
        return f"batch {self.pk}: {self.action}"

    def tally(self) -> dict[str, int]:
        """How many of its runs have come to what."""
        counted = self.items.order_by().values_list("outcome").annotate(Count("pk"))
        return dict.fromkeys(BatchItem.Outcome.values, 0) | dict(counted)


class BatchItem(models.Model):
    """One run of a batch, and what became of it."""

    class Outcome(models.TextChoices):
        OPEN = "", "Still to come"
        DONE = "done", "Done"
        REFUSED = "refused", "Refused"

    batch = models.ForeignKey(Batch, on_delete=models.PROTECT, related_name="items", db_index=False)
    run = models.ForeignKey("runs.Run", on_delete=models.PROTECT, related_name="+", db_index=False)
    outcome = models.CharField(max_length=7, choices=Outcome, blank=True)
    sentence = models.TextField(blank=True, help_text="Why it was refused.")
    done_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["batch", "outcome", "id"], name="batch_item_by_outcome")]
        constraints = [
            models.UniqueConstraint(fields=["batch", "run"], name="batch_item_once_per_run"),
            models.CheckConstraint(
                condition=Q(outcome="", done_at__isnull=True)
                | Q(outcome__in=["done", "refused"], done_at__isnull=False),
                name="batch_item_outcome_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.batch_id}: {self.run_id} {self.outcome or 'open'}"
