"""The rows: runs, checkpoints, calls, deliveries, transitions, audit events, beats.

Lives here: columns, constraints, indexes and the questions a list asks (QuerySet methods). What moves a run is in
engine, advance and sweep; what reconciliation keeps is in findings, what runs keep in artefact_rows, what the watch
keeps in watching. Imports those, stuck, columns, states and errors only.

Three rules keep step commits cheap: no index and no index predicate uses a column that a step commit writes (position,
next_step, attempt, lease_until); JSON is kept as the very text that was written, never as jsonb, which rewrites numbers
and member order; and checks are few, since PostgreSQL reads and compiles each of them anew at every update (counters
are plain integers for that reason).
"""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group
from django.contrib.postgres.indexes import BrinIndex
from django.core.validators import RegexValidator
from django.db import connection, models
from django.db.models import Q

from . import stuck
from .artefact_rows import Artefact  # noqa: F401 (Django looks for models here)
from .columns import DatabaseClock, DatabaseNow, JSONText
from .errors import IllegalMove
from .findings import Finding, Listed, Recurring  # noqa: F401 (Django looks for models here)
from .operations import Batch, BatchItem, Tag  # noqa: F401 (and for these)
from .retention_rows import Hold, Withholding  # noqa: F401 (and for these)
from .states import FINAL, MOVES, CallKind, EffectState, Status, WaitKind
from .watching import Alarm, AlarmRule, Notice, Sending, StepTime, Tally, Upkeep  # noqa: F401 (and here)

run_key = RegexValidator(
    r"^[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?\Z",
    "A run key has at most 48 lower-case letters, digits and hyphens, and begins and ends with a letter or digit.",
)


class RunQuerySet(models.QuerySet["Run"]):
    def visible_to(self, user: Any) -> "RunQuerySet":
        """Those of the user's teams; all of them for a superuser and for whoever was granted `runs.view_all_teams`."""
        if not user.is_active:
            return self.none()
        if user.has_perm("runs.view_all_teams"):
            return self
        return self.filter(team__in=user.groups.all())

    def live(self) -> "RunQuerySet":
        return self.exclude(status__in=FINAL)

    def due(self) -> "RunQuerySet":
        """Parked, and their time has come: timers and back-offs to wake, waits that nobody answered."""
        return self.filter(status__in=[Status.SLEEPING, Status.WAITING], due_at__lte=DatabaseNow())

    def overdue(self) -> "RunQuerySet":
        """Waiting, and past the time by which somebody should have answered."""
        return self.filter(status=Status.WAITING, due_at__lte=DatabaseNow())

    def abandoned(self) -> "RunQuerySet":
        """Running, but the lease is past: the worker died or froze."""
        return self.filter(status=Status.RUNNING, lease_until__lte=DatabaseNow())

    def stuck(self) -> "RunQuerySet":
        """Work that nobody does, as stuck defines it. Dead letters are none: they wait for an operator."""
        return self.filter(pk__in=stuck.ids())


class Run(models.Model):
    """One execution of a workflow. The version is pinned: a run ends with the code it began with."""

    # Compared by bytes: so its unique index also finds keys by their beginning.
    key = models.CharField(max_length=48, db_collation="C", validators=[run_key])
    workflow = models.CharField(max_length=64)
    version = models.SmallIntegerField()
    team = models.ForeignKey(Group, on_delete=models.PROTECT, related_name="runs", db_index=False)
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    input = JSONText()
    tags = JSONText(default=dict)

    status = models.CharField(max_length=9, choices=Status, default=Status.READY)
    outcome = models.CharField(max_length=64, blank=True, help_text="How a final run ended, in the workflow's words.")
    reason = models.TextField(blank=True, help_text="Why it is dead, expired or cancelled: one sentence.")

    position = models.IntegerField(default=0, help_text="The number of its last checkpoint.")
    next_step = models.CharField(max_length=64, help_text="The step that position + 1 enters.")
    attempt = models.SmallIntegerField(default=0, help_text="Times the next position was begun, counted at claim.")

    fence = models.BigIntegerField(default=0, help_text="Grows with each claim and guards every write.")
    worker = models.CharField(max_length=96, blank=True, help_text="Who holds the lease: host:pid:start.")
    lease_until = models.DateTimeField(null=True, blank=True)

    asked = models.CharField(
        max_length=9,
        choices=WaitKind,
        blank=True,
        help_text="The wait this position's step returned; the step is not entered again.",
    )
    wait_terms = JSONText(null=True, blank=True, help_text="What that wait's kind needs to close it.")
    wait_kind = models.CharField(max_length=9, choices=WaitKind, blank=True, help_text="Why it is parked now.")
    wait_name = models.CharField(max_length=200, blank=True, help_text="What it is parked for, in words.")
    wait_since = models.DateTimeField(null=True, blank=True)
    due_at = models.DateTimeField(null=True, blank=True)

    caps = JSONText(null=True, blank=True, help_text="Caps that an operator raised for this run alone.")
    worked = models.DurationField(db_default=timedelta(), help_text="Time its steps were at work; waiting is not work.")
    forked_from = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="forks", db_index=False
    )
    rung_at = models.DateTimeField(null=True, blank=True, help_text="When the sweep last rang for it.")
    created_at = models.DateTimeField(db_default=DatabaseNow())
    finished_at = models.DateTimeField(null=True, blank=True)
    withholding = models.ForeignKey(
        Withholding,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="runs",
        db_index=False,
        help_text="The act of retention that took its values out; empty while they are kept.",
    )

    objects = RunQuerySet.as_manager()

    class Meta:
        permissions = [
            ("operate_run", "Can cancel and repair runs of own teams"),
            ("view_all_teams", "Can see the runs of all teams"),
        ]
        indexes = [
            models.Index(
                fields=["due_at"],
                include=["status"],
                name="run_due",
                condition=Q(status__in=[Status.SLEEPING, Status.WAITING]),
            ),
            # Ids ascend although lists descend: new entries come at the end of their part, which packs pages tight.
            models.Index(fields=["id"], name="run_ready", condition=Q(status=Status.READY)),
            models.Index(fields=["team", "status", "id"], name="run_of_team_by_status"),
            models.Index(fields=["status", "id"], name="run_by_status"),
            # Every list is looked along by one of these: the console takes each combination before the id by itself.
            models.Index(fields=["workflow", "version", "team", "status", "id"], name="run_by_workflow"),
            models.Index(fields=["wait_kind", "team", "status", "id"], name="run_by_wait", condition=~Q(wait_kind="")),
            BrinIndex(fields=["created_at"], name="run_when", pages_per_range=16, autosummarize=True),
            models.Index(
                fields=["workflow", "version"],
                name="run_unfit",
                condition=Q(status=Status.WAITING, wait_kind=WaitKind.MIGRATION),
            ),
            # What retention looks along: an entry comes when a run ends and goes when its values do.
            models.Index(
                fields=["finished_at", "id"],
                name="run_kept",
                condition=Q(finished_at__isnull=False, withholding__isnull=True),
            ),
            models.Index(fields=["forked_from"], name="run_fork_of", condition=Q(forked_from__isnull=False)),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=Status.values), name="run_status_known"),
            models.UniqueConstraint(fields=["key"], name="run_once_per_key"),
            models.CheckConstraint(condition=~Q(key="") & ~Q(key__regex=r"[^a-z0-9-]|^-|-$"), name="run_key_formed"),
            models.CheckConstraint(
                condition=Q(status=Status.RUNNING, lease_until__isnull=False) & ~Q(worker="")
                | ~Q(status=Status.RUNNING) & Q(lease_until__isnull=True, worker=""),
                name="run_lease_while_running",
            ),
            models.CheckConstraint(
                condition=~Q(status__in=[Status.SLEEPING, Status.WAITING]) | Q(due_at__isnull=False) & ~Q(wait_kind=""),
                name="run_wait_has_a_due_time",
            ),
            models.CheckConstraint(
                condition=Q(status__in=FINAL, finished_at__isnull=False)
                | ~Q(status__in=FINAL) & Q(finished_at__isnull=True),
                name="run_finished_when_final",
            ),
        ]

    def __str__(self) -> str:
        return self.key

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    def move(self, to: Status, *, why: str, actor: str, user: Any = None, **columns: Any) -> None:
        """Move this run, whose row the caller has locked, and leave the transition's row. Columns that only make sense
        in the old status are cleared. Raises IllegalMove."""
        if to not in MOVES[Status(self.status)]:
            raise IllegalMove(self.key, Status(self.status).label.lower(), Status(to).label.lower())
        now = database_clock()
        columns = _cleared(to, now) | columns
        moved = Run.objects.filter(pk=self.pk, status=self.status).update(status=to, **columns)
        if moved != 1:
            raise IllegalMove(self.key, "being moved by somebody else", Status(to).label.lower())
        Transition.objects.create(
            run=self,
            at=now,
            from_status=self.status,
            to_status=to,
            position=self.position + 1,
            step=self.next_step,
            why=why,
            actor=actor,
            user=user,
        )
        for name, value in (columns | {"status": to}).items():
            setattr(self, name, value)


def _cleared(to: Status, now: datetime) -> dict[str, Any]:
    cleared: dict[str, Any] = {"worker": "", "lease_until": None}
    # A paused run keeps what it waits for: resuming puts it back there.
    if to not in (Status.SLEEPING, Status.WAITING, Status.PAUSED):
        cleared |= {"wait_kind": "", "wait_name": "", "wait_since": None, "due_at": None}
    if to in FINAL:
        cleared |= {"asked": "", "wait_terms": None, "finished_at": now}
    return cleared


def database_clock() -> datetime:
    """The database's clock now, read on its own: for claiming, intents and deciding."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT runs_clock()")
        return cursor.fetchone()[0]


class Checkpoint(models.Model):
    """What a finished step left. `closed_as`: empty for a step that went through, else how its position was closed."""

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="checkpoints", db_index=False)
    position = models.IntegerField()
    step = models.CharField(max_length=64)
    output = JSONText()
    wait_kind = models.CharField(max_length=9, choices=WaitKind, blank=True)
    closed_as = models.CharField(max_length=16, blank=True)
    attempt = models.SmallIntegerField()
    started_at = models.DateTimeField()
    committed_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "position"], name="checkpoint_once_per_position")]
        # Rows come in the order of their times, so ranges of pages are index enough; a step commit pays nothing for it.
        indexes = [BrinIndex(fields=["committed_at"], name="checkpoint_when", pages_per_range=16, autosummarize=True)]
        ordering = ["run_id", "position"]

    def __str__(self) -> str:
        return f"{self.run_id}:{self.position} {self.step}"


class CallQuerySet(models.QuerySet["Call"]):
    def effects(self) -> "CallQuerySet":
        return self.filter(kind=CallKind.EFFECT)

    def unknown(self) -> "CallQuerySet":
        return self.filter(kind=CallKind.EFFECT, state=EffectState.UNKNOWN)

    def unresolved(self) -> "CallQuerySet":
        """Effects that may have happened: those known to be unknown, and those sent without an outcome so far."""
        return self.filter(kind=CallKind.EFFECT, state__in=[EffectState.SENT, EffectState.UNKNOWN])

    def settle(self, state: EffectState, by: "Call.SettledBy", **columns: Any) -> bool:
        """Write what a look-up or a person says of one effect, guarded by its own row: what is known stays. False when
        somebody else made it known first."""
        return bool(self.unresolved().update(state=state, settled_by=by, settled_at=DatabaseClock(), **columns))


class Call(models.Model):
    """One recorded use of a tool. For an effect the row is the intent, written before anything is sent."""

    class SettledBy(models.TextChoices):
        ANSWER = "", "The receiver's answer"
        LOOKUP = "lookup", "Looking it up"
        PERSON = "person", "A person"

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="calls")
    position = models.PositiveIntegerField()
    step = models.CharField(max_length=64)
    tool = models.CharField(max_length=100)
    kind = models.CharField(max_length=6, choices=CallKind)
    key = models.CharField(max_length=255)
    request = models.TextField(help_text="Canonical JSON: exactly what is sent, and sent again.")
    digest = models.CharField(max_length=64, help_text="SHA-256 of the request's bytes.")
    once_per = models.CharField(max_length=200, null=True, blank=True)
    state = models.CharField(max_length=9, choices=EffectState)
    answer = JSONText(null=True, blank=True)
    replayed = models.BooleanField(default=False, help_text="The receiver said: done before, here is the first answer.")
    error = models.TextField(blank=True)
    price_minor = models.BigIntegerField(null=True, blank=True, help_text="Reserved before it was sent, minor units.")
    cost_minor = models.BigIntegerField(null=True, blank=True, help_text="What it did cost, minor units.")
    currency = models.CharField(max_length=3, blank=True, db_default="")
    sends = models.PositiveSmallIntegerField(default=0)
    prepared_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True, blank=True, help_text="When it was first sent: the key's life begins.")
    last_sent_at = models.DateTimeField(null=True, blank=True)
    settled_at = models.DateTimeField(null=True, blank=True)
    settled_by = models.CharField(
        max_length=6, choices=SettledBy, blank=True, db_default="", help_text="How its outcome became known."
    )

    objects = CallQuerySet.as_manager()

    class Meta:
        indexes = [
            BrinIndex(fields=["prepared_at"], name="call_when", pages_per_range=16, autosummarize=True),
            models.Index(fields=["id"], name="call_unknown", condition=Q(kind="effect", state__in=["sent", "unknown"])),
            models.Index(
                fields=["tool", "settled_at"],
                include=["replayed", "sends", "settled_by"],
                name="call_confirmed",
                condition=Q(kind="effect", state="confirmed"),
            ),
            models.Index(
                fields=["tool"],
                include=["settled_by"],
                name="call_refused",
                condition=Q(kind="effect", state="refused"),
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["key"], name="effect_once_per_key", condition=Q(kind=CallKind.EFFECT)),
            models.UniqueConstraint(
                fields=["key", "digest"], name="read_once_per_request", condition=~Q(kind=CallKind.EFFECT)
            ),
            models.UniqueConstraint(
                fields=["tool", "once_per"],
                name="effect_once_per_subject",
                condition=Q(once_per__isnull=False) & ~Q(state=EffectState.REFUSED),
            ),
            models.CheckConstraint(condition=Q(state__in=EffectState.values), name="call_state_known"),
            models.CheckConstraint(condition=Q(kind__in=CallKind.values), name="call_kind_known"),
            models.CheckConstraint(
                condition=Q(price_minor__isnull=True, cost_minor__isnull=True, currency="")
                | Q(price_minor__isnull=False, price_minor__gte=0, currency__regex="^[A-Z]{3}$")
                & (Q(cost_minor__isnull=True) | Q(cost_minor__gte=0)),
                name="call_price_is_money",
            ),
        ]

    def __str__(self) -> str:
        return self.key


class Delivery(models.Model):
    """An event somebody delivered to a run; kept when it comes before its wait."""

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="deliveries", db_index=False)
    name = models.CharField(max_length=100)
    body = JSONText()
    delivered_at = models.DateTimeField(db_default=DatabaseNow())
    delivered_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    position = models.PositiveIntegerField(null=True, blank=True, help_text="The position that took it.")

    class Meta:
        verbose_name_plural = "deliveries"
        constraints = [
            models.UniqueConstraint(
                fields=["run", "name"], name="delivery_one_untaken", condition=Q(position__isnull=True)
            ),
            models.UniqueConstraint(
                fields=["run", "position"], name="delivery_taken_once", condition=Q(position__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"delivery {self.pk} to run {self.run_id}"


class Transition(models.Model):
    """One move of a run. Append-only: a trigger refuses every change."""

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="transitions")
    at = models.DateTimeField()
    from_status = models.CharField(max_length=9, choices=Status, blank=True, help_text="Empty for the start.")
    to_status = models.CharField(max_length=9, choices=Status)
    position = models.IntegerField(help_text="The position the run was about to enter or was in.")
    step = models.CharField(max_length=64, blank=True)
    why = models.TextField()
    actor = models.CharField(max_length=96, help_text="The worker, the sweep, or where the person came in.")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )

    class Meta:
        ordering = ["id"]
        indexes = [BrinIndex(fields=["at"], name="transition_when", pages_per_range=16, autosummarize=True)]

    def __str__(self) -> str:
        return f"{self.from_status or 'new'} → {self.to_status}"


class AuditEvent(models.Model):
    """Refused attempts, and acts that move no run. Append-only; a refusal is written in a transaction of its own."""

    class Kind(models.TextChoices):
        LATE_WRITE = "late-write", "Late write refused"
        KEY_REUSED = "key-reused", "Key reused with another request"
        DECISION_REFUSED = "decision-refused", "Decision refused"
        VERB_REFUSED = "verb-refused", "Action refused"
        EFFECT_SETTLED = "effect-settled", "Effect settled by hand"
        CAP_RAISED = "cap-raised", "Cap raised"
        LARGE_CHECKPOINT = "large-checkpoint", "Large checkpoint"
        ARTEFACT_READ = "artefact-read", "Artefact read"
        CASE_EXPORTED = "case-exported", "Case exported"
        WAIT_EXTENDED = "wait-extended", "Wait extended"
        EXPORTED = "exported", "List exported"
        READ = "read", "Personal data read"
        WITHHELD = "withheld", "Withheld by retention"
        HELD = "held", "Held from retention"
        RELEASED = "released", "Released to retention"

    at = models.DateTimeField(db_default=DatabaseNow())
    kind = models.CharField(max_length=24, choices=Kind)
    run = models.ForeignKey(Run, null=True, blank=True, on_delete=models.PROTECT, related_name="audit_events")
    position = models.PositiveIntegerField(null=True, blank=True)
    call = models.ForeignKey(
        Call, null=True, blank=True, on_delete=models.PROTECT, related_name="audit_events", db_index=False
    )
    detail = models.TextField()
    request = models.TextField(
        blank=True, db_default="", help_text="Canonical JSON of what a reused key was asked to stand for."
    )
    actor = models.CharField(max_length=96, blank=True)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(fields=["call"], name="audit_key_reused", condition=Q(kind="key-reused")),
            BrinIndex(fields=["at"], name="audit_when", pages_per_range=16, autosummarize=True),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class BeatQuerySet(models.QuerySet["Beat"]):
    def silent(self, seconds: float) -> "BeatQuerySet":
        return self.filter(beat_at__lte=DatabaseNow() - timedelta(seconds=seconds))


class Beat(models.Model):
    """One runner, and when it last said that it lives. A host whose runner fell silent loses its leases early."""

    host = models.CharField(max_length=40, primary_key=True)
    pid = models.IntegerField()
    cluster_pid = models.IntegerField(null=True, blank=True)
    workers = models.PositiveSmallIntegerField()
    started_at = models.DateTimeField()
    beat_at = models.DateTimeField()
    canary_at = models.DateTimeField(null=True, blank=True, help_text="When its cluster last acknowledged a canary.")
    restarts = models.PositiveIntegerField(default=0, help_text="Clusters that it started again since it began.")
    silent_from = models.DateTimeField(null=True, blank=True, help_text="Its last beat before it last fell silent.")
    back_at = models.DateTimeField(null=True, blank=True, help_text="When it beat again.")

    objects = BeatQuerySet.as_manager()

    def __str__(self) -> str:
        return self.host
