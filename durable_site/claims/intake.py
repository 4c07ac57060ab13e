"""Taking rows in: each becomes a claim and its run, once. Imports of ours: the app's own modules and `runs.engine`."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from django.contrib.auth.models import Group, User
from django.db import transaction

from durable_site.claims.fema import NotClaims, ParsedClaim, RefusedRow
from durable_site.claims.models import Claim
from durable_site.claims.world import World, WorldIsDown, WorldRefused, invented
from runs.engine import start
from runs.errors import RunError


class OtherContent(Exception):
    """The system of record holds this claim with another row; it is not overwritten."""

    def __init__(self, claim: Claim, row: dict[str, str]) -> None:
        columns = sorted(name for name in {*claim.row, *row} if claim.row.get(name) != row.get(name))
        shown = ", ".join(columns[:5]) + (f" and {len(columns) - 5} more" if len(columns) > 5 else "")
        super().__init__(f"claim {claim.reference} was imported before with other content: {shown}")


@dataclass
class Outcome:
    """What an import did. `stopped` says why it did not reach the end of the file; "" when it did."""

    started: int = 0
    unchanged: int = 0
    refused: list[RefusedRow] = field(default_factory=list)
    stopped: str = ""
    file_is_wrong: bool = False

    @property
    def exit_code(self) -> int:
        """0: every row is in; 1: some are not; 2: the file is not what it should be."""
        return 2 if self.file_is_wrong else int(bool(self.refused or self.stopped))

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"refused": [row._asdict() for row in self.refused]}


@dataclass(frozen=True)
class Intake:
    """Where rows go: the outside world, the team that sees the runs, and who starts them (None: the system)."""

    world: World
    team: Group
    user: User | None = None

    def take_all(self, rows: Iterable[tuple[int, ParsedClaim | RefusedRow]]) -> Outcome:
        """Take row after row; what was taken stays, whatever becomes of the rest."""
        outcome = Outcome()
        try:
            for line, row in rows:
                self._take_or_refuse(line, row, outcome)
        except NotClaims as problem:
            outcome.stopped, outcome.file_is_wrong = str(problem), True
        except WorldIsDown as problem:
            outcome.stopped = str(problem)
        return outcome

    def _take_or_refuse(self, line: int, row: ParsedClaim | RefusedRow, outcome: Outcome) -> None:
        if isinstance(row, RefusedRow):
            outcome.refused.append(row)
            return
        try:
            is_new = self.take(row)
        except (OtherContent, WorldRefused, RunError) as refusal:
            outcome.refused.append(RefusedRow(line, str(refusal)))
        else:
            outcome.started += is_new
            outcome.unchanged += not is_new

    def take(self, parsed: ParsedClaim) -> bool:
        """True when a run was started, false when the claim was there. Raises OtherContent, WorldError, RunError."""
        stored = Claim.objects.filter(reference=parsed.reference).first()
        if stored:
            return _nothing_new(stored, parsed)
        # Before the transaction: no outside call is made inside one, and a document put there twice is there once.
        self.world.set_up(parsed)
        with transaction.atomic():
            claim, is_new = Claim.objects.get_or_create(reference=parsed.reference, defaults=_columns(parsed))
            if not is_new:  # another import was faster
                return _nothing_new(claim, parsed)
            start(
                "claim-payout",
                key=claim.run_key,
                input={"claim": claim.reference},
                tags={"claim": claim.reference},
                team=self.team,
                by=self.user,
                actor="import_claims",
            )
        return True


def _nothing_new(claim: Claim, parsed: ParsedClaim) -> bool:
    if claim.row != parsed.row:
        raise OtherContent(claim, parsed.row)
    return False


def _columns(parsed: ParsedClaim) -> dict[str, Any]:
    return {
        **invented(parsed.reference)._asdict(),
        "amount_minor": parsed.amount_minor,
        "non_payment_reason": parsed.non_payment_reason,
        "date_of_loss": parsed.date_of_loss,
        "state": parsed.state,
        "event": parsed.event,
        "row": parsed.row,
    }
