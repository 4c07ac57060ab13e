"""Every fault of the provider in every manner of honouring keys, 20 runs each, with workers killed at random: one
payment for each key at most, exactly one where the run says so, and one sum on both sides."""

from collections.abc import Iterator
from typing import Any

import fault_matrix
import pytest
from sandbox_process import SandboxProcess

from durable_site.claims.tools import transfer
from durable_site.sandbox.profiles import PROFILES
from runs import tools

pytestmark = pytest.mark.faults_long

TIMES, TIMES_BY_LIBRARY = 20, 10
HONOURING = [profile.name for profile in PROFILES.values() if profile.honours_keys]


@pytest.fixture(params=HONOURING)
def sandbox(request: pytest.FixtureRequest, tmp_path: Any, settings: Any) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path / "sandbox", profile=request.param) as process:
        settings.SANDBOX_URL = process.url
        yield process


def test_every_fault_20_times(sandbox, database, people, tmp_path):
    played = fault_matrix.play(transfer, sandbox, people, tmp_path / "points", faults=fault_matrix.FAULTS, times=TIMES)
    assert len(played.runs) == TIMES * len(fault_matrix.FAULTS)


@pytest.mark.parametrize("sandbox", ["stripe"], indirect=True)
def test_every_fault_10_times_through_stripes_own_library(sandbox, database, people, tmp_path, settings):
    pytest.importorskip("stripe")
    from durable_site.claims.stripe_payments import _library, list_transfers_by_stripe

    settings.STRIPE_API_BASE, settings.STRIPE_API_KEY = sandbox.url, "sk_test_sandbox"
    _library()  # once here, instead of in each worker
    tool = tools.get("payments.transfer_stripe")
    assert tool is not None
    tool.listing(list_transfers_by_stripe)
    try:
        faults, points = fault_matrix.FAULTS, tmp_path / "points"
        fault_matrix.play(tool, sandbox, people, points, faults=faults, times=TIMES_BY_LIBRARY)
    finally:
        tool.listing_function = None
