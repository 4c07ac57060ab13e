"""The question put to people, their signed answers, and the ledger that chains them.

Lives here: columns, constraints and the questions a list asks. What decides is in decisions, what asks is in gate.
May import runs.models and runs.states.
"""

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import F, Q

from runs.models import DatabaseNow, JSONText, Run


class ApprovalStatus(models.TextChoices):
    OPEN = "open", "Waiting"
    """Next moved by an approver, or by its due time."""
    NOT_REQUIRED = "not-required", "Not required"
    """The rule asked nobody; the action is frozen and spent once all the same."""
    APPROVED = "approved", "Approved"
    REJECTED = "rejected", "Rejected"
    EXPIRED = "expired", "Expired"
    WITHDRAWN = "withdrawn", "Withdrawn"
    """The run was cancelled while it waited."""


class ApprovalQuerySet(models.QuerySet["Approval"]):
    def visible_to(self, user: Any) -> "ApprovalQuerySet":
        """Those of the user's teams; all for a superuser and for whoever was granted `runs.view_all_teams`."""
        if not user.is_active:
            return self.none()
        if user.has_perm("runs.view_all_teams"):
            return self
        return self.filter(team__in=user.groups.all())

    def waiting(self) -> "ApprovalQuerySet":
        """Open, whether or not the due time has passed."""
        return self.filter(status=ApprovalStatus.OPEN)

    def overdue(self) -> "ApprovalQuerySet":
        return self.waiting().filter(due_at__lte=DatabaseNow())

    def decidable(self) -> "ApprovalQuerySet":
        return self.waiting().filter(due_at__gt=DatabaseNow())

    def asked_of(self, user: Any) -> "ApprovalQuerySet":
        """Those that one of the user's groups was asked to decide."""
        asked = Approval.groups.through.objects.filter(group__in=user.groups.all())
        return self.filter(pk__in=asked.values("approval_id"))


class Approval(models.Model):
    """One question. `payload` is the proposed action, frozen: these bytes are shown, signed and sent."""

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="approvals")
    position = models.PositiveIntegerField()
    step = models.CharField(max_length=64)
    version = models.PositiveSmallIntegerField(default=1)
    team = models.ForeignKey(Group, on_delete=models.PROTECT, related_name="+", db_index=False)
    groups = models.ManyToManyField(Group, related_name="+", help_text="Any member of one of these may decide.")
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )

    tool = models.CharField(max_length=100)
    statement = models.TextField(help_text="The action in plain words, from the tool's template.")
    statement_version = models.CharField(max_length=64, help_text="Digest of the template that made the statement.")
    payload = models.TextField(help_text="Canonical JSON (RFC 8785) of the proposed action.")
    payload_digest = models.CharField(max_length=64)
    amount_minor = models.BigIntegerField(null=True, blank=True)
    currency = models.CharField(max_length=3, blank=True)
    facts_source = models.CharField(max_length=100, blank=True)
    facts = models.TextField(help_text="Canonical JSON of the facts at asking.")
    facts_digest = models.CharField(max_length=64)
    signed_facts = models.TextField(blank=True, help_text="Canonical JSON of the facts that the last signer was shown.")
    terms = JSONText(help_text="What follows an expiry, a rejection, a change of facts.")

    status = models.CharField(max_length=12, choices=ApprovalStatus, default=ApprovalStatus.OPEN)
    required = models.PositiveSmallIntegerField(default=1)
    asked_at = models.DateTimeField()
    due_at = models.DateTimeField()
    act_within: timedelta = models.DurationField()  # type: ignore[assignment]  # (stubs: datetime | timedelta)
    closed_at = models.DateTimeField(null=True, blank=True)
    spent_at = models.DateTimeField(null=True, blank=True)
    spent_key = models.CharField(max_length=255, null=True, blank=True, unique=True)

    objects = ApprovalQuerySet.as_manager()

    class Meta:
        permissions = [
            ("decide_approval", "Can decide approvals of own teams"),
            ("assign_approval", "Can assign and release approvals of own teams"),
        ]
        indexes = [
            models.Index(fields=["due_at", "id"], name="approval_due", condition=Q(status=ApprovalStatus.OPEN)),
            models.Index(
                F("amount_minor").desc(nulls_last=True),
                F("id"),
                name="approval_amount",
                condition=Q(status=ApprovalStatus.OPEN),
            ),
            models.Index(
                fields=["team", "due_at", "id"], name="approval_team_due", condition=Q(status=ApprovalStatus.OPEN)
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["run", "position", "version"], name="approval_once_per_version"),
            models.UniqueConstraint(
                fields=["run", "position"], name="approval_one_open", condition=Q(status=ApprovalStatus.OPEN)
            ),
            models.CheckConstraint(condition=Q(status__in=ApprovalStatus.values), name="approval_status_known"),
            models.CheckConstraint(
                condition=Q(spent_at__isnull=True)
                | Q(status__in=[ApprovalStatus.APPROVED, ApprovalStatus.NOT_REQUIRED]),
                name="approval_spent_only_when_given",
            ),
            models.CheckConstraint(
                condition=Q(status=ApprovalStatus.OPEN, closed_at__isnull=True)
                | ~Q(status=ApprovalStatus.OPEN) & Q(closed_at__isnull=False),
                name="approval_closed_when_not_open",
            ),
        ]

    def __str__(self) -> str:
        return f"approval {self.pk}"


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

    class Meta:
        verbose_name_plural = "ledger entries"

    def __str__(self) -> str:
        return f"{self.sequence} {self.kind}"


class LedgerHead(models.Model):
    """The end of the chain: one row, locked last of all while an entry is appended."""

    sequence = models.BigIntegerField()
    entry_hash = models.CharField(max_length=64)

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


class Decision(models.Model):
    """One person's signed answer. Append-only by trigger; the signed record is the ledger entry."""

    class Verdict(models.TextChoices):
        APPROVE = "approve", "Approved"
        REJECT = "reject", "Rejected"

    approval = models.ForeignKey(Approval, on_delete=models.PROTECT, related_name="decisions")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    verdict = models.CharField(max_length=8, choices=Verdict)
    comment = models.TextField(blank=True)
    decided_at = models.DateTimeField()
    entry = models.OneToOneField(LedgerEntry, on_delete=models.PROTECT, related_name="decision")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["approval", "user"], name="decision_one_vote"),
            models.CheckConstraint(
                condition=Q(verdict="approve") | ~Q(comment=""), name="decision_reject_has_a_reason"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.verdict} by {self.user_id}"


# Who holds what: the inbox's own rows. They decide nothing and are part of no signed record.


class Words(models.Field):
    """Lower-case words that rows are found by (a tsvector made of words as they are: no stemming, no dictionary)."""

    def db_type(self, connection: Any) -> str:
        return "tsvector"


@Words.register_lookup
class Sought(models.Lookup):
    """Whether each word of a text is the beginning of one of these; a text without words finds nothing."""

    lookup_name = "sought"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[str | int, ...]]:
        words, parameters = self.process_lhs(compiler, connection)
        return f"{words} @@ approvals_sought(%s)", (*parameters, self.rhs)


@Words.register_lookup
class Saying(Sought):
    """As `sought`, told row by row: for rows that come in an order of their own, when very many are found."""

    lookup_name = "saying"

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[str | int, ...]]:
        words, parameters = self.process_lhs(compiler, connection)
        # The operator's own function: no index is entered by it, so the one that gives the order is followed.
        return f"ts_match_vq({words}, approvals_sought(%s))", (*parameters, self.rhs)


class InboxEntry(models.Model):
    """What the inbox lists, counts and searches an open approval by, in one row: and who holds it.

    Comes, follows and goes by trigger with its approval, while that is open; only `holder` is written by hand, by
    approvals.assignment. One narrow row per question keeps each tab to one index of one table.
    """

    approval = models.OneToOneField(Approval, primary_key=True, on_delete=models.PROTECT, related_name="inbox_entry")
    team = models.ForeignKey(Group, on_delete=models.PROTECT, related_name="+", db_index=False)
    due_at = models.DateTimeField()
    rank = models.BigIntegerField(help_text="The amount; LEAST where there is none.")
    asked = ArrayField(models.IntegerField(), help_text="The keys of the groups that were asked.")
    holder = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    held_since = models.DateTimeField(null=True, blank=True)
    words = Words(editable=False)

    LEAST = 1 - 2**63

    class Meta:
        verbose_name_plural = "inbox entries"
        indexes = [
            models.Index(fields=["due_at", "approval"], name="inbox_due"),
            models.Index(fields=["team", "due_at", "approval"], name="inbox_team_due"),
            models.Index(fields=["-rank", "approval"], name="inbox_rank"),
            models.Index(fields=["holder"], name="inbox_holder", condition=Q(holder__isnull=False)),
            GinIndex(fields=["asked"], name="inbox_asked"),
            GinIndex(fields=["words"], name="inbox_words"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(holder__isnull=True, held_since__isnull=True)
                | Q(holder__isnull=False, held_since__isnull=False),
                name="inbox_held_since_then",
            )
        ]

    def __str__(self) -> str:
        return f"inbox entry of approval {self.approval_id}"


class AbsenceQuerySet(models.QuerySet["Absence"]):
    def current(self) -> "AbsenceQuerySet":
        return self.filter(starts_at__lte=DatabaseNow(), ends_at__gt=DatabaseNow())

    def not_over(self) -> "AbsenceQuerySet":
        return self.filter(ends_at__gt=DatabaseNow())


class Absence(models.Model):
    """Somebody is away from `starts_at` to `ends_at`; what she holds shows meanwhile in her deputy's inbox too."""

    person = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False)
    deputy = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()

    objects = AbsenceQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["person", "ends_at"], name="absence_of_person"),
            models.Index(fields=["deputy", "ends_at"], name="absence_of_deputy"),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gte=F("starts_at")), name="absence_ends_after_it_starts"),
            models.CheckConstraint(condition=~Q(person=F("deputy")), name="absence_has_another_deputy"),
        ]

    def __str__(self) -> str:
        return f"absence {self.pk}"


class AssignmentEvent(models.Model):
    """One act of assigning: what, by whom, from whom and to whom. Append-only by trigger."""

    class Kind(models.TextChoices):
        CLAIMED = "claimed", "Claimed"
        ASSIGNED = "assigned", "Assigned"
        RELEASED = "released", "Released"
        DELEGATED = "delegated", "Delegated while absent"
        RETURNED = "returned", "Absence ended early"

    at = models.DateTimeField()
    kind = models.CharField(max_length=12, choices=Kind)
    approval = models.ForeignKey(
        Approval, null=True, blank=True, on_delete=models.PROTECT, related_name="assignment_events"
    )
    absence = models.ForeignKey(Absence, null=True, blank=True, on_delete=models.PROTECT, related_name="events")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False)
    before = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    to = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    actor = models.CharField(max_length=96)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(approval__isnull=True) ^ Q(absence__isnull=True), name="assignment_event_of_one_thing"
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"
