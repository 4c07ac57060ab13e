"""The sandbox as a real process for tests: start it, kill it, start it again on its port and store, read its journal.

Imports nothing of the product: what it counts, it counts from the files.
"""

import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

ORDER = {"amount_minor": 184000, "currency": "USD", "payee": "acct-0042", "reference": "claim-0042", "claim": "0042"}
PROJECT = Path(__file__).resolve().parent.parent
SECONDS_TO_START = 60.0
SECONDS_TO_STOP = 60.0


class SandboxDidNotStart(Exception):
    def __init__(self, sentence: str) -> None:
        super().__init__(f"the sandbox did not start: {sentence}")
        self.sentence = sentence


class SandboxProcess:
    """One sandbox with its store. Use as a context manager, or call `start` and `stop`.

    `store` may already hold the store of an earlier sandbox. `payment_delay` and `ticket_delay` are in seconds, the
    latter by the sandbox's clock. `port` 0 is any free one. `profile` is how keys are treated.
    """

    def __init__(
        self,
        store: Path,
        *,
        payment_delay: float = 0.0,
        port: int = 0,
        profile: str = "ietf",
        ticket_delay: float = 0.0,
    ) -> None:
        self.store = store.resolve()
        self.options = {"--payment-delay": payment_delay, "--profile": profile, "--ticket-delay": ticket_delay}
        self.url = ""
        self.port = port
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "SandboxProcess":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running:
            self.kill()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the sandbox was never started"
        return self._process.pid

    def start(self, *, seconds: float = SECONDS_TO_START) -> None:
        """Start and wait until it accepts, on the same port as ever; `seconds` is how long that port may stay taken.

        Raises SandboxDidNotStart with what it wrote to stderr.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self._start_once()
            except SandboxDidNotStart as failure:
                # A client that dials the dead port can be given that very port as its own, for a moment.
                if "Address already in use" not in failure.sentence or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def restart(self) -> None:
        """Start again, after killing it if it still runs."""
        if self.running:
            self.kill()
        self.start()

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def signal(self, number: int) -> None:
        assert self._process is not None, "the sandbox was never started"
        self._process.send_signal(number)

    def wait(self) -> int:
        """The exit code of the process, once it has ended."""
        assert self._process is not None, "the sandbox was never started"
        code = self._process.wait(SECONDS_TO_STOP)
        if self._process.stdout:
            self._process.stdout.close()
        return code

    def stderr(self) -> str:
        return self._stderr_file.read_text("utf-8")

    def payments(self) -> list[dict[str, Any]]:
        """The lines of journal.jsonl: every payment ever made."""
        return self._lines("journal.jsonl")

    def tickets(self) -> list[dict[str, Any]]:
        """The lines of tickets.jsonl: every ticket ever opened."""
        return self._lines("tickets.jsonl")

    def script(self, fault: str, **rule: Any) -> None:
        """The next request that fits the rule goes wrong in this way."""
        httpx.post(f"{self.url}/faults", json={"fault": fault} | rule).raise_for_status()

    def clear_faults(self) -> None:
        httpx.delete(f"{self.url}/faults").raise_for_status()

    def advance(self, seconds: float) -> None:
        """Move the sandbox's clock on."""
        httpx.post(f"{self.url}/clock", json={"advance_seconds": seconds}).raise_for_status()

    def requests(self) -> list[dict[str, Any]]:
        """The lines of requests.jsonl: every request that was read, with its status, which is None if none was told."""
        return self._lines("requests.jsonl")

    @property
    def _stderr_file(self) -> Path:
        return self.store.with_name(f"{self.store.name}.stderr")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        """Whole lines only: the last one may still be being written."""
        path = self.store / name
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []

    def _start_once(self) -> None:
        command = [sys.executable, "-m", "durable_site.sandbox", "--store", str(self.store), "--port", str(self.port)]
        command += [str(word) for option in self.options.items() for word in option]
        self.store.parent.mkdir(parents=True, exist_ok=True)
        with self._stderr_file.open("w", encoding="utf-8") as stderr:
            self._process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.url = json.loads(self._ready_line())["listening"]
        self.port = int(self.url.rpartition(":")[2])

    def _ready_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], SECONDS_TO_START)
        line = self._process.stdout.readline() if readable else ""
        if not line:
            self.kill()
            raise SandboxDidNotStart(self.stderr())
        return line


def pay(client: httpx.Client, key: str, **members: object) -> httpx.Response:
    """Order a payment under this key: ORDER, with these members added or changed."""
    return client.post("/payments", json=ORDER | members, headers={"Idempotency-Key": key})


def error(response: httpx.Response) -> tuple[int, str]:
    """Status and type of a refusal, which has the form of every refusal."""
    assert set(response.json()) == {"error"}
    assert set(response.json()["error"]) == {"type", "message"}
    return response.status_code, response.json()["error"]["type"]


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Look again and again until the condition holds; fails when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
