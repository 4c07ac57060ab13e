"""`make demo`: two claims, two real SIGKILLs, one approval each through the real form, and the proof.

A database of its own is made anew; the sandbox, the web server and the runner are started as processes; the transcript
is made from the rows that they left and from the sandbox's journal, not from what was meant to happen. Exits 0 only if
everything is as it must be.
"""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import psycopg

from . import embedded
from .processes import Children, DidNotStart, free_port

DATABASE = "durable_demo"
APPROVER = "ada"
KILLS = ("claim-0042:step7:entered", "claim-0043:step6:payments.transfer-answered")
"""Where a worker dies: before the notice; and after the payment, before its checkpoint."""
SAMPLE = Path(__file__).parent / "claims" / "sample" / "two_claims.csv"
VERIFIER = Path(__file__).parents[1] / "approvals" / "verifier.py"
PATIENCE = 90
"""Seconds until something that ought to happen is given up."""


class WentWrong(Exception):
    """The demo did not come out as it must."""


def main() -> int:
    was_running = bool(os.environ.get("DATABASE_URL") or embedded.status())
    try:
        _prepare_settings(_fresh_database(DATABASE))
        Demo().play()
    except (WentWrong, DidNotStart, embedded.EmbeddedError) as failure:
        sys.stderr.write(f"\nThe demo went wrong: {failure}\n")
        return 1
    finally:
        if not was_running:
            embedded.stop()
    return 0


class Demo:
    """The play: `lines` tells what the database and the journal say happened."""

    def __init__(self) -> None:
        from django.conf import settings

        self.folder = settings.VAR_DIR / "demo"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.failpoints = self.folder / "failpoints"
        self.failpoints.mkdir(parents=True)
        (self.failpoints / "kill").write_text("\n".join(KILLS))
        self.password = secrets.token_urlsafe(12)

    def play(self) -> None:
        from django.conf import settings

        environment = {"FAILPOINTS": str(self.failpoints), "EMAIL_FILE_PATH": str(self.folder / "mail")}
        with Children(self.folder / "log", environment) as children:
            settings.SANDBOX_URL = environment["SANDBOX_URL"] = children.sandbox(self.folder / "sandbox")
            self.site = children.web("127.0.0.1", free_port(), workers=1)
            self._import()
            children.runner()
            for key in ("claim-0042", "claim-0043"):
                self._tell(key)
            self._prove()

    def _import(self) -> None:
        from django.core.management import call_command

        from .people import TEAM, settle_in

        settle_in(self.password)
        call_command("import_claims", str(SAMPLE), "--team", TEAM, "--json", stdout=StringIO())

    def _tell(self, key: str) -> None:
        """Print the run's transcript as its rows appear; approve when it waits."""
        from runs.models import Run

        transcript, until, answered = Transcript(key), time.monotonic() + PATIENCE, False
        while True:
            run = Run.objects.get(key=key)
            for line in transcript.new_lines():
                say(line)
            if run.status == "waiting" and not answered:
                say("waiting")
                self._approve(key)
                answered = True
            if run.is_final or run.status == "dead":
                break
            if time.monotonic() > until:
                raise WentWrong(f"{key} is still {run.status} after {PATIENCE} s; see {self.folder / 'log'}.")
            time.sleep(0.1)
        for line in transcript.new_lines():
            say(line)
        if run.outcome != "completed":
            raise WentWrong(f"{key} ended as {run.status}: {run.reason}")
        if transcript.crashes != 1:
            raise WentWrong(f"{key} was to lose one worker and lost {transcript.crashes}.")

    def _approve(self, key: str) -> None:
        """Sign in and send the real form, as the adjuster's browser does."""
        with httpx.Client(base_url=self.site, follow_redirects=True, timeout=30) as browser:
            self._submit(browser, "/sign-in/", "/sign-in/", {"username": APPROVER, "password": self.password})
            inbox = browser.get("/inbox/")
            page = _link_to(inbox.text, key)
            receipt = self._submit(browser, page, f"{page}decide/", {"verdict": "approve", "read": "on"})
        signed = re.search(r"/receipts/(\d+)/", str(receipt.url))
        if not signed:
            raise WentWrong(
                f"the approval of {key} ended at {receipt.url} with status {receipt.status_code}, not at a receipt."
            )
        say(f"  approved by {APPROVER} at {self.site}{page} -> receipt {signed[1]}")

    def _submit(self, browser: httpx.Client, page: str, action: str, values: dict[str, str]) -> httpx.Response:
        forms = Forms.read(browser.get(page).text)
        wanted = values.get("verdict")
        form = next(
            (
                fields
                for target, fields in forms
                if target in (action, "") and (wanted is None or fields.get("verdict") == wanted)
            ),
            None,
        )
        if form is None:
            raise WentWrong(f"{page} offers no form for {action}.")
        return browser.post(action, data=form | values, headers={"Referer": f"{self.site}{page}"})

    def _prove(self) -> None:
        """One payment each in the sandbox's own journal, and a ledger that verifies."""
        from approvals import ledger
        from approvals.models import Decision

        journal = [json.loads(line) for line in (self.folder / "sandbox" / "journal.jsonl").read_text().splitlines()]
        for key in ("claim-0042", "claim-0043"):
            paid = [line["amount_minor"] for line in journal if line["key"].startswith(f"{key}:")]
            say(f"{key}: {len(paid)} payment{'' if len(paid) == 1 else 's'}, total {_dollars(sum(paid))}")
            if paid != [184_000]:
                raise WentWrong(f"{key} was to be paid once, and the journal has {paid}.")
        self._check_replays()
        verdict = ledger.verify()
        for decision in Decision.objects.select_related("user", "entry", "approval__run").order_by("pk"):
            approval, valid = decision.approval, ledger.check_entry(decision.entry)
            say(
                f"ledger {decision.entry_id}: {approval.run.key} {decision.verdict}d by {decision.user.username}, "
                f"payload {approval.payload_digest[:16]}…, signature {'valid' if valid else 'BROKEN'}"
            )
        say(f"ledger: {verdict.entries} entries, chain and signatures {'verified' if verdict.ok else 'BROKEN'}")
        decided = Decision.objects.count()
        if not verdict.ok or decided != 2:
            raise WentWrong("; ".join(verdict.problems) or f"{decided} decisions were made, not 2.")
        self._prove_elsewhere()

    def _prove_elsewhere(self) -> None:
        """Each case as an auditor checks it: with one file and the public keys, without the site and its database. And
        the check can fail: it finds one byte that is altered."""
        from django.core.management import call_command

        call_command("signing_key", "show", "--trust-file", str(self.folder / "trust.json"), stdout=StringIO())
        shutil.copy(VERIFIER, self.folder)
        for key in ("claim-0042", "claim-0043"):
            case = self.folder / f"{key}.zip"
            call_command("export_case", key, "--output", str(case), stdout=StringIO())
            code, told = self._verify(case)
            say(f"{case.name}: {told}")
            altered = case.with_name("altered.zip")
            packed = bytearray(case.read_bytes())
            packed[len(packed) // 2] ^= 1
            altered.write_bytes(packed)
            refused, _ = self._verify(altered)
            say(f"{case.name} with one bit altered: {'found' if refused > 2 else 'NOT FOUND'} (exit code {refused})")
            if code != 0 or refused <= 2:
                raise WentWrong(f"verifier.py answered {code} for {case.name} and {refused} for it altered.")

    def _verify(self, case: Path) -> tuple[int, str]:
        command = [sys.executable, "-I", VERIFIER.name, case.name, "trust.json"]
        done = subprocess.run(command, cwd=self.folder, env={}, capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def _check_replays(self) -> None:
        from runs.models import Call

        replays = dict(Call.objects.filter(tool="payments.transfer").values_list("run__key", "replayed"))
        if replays != {"claim-0042": False, "claim-0043": True}:
            raise WentWrong(f"only claim-0043's payment was to be a replay, and the calls say {replays}.")


class Transcript:
    """What the rows say that happened to one run: its transitions, each after the checkpoints before it."""

    def __init__(self, key: str) -> None:
        self.key, self.crashes = key, 0
        self._told, self._checkpoints = 0, 0
        self._last_step = 0

    def new_lines(self) -> Iterator[str]:
        from runs.models import Transition

        for move in Transition.objects.filter(run__key=self.key, id__gt=self._told).order_by("id"):
            self._told = move.id
            yield from self._steps_before(move)
            if line := self._move(move):
                yield line

    def _steps_before(self, move: Any) -> Iterator[str]:
        from runs.models import Checkpoint

        # A run that ended moved with its last checkpoint; any other move was made in the position after it.
        last = move.position if move.to_status == "completed" else move.position - 1
        done = Checkpoint.objects.filter(run__key=self.key, position__gt=self._checkpoints, position__lte=last)
        for checkpoint in done.order_by("position"):
            self._checkpoints = checkpoint.position
            yield f"  step {checkpoint.position}: done{self._payment(checkpoint.position)}"

    def _move(self, move: Any) -> str:
        match (move.from_status, move.to_status):
            case ("", "ready"):
                return f"[{self.key}] starting"
            case ("ready", "running") if move.position > 1:
                return f"[{self.key}] resuming at step {move.position}"
            case ("running", "waiting"):
                return f"  step {move.position}: parked ({move.why}); no worker is held while waiting"
            case ("running", "ready") if "was lost" in move.why:
                self.crashes += 1
                pid = move.why.split(":")[1]
                return f"  CRASH: worker killed during step {move.position}; restarting (pid {pid})"
            case (_, "completed"):
                return "completed"
        return ""

    def _payment(self, position: int) -> str:
        from runs.models import Call

        call = Call.objects.filter(run__key=self.key, position=position, tool="payments.transfer").first()
        return (
            f" -> {{'paid': {_dollars((call.answer or {})['paid_minor'])}, 'replayed': {call.replayed}}}"
            if call
            else ""
        )


class Forms(HTMLParser):
    """The forms of a page: where each goes, and what its fields hold."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []

    @classmethod
    def read(cls, page: str) -> list[tuple[str, dict[str, str]]]:
        parser = cls()
        parser.feed(page)
        return parser.found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.found.append((values.get("action", ""), {}))
        elif tag == "input" and self.found and values.get("type") == "hidden" and "name" in values:
            self.found[-1][1][values["name"]] = values.get("value", "")


def _link_to(inbox: str, key: str) -> str:
    """The address of the approval that the inbox shows for this run."""
    for row in re.split(r"<tr\b", inbox):
        address = re.search(r'href="(/approvals/\d+/)"', row)
        if key in row and address:
            return address[1]
    raise WentWrong(f"the inbox shows no approval for {key}.")


def _fresh_database(name: str) -> str:
    server = os.environ.get("DATABASE_URL") or embedded.database_url()
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}"')
    return urlunsplit(urlsplit(server)._replace(path=f"/{name}"))


def _prepare_settings(database_url: str) -> None:
    os.environ |= {"DATABASE_URL": database_url, "DEBUG": "1", "DJANGO_SETTINGS_MODULE": "durable_site.settings"}
    os.environ.setdefault("LOG_LEVEL", "WARNING")
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def _dollars(minor: int) -> str:
    return f"{minor // 100}" if minor % 100 == 0 else f"{minor / 100:.2f}"


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 (the transcript)


if __name__ == "__main__":
    sys.exit(main())
