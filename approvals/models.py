"""The question put to people, and their signed answers; the rows of the ledger that chains them are in chain.

Lives here: columns, constraints and the questions a list asks. What decides is in decisions, what asks is in gate.
May import chain, runs.models and runs.states.
"""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import BrinIndex, GinIndex
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Q

from runs.models import DatabaseNow, JSONText, Run
from runs.values import digest

from .chain import (  # noqa: F401 (Django looks for models here)
    LedgerBody,
    LedgerCheckpoint,
    LedgerEntry,
    LedgerHead,
    StatementTemplate,
    VerifyingKey,
)
from .rungs import Notice, Rung  # noqa: F401 (Django looks for models here)


class ApprovalStatus(models.TextChoices):
    OPEN = "open", "Waiting"
    """Next moved by an approver, or by its due time."""
    NOT_REQUIRED = "not-required", "Not required"
    """The rule asked nobody; the action is frozen and spent once all the same."""
    APPROVED = "approved", "Approved"
    REJECTED = "rejected", "Rejected"
    EXPIRED = "expired", "Expired"
    WITHDRAWN = "withdrawn", "Withdrawn"
    """Whoever asked took it back, or the run was cancelled while it waited."""
    RESPONDED = "responded", "Sent back"
    """Changes were asked for; the run went where its workflow says."""
    SUPERSEDED = "superseded", "Superseded"
    """Another approval took its place: a counter-proposal, or the same question on changed facts."""


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

    edited_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    superseded_by = models.OneToOneField(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="supersedes"
    )

    tool = models.CharField(max_length=100)
    statement = models.TextField(help_text="The action in plain words, from the tool's template.")
    statement_version = models.CharField(max_length=64, help_text="Digest of the template that made the statement.")
    payload = models.TextField(help_text="Canonical JSON (RFC 8785) of the proposed action.")
    payload_digest = models.CharField(max_length=64)
    amount_minor = models.BigIntegerField(null=True, blank=True)
    currency = models.CharField(max_length=3, blank=True)
    payee = models.TextField(blank=True, db_default="", help_text="Whom the action pays, as far as it says so.")
    facts_source = models.CharField(max_length=100, blank=True)
    facts = models.TextField(help_text="Canonical JSON of the facts at asking.")
    facts_digest = models.CharField(max_length=64)
    signed_facts = models.TextField(blank=True, help_text="Canonical JSON of the facts that the last signer was shown.")
    evidence = models.TextField(
        blank=True, db_default="", help_text="Canonical JSON: SHA-256 of each piece of evidence, by name."
    )
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
            models.Index(fields=["payee", "currency"], name="approval_payee", condition=~Q(payee="")),
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

    @property
    def level(self) -> int:
        """How often it was escalated, in this version or one before it."""
        fired = Rung.objects.filter(fired_at__isnull=False, is_void=False, kind=Rung.Kind.ESCALATE)
        return fired.filter(approval__run=self.run_id, approval__position=self.position).count()

    @property
    def editors(self) -> set[int]:
        """The keys of those who changed this action, in this version or one before it."""
        versions = Approval.objects.filter(run=self.run_id, position=self.position, version__lte=self.version)
        return {editor for editor in versions.values_list("edited_by", flat=True) if editor is not None}


LONGEST_PAYEE = 200


def payee_of(arguments: dict[str, Any]) -> str:
    """Whom an action pays, as far as its arguments say so in text; longer than an index takes: the digest of that."""
    payee = arguments.get("payee", "")
    if not isinstance(payee, str):
        return ""
    return payee if len(payee) <= LONGEST_PAYEE else f"sha256:{digest(payee)}"


class Decision(models.Model):
    """One person's signed answer. Append-only by trigger; the signed record is the ledger entry."""

    class Verdict(models.TextChoices):
        APPROVE = "approve", "Approved"
        REJECT = "reject", "Rejected"
        EDIT = "edit", "Proposed otherwise"
        RESPOND = "respond", "Asked for changes"
        WITHDRAW = "withdraw", "Withdrawn"

    approval = models.ForeignKey(Approval, on_delete=models.PROTECT, related_name="decisions")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    verdict = models.CharField(max_length=8, choices=Verdict)
    comment = models.TextField(blank=True)
    facts = models.TextField(blank=True, db_default="", help_text="Canonical JSON of the facts that were shown.")
    decided_at = models.DateTimeField()
    entry = models.OneToOneField(LedgerEntry, on_delete=models.PROTECT, related_name="decision")

    class Meta:
        indexes = [BrinIndex(fields=["decided_at"], name="decision_when", pages_per_range=16, autosummarize=True)]
        constraints = [
            models.UniqueConstraint(fields=["approval", "user"], name="decision_one_vote"),
            models.CheckConstraint(
                condition=Q(verdict="approve") | ~Q(comment=""), name="decision_reject_has_a_reason"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.verdict} by {self.user_id}"


class Authority(models.Model):
    """What a person, or every member of a group, may decide: without one nobody decides anything.

    Amounts are integer minor units of `currency`. Granted, changed and ended by approvals.authority only, which leaves
    a ledger entry each time.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="authorities"
    )
    group = models.ForeignKey(Group, null=True, blank=True, on_delete=models.PROTECT, related_name="authorities")
    workflow = models.CharField(max_length=64, blank=True, help_text="Empty: any workflow.")
    team = models.ForeignKey(
        Group, null=True, blank=True, on_delete=models.PROTECT, related_name="+", help_text="Empty: any of own teams."
    )
    currency = models.CharField(max_length=3, blank=True, help_text="Of the limits, and then of what is decided.")
    limit_minor = models.BigIntegerField(null=True, blank=True, help_text="Most of one approval. Empty: no limit.")
    payee_limit_minor = models.BigIntegerField(
        null=True, blank=True, help_text="Most to one payee in 24 hours, whoever approves it. Empty: no limit."
    )
    password_above_minor = models.BigIntegerField(
        null=True, blank=True, help_text="Above this the password is asked for again. Empty: never."
    )
    valid_from = models.DateTimeField(db_default=DatabaseNow())
    valid_to = models.DateTimeField(null=True, blank=True, help_text="From then on it is worth nothing.")

    class Meta:
        verbose_name_plural = "authorities"
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=True) ^ Q(group__isnull=True), name="authority_of_one_holder"
            ),
            models.CheckConstraint(
                condition=~Q(currency="")
                | Q(limit_minor__isnull=True, payee_limit_minor__isnull=True, password_above_minor__isnull=True),
                name="authority_amounts_have_a_currency",
            ),
            models.CheckConstraint(
                condition=(Q(limit_minor__isnull=True) | Q(limit_minor__gte=0))
                & (Q(payee_limit_minor__isnull=True) | Q(payee_limit_minor__gte=0))
                & (Q(password_above_minor__isnull=True) | Q(password_above_minor__gte=0)),
                name="authority_amounts_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return f"authority {self.pk}"

    def clean(self) -> None:
        if isinstance(self.valid_from, datetime) and self.valid_to is not None and self.valid_to <= self.valid_from:
            raise ValidationError({"valid_to": "It must end after it begins."})


class PasswordFailure(models.Model):
    """A password that was wrong where a decision asked for it: so many in a while, and no further one is tried."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False)
    at = models.DateTimeField(db_default=DatabaseNow())

    class Meta:
        indexes = [models.Index(fields=["user", "-at"], name="password_failure_of_user")]

    def __str__(self) -> str:
        return f"password failure {self.pk}"


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
