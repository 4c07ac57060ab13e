"""A fault for each alarm, made really, with the real runner, sandbox, mails and webhook: within 15 s of meeting its
definition the right list shows it with the right sentence, the figure for monitors moves, and people are told once;
mended, all is clear by itself."""

import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from browsing import browser, text
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families
from runner_process import PROJECT, RunnerProcess, eventually
from sandbox_process import SandboxProcess
from stage import tamper
from webhook_receiver import SECRET, Receiver

from approvals.models import Approval
from approvals.testing import answer
from durable_site.claims.models import Claim
from durable_site.claims.testing import made_up_claim
from durable_site.claims.workflows import claim_payout
from runs import metrics, repair
from runs.engine import explain, start
from runs.models import Alarm, AlarmRule, Beat, Run, Upkeep, database_clock
from runs.testing import move_clock

pytestmark = pytest.mark.faults

WITHIN = 15
"""Seconds."""
SECOND = timedelta(seconds=1)


@dataclass
class World:
    """The outside of the site, who is told, and the people of it."""

    people: object
    sandbox: SandboxProcess
    receiver: Receiver
    mail: Path
    database: Any

    def verify(self) -> int:
        """The command's exit code."""
        command = [sys.executable, "manage.py", "verify_ledger"]
        environment = self.database.environment
        return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, check=False).returncode

    @property
    def environment(self) -> dict[str, str]:
        return {
            "SANDBOX_URL": self.sandbox.url,
            "EMAIL_BACKEND": "django.core.mail.backends.filebased.EmailBackend",
            "EMAIL_FILE_PATH": str(self.mail),
            "ALARM_WEBHOOK_URL": self.receiver.url,
            "ALARM_WEBHOOK_SECRET": SECRET,
        }

    @property
    def mails(self) -> int:
        """Of alarms; claimants get theirs too."""
        return sum(file.read_text().count("\nSubject: [Durable Runs]") for file in self.mail.glob("*"))

    def begin(self, amount_minor: int = 50_000, reference: str = "0041", **changes) -> Run:
        made = made_up_claim(reference, amount_minor=amount_minor)
        if changes:
            Claim.objects.filter(pk=made.pk).update(**changes)
        who = {"team": self.people.team, "by": self.people.requester}
        return start(claim_payout, key=made.run_key, input={"claim": reference}, **who)


@pytest.fixture
def world(people, settings, database, tmp_path):
    Upkeep.objects.create(name="alarms", every=5 * SECOND, due_at=database_clock())
    Upkeep.objects.create(name="tallies", every=2 * SECOND, due_at=database_clock())
    with SandboxProcess(tmp_path / "sandbox") as sandbox, Receiver() as receiver:
        settings.SANDBOX_URL = sandbox.url
        yield World(people, sandbox, receiver, tmp_path / "mail", database)


def only(rule: str, **terms) -> None:
    AlarmRule.objects.exclude(name=rule).update(is_on=False)
    AlarmRule.objects.filter(name=rule).update(**{"after": timedelta()} | terms)


def figure(name: str, **labels: str) -> float:
    """What /metrics says of it now; 0 where it does not."""
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            if sample.name == f"durable_runs_{name}" and labels.items() <= sample.labels.items():
                return sample.value
    return 0


def fresh(run: Run) -> Run:
    return Run.objects.get(pk=run.pk)


def listed(world: World, tab: str) -> str:
    return text(browser(world.people.ops).get(f"/runs/?status={tab}"))


@dataclass
class Fault:
    """What was broken. `tab`, `sentence`: the list that shows its run, and how; `shows`: the figure that moves."""

    subject: str
    tab: str
    sentence: str
    shows: tuple[str, dict[str, str]]
    run: Run | None = None


def dead_letter(world):
    run = world.begin(policy_number="NFIP-NONE")
    eventually(lambda: fresh(run).status == "dead")
    return Fault(run.key, "dead", "There is no policy NFIP-NONE", ("runs", {"status": "dead"}), run)


def mend_dead_letter(world, fault):
    policy = {"policy": "NFIP-NONE", "status": "in force", "holder": "invented", "currency": "USD"}
    cover = dict.fromkeys(("building_cover_minor", "contents_cover_minor"), 25_000_000)
    deductible = dict.fromkeys(("building_deductible_minor", "contents_deductible_minor"), 50_000)
    httpx.post(f"{world.sandbox.url}/policies", json=policy | cover | deductible).raise_for_status()
    repair.redrive(fault.run.key, by=world.people.ops, why="the policy was registered")
    eventually(lambda: fresh(fault.run).status == "completed")


def key_conflict(world):
    """Somebody else has used the key at the provider before."""
    order = {"amount_minor": 1, "currency": "USD", "payee": "x", "reference": "x", "claim": "x"}
    headers = {"Idempotency-Key": "claim-0041:step6"}
    httpx.post(f"{world.sandbox.url}/payments", json=order, headers=headers).raise_for_status()
    run = world.begin()
    eventually(lambda: fresh(run).status == "dead")
    sentence = "claim-0041:step6"
    return Fault("claim-0041:step6", "dead", sentence, ("keys_reused_total", {"tool": "payments.transfer"}), run)


def mend_key_conflict(world, fault):
    repair.discard(fault.run.key, by=world.people.ops, why="paid by hand")


def unknown_effect(world):
    world.sandbox.script("lost_answer", match={"path": "/payments", "method": "POST"}, times=None)
    run = world.begin()
    eventually(lambda: figure("effects_unknown", tool="payments.transfer") == 1)
    shows = ("effects_unknown", {"tool": "payments.transfer"})
    return Fault("claim-0041:step6", "all", "It is not known", shows, run)


def mend_unknown_effect(world, fault):
    world.sandbox.clear_faults()
    eventually(lambda: fresh(fault.run).status == "completed", 60)
    assert len(world.sandbox.payments()) == 1


def late_approval(world):
    run = world.begin(amount_minor=184_000)
    eventually(lambda: fresh(run).status == "waiting")
    move_clock(timedelta(days=3, hours=-1))
    return Fault(run.key, "waiting", "adjuster must approve payouts over 1000", ("runs", {"status": "waiting"}), run)


def mend_late_approval(world, fault):
    repair.extend(
        fault.run.key, until=fresh(fault.run).due_at + timedelta(days=1), by=world.people.ops, why="the adjuster is ill"
    )


def broken_chain(world):
    run = world.begin(amount_minor=184_000)
    eventually(lambda: fresh(run).status == "waiting")
    answer(Approval.objects.get(run=run), world.people.adjuster)
    eventually(lambda: fresh(run).status == "completed")
    assert world.verify() == 0
    assert figure("ledger_whole") == 1
    tamper(world.database, "UPDATE approvals_decision SET comment = 'another word'")
    assert world.verify() != 0
    return Fault("ledger", "", "verify_ledger found problems: 1", ("ledger_whole", {}))


def mend_broken_chain(world, fault):
    tamper(world.database, "UPDATE approvals_decision SET comment = ''")
    assert world.verify() == 0
    assert figure("ledger_whole") == 1


FAULTS = {
    "dead-letter": (dead_letter, mend_dead_letter, {}),
    "key-reused": (key_conflict, mend_key_conflict, {}),
    "effect-unknown": (unknown_effect, mend_unknown_effect, {"after": 2 * SECOND}),
    "approval-late": (late_approval, mend_late_approval, {"after": timedelta(hours=2)}),
    "chain-broken": (broken_chain, mend_broken_chain, {}),
}


def assert_seen(world, rule: str, fault: Fault) -> Alarm:
    eventually(lambda: Alarm.objects.open().filter(rule=rule, subject=fault.subject).exists(), WITHIN)
    alarm = Alarm.objects.get()
    assert fault.sentence in alarm.sentence
    name, labels = fault.shows
    eventually(lambda: figure("alarms_open", rule=rule) == 1)
    eventually(lambda: figure(name, **labels) == (0 if name == "ledger_whole" else 1))
    assert fault.subject in text(browser(world.people.ops).get("/health/alarms/"))
    if fault.run:
        # A run that is tried again moves on between two looks.
        eventually(lambda: fault.run.key in listed(world, fault.tab) and fault.sentence in explain(fresh(fault.run)))
    eventually(lambda: (world.mails, len(world.receiver.received)) == (1, 1))
    return alarm


def assert_clear(world, rule: str, alarm: Alarm) -> None:
    eventually(lambda: not Alarm.objects.open().exists(), WITHIN)
    assert figure("alarms_open", rule=rule) == 0
    assert "No alarm is open" in text(browser(world.people.ops).get("/health/alarms/"))
    assert Alarm.objects.get() == alarm
    assert (world.mails, len(world.receiver.events)) == (1, 1)
    assert world.receiver.events[0]["data"]["alarms"][0]["alarm"] == alarm.pk


@pytest.mark.parametrize("rule", FAULTS)
def test_a_fault_is_listed_measured_told_of_once_and_clear_by_itself_once_mended(world, database, tmp_path, rule):
    break_it, mend, terms = FAULTS[rule]
    only(rule, **terms)
    with RunnerProcess(database, tmp_path / "runner.log", **world.environment):
        fault = break_it(world)
        alarm = assert_seen(world, rule, fault)
        mend(world, fault)
        assert_clear(world, rule, alarm)


# Nobody is there


def ready() -> tuple[int, str]:
    response = Client().get("/readyz")
    return response.status_code, response.content.decode()


def silent(host: str) -> bool:
    return Alarm.objects.open().filter(rule="runner-silent", subject=host).exists()


def test_a_killed_runner_is_told_of_by_another_and_a_silence_that_nobody_saw_by_itself_when_it_is_back(
    world, database, tmp_path
):
    only("runner-silent", after=5 * SECOND)

    def runner(host: str) -> RunnerProcess:
        return RunnerProcess(database, tmp_path / f"{host}.log", **world.environment | {"RUNNER_HOST": host})

    with runner("host-a") as first, runner("host-b") as second:
        eventually(lambda: ready()[0] == 200)
        first.kill()
        eventually(lambda: silent("host-a"), 5 + WITHIN)
        alarm = Alarm.objects.get()
        assert re.search(r"The runner on host-a last said at .* UTC that it lives", alarm.sentence)
        eventually(lambda: figure("runner_alive", host="host-a") == 0)
        assert (figure("runner_alive", host="host-b"), ready()[0]) == (1, 200)
        assert "1 of 2" in text(browser(world.people.ops).get("/health/"))
        eventually(lambda: (world.mails, len(world.receiver.received)) == (1, 1))
        first.start()
        eventually(lambda: not silent("host-a"), 2 * WITHIN)
        assert Alarm.objects.count() == 1

        # Now nobody is left who could look.
        assert first.terminate() == 0
        second.kill()
        eventually(lambda: ready()[0] == 503)
        assert "runner: none beats" in ready()[1]
        assert "0 of 1" in text(browser(world.people.ops).get("/health/"))
        run = world.begin(reference="0042")
        eventually(lambda: run.key in listed(world, "stuck"), WITHIN)
        assert "no runner answers" in listed(world, "stuck")
        assert Alarm.objects.count() == 1
        second.start()
        eventually(lambda: silent("host-b"), WITHIN)
        told = Alarm.objects.open().get()
        assert re.search(r"The runner on host-b was silent from .* UTC to .* UTC", told.sentence)
        eventually(lambda: not Alarm.objects.open().exists(), 2 * WITHIN)
        eventually(lambda: fresh(run).status == "completed")
        assert run.key not in listed(world, "stuck")
        assert Alarm.objects.count() == 2
        eventually(lambda: (world.mails, len(world.receiver.events)) == (2, 2))


def hang(runner: RunnerProcess) -> None:
    """Stop every process of its queue, also of one that the runner has started in its place."""
    for process in runner.family():
        if process.pid != runner.pid:
            with suppress(psutil.NoSuchProcess):
                process.suspend()


def test_a_queue_that_hangs_leaves_runs_stuck_which_is_told_of_although_no_worker_answers(world, database, tmp_path):
    only("run-stuck")
    with RunnerProcess(database, tmp_path / "runner.log", **world.environment) as runner:
        eventually(lambda: Beat.objects.filter(canary_at__isnull=False).exists())
        hang(runner)
        run = world.begin()
        eventually(lambda: hang(runner) or run.key in listed(world, "stuck"), 15 + WITHIN)
        eventually(lambda: hang(runner) or Alarm.objects.open().exists(), WITHIN)
        sentence, shows = "Stuck: ready for step 1 (register claim)", ("stuck_runs", {"kind": "ready"})
        assert ready()[0] == 503
        alarm = assert_seen(world, "run-stuck", Fault(run.key, "stuck", sentence, shows, run))
        # Left alone, the runner replaces its queue by itself.
        eventually(lambda: fresh(run).status == "completed", 90)
        assert_clear(world, "run-stuck", alarm)
        assert figure("stuck_runs", kind="ready") == 0
