"""An import writes each claim with its run once, tells the outside world first, and never writes over what is there."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core.management import CommandError, call_command
from sandbox_process import SandboxProcess

from durable_site.claims.fema import ParsedClaim, RefusedRow, read_rows
from durable_site.claims.intake import Intake
from durable_site.claims.models import Claim
from durable_site.claims.world import World, flood_report, invented, policy
from runs import engine
from runs.models import Run

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "durable_site" / "claims" / "sample"
TWO_CLAIMS = SAMPLE / "two_claims.csv"
THIRTY_CLAIMS = SAMPLE / "claims.csv"


@pytest.fixture
def sandbox(tmp_path: Path, settings: Any) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path / "sandbox") as process:
        settings.SANDBOX_URL = process.url
        yield process


def rows_of(file: Path) -> list[tuple[int, ParsedClaim | RefusedRow]]:
    with file.open("rb") as content:
        return list(read_rows(content))


def parsed(file: Path, **columns: str) -> ParsedClaim:
    """The file's first row, with these columns changed."""
    [(_, first), *_] = rows_of(file)
    assert isinstance(first, ParsedClaim)
    return first._replace(row=first.row | columns)


def import_json(file: Path, *options: str) -> dict[str, Any]:
    """What the command prints with --json, whether or not it ends well."""
    printed = io.StringIO()
    try:
        call_command("import_claims", str(file), "--json", *options, stdout=printed)
    except CommandError:
        assert printed.getvalue(), "it ended before it had anything to report"
    return json.loads(printed.getvalue())


def refusal(*arguments: str) -> CommandError:
    with pytest.raises(CommandError) as caught:
        call_command(*arguments, stdout=io.StringIO())
    return caught.value


def changed(file: Path, folder: Path, old: str, new: str) -> Path:
    copy = folder / f"changed-{file.name}"
    text = file.read_text(encoding="utf-8")
    assert old in text
    copy.write_text(text.replace(old, new), encoding="utf-8")
    return copy


def counts() -> tuple[int, int]:
    return Claim.objects.count(), Run.objects.count()


def test_each_row_becomes_a_claim_and_its_run(people: Any, sandbox: SandboxProcess) -> None:
    assert import_json(TWO_CLAIMS)["started"] == 2
    claim = Claim.objects.get(reference="0042")
    run = Run.objects.get(key="claim-0042")
    assert (claim.amount_minor, claim.currency, claim.status) == (184_000, "USD", "imported")
    assert (claim.payee, claim.email) == ("policyholder-0042", "policyholder-0042@example.invalid")
    assert (claim.date_of_loss, claim.state) == (date(2024, 9, 26), "FL")
    assert len(claim.row) == 73
    assert (run.workflow, run.input, run.status, run.team) == ("claim-payout", {"claim": "0042"}, "ready", people.team)
    assert counts() == (2, 2)


def test_the_outside_world_knows_policy_and_flood_report(people: Any, sandbox: SandboxProcess) -> None:
    import_json(TWO_CLAIMS)
    claim = Claim.objects.get(reference="0042")
    told = httpx.get(f"{sandbox.url}/policies/{claim.policy_number}", trust_env=False).json()
    report = httpx.get(f"{sandbox.url}/flood-reports/0042", trust_env=False).json()
    assert (told["building_cover_minor"], told["building_deductible_minor"]) == (10_000_000, None)
    assert (report["building_damage_minor"], report["cause"]) == (284_000, "tidal water overflow")


def test_a_second_import_changes_nothing_and_asks_nothing(people: Any, sandbox: SandboxProcess) -> None:
    import_json(THIRTY_CLAIMS)
    Claim.objects.filter(reference="demo-0007").update(payee="somebody-else", amount_minor=5)
    asked = len(sandbox.requests())
    again = import_json(THIRTY_CLAIMS)
    assert (again["started"], again["unchanged"], again["refused"]) == (0, 30, [])
    assert counts() == (30, 30)
    assert len(sandbox.requests()) == asked
    assert Claim.objects.get(reference="demo-0007").payee == "somebody-else"


def test_other_content_is_refused_and_the_system_of_record_stays(
    people: Any, sandbox: SandboxProcess, tmp_path: Path
) -> None:
    import_json(TWO_CLAIMS)
    asked = len(sandbox.requests())
    file = changed(TWO_CLAIMS, tmp_path, ",1840,", ",9999,")
    again = import_json(file)
    assert [row["line"] for row in again["refused"]] == [2, 3]
    assert again["refused"][0]["reason"] == (
        "claim 0042 was imported before with other content: amountPaidOnBuildingClaim, netBuildingPaymentAmount"
    )
    assert refusal("import_claims", str(file)).returncode == 1
    assert Claim.objects.get(reference="0042").amount_minor == 184_000
    assert len(sandbox.requests()) == asked


def test_refused_rows_are_told_with_their_lines_and_the_good_ones_are_kept(
    people: Any, sandbox: SandboxProcess, tmp_path: Path
) -> None:
    file = changed(TWO_CLAIMS, tmp_path, ",0042\n", ",not_a_key\n")
    told = import_json(file)
    assert (told["started"], [row["line"] for row in told["refused"]]) == (1, [2])
    assert list(Claim.objects.values_list("reference", flat=True)) == ["0043"]
    printed = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("import_claims", str(file), stdout=printed)
    assert caught.value.returncode == 1
    assert "started 0, unchanged 1, refused 1\n  line 2: the id 'not_a_key'" in printed.getvalue()


def test_a_claim_without_run_is_never_written(people: Any, sandbox: SandboxProcess) -> None:
    engine.start("claim-payout", key="claim-0042", input={"claim": "something else"}, team=people.team)
    told = import_json(TWO_CLAIMS)
    assert (told["started"], [row["line"] for row in told["refused"]]) == (1, [2])
    assert "claim-0042 was started before" in told["refused"][0]["reason"]
    assert not Claim.objects.filter(reference="0042").exists()


def test_without_the_sandbox_nothing_is_written(people: Any, sandbox: SandboxProcess) -> None:
    sandbox.kill()
    problem = refusal("import_claims", str(TWO_CLAIMS))
    assert problem.returncode == 1
    assert str(problem).startswith(f"The sandbox at {sandbox.url} does not answer")
    assert counts() == (0, 0)


def test_a_sandbox_that_dies_on_the_way_loses_no_row(people: Any, sandbox: SandboxProcess) -> None:
    def rows() -> Iterator[tuple[int, ParsedClaim | RefusedRow]]:
        for number, row in enumerate(rows_of(THIRTY_CLAIMS)):
            if number == 10:
                sandbox.kill()
            yield row

    with World() as world:
        outcome = Intake(world, people.team).take_all(rows())
    assert (outcome.started, outcome.exit_code) == (10, 1)
    assert "does not answer" in outcome.stopped
    assert counts() == (10, 10)
    sandbox.start()
    again = import_json(THIRTY_CLAIMS)
    assert (again["started"], again["unchanged"], again["stopped"]) == (20, 10, "")


def test_what_the_sandbox_refuses_is_a_refused_row(people: Any, sandbox: SandboxProcess, settings: Any) -> None:
    settings.SANDBOX_URL = f"{sandbox.url}/nowhere"
    told = import_json(TWO_CLAIMS)
    assert "the sandbox refused the policy with status 404" in told["refused"][0]["reason"]
    assert counts() == (0, 0)


def test_two_imports_at_once_start_each_run_once(database: Any, people: Any, sandbox: SandboxProcess) -> None:
    command = [sys.executable, "manage.py", "import_claims", str(THIRTY_CLAIMS), "--json"]
    environment = database.environment | {"SANDBOX_URL": sandbox.url}
    both = [
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for _ in range(2)
    ]
    told = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(outcome["started"] for outcome in told) == 30
    assert sum(outcome["unchanged"] for outcome in told) == 30
    assert counts() == (30, 30)


def test_whoever_imports_is_who_asks(people: Any, sandbox: SandboxProcess) -> None:
    report = import_json(TWO_CLAIMS, "--as", people.requester.username, "--team", "other-claims")
    assert "Only members of the team other-claims may start its runs" in report["refused"][0]["reason"]
    assert not Run.objects.exists()
    import_json(TWO_CLAIMS, "--as", people.stranger.username, "--team", "other-claims")
    run = Run.objects.get(key="claim-0043")
    assert (run.requested_by, run.team.name) == (people.stranger, "other-claims")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no-such-file.csv"], "no-such-file.csv cannot be read: No such file or directory."),
        ([str(SAMPLE)], "Is a directory"),
        ([str(SAMPLE / "README.md")], "Not a CSV file of claims: the header has no id"),
        ([str(TWO_CLAIMS), "--team", "nobodys"], "There is no team nobodys."),
        ([str(TWO_CLAIMS), "--as", "nobody"], "There is no active user nobody."),
    ],
)
def test_a_wrong_file_or_option_is_exit_code_2(people: Any, arguments: list[str], sentence: str) -> None:
    problem = refusal("import_claims", *arguments)
    assert problem.returncode == 2
    assert sentence in str(problem)


def test_invented_names_of_different_claims_differ() -> None:
    references = [f"claim-2024-{number:06}" for number in range(3)] + ["0042", "166eb26d-1103-4b12-b59d-449c9d944a6f"]
    numbers = [invented(reference).policy_number for reference in references]
    assert len(set(numbers)) == 5
    assert numbers[-1] == "NFIP-166EB26D"
    assert len(invented("x" * 42).policy_number) <= 48


def test_what_the_row_does_not_say_is_null_in_the_outside_world() -> None:
    claim = parsed(TWO_CLAIMS, buildingDamageAmount="", totalContentsInsuranceCoverage="-3", causeOfDamage="NA")
    assert flood_report(claim)["building_damage_minor"] is None
    assert flood_report(claim)["cause"] is None
    assert policy(claim)["contents_cover_minor"] is None


@pytest.mark.parametrize(
    ("text", "inches"), [("-8", -8), ("-1", -1), ("0", 0), ("", None), ("NA", None), ("1.5", None)]
)
def test_water_may_stand_below_the_floor(text: str, inches: int | None) -> None:
    assert flood_report(parsed(TWO_CLAIMS, waterDepth=text))["water_depth_inches"] == inches


def test_several_causes_are_told_in_words() -> None:
    told = flood_report(parsed(TWO_CLAIMS, causeOfDamage="2DX"))["cause"]
    assert told == "stream, river or lake overflow; remote adjustment; code X"


@pytest.fixture
def claim(database: Any) -> Claim:
    return Claim.objects.create(
        reference="0042", policy_number="NFIP-0042", payee="policyholder-0042", amount_minor=184_000, row={"id": "0042"}
    )


def test_facts_of_a_claim_can_really_change(claim: Claim) -> None:
    call_command(
        "change_claim", "0042", "--amount", "1999.5", "--payee", "Ann", "--status", "closed", stdout=io.StringIO()
    )
    claim.refresh_from_db()
    assert (claim.amount_minor, claim.payee, claim.status) == (199_950, "Ann", "closed")
    assert claim.row == {"id": "0042"}


def test_a_change_that_changes_nothing_says_so(claim: Claim) -> None:
    printed = io.StringIO()
    call_command("change_claim", "0042", "--amount", "1840.00", stdout=printed)
    assert printed.getvalue() == "claim 0042: unchanged\n"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["0042"], 2, "Say what to change"),
        (["0042", "--amount", "1,840"], 2, "--amount has a thousands separator"),
        (["0042", "--amount", "-5"], 2, "--amount is negative"),
        (["0042", "--payee", ""], 2, "payee: "),
        (["0042", "--payee", "x" * 101], 2, "at most 100 characters"),
        (["0044", "--payee", "Ann"], 1, "There is no claim 0044."),
        (["0042", "--payee", "Ann", "--as", "nobody"], 2, "There is no active user nobody."),
        (["0042", "--payee", "Ann", "--as", "ada"], 1, "ada may not change claims"),
    ],
)
def test_a_change_that_cannot_be_is_refused_with_a_sentence(
    people: Any, claim: Claim, arguments: list[str], code: int, sentence: str
) -> None:
    problem = refusal("change_claim", *arguments)
    assert problem.returncode == code
    assert sentence in str(problem)
    claim.refresh_from_db()
    assert (claim.amount_minor, claim.payee) == (184_000, "policyholder-0042")


def test_who_changed_a_claim_is_in_the_admin_s_history(people: Any, claim: Claim, client: Any) -> None:
    call_command("change_claim", "0042", "--payee", "Ann", "--as", people.superuser.username, stdout=io.StringIO())
    client.force_login(people.superuser)
    history = client.get(f"/admin/claims/claim/{claim.pk}/history/").content.decode()
    assert "Changed payee." in history


def test_the_admin_changes_facts_and_nothing_else(people: Any, claim: Claim, client: Any) -> None:
    client.force_login(people.superuser)
    page = f"/admin/claims/claim/{claim.pk}/change/"
    assert "&quot;id&quot;: &quot;0042&quot;" in client.get(page).content.decode()
    posted = {"status": "paid", "amount_minor": "7", "payee": "Ann", "email": "", "reference": "0099", "row": "{}"}
    assert client.post(page, posted).status_code == 302
    claim.refresh_from_db()
    assert (claim.status, claim.amount_minor, claim.payee) == ("paid", 7, "Ann")
    assert (claim.reference, claim.row) == ("0042", {"id": "0042"})
    assert client.get("/admin/claims/claim/add/").status_code == 403
    assert client.post(f"/admin/claims/claim/{claim.pk}/delete/", {"post": "yes"}).status_code == 403


def test_the_sample_has_what_its_readme_says() -> None:
    with THIRTY_CLAIMS.open(encoding="utf-8", newline="") as lines:
        rows = {row["id"]: row for row in csv.DictReader(lines)}
    amounts = {
        claim.reference: claim.amount_minor for _, claim in rows_of(THIRTY_CLAIMS) if isinstance(claim, ParsedClaim)
    }
    small = [name for name, minor in amounts.items() if minor is not None and minor <= 100_000]
    assert small == [f"demo-000{number}" for number in range(1, 7)]
    assert amounts["demo-0007"] == 100_001
    assert any(row["reportedZipCode"].startswith("0") for row in rows.values())
    assert any("'" in row["nfipCommunityName"] and "," in row["nfipCommunityName"] for row in rows.values())
    assert any(not "".join(row.values()).isascii() for row in rows.values())
