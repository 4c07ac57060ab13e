"""What the sandbox promises when it is killed, stopped, full, torn or tampered with: the journal stays the truth."""

import json
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from resource import RLIMIT_FSIZE, prlimit

import httpx
import pytest
from sandbox_process import SandboxDidNotStart, SandboxProcess, pay, wait_until

PAYMENTS = 200


class StubbornClient:
    """Pays key after key, sending each again until it is answered; keeps what it was told."""

    def __init__(self, sandbox: SandboxProcess) -> None:
        self.told: dict[str, dict] = {}
        self.replays = 0
        self.is_up = threading.Event()
        self._sandbox = sandbox

    def pay_all(self) -> None:
        with httpx.Client(base_url=self._sandbox.url, timeout=30) as client:
            for i in range(PAYMENTS):
                self._pay_until_told(client, f"claim-{i:04}:step6", i + 1)

    def _pay_until_told(self, client: httpx.Client, key: str, amount: int) -> None:
        while key not in self.told:
            assert self.is_up.wait(30), "the sandbox was not brought back"
            try:
                response = pay(client, key, amount_minor=amount)
            except httpx.TransportError:
                time.sleep(0.01)
                continue
            assert response.status_code == 201, response.text
            self.replays += "Idempotent-Replayed" in response.headers
            self.told[key] = response.json()


@pytest.mark.faults
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_instants_it_pays_each_key_once_and_forgets_no_answer(tmp_path: Path, seed: int) -> None:
    instants = random.Random(seed)
    kills = 0
    with SandboxProcess(tmp_path / "store", payment_delay=0.003) as sandbox, ThreadPoolExecutor(1) as pool:
        client = StubbornClient(sandbox)
        client.is_up.set()
        paying = pool.submit(client.pay_all)
        while not paying.done():
            time.sleep(instants.uniform(0.005, 0.12))
            client.is_up.clear()
            sandbox.restart()
            kills += 1
            client.is_up.set()
        paying.result()
        journal = sandbox.payments()
        listed = httpx.get(f"{sandbox.url}/payments?limit=1000").json()["payments"]

    assert kills >= 5
    assert client.replays >= 1, "no kill fell between a payment and its answer: the test did not test"
    assert [line["n"] for line in journal] == list(range(1, PAYMENTS + 1))
    assert [(line["key"], line["amount_minor"]) for line in journal] == [
        (f"claim-{i:04}:step6", i + 1) for i in range(PAYMENTS)
    ]
    assert {line["key"]: line["payment"] for line in journal} == {k: t["payment"] for k, t in client.told.items()}
    assert all(client.told[line["key"]]["amount_minor"] == line["amount_minor"] for line in journal)
    assert [payment["payment"] for payment in listed] == [line["payment"] for line in journal]


@pytest.mark.faults
def test_killed_between_payment_and_answer_the_key_gets_its_answer_after_the_start(tmp_path: Path) -> None:
    with SandboxProcess(tmp_path / "store", payment_delay=60) as sandbox, ThreadPoolExecutor(1) as pool:
        with httpx.Client(base_url=sandbox.url, timeout=30) as client:
            unanswered = pool.submit(pay, client, "k")
            wait_until(lambda: len(sandbox.payments()) == 1)
            sandbox.restart()
            assert isinstance(unanswered.exception(), httpx.TransportError)

            again = pay(client, "k")

        assert (again.status_code, again.headers["Idempotent-Replayed"]) == (201, "true")
        assert [line["payment"] for line in sandbox.payments()] == [again.json()["payment"]]


@pytest.mark.faults
def test_a_client_killed_in_the_window_leaves_a_payment_that_its_retry_gets(tmp_path: Path) -> None:
    with SandboxProcess(tmp_path / "store", payment_delay=0.5) as sandbox:
        with httpx.Client(base_url=sandbox.url, timeout=0.2) as client, pytest.raises(httpx.ReadTimeout):
            pay(client, "k")
        with httpx.Client(base_url=sandbox.url, timeout=30) as client:
            wait_until(lambda: pay(client, "k").status_code == 201)
        assert len(sandbox.payments()) == 1
        assert sandbox.stderr() == ""


def test_a_torn_last_line_was_never_acknowledged_and_is_cut_off(tmp_path: Path) -> None:
    with SandboxProcess(tmp_path / "store") as sandbox:
        first = pay_alone(sandbox, "k1")
        sandbox.kill()
        for name in ("journal.jsonl", "requests.jsonl"):
            with (sandbox.store / name).open("a") as file:
                file.write('{"n": 2, "at": "2026-01-01T00:00:00Z", "payment": "pay_x", "key": "k2"')
        sandbox.restart()

        second = pay_alone(sandbox, "k2")

        assert "Idempotent-Replayed" not in second.headers
        paid = [first.json()["payment"], second.json()["payment"]]
        assert [(line["n"], line["payment"]) for line in sandbox.payments()] == [(1, paid[0]), (2, paid[1])]
        assert [line["key"] for line in sandbox.requests()] == ["k1", "k2"]


def test_a_payment_that_only_the_journal_knows_is_put_into_the_database(tmp_path: Path) -> None:
    with SandboxProcess(tmp_path / "store") as sandbox:
        first = pay_alone(sandbox, "k1", note=["é", 1.5])
        pay_alone(sandbox, "k2")
        sandbox.kill()
        for file in sandbox.store.glob("sandbox.sqlite3*"):
            file.unlink()
        sandbox.restart()

        assert pay_alone(sandbox, "k1", note=["é", 1.5]).content == first.content
        assert pay_alone(sandbox, "k2", amount_minor=1).status_code == 422
        assert [line["n"] for line in sandbox.payments()] == [1, 2]


def test_registers_and_payments_outlive_a_kill(tmp_path: Path) -> None:
    report = {"claim": "c", "event": None, "water_depth_inches": 0.5, "cause": None}
    report |= {"building_damage_minor": 1, "contents_damage_minor": None}
    with SandboxProcess(tmp_path / "store") as sandbox:
        address = sandbox.url
        assert httpx.post(f"{address}/flood-reports", json=report).status_code == 201
        sandbox.restart()
        assert sandbox.url == address
        assert httpx.get(f"{address}/flood-reports/c").json() == report


def test_a_full_disk_ends_the_process_and_the_next_start_knows_what_was_paid(tmp_path: Path) -> None:
    with SandboxProcess(tmp_path / "store") as sandbox:
        paid = pay_alone(sandbox, "k1").json()["payment"]
        size = (sandbox.store / "journal.jsonl").stat().st_size
        prlimit(sandbox.pid, RLIMIT_FSIZE, (size + 20, size + 20))
        with pytest.raises(httpx.TransportError):
            pay_alone(sandbox, "k2")
        assert sandbox.wait() == 74
        assert "store could not be written" in sandbox.stderr()
        assert (sandbox.store / "journal.jsonl").stat().st_size == size + 20
        sandbox.restart()

        assert "Idempotent-Replayed" not in pay_alone(sandbox, "k2").headers
        assert pay_alone(sandbox, "k1").json()["payment"] == paid
        assert [(line["n"], line["key"]) for line in sandbox.payments()] == [(1, "k1"), (2, "k2")]


def test_a_second_process_on_the_same_store_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with SandboxProcess(tmp_path / "store") as sandbox:
        refusal = pytest.raises(SandboxDidNotStart, match=rf"in use by another sandbox \(pid {sandbox.pid}\)")
        with refusal, SandboxProcess(tmp_path / "store"):
            pass
        assert pay_alone(sandbox, "k").status_code == 201
    with SandboxProcess(tmp_path / "store") as successor:
        assert len(successor.payments()) == 1


def rewritten(text: str) -> str:
    return text.replace("184000", "184001", 1)


def without_its_first_line(text: str) -> str:
    return text.split("\n", 1)[1]


def without_its_last_line(text: str) -> str:
    return text[: text.rindex("\n", 0, -1) + 1]


def with_a_line_twice(text: str) -> str:
    return text + text.splitlines()[-1].replace('"n": 2', '"n": 3') + "\n"


def with_a_number_left_out(text: str) -> str:
    return text + text.splitlines()[-1].replace('"n": 2', '"n": 4').replace("pay_", "pay_4").replace("k2", "k4") + "\n"


def with_garbage(text: str) -> str:
    return text + "garbage\n"


@pytest.mark.parametrize(
    "tampering",
    [
        rewritten,
        without_its_first_line,
        without_its_last_line,
        with_a_line_twice,
        with_a_number_left_out,
        with_garbage,
    ],
)
def test_a_journal_that_was_altered_is_not_served(tmp_path: Path, tampering: Callable[[str], str]) -> None:
    with SandboxProcess(tmp_path / "store") as sandbox:
        pay_alone(sandbox, "k1")
        pay_alone(sandbox, "k2")
        sandbox.kill()
        journal = sandbox.store / "journal.jsonl"
        altered = tampering(journal.read_text())
        journal.write_text(altered)
        with pytest.raises(SandboxDidNotStart, match=r"cannot be trusted: .*journal\.jsonl"):
            sandbox.start()
        assert journal.read_text() == altered


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_answers_who_waits_and_ends_with_0(tmp_path: Path, number: int) -> None:
    sandbox = SandboxProcess(tmp_path / "store", payment_delay=60)
    with sandbox, ThreadPoolExecutor(1) as pool, idle_connection(sandbox):
        with httpx.Client(base_url=sandbox.url, timeout=30) as client:
            waiting = pool.submit(pay, client, "k")
            wait_until(lambda: len(sandbox.payments()) == 1)
            sandbox.signal(number)
            assert sandbox.wait() == 0
            assert waiting.result().status_code == 201
        assert sandbox.stderr() == ""
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{sandbox.url}/health")


def test_told_to_stop_it_finishes_an_answer_that_its_client_reads_slowly(tmp_path: Path) -> None:
    with SandboxProcess(tmp_path / "store") as sandbox:
        for i in range(20):
            pay_alone(sandbox, f"k{i}", note="x" * 990_000)
        with connected(sandbox) as connection:
            connection.sendall(b"GET /payments HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            received = connection.recv(1000)
            sandbox.signal(signal.SIGTERM)
            time.sleep(0.5)
            received += b"".join(iter(lambda: connection.recv(1_000_000), b""))
        assert sandbox.wait() == 0
    assert len(json.loads(received.partition(b"\r\n\r\n")[2])["payments"]) == 20


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with SandboxProcess(tmp_path / "one") as first, pytest.raises(SandboxDidNotStart) as failure:
        SandboxProcess(tmp_path / "two", port=first.port).start(seconds=0)
    assert f"127.0.0.1:{first.port}" in failure.value.sentence
    assert "in use" in failure.value.sentence


def pay_alone(sandbox: SandboxProcess, key: str, **members: object) -> httpx.Response:
    with httpx.Client(base_url=sandbox.url, timeout=30) as client:
        return pay(client, key, **members)


def connected(sandbox: SandboxProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", sandbox.port), timeout=30)


def idle_connection(sandbox: SandboxProcess) -> socket.socket:
    """A keep-alive connection that has had an answer and says nothing more."""
    connection = connected(sandbox)
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    return connection
