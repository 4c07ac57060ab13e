"""The admin as an auditor walks through it, in a real browser."""

import io
import json
import zipfile

import pytest

from approvals.testing import answer
from runs.models import AuditEvent
from runs.testing import drain

pytestmark = pytest.mark.browser


def test_an_auditor_follows_a_run_to_its_approval_and_exports_what_is_listed(visit, claim, people):
    answer(claim(), people.adjuster)
    drain()
    aud = visit(people.auditor)
    aud.go("/admin/runs/run/?q=claim-0042")
    aud.page.get_by_role("link", name="claim-0042").click()
    aud.page.get_by_role("link", name="Approvals, by run").click()
    aud.is_at(r"/admin/approvals/approval/\?run__id__exact=")
    aud.page.locator("input.action-select").first.check()
    aud.page.locator("select[name=action]").select_option("export_selected")
    with aud.page.expect_download() as download:
        aud.page.get_by_role("button", name="Go").click()
    with zipfile.ZipFile(io.BytesIO(download.value.path().read_bytes())) as archive:
        assert json.loads(archive.read("manifest.json"))["rows"] == 1
    assert AuditEvent.objects.filter(kind="exported", user=people.auditor).count() == 1
