"""A few of the faults of a provider, with workers killed meanwhile; `make faults` plays them all."""

import fault_matrix
import pytest
from sandbox_process import SandboxProcess

from durable_site.claims.tools import transfer

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("profile", ["stripe", "success_only"])
def test_whatever_the_provider_answers_and_whoever_is_killed_each_run_tells_what_happened(
    database, people, settings, tmp_path, profile
):
    with SandboxProcess(tmp_path / "sandbox", profile=profile) as sandbox:
        settings.SANDBOX_URL = sandbox.url
        faults = ["lost-answer", "error-stored-paid", "refused"]
        matrix = fault_matrix.play(transfer, sandbox, people, tmp_path / "points", faults=faults, times=4)
    assert matrix.killed >= len(matrix.runs) // 2
