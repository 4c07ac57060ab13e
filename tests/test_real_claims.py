"""The real flood-insurance claims, from the file to the payments: nothing is lost, paid twice or paid unasked."""

from collections import Counter
from pathlib import Path

import pytest
from django.core.management import call_command
from sandbox_process import SandboxProcess

from approvals import ledger
from approvals.testing import answer_all
from durable_site.claims.models import Claim
from runs.models import Run
from runs.testing import drain

REAL = Path(__file__).resolve().parents[2] / "shared" / "data" / "nfip_claims_sample.csv"

pytestmark = pytest.mark.skipif(not REAL.exists(), reason="the real claims are not part of the repository")


def test_the_611_real_claims_end_as_their_rows_say_and_a_second_import_changes_nothing(people, settings, tmp_path):
    with SandboxProcess(tmp_path / "sandbox") as sandbox:
        settings.SANDBOX_URL = sandbox.url
        call_command("import_claims", str(REAL), "--quiet")
        drain()
        outcomes = Counter(Run.objects.values_list("status", "outcome"))
        assert outcomes == {
            ("completed", "closed without payment"): 37,
            ("completed", "completed"): 48,
            ("waiting", ""): 526,
        }
        assert len(sandbox.payments()) == 48

        assert answer_all(people.adjuster) == 526
        drain()
        payments = sandbox.payments()
        assert len(payments) == len({payment["key"] for payment in payments}) == 574
        assert sum(payment["amount_minor"] for payment in payments) == 2_417_134_457
        assert Counter(Run.objects.values_list("status", "outcome")) == {
            ("completed", "closed without payment"): 37,
            ("completed", "completed"): 574,
        }
        assert Counter(Claim.objects.values_list("status", flat=True)) == {"closed": 574, "closed-unpaid": 37}
        verdict = ledger.verify()
        assert (verdict.entries, verdict.problems) == (526, [])

        call_command("import_claims", str(REAL), "--quiet")
        assert drain() == 0
        assert len(sandbox.payments()) == 574
        assert Run.objects.count() == 611
