"""The rows of the ledger: entries and their bodies, head, keys, signed checkpoints, and the templates of statements.

Lives here: columns only. All but the head are append-only by triggers, which guards.py names. What writes them is in
ledger and checkpoints. Imports verifier, and columns of runs. `approvals.models` brings these models to Django.
"""

from django.db import models
from django.db.models import Q

from runs.models import DatabaseNow

from .verifier import ROTATION


class LedgerBody(models.Model):
    """What an entry says of persons in clear: names, comments, statements. The signed record holds only its digest, so
    that this text can be withheld and the ledger still verifies. `text` is canonical JSON with a salt in it, without
    which a short comment could be guessed from the digest."""

    text = models.TextField(null=True, blank=True, help_text="Null once it is withheld; then an entry says so.")

    class Meta:
        verbose_name_plural = "ledger bodies"

    def __str__(self) -> str:
        return f"body {self.pk}"


class LedgerEntry(models.Model):
    """One audited act: its canonical record, chained to the one before and signed. Append-only by trigger."""

    sequence = models.BigIntegerField(primary_key=True)
    kind = models.CharField(max_length=24)
    record = models.TextField(help_text="Canonical JSON; these bytes are hashed and signed.")
    entry_hash = models.CharField(max_length=64, unique=True)
    previous_hash = models.CharField(max_length=64, unique=True)
    signature = models.CharField(max_length=88)
    key_id = models.CharField(max_length=32)
    at = models.DateTimeField()
    body = models.OneToOneField(
        LedgerBody, null=True, blank=True, on_delete=models.PROTECT, related_name="entry", help_text="Digest in record."
    )

    class Meta:
        verbose_name_plural = "ledger entries"
        indexes = [models.Index(fields=["sequence"], name="ledger_rotation", condition=Q(kind=ROTATION))]

    def __str__(self) -> str:
        return f"{self.sequence} {self.kind}"


class LedgerHead(models.Model):
    """The end of the chain: one row, locked last of all while an entry is appended."""

    sequence = models.BigIntegerField()
    entry_hash = models.CharField(max_length=64)
    key_id = models.CharField(max_length=32, blank=True, default="", help_text="The only key that signs next.")

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="ledger_has_one_head")]

    def __str__(self) -> str:
        return f"head at {self.sequence}"


class VerifyingKey(models.Model):
    """A public key that has signed entries. Append-only by trigger; old keys go on verifying old entries."""

    key_id = models.CharField(max_length=32, primary_key=True)
    public_key = models.CharField(max_length=64, help_text="Base64 of the raw Ed25519 public key.")
    since = models.DateTimeField(db_default=DatabaseNow())

    def __str__(self) -> str:
        return self.key_id


class LedgerCheckpoint(models.Model):
    """What the ledger was at one moment, signed: how many entries, their Merkle root. Append-only by trigger."""

    size = models.BigIntegerField()
    record = models.TextField(help_text="Canonical JSON; these bytes are signed.")
    signature = models.CharField(max_length=88)
    key_id = models.CharField(max_length=32)
    frontier = models.TextField(help_text="Hashes of the tree's full parts, from which it grows on. Not signed.")
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["size"], name="checkpoint_size")]

    def __str__(self) -> str:
        return f"checkpoint {self.pk} at {self.size}"


class StatementTemplate(models.Model):
    """A template that made statements. Append-only by trigger: whoever verifies fills it again from the payload."""

    version = models.CharField(max_length=64, primary_key=True, help_text="SHA-256 of the text.")
    text = models.TextField()

    class Meta:
        ordering = ["version"]

    def __str__(self) -> str:
        return self.text
