"""The rows of retention: one for each batch of runs whose values were taken out, and one for each run that is held.

Models like those of models, in a file of their own; import them from models. Imports columns only.
"""

from django.conf import settings
from django.db import models

from .columns import DatabaseNow


class Withholding(models.Model):
    """One batch of old final runs whose values were taken out, in one transaction, under one rule. Append-only.

    Who may do so is known by the ledger: an entry there names this row, how many runs it was and the digest of their
    keys, so that a row nobody signed is found."""

    at = models.DateTimeField()
    rule = models.TextField(help_text="How long runs are kept, in words.")
    actor = models.CharField(max_length=96, help_text="The built-in workflow's run, or where the person came in.")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )

    def __str__(self) -> str:
        return f"withholding {self.pk}"


class Hold(models.Model):
    """A run that is kept whole whatever its age, until somebody releases it: this row goes then, audit events stay."""

    run = models.OneToOneField("runs.Run", primary_key=True, on_delete=models.PROTECT, related_name="hold")
    why = models.TextField()
    at = models.DateTimeField(db_default=DatabaseNow())
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )

    def __str__(self) -> str:
        return f"hold of run {self.run_id}"
