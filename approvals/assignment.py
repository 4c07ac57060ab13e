"""Who holds an open approval: claim, release, assign, and stand in for somebody who is away.

Holding decides nothing: it changes who looks after a question, never who may answer it. Each act is one transaction
and leaves one row in the log; a refused one leaves an audit event. May import approvals.models and runs.models.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import Count, QuerySet

from runs.models import AuditEvent, Run, database_clock

from .models import Absence, Approval, ApprovalStatus, AssignmentEvent, InboxEntry

Kind = AssignmentEvent.Kind
LONGEST_ABSENCE = timedelta(days=366)
FARTHEST = timedelta(days=3660)
RIGHT = "approvals.assign_approval"


class AssignmentRefused(Exception):
    """Nothing was assigned. `status` is the HTTP status that says the same."""

    status = 400


class Stranger(AssignmentRefused):
    status = 404

    def __init__(self) -> None:
        super().__init__("There is no such approval or absence.")


class NotAllowed(AssignmentRefused):
    status = 403


class HeldByAnother(AssignmentRefused):
    """Somebody else was quicker. `holder` is who has it now, or None."""

    status = 409

    def __init__(self, approval: Approval, holder: Any, since: datetime | None) -> None:
        self.holder = holder
        who = f"{holder.get_username()} holds it since {since:%-d %b %Y, %H:%M:%S} UTC" if holder else "nobody holds it"
        super().__init__(f"Approval {approval.pk} changed hands since you saw it: {who}. You changed nothing.")


class NotOpen(AssignmentRefused):
    status = 409

    def __init__(self, approval: Approval) -> None:
        label = approval.get_status_display().lower()
        super().__init__(f"Approval {approval.pk} is {label} already: there is nothing left to hold.")


class Expired(AssignmentRefused):
    status = 410

    def __init__(self, approval: Approval) -> None:
        super().__init__(f"Approval {approval.pk} expired at {approval.due_at:%-d %b %Y, %H:%M:%S} UTC.")


class Invalid(AssignmentRefused):
    status = 422

    def __init__(self, where: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = where


# Who may


def holders(approval: Approval) -> QuerySet[Any]:
    """Who can hold this: members of a group that was asked, in its team, whom four eyes do not forbid to approve it."""
    people = get_user_model().objects.filter(is_active=True, is_superuser=False)
    members = people.filter(pk__in=_members(approval.groups.all())).filter(pk__in=_members([approval.team_id]))
    return members.exclude(pk__in=barred(approval)).order_by("username")


def holders_of_any(approvals: Iterable[Approval]) -> QuerySet[Any]:
    """Who can hold some of these approvals, whose groups are at hand."""
    approvals = list(approvals)
    asked = {group.pk for approval in approvals for group in approval.groups.all()}
    teams = {approval.team_id for approval in approvals}
    people = get_user_model().objects.filter(is_active=True, is_superuser=False)
    members = people.filter(pk__in=_members(asked)).filter(pk__in=_members(teams))
    return members.exclude(pk__in=_barred_from_all(approvals)).order_by("username")


def barred(approval: Approval) -> set[int]:
    """The keys of those who asked for this or changed it: they may not approve it, so it would lie with them."""
    requester = {approval.requested_by_id} if approval.requested_by_id is not None else set()
    # A first version was changed by nobody: a page of fifty asks nothing for them.
    return requester | approval.editors if approval.version > 1 else requester


def _barred_from_all(approvals: list[Approval]) -> set[int]:
    found = barred(approvals[0]) if approvals else set()
    for approval in approvals:
        # Rows of two requesters bar nobody from both: then no further one is looked at.
        found = found and found & barred(approval)
    return found


def why_barred(user: Any, approval: Approval) -> str:
    """Why four eyes forbid this person to hold this, or empty."""
    if user is None or user.pk not in barred(approval):
        return ""
    did = "asked for this" if approval.requested_by_id == user.pk else "changed what is asked"
    return f"{user.get_username()} {did} and may not approve it: four eyes. Somebody else has to hold it."


def can_assign(user: Any, approval: Approval, holder: Any) -> bool:
    """The holder, whoever can hold it, and whoever has the right to assign."""
    return holder == user or user.has_perm(RIGHT) or holders(approval).filter(pk=user.pk).exists()


def team_mates(user: Any) -> QuerySet[Any]:
    """The active people of the user's teams, herself among them. A group that gives no rights is a team."""
    people = get_user_model().objects.filter(is_active=True, is_superuser=False)
    return people.filter(pk__in=_members(user.groups.filter(permissions__isnull=True))).order_by("username")


def deputies(person: Any) -> QuerySet[Any]:
    """Who can stand in for this person: whoever shares a team and one group more with her."""
    shared = get_user_model().objects.filter(groups__in=person.groups.all()).annotate(shared=Count("groups"))
    return team_mates(person).exclude(pk=person.pk).filter(pk__in=shared.filter(shared__gte=2).values("pk"))


def _members(groups: Any) -> QuerySet[Any]:
    return get_user_model().groups.through.objects.filter(group__in=groups).values("user")


# Who holds it


@dataclass(frozen=True)
class Standing:
    """How an open approval is held, and what this person may do about that."""

    holder: Any
    since: datetime | None
    away: Absence | None
    may_claim: bool
    may_release: bool
    candidates: QuerySet[Any] | None
    why_not: str
    """Why this person, who was asked, may not hold it."""


def standing(user: Any, approval: Approval) -> Standing | None:
    """None when the approval is not open: then nobody holds it."""
    entry = InboxEntry.objects.filter(approval=approval).select_related("holder").defer("words").first()
    if entry is None:
        return None
    holder = entry.holder
    away = Absence.objects.current().filter(person=holder).select_related("deputy").first() if holder else None
    may_hold = holders(approval).filter(pk=user.pk).exists()
    may_assign = may_hold or holder == user or user.has_perm(RIGHT)
    return Standing(
        holder=holder,
        since=entry.held_since,
        away=away,
        may_claim=may_hold and (holder is None or _stands_in(user, holder)),
        may_release=holder is not None and (holder == user or user.has_perm(RIGHT)),
        candidates=holders(approval) if may_assign else None,
        why_not=why_barred(user, approval),
    )


def claim(approval_id: int, *, by: Any, actor: str = "web") -> InboxEntry:
    """Take what nobody holds, or what somebody holds whose deputy one is now. Of two who claim, one is told that the
    other was quicker. Claiming what one holds already changes nothing."""

    def check(approval: Approval, entry: InboxEntry) -> None:
        if not holders(approval).filter(pk=by.pk).exists():
            raise NotAllowed(why_barred(by, approval) or _who_can_hold(approval))
        if entry.holder not in (None, by) and not _stands_in(by, entry.holder):
            raise HeldByAnother(approval, entry.holder, entry.held_since)

    return _pass(approval_id, Kind.CLAIMED, to=by, by=by, actor=actor, check=check)


def release(approval_id: int, *, by: Any, actor: str = "web") -> InboxEntry:
    """Give back what one holds, or, with the right to assign, what somebody else holds."""

    def check(approval: Approval, entry: InboxEntry) -> None:
        if entry.holder not in (None, by) and not by.has_perm(RIGHT):
            raise NotAllowed(f"Only {entry.holder.get_username()}, or somebody with the right to assign, may release.")

    return _pass(approval_id, Kind.RELEASED, to=None, by=by, actor=actor, check=check)


def assign(approval_id: int, *, to: Any, seen: int | None, by: Any, actor: str = "web") -> InboxEntry:
    """Give it to somebody who can hold it. `seen`: the key of the holder that `by` was shown, None for nobody; when it
    has changed hands since, nothing is changed."""

    def check(approval: Approval, entry: InboxEntry) -> None:
        if not can_assign(by, approval, entry.holder):
            raise NotAllowed(f"{_who_can_hold(approval)} They, and people with the right to assign, may assign it.")
        if to is None or not holders(approval).filter(pk=to.pk).exists():
            raise Invalid("to", why_barred(to, approval) or _who_can_hold(approval))
        if entry.holder_id not in (seen, to.pk):
            raise HeldByAnother(approval, entry.holder, entry.held_since)

    return _pass(approval_id, Kind.ASSIGNED, to=to, by=by, actor=actor, check=check)


@dataclass(frozen=True)
class Outcome:
    """What became of each of many."""

    done: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def assign_many(chosen: Iterable[tuple[int, int | None]], *, to: Any, by: Any, actor: str = "web") -> Outcome:
    """Assign each (approval, holder seen) by itself: one transaction each, and one refusal keeps no other back."""
    outcome = Outcome()
    for approval_id, seen in chosen:
        try:
            assign(approval_id, to=to, seen=seen, by=by, actor=actor)
            outcome.done.append(approval_id)
        except AssignmentRefused as refusal:
            outcome.refused.append(str(refusal))
    return outcome


def _pass(
    approval_id: int, kind: str, *, to: Any, by: Any, actor: str, check: Callable[[Approval, InboxEntry], None]
) -> InboxEntry:
    seen = Approval.objects.visible_to(by).filter(pk=approval_id).first()
    try:
        if seen is None:
            raise Stranger
        with transaction.atomic():
            return _passed(seen, kind, to=to, by=by, actor=actor, check=check)
    except AssignmentRefused as refusal:
        _record_refusal(kind, refusal, by, actor, seen)
        raise


def _passed(
    seen: Approval, kind: str, *, to: Any, by: Any, actor: str, check: Callable[[Approval, InboxEntry], None]
) -> InboxEntry:
    # Lock order everywhere: run, then approval. Whoever waited here sees what the other did.
    Run.objects.select_for_update(no_key=True).get(pk=seen.run_id)
    approval = Approval.objects.select_for_update(no_key=True).get(pk=seen.pk)
    now = database_clock()
    if approval.status != ApprovalStatus.OPEN:
        raise NotOpen(approval)
    if approval.due_at <= now:
        raise Expired(approval)
    entry = InboxEntry.objects.select_related("holder").defer("words").get(approval=approval)
    check(approval, entry)
    before, entry.holder, entry.held_since = entry.holder, to, now if to else None
    if before != to:
        entry.save(update_fields=["holder", "held_since"])
        AssignmentEvent.objects.create(at=now, kind=kind, approval=approval, by=by, before=before, to=to, actor=actor)
    return entry


# Who is away


def delegate(*, to: Any, first: date, last: date, by: Any, person: Any = None, actor: str = "web") -> Absence:
    """From the first to the last day (UTC, both included) `to` stands in for `person`, who is `by` unless somebody with
    the right to assign does it for a colleague. One step only: a deputy's own deputy gets nothing of it."""
    person = person or by
    try:
        _check_may_delegate(person, by)
        starts_at, ends_at = _span(first, last)
        _check_deputy(person, to, starts_at, ends_at)
    except AssignmentRefused as refusal:
        _record_refusal(Kind.DELEGATED, refusal, by, actor)
        raise
    with transaction.atomic():
        absence = Absence.objects.create(person=person, deputy=to, starts_at=starts_at, ends_at=ends_at)
        _log(Kind.DELEGATED, absence, by, actor)
    return absence


def end_absence(absence_id: int, *, by: Any, actor: str = "web") -> Absence:
    """She is back, or will not go: from now on her deputy sees no more of hers. Ending what is over changes nothing."""
    absence = absences_of(by).filter(pk=absence_id).first()
    try:
        if absence is None:
            raise Stranger
        if absence.person != by and not by.has_perm(RIGHT):
            raise NotAllowed("Only whoever is away, or somebody with the right to assign, may end an absence.")
    except AssignmentRefused as refusal:
        _record_refusal(Kind.RETURNED, refusal, by, actor)
        raise
    with transaction.atomic():
        absence = Absence.objects.select_for_update(no_key=True).get(pk=absence_id)
        now = database_clock()
        if absence.ends_at > now and absence.ends_at > absence.starts_at:
            absence.ends_at = max(now, absence.starts_at)
            absence.save(update_fields=["ends_at"])
            _log(Kind.RETURNED, absence, by, actor)
    return absence


def absences_of(user: Any) -> QuerySet[Absence]:
    """Absences, not over, that concern this person; with the right to assign, those of all team mates."""
    known = Absence.objects.not_over().select_related("person", "deputy").order_by("starts_at", "pk")
    if user.has_perm(RIGHT):
        return known.filter(person__in=team_mates(user)) | known.filter(person=user)
    return known.filter(person=user) | known.filter(deputy=user)


def _check_may_delegate(person: Any, by: Any) -> None:
    if person != by and not team_mates(by).filter(pk=person.pk).exists():
        raise Stranger
    if person != by and not by.has_perm(RIGHT):
        raise NotAllowed("For somebody else, only people with the right to assign may name a deputy.")


def _span(first: date, last: date) -> tuple[datetime, datetime]:
    """From the beginning of the first day to the end of the last."""
    today = database_clock().date()
    if last < first:
        raise Invalid("last", "The last day is before the first.")
    if last < today:
        raise Invalid("last", "The last day is over already.")
    if last - first >= LONGEST_ABSENCE:
        raise Invalid("last", f"An absence lasts {LONGEST_ABSENCE.days} days at most.")
    if last - today > FARTHEST:
        raise Invalid("last", f"The last day is more than {FARTHEST.days} days ahead.")
    return _midnight(first), _midnight(last + timedelta(days=1))


def _check_deputy(person: Any, to: Any, starts_at: datetime, ends_at: datetime) -> None:
    if to is None or not deputies(person).filter(pk=to.pk).exists():
        raise Invalid("to", "A deputy shares a team and a group with whoever is away.")
    away = Absence.objects.filter(person=to, starts_at__lt=ends_at, ends_at__gt=starts_at).first()
    if away is not None:
        span = f"from {away.starts_at:%-d %b} to {away.ends_at:%-d %b %Y}"
        raise Invalid("to", f"{to.get_username()} is away too, {span}.")


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC)


def _stands_in(user: Any, holder: Any) -> bool:
    return Absence.objects.current().filter(person=holder, deputy=user).exists()


def _who_can_hold(approval: Approval) -> str:
    asked = " or ".join(sorted(group.name for group in approval.groups.all())) or "nobody"
    team = approval.team.name
    return f"Only members of {asked} in the team {team} can hold this, and nobody who asked for it or changed it."


def _log(kind: str, absence: Absence, by: Any, actor: str) -> None:
    AssignmentEvent.objects.create(
        at=database_clock(), kind=kind, absence=absence, by=by, before=absence.person, to=absence.deputy, actor=actor
    )


def _record_refusal(
    kind: str, refusal: AssignmentRefused, by: Any, actor: str, approval: Approval | None = None
) -> None:
    """In a transaction of its own: the refused one was rolled back."""
    AuditEvent.objects.create(
        kind=AuditEvent.Kind.VERB_REFUSED,
        run_id=approval.run_id if approval else None,
        position=approval.position if approval else None,
        detail=f"{kind}: {refusal.status} {refusal}",
        actor=actor,
        user=by,
    )
