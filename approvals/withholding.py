"""What retention takes out of approvals, and the ledger entry with which each batch is signed.

Of an approval go payload, facts, statement and payee, of its decisions comments and facts, of its ledger entries the
bodies. Digests, records and signatures stay, so that all of it still verifies. Retention itself is runs.retention's;
may import that, ledger, models and verifier.
"""

from typing import Any

from django.db import connection
from django.db.models import Case, F, Func, OuterRef, QuerySet, Subquery, Sum, TextField, Value, When
from django.db.models.functions import Coalesce

from runs import retention
from runs.errors import BadRequest
from runs.models import Run, Withholding, database_clock
from runs.retention import Octets
from runs.values import digest

from . import ledger
from .ledger import CannotSign
from .models import Approval, Decision, LedgerEntry
from .verifier import WITHHELD, WITHHOLDING

ABOUT = Func(F("record"), function="approvals_about")
"""The approval that a ledger entry's record names."""

_BODIES = """
UPDATE approvals_ledgerbody AS body SET text = NULL
  FROM approvals_ledgerentry AS entry, approvals_approval AS approval
 WHERE entry.body_id = body.id AND body.text IS NOT NULL
   AND approvals_about(entry.record) = approval.id AND approval.run_id = ANY(%s)
"""


def held(runs: QuerySet[Run]) -> QuerySet[Approval]:
    """Approvals of these runs that still say something; with `bytes`, those of their entries' bodies too."""
    about = LedgerEntry.objects.filter(body__isnull=False).annotate(about=ABOUT).filter(about=OuterRef("pk"))
    bodies = about.order_by().values("about").annotate(size=Sum(Octets("body__text"))).values("size")
    own = [Octets(column) for column in ("payload", "facts", "signed_facts", "statement", "payee")]
    rows = Approval.objects.filter(run__in=runs.values("pk")).exclude(payload="")
    return rows.annotate(bytes=sum(own, Coalesce(Subquery(bodies), 0)))


def empty(runs: list[int]) -> None:
    """Take out what approvals of these runs, which are withheld, say in clear."""
    with connection.cursor() as cursor:
        cursor.execute(_BODIES, [runs])
    blank = Case(When(comment="", then=Value("")), default=Value(WITHHELD), output_field=TextField())
    said = Decision.objects.filter(approval__run__in=runs).exclude(facts="", comment__in=["", WITHHELD])
    said.update(facts="", comment=blank)
    asked = Approval.objects.filter(run__in=runs).exclude(payload="")
    asked.update(payload="", facts="", signed_facts="", payee="", statement=WITHHELD)


def sign(withholding: Withholding, runs: list[int]) -> None:
    """Enter the batch in the ledger. Raises BadRequest where nothing can be signed."""
    keys = Run.objects.filter(pk__in=runs).order_by("key").values_list("key", flat=True)
    approvals = list(Approval.objects.filter(run__in=runs).order_by("pk").values_list("pk", flat=True))
    about = LedgerEntry.objects.filter(body__isnull=False).annotate(about=ABOUT).filter(about__in=approvals)
    members: dict[str, Any] = {
        "withholding": withholding.pk,
        "rule": withholding.rule,
        "actor": withholding.actor,
        "by": withholding.user_id,
        # Not the keys: the entry goes into the export of each of these runs, and each reader may see only one.
        "runs": len(runs),
        "runs_digest": digest("\n".join(keys)),
        "approvals": approvals,
        "entries": list(about.order_by("sequence").values_list("sequence", flat=True)),
    }
    try:
        ledger.append(WITHHOLDING, members, at=database_clock())
    except CannotSign as problem:
        raise BadRequest(str(problem)) from None


retention.also(retention.Kind("approvals", held, empty))
retention.signed_by(sign)
