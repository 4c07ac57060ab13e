"""The row that says which run keeps which artefact. Imports nothing of ours.

A model like those of models, in a file of its own; import it from models.
"""

from django.db import models
from django.db.models import Q


class Artefact(models.Model):
    """A large value that a run keeps; its bytes are in the artefact storage. Append-only, as a checkpoint is: only that
    retention removed the file is noted later.

    Written after the bytes and before the checkpoint or call that names them: a row says that the run may read them and
    that whoever sees the run may download them. A step that was lost leaves what it kept.
    """

    run = models.ForeignKey("runs.Run", on_delete=models.PROTECT, related_name="artefacts", db_index=False)
    position = models.PositiveIntegerField()
    place = models.CharField(max_length=200, help_text="Where the value stood: output.report, or by hand.")
    sha256 = models.CharField(max_length=64)
    size = models.BigIntegerField(help_text="Bytes.")
    media_type = models.CharField(max_length=100)
    kept_at = models.DateTimeField()
    removed_at = models.DateTimeField(
        null=True, blank=True, help_text="When retention took the file, which no other run kept any more."
    )

    class Meta:
        indexes = [models.Index(fields=["sha256"], name="artefact_file", condition=Q(removed_at__isnull=True))]
        constraints = [
            models.UniqueConstraint(
                fields=["run", "position", "sha256", "place", "media_type"], name="artefact_kept_once"
            ),
            models.CheckConstraint(condition=Q(sha256__regex=r"^[0-9a-f]{64}$"), name="artefact_sha256_form"),
        ]

    def __str__(self) -> str:
        return f"{self.sha256[:12]} {self.place}"
