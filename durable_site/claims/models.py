"""The system of record of the worked example: claims, and the reserve that is booked when one is paid.

An ordinary app: exactly what a user of Durable Runs writes. Facts can really change here, in the admin or by
`manage.py change_claim`.
"""

from django.db import models
from django.db.models import Q

from runs.models import DatabaseNow, JSONText


class ClaimStatus(models.TextChoices):
    IMPORTED = "imported", "Imported"
    REGISTERED = "registered", "Registered"
    PAID = "paid", "Paid"
    CLOSED = "closed", "Closed"
    CLOSED_UNPAID = "closed-unpaid", "Closed without payment"


class Claim(models.Model):
    """One flood-insurance claim. Money is integer cents; None means that it is not known."""

    reference = models.CharField(max_length=42, unique=True, help_text="The id of the row it came from.")
    status = models.CharField(max_length=13, choices=ClaimStatus, default=ClaimStatus.IMPORTED)
    policy_number = models.CharField(max_length=48)
    payee = models.CharField(max_length=100)
    email = models.EmailField(blank=True)
    amount_minor = models.BigIntegerField(
        null=True, blank=True, help_text="What is to be paid: the sum of the paid columns."
    )
    currency = models.CharField(max_length=3, default="USD")
    non_payment_reason = models.CharField(max_length=40, blank=True)
    date_of_loss = models.DateField(null=True, blank=True)
    state = models.CharField(max_length=2, blank=True)
    event = models.CharField(max_length=100, blank=True)
    row = JSONText(help_text="The imported row, column by column, as text.")
    imported_at = models.DateTimeField(db_default=DatabaseNow())

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(amount_minor__isnull=True) | Q(amount_minor__gte=0), name="claim_amount_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return self.reference

    @property
    def run_key(self) -> str:
        return f"claim-{self.reference}"


class ReserveEntry(models.Model):
    """What a payout took from the reserve: booked once per claim, in the same commit as the step's checkpoint."""

    claim = models.OneToOneField(Claim, on_delete=models.PROTECT, related_name="reserve_entry")
    amount_minor = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    payment = models.CharField(max_length=64)
    booked_at = models.DateTimeField(db_default=DatabaseNow())

    class Meta:
        verbose_name_plural = "reserve entries"

    def __str__(self) -> str:
        return f"{self.claim_id}: {self.amount_minor} {self.currency}"
