"""A worker killed at every commit and call boundary: the claim is paid once, noticed at most once, and goes on exactly
where it stopped."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox_process import SandboxProcess
from worker_process import finish_with_a_kill_at

from approvals import ledger
from approvals.models import Approval, ApprovalStatus
from approvals.testing import answer
from durable_site.claims.models import Claim, ReserveEntry
from durable_site.claims.workflows import claim_payout
from runs.engine import start
from runs.models import Call, Checkpoint, Run
from runs.states import EffectState, Status

pytestmark = pytest.mark.faults

FEWEST_BOUNDARIES = 35
"""Nine steps, two reads and two effects: the walk would be shorter only if it had lost some."""


@pytest.fixture
def world(database, people, settings, tmp_path):
    settings.EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
    settings.EMAIL_FILE_PATH = str(tmp_path / "mail")
    with SandboxProcess(tmp_path / "sandbox") as sandbox:
        settings.SANDBOX_URL = sandbox.url
        yield sandbox


def begin(sandbox: SandboxProcess, people, reference: str) -> Run:
    from durable_site.claims.testing import made_up_claim

    claim = made_up_claim(reference, amount_minor=184_000)
    return start(claim_payout, key=claim.run_key, input={"claim": reference}, team=people.team, by=people.requester)


def decided_by(adjuster) -> Callable[[Run], None]:
    def decide(run: Run) -> None:
        if run.status == Status.WAITING:
            answer(Approval.objects.get(run=run, status=ApprovalStatus.OPEN), adjuster)

    return decide


def assert_told_rightly(run: Run, folder: Path, sandbox: SandboxProcess, mail: Path) -> None:
    assert (run.status, run.outcome) == ("completed", "completed")
    assert list(Checkpoint.objects.filter(run=run).values_list("position", flat=True)) == list(range(1, 10))
    payments = [line for line in sandbox.payments() if line["key"].startswith(f"{run.key}:")]
    assert [(line["key"], line["amount_minor"]) for line in payments] == [(f"{run.key}:step6", 184_000)]
    claim = Claim.objects.get(reference=run.input["claim"])
    assert claim.status == "closed"
    assert ReserveEntry.objects.get(claim=claim).amount_minor == -184_000
    notices = [path for path in mail.glob("*") if claim.reference in path.read_text()]
    notice = Call.objects.get(run=run, tool="mail.notify")
    assert len(notices) <= 1
    assert notice.state in (EffectState.CONFIRMED, EffectState.UNKNOWN)
    assert notice.state == EffectState.UNKNOWN or len(notices) == 1
    assert_no_finished_step_was_entered_again(run, folder)


def assert_no_finished_step_was_entered_again(run: Run, folder: Path) -> None:
    finished: Counter[str] = Counter()
    for line in (folder / "reached").read_text().split("\n")[:-1]:
        _, position, boundary = line.split(" ", 1)[1].rsplit(":", 2)
        assert not (boundary == "entered" and finished[position]), (
            f"{run.key} {position} was entered after its checkpoint"
        )
        finished[position] += boundary == "committed"


@pytest.mark.parametrize("half", [1, 2])
def test_killed_at_every_boundary_the_claim_is_paid_once_and_completes(world, people, tmp_path, half):
    """Each half walks every second boundary, so that two processes share the walk."""
    boundary, walked = half, 0
    while True:
        folder = tmp_path / f"failpoints-{boundary}"
        run = begin(world, people, f"walk-{boundary}")
        killed = finish_with_a_kill_at(run, f"#{boundary}", folder, decided_by(people.adjuster))
        assert_told_rightly(run, folder, world, tmp_path / "mail")
        if not killed:
            break
        boundary, walked = boundary + 2, walked + 1
    assert walked >= FEWEST_BOUNDARIES // 2
    verdict = ledger.verify()
    assert (verdict.ok, verdict.problems) == (True, [])
    assert verdict.entries == walked + 1


@pytest.mark.parametrize(
    ("point", "replayed"),
    [("payments.transfer-sending", False), ("payments.transfer-answered", True), ("payments.transfer-recorded", False)],
)
def test_a_kill_round_the_payment_shows_as_a_replay_only_when_the_provider_had_made_it(
    world, people, tmp_path, point, replayed
):
    run = begin(world, people, "once")
    assert finish_with_a_kill_at(run, f"claim-once:step6:{point}", tmp_path / "failpoints", decided_by(people.adjuster))
    assert_told_rightly(run, tmp_path / "failpoints", world, tmp_path / "mail")
    assert Call.objects.get(run=run, tool="payments.transfer").replayed is replayed


def test_a_notice_whose_worker_died_with_it_under_way_stays_unknown_and_is_not_sent_again(world, people, tmp_path):
    run = begin(world, people, "letter")
    assert finish_with_a_kill_at(
        run, "claim-letter:step7:mail.notify-sending", tmp_path / "failpoints", decided_by(people.adjuster)
    )
    assert_told_rightly(run, tmp_path / "failpoints", world, tmp_path / "mail")
    assert Call.objects.get(run=run, tool="mail.notify").state == EffectState.UNKNOWN
    assert not list((tmp_path / "mail").glob("*"))
