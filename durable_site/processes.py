"""The site's processes as children of one command: the sandbox, the web server and the runner, for `make demo` and
`make serve`. Production starts the last two by its own process manager. Imports nothing of ours.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
SECONDS_TO_START = 60
SECONDS_TO_STOP = 80


class DidNotStart(Exception):
    def __init__(self, name: str, log: Path) -> None:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else "(no log)"
        super().__init__(f"The {name} did not start. The end of {log}:\n{tail}")


class Children:
    """Use as a context manager: leaving it stops all that was started, last first."""

    def __init__(self, logs: Path, environment: dict[str, str]) -> None:
        self.logs, self.environment = logs, environment
        self._running: list[tuple[str, subprocess.Popen]] = []
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *_: object) -> None:
        for name, process in reversed(self._running):
            self._stop(name, process)

    def sandbox(self, store: Path, port: int = 0) -> str:
        """Start the outside world; its address."""
        store.mkdir(parents=True, exist_ok=True)
        (store / "url").unlink(missing_ok=True)
        process = self._start("sandbox", "durable_site.sandbox", "--port", str(port), "--store", str(store))
        self._wait("sandbox", process, (store / "url").exists)
        return (store / "url").read_text().strip()

    def web(self, host: str, port: int, workers: int = 2) -> str:
        """Start the pages; their address."""
        address = f"http://{host}:{port}"
        process = self._start(
            "web",
            "gunicorn",
            "durable_site.wsgi",
            "--bind",
            f"{host}:{port}",
            "--workers",
            str(workers),
            "--threads",
            "4",
        )
        self._wait("web", process, lambda: _answers(f"{address}/healthz"))
        return address

    def runner(self) -> int:
        """Start the background runner; its pid."""
        return self._start("runner", "manage", "runner").pid

    def dead(self) -> str:
        """The name of a child that ended by itself; empty while all live."""
        return next((name for name, process in self._running if process.poll() is not None), "")

    def _start(self, name: str, module: str, *arguments: str) -> subprocess.Popen:
        with (self.logs / f"{name}.log").open("w") as log:
            # A session of its own: Ctrl-C at the terminal reaches us, and we stop them in order.
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=PROJECT,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append((name, process))
        return process

    def _wait(self, name: str, process: subprocess.Popen, ready) -> None:
        until = time.monotonic() + SECONDS_TO_START
        while not ready():
            if process.poll() is not None or time.monotonic() > until:
                raise DidNotStart(name, self.logs / f"{name}.log")
            time.sleep(0.05)

    def _stop(self, name: str, process: subprocess.Popen) -> None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_STOP)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
