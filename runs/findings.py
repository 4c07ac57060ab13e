"""What reconciliation keeps: what a provider listed, every difference that was found, and what is started by itself.

Lives here: the columns, constraints and questions of those rows, and the moves of one finding. What compares is in
comparison, what settles is in reconciliation. Imports columns only. `runs.models` brings these models to Django.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import models
from django.db.models import Q

from .columns import Among, DatabaseClock, DatabaseNow, JSONText

Evidence = list[dict[str, Any]]


@dataclass(frozen=True)
class Difference:
    """One thing that does not fit, with what each side says of it. `run`: whose effect it is about, when that is
    known; `key`: what it is told apart by."""

    kind: "Finding.Kind"
    tool: str
    key: str
    run: Any = None
    ours: Evidence = field(default_factory=list)
    theirs: Evidence = field(default_factory=list)

    @property
    def name(self) -> tuple[str, str]:
        return str(self.kind), self.key

    def finding(self, team: Group) -> "Finding":
        """As a new row; `team` sees it when it belongs to no run."""
        told = {"kind": self.kind, "tool": self.tool, "key": self.key, "ours": self.ours, "theirs": self.theirs}
        return Finding(run=self.run, team_id=self.run.team_id if self.run else team.pk, **told)

    def is_told_by(self, finding: "Finding") -> bool:
        """Whether the finding holds the very same evidence."""
        return (finding.ours, finding.theirs) == (self.ours, self.theirs)


class FindingQuerySet(models.QuerySet["Finding"]):
    def visible_to(self, user: Any) -> "FindingQuerySet":
        """Those of the user's teams; all of them for a superuser and for whoever was granted `runs.view_all_teams`."""
        if not user.is_active:
            return self.none()
        if user.has_perm("runs.view_all_teams"):
            return self
        return self.filter(team__in=user.groups.all())

    def open(self) -> "FindingQuerySet":
        return self.filter(resolved_at__isnull=True)

    def closed(self) -> "FindingQuerySet":
        return self.filter(resolved_at__isnull=False)

    def told_to_people(self) -> "FindingQuerySet":
        """Those that wait for a person, and those that a person has resolved."""
        return self.filter(
            Q(resolved_at__isnull=True) | Q(resolved_by__isnull=False) & ~Q(kind=Finding.Kind.PROVIDER_DOWN)
        )

    def note(self, tool: str, differences: Iterable[Difference], team: Group) -> int:
        """Make each of the tool's differences a finding; the number of new ones.

        One that is open already is seen again. One that a person has resolved stays so while its evidence is the same.
        `team` sees those that belong to no run.
        """
        given = {difference.name: difference for difference in differences}
        known = self._known(tool, given)
        self._see_again(given, [finding for finding in known if finding.resolved_at is None])
        told = {finding.name for finding in known if given[finding.name].is_told_by(finding)}
        told |= {finding.name for finding in known if finding.resolved_at is None}
        new = [difference.finding(team) for name, difference in given.items() if name not in told]
        Finding.objects.bulk_create(new, ignore_conflicts=True)
        return len(new)

    def close(self, reason: str) -> int:
        """Close the open ones among these by themselves."""
        return self.open().update(resolved_at=DatabaseClock(), resolution=reason)

    def resolve(self, user: Any, why: str) -> bool:
        """Close this one in a person's name; False when it was closed before."""
        return bool(self.open().update(resolved_at=DatabaseClock(), resolved_by=user, resolution=why))

    def _known(self, tool: str, given: dict[tuple[str, str], Difference]) -> list["Finding"]:
        """The open findings that a difference here would be, and those that a person has resolved before."""
        keys = Among({key for _, key in given})
        return [finding for finding in self.told_to_people().filter(tool=tool, key__in=keys) if finding.name in given]

    def _see_again(self, given: dict[tuple[str, str], Difference], known: list["Finding"]) -> None:
        same = [finding.pk for finding in known if given[finding.name].is_told_by(finding)]
        if same:
            self.filter(pk__in=same).open().update(seen_at=DatabaseClock())
        for finding in known:
            difference = given[finding.name]
            if finding.pk not in same:
                told = {"ours": difference.ours, "theirs": difference.theirs}
                self.filter(pk=finding.pk).open().update(seen_at=DatabaseClock(), **told)


class Finding(models.Model):
    """One difference between what we recorded and what the world says, with both evidences. Kept when it is closed."""

    class Kind(models.TextChoices):
        MISSING_THERE = "missing-there", "Missing there"
        """Confirmed here, and the provider does not know it."""
        MISSING_HERE = "missing-here", "Missing here"
        """The provider lists it, and no effect of ours may have been it."""
        AMOUNT_DIFFERS = "amount-differs", "Amount differs"
        DUPLICATE_REFERENCE = "duplicate-reference", "Duplicate reference"
        """The provider lists more than one record for what should have one."""
        UNKNOWN = "unknown", "Unknown"
        """It may have happened, and nobody but a person can find out."""
        PROVIDER_DOWN = "provider-down", "Provider down"

    kind = models.CharField(max_length=20, choices=Kind)
    tool = models.CharField(max_length=100)
    key = models.CharField(
        max_length=255,
        blank=True,
        help_text="The idempotency key; of a duplicate the reference; of a record without a key the provider's name.",
    )
    run = models.ForeignKey("runs.Run", null=True, blank=True, on_delete=models.PROTECT, related_name="findings")
    team = models.ForeignKey(Group, on_delete=models.PROTECT, related_name="+", db_index=False)
    ours = JSONText(default=list, help_text="What our rows say: a list of effects.")
    theirs = JSONText(default=list, help_text="What the provider says: a list of records.")
    opened_at = models.DateTimeField(db_default=DatabaseNow())
    seen_at = models.DateTimeField(db_default=DatabaseNow(), help_text="When it was last found to be so.")
    resolved_at = models.DateTimeField(null=True, blank=True)
    resolved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    resolution = models.TextField(blank=True, help_text="Why it is closed: a person's reason, or how it went away.")

    objects = FindingQuerySet.as_manager()

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["team", "-id"], name="finding_open", condition=Q(resolved_at__isnull=True)),
            models.Index(fields=["team", "-id"], name="finding_closed", condition=Q(resolved_at__isnull=False)),
            models.Index(fields=["tool", "key"], name="finding_key"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "tool", "key"], name="finding_open_once", condition=Q(resolved_at__isnull=True)
            ),
            models.CheckConstraint(
                condition=Q(resolved_at__isnull=True, resolved_by__isnull=True, resolution="")
                | Q(resolved_at__isnull=False) & ~Q(resolution=""),
                name="finding_closed_with_a_reason",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.key or self.tool}"

    @property
    def name(self) -> tuple[str, str]:
        return self.kind, self.key

    @property
    def sentence(self) -> str:
        """What does not fit, in words."""
        match self.kind:
            case Finding.Kind.MISSING_THERE:
                return f"{self.key} is confirmed here, and the provider does not list it."
            case Finding.Kind.MISSING_HERE:
                here = f"is {self.ours[0]['state']}" if self.ours else "stands for no effect"
                return f"The provider lists {self.key}, which {here} here."
            case Finding.Kind.AMOUNT_DIFFERS:
                return f"The amount of {self.key} is not the one that was asked for."
            case Finding.Kind.DUPLICATE_REFERENCE:
                return f"The provider lists {len(self.theirs)} records for {self.key}, where one is expected."
            case Finding.Kind.UNKNOWN:
                return f"It is not known whether {self.key} happened; only a person can find out."
        why = self.theirs[0].get("error", "") if self.theirs else ""
        return f"The provider of {self.tool} cannot be asked: {why}".rstrip(": ")


class Listed(models.Model):
    """One record as a provider last listed it: their side, kept so that both sides can be compared without holding
    either in memory. A record that the provider no longer lists is deleted here."""

    tool = models.CharField(max_length=100)
    record = models.CharField(max_length=255, help_text="The provider's own name of it.")
    key = models.CharField(max_length=255, blank=True)
    reference = models.CharField(max_length=255, help_text="What it was made for; there should be one record for it.")
    amount_minor = models.BigIntegerField(null=True, blank=True)
    currency = models.CharField(max_length=8, blank=True)
    created_at = models.DateTimeField()
    seen_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "listed"
        indexes = [
            models.Index(fields=["tool", "key"], name="listed_key"),
            models.Index(fields=["tool", "reference"], name="listed_reference"),
            models.Index(fields=["tool", "created_at"], name="listed_created"),
        ]
        constraints = [models.UniqueConstraint(fields=["tool", "record"], name="listed_once")]

    def __str__(self) -> str:
        return f"{self.tool} {self.record}"


class Recurring(models.Model):
    """A built-in workflow that the sweep starts again and again. A row that is deleted starts nothing more."""

    name = models.SlugField(max_length=30, unique=True, db_index=False, help_text="Begins the keys of its runs.")
    workflow = models.CharField(max_length=64)
    input = JSONText(default=dict)
    every = models.DurationField()
    due_at = models.DateTimeField(help_text="When it is started next; its time of day is kept.")
    team = models.ForeignKey(Group, on_delete=models.PROTECT, related_name="+", db_index=False)

    class Meta:
        verbose_name_plural = "recurring"
        constraints = [
            models.CheckConstraint(condition=Q(every__gte=timedelta(seconds=1)), name="recurring_has_a_pause")
        ]

    def __str__(self) -> str:
        return self.name
