"""Scripted faults of the sandbox: what each does to the payment and to its answer, and which requests a rule fits."""

import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from sandbox_process import ORDER, SandboxProcess, error, pay, wait_until

HONOURS_KEYS = ["ietf", "stripe", "success_only", "lax"]


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path / "store") as process:
        yield process


@pytest.fixture
def client(sandbox: SandboxProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=sandbox.url, timeout=30) as client:
        yield client


def outcome(client: httpx.Client, key: str = "k") -> object:
    """The status of a payment, or the name of what the connection died of."""
    try:
        return pay(client, key).status_code
    except httpx.TransportError as error:
        return type(error).__name__


BROKEN_OFF = {"RemoteProtocolError", "ReadError", "WriteError"}
FAULTS: list[tuple[dict[str, Any], set[object], bool]] = [
    ({"fault": "lost_answer"}, {"RemoteProtocolError"}, True),
    ({"fault": "garbage"}, {201}, True),
    ({"fault": "other_amount"}, {201}, True),
    ({"fault": "delay", "seconds": 0.1}, {201}, True),
    ({"fault": "409"}, {409}, False),
    ({"fault": "429"}, {429}, False),
    ({"fault": "500"}, {500}, False),
    ({"fault": "500", "effect": True}, {500}, True),
    ({"fault": "reset"}, {"ReadError"}, False),
    ({"fault": "reset", "effect": True}, {"ReadError"}, True),
    ({"fault": "down"}, BROKEN_OFF, False),
]


@pytest.mark.parametrize("profile", HONOURS_KEYS)
@pytest.mark.parametrize(("rule", "seen", "pays"), FAULTS, ids=[str(rule) for rule, _, _ in FAULTS])
def test_after_any_fault_that_is_not_saved_the_same_key_pays_once(
    tmp_path: Path, profile: str, rule: dict[str, Any], seen: set[object], pays: bool
) -> None:
    process = SandboxProcess(tmp_path / "store", profile=profile)
    with process as sandbox, httpx.Client(base_url=sandbox.url, timeout=30) as client:
        sandbox.script(**rule)
        assert outcome(client) in seen
        assert len(sandbox.payments()) == pays
        again = pay(client, "k")
        assert (again.status_code, "Idempotent-Replayed" in again.headers) == (201, pays)
        assert again.json()["amount_minor"] == ORDER["amount_minor"]
        assert len(sandbox.payments()) == 1
        told = [(line["fault"], line["status"]) for line in sandbox.requests()]
        assert told == [(rule["fault"], next(iter(seen)) if seen <= {201, 409, 429, 500} else None), (None, 201)]


@pytest.mark.parametrize("rule", [{"fault": "lost_answer"}, {"fault": "500", "effect": True}])
def test_a_provider_without_keys_pays_again_after_a_lost_answer(tmp_path: Path, rule: dict[str, Any]) -> None:
    process = SandboxProcess(tmp_path / "store", profile="none")
    with process as sandbox, httpx.Client(base_url=sandbox.url, timeout=30) as client:
        sandbox.script(**rule)
        assert outcome(client) in {500, "RemoteProtocolError"}
        assert outcome(client) == 201
        assert [line["key"] for line in sandbox.payments()] == ["k", "k"]


def test_a_saved_failure_may_hide_a_payment(sandbox: SandboxProcess, client: httpx.Client) -> None:
    sandbox.script("500_stored", effect=True)
    assert [pay(client, "k").status_code for _ in range(2)] == [500, 500]
    assert [line["key"] for line in sandbox.payments()] == ["k"]
    assert len(client.get("/payments?key=k").json()["payments"]) == 1


def test_during_a_delay_the_payment_is_made_and_its_key_in_progress(
    sandbox: SandboxProcess, client: httpx.Client
) -> None:
    sandbox.script("delay", seconds=60, match={"key": "slow"})
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(pay, client, "slow")
        wait_until(lambda: len(sandbox.payments()) == 1)
        assert error(pay(client, "slow")) == (409, "in_progress")
        assert pay(client, "k").status_code == 201
        assert sandbox.stop() == 0
        assert slow.result().status_code == 201


def test_reads_are_delayed_too(sandbox: SandboxProcess, client: httpx.Client) -> None:
    sandbox.script("delay", seconds=0.4, match={"method": "GET"})
    began = time.monotonic()
    assert client.get("/payments?key=k").status_code == 200
    assert time.monotonic() - began >= 0.4


def test_garbage_cannot_be_read_and_another_amount_is_told_by_one_unit(
    sandbox: SandboxProcess, client: httpx.Client
) -> None:
    sandbox.script("garbage")
    with pytest.raises(json.JSONDecodeError):
        pay(client, "k1").json()
    sandbox.script("other_amount")
    told = pay(client, "k2", amount_minor=500).json()["amount_minor"]
    made = [(line["key"], line["amount_minor"]) for line in sandbox.payments()]
    assert (told, made) == (501, [("k1", ORDER["amount_minor"]), ("k2", 500)])


def test_too_many_requests_says_when_to_come_back(sandbox: SandboxProcess, client: httpx.Client) -> None:
    sandbox.script("429", seconds=7)
    busy = pay(client, "k")
    assert (error(busy), busy.headers["Retry-After"]) == ((429, "too_many_requests"), "7")
    sandbox.script("409")
    assert pay(client, "k").headers["Retry-After"] == "1"


def test_while_it_is_down_only_the_control_addresses_answer(sandbox: SandboxProcess, client: httpx.Client) -> None:
    sandbox.script("down", times=None)
    for _ in range(3):
        assert outcome(client) in BROKEN_OFF
    with pytest.raises(httpx.TransportError):
        client.get("/payments")
    assert client.get("/faults").json() == {"faults": [{"fault": "down", "times": None}]}
    sandbox.clear_faults()
    assert outcome(client) == 201
    assert [line["status"] for line in sandbox.requests()] == [None] * 4 + [201]


def test_down_for_some_seconds_ends_by_itself(sandbox: SandboxProcess, client: httpx.Client) -> None:
    sandbox.script("down", times=None, seconds=2)
    assert outcome(client) in BROKEN_OFF
    wait_until(lambda: outcome(client) == 201)
    assert len(sandbox.payments()) == 1


def test_down_does_not_read_what_is_sent(sandbox: SandboxProcess) -> None:
    sandbox.script("down")
    with socket.create_connection(("127.0.0.1", sandbox.port), timeout=10) as connection:
        connection.sendall(b"POST /payments HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n")
        assert connection.recv(1) == b""


def test_a_rule_fits_by_key_path_and_method_and_only_so_often(sandbox: SandboxProcess, client: httpx.Client) -> None:
    sandbox.script("500", match={"key": "k", "path": "/payments", "method": "POST"}, times=2)
    assert outcome(client, "other") == 201
    assert client.get("/payments", headers={"Idempotency-Key": "k"}).status_code == 200
    assert client.post("/policies", json={}, headers={"Idempotency-Key": "k"}).status_code == 400
    assert [outcome(client) for _ in range(3)] == [500, 500, 201]
    assert client.get("/faults").json() == {"faults": []}


def test_a_path_means_everything_below_it_and_a_fault_of_payments_waits_for_one(
    sandbox: SandboxProcess, client: httpx.Client
) -> None:
    made = pay(client, "first").json()["payment"]
    sandbox.script("500", match={"path": "/payments"})
    assert client.get(f"/payments/{made}").status_code == 500
    sandbox.script("402_stored")
    assert client.get(f"/payments/{made}").status_code == 200
    assert outcome(client) == 402


def test_rules_act_in_the_order_they_were_made_one_a_request(sandbox: SandboxProcess, client: httpx.Client) -> None:
    for fault in ("409", "429", "500"):
        sandbox.script(fault)
    assert [outcome(client) for _ in range(4)] == [409, 429, 500, 201]


def test_rules_outlive_a_kill_and_what_is_used_up_stays_so(sandbox: SandboxProcess, client: httpx.Client) -> None:
    sandbox.script("500", times=2)
    assert outcome(client) == 500
    sandbox.restart()
    assert [outcome(client) for _ in range(2)] == [500, 201]


def keep_trying(sandbox: SandboxProcess, act: Callable[[httpx.Client], httpx.Response]) -> httpx.Response:
    """Again and again until it is told 201, however often the sandbox is killed meanwhile."""
    while True:
        try:
            with httpx.Client(base_url=sandbox.url, timeout=30) as client:
                if (response := act(client)).status_code == 201:
                    return response
        except httpx.TransportError:
            time.sleep(0.01)


@pytest.mark.faults
@pytest.mark.parametrize("profile", HONOURS_KEYS)
def test_faults_and_kills_together_pay_each_key_once(tmp_path: Path, profile: str) -> None:
    chance = random.Random(profile)
    keys = [f"claim-{number}:step6" for number in range(24)]
    readable = [rule for rule, _, _ in FAULTS if rule["fault"] not in {"garbage", "other_amount", "down"}]

    def pay_all() -> None:
        for key in keys:
            rule = chance.choice(readable) | {"match": {"key": key}}
            keep_trying(sandbox, lambda client, rule=rule: client.post("/faults", json=rule))
            keep_trying(sandbox, lambda client, key=key: pay(client, key))

    process = SandboxProcess(tmp_path / "store", profile=profile, payment_delay=0.003)
    with process as sandbox, ThreadPoolExecutor(1) as pool:
        paying = pool.submit(pay_all)
        kills = 0
        while not paying.done():
            time.sleep(chance.uniform(0.05, 0.3))
            sandbox.restart()
            kills += 1
        paying.result()
        assert kills >= 3
        assert [line["key"] for line in sandbox.payments()] == keys


def test_a_refusal_is_lost_like_any_answer(sandbox: SandboxProcess, client: httpx.Client) -> None:
    pay(client, "k")
    sandbox.script("lost_answer")
    with pytest.raises(httpx.RemoteProtocolError):
        pay(client, "k", amount_minor=1)
    assert len(sandbox.payments()) == 1


def test_a_ticket_whose_answer_is_lost_is_open(sandbox: SandboxProcess, client: httpx.Client) -> None:
    sandbox.script("lost_answer", match={"path": "/tickets"})
    with pytest.raises(httpx.RemoteProtocolError):
        client.post("/tickets", json={"reference": "r", "subject": "s", "text": "t"})
    assert [line["reference"] for line in sandbox.tickets()] == ["r"]
    assert len(client.get("/tickets?reference=r").json()["tickets"]) == 1


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"fault": "boom"},
        {"fault": ["500"]},
        {"fault": "delay"},
        {"fault": "delay", "seconds": -1},
        {"fault": "500", "times": 0},
        {"fault": "500", "times": True},
        {"fault": "500", "effect": 1},
        {"fault": "409", "effect": True},
        {"fault": "500", "match": []},
        {"fault": "500", "match": {"key": ""}},
        {"fault": "500", "match": {"claim": "c"}},
        {"fault": "500", "tmes": 2},
    ],
    ids=str,
)
def test_a_rule_that_cannot_be_meant_is_refused(
    sandbox: SandboxProcess, client: httpx.Client, rule: dict[str, Any]
) -> None:
    assert error(client.post("/faults", json=rule)) == (400, "invalid_request")
    assert client.get("/faults").json() == {"faults": []}
    assert outcome(client) == 201
