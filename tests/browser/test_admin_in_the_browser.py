"""The admin as an auditor walks through it, in a real browser."""

import io
import json
import zipfile

import pytest
from axe_playwright_python.sync_playwright import Axe
from visits import sideways

from approvals.testing import answer
from runs.models import AuditEvent
from runs.testing import drain

pytestmark = pytest.mark.browser

WIDTHS = (390, 768, 1280)
AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], "preload": False}
"""Not preloaded: of a sheet with an @import axe would make style elements, which the page's policy refuses."""
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}, "preload": False}


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


def test_the_audit_pages_are_accessible_and_fit_at_three_widths_light_and_dark(visit, claim, people):
    decision, found = answer(claim(), people.adjuster), {}
    drain()
    aud = visit(people.auditor)
    for path in (
        "/admin/",
        "/admin/runs/run/",
        "/admin/runs/transition/?q=claim-0042",
        f"/admin/runs/run/{decision.approval.run_id}/change/",
        f"/admin/approvals/approval/{decision.approval_id}/change/",
        f"/admin/approvals/ledgerentry/{decision.entry_id}/change/",
    ):
        found |= faults(aud, path)
    assert found == {}


def faults(aud, path):
    """What axe finds, and how much the page is wider than its window; what a scheme changes is its colours alone."""
    found = {}
    for scheme, axe in (("light", AXE), ("dark", COLOURS)):
        aud.page.emulate_media(color_scheme=scheme)
        # Loaded anew: on a page that is open the admin's links fade from one colour to the other.
        aud.go(path)
        for width in WIDTHS:
            aud.page.set_viewport_size({"width": width, "height": 900})
            violations = Axe().run(aud.page, options=axe).response["violations"]
            told = [f"{each['id']}: {node['html'][:120]}" for each in violations for node in each["nodes"]]
            if told or sideways(aud.page) > 0:
                found[path, width, scheme] = [*told, f"{sideways(aud.page)} px too wide"]
    return found
