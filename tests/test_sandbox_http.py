"""The registers of the sandbox, and its manners as an HTTP server."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sandbox_process import ORDER, SandboxProcess, error

POLICY = {
    "policy": "P/0042",
    "status": "in force",
    "holder": "A. Holder",
    "building_cover_minor": 25_000_000,
    "contents_cover_minor": None,
    "building_deductible_minor": 125_000,
    "contents_deductible_minor": 125_000,
    "currency": "USD",
}
FLOOD_REPORT = {
    "claim": "claim-0042",
    "event": "Hurricane",
    "water_depth_inches": -5,
    "building_damage_minor": 309_000,
    "contents_damage_minor": None,
    "cause": "tidal water",
}


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path / "store") as process:
        yield process


@pytest.fixture
def client(sandbox: SandboxProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=sandbox.url, timeout=30) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "document", "change", "invalid"),
    [
        ("/policies/P%2F0042", POLICY, {"status": "lapsed"}, {"building_cover_minor": 1.5}),
        ("/flood-reports/claim-0042", FLOOD_REPORT, {"cause": None}, {"water_depth_inches": "5"}),
    ],
)
def test_registers_tell_what_was_last_put_in(
    client: httpx.Client, path: str, document: dict[str, Any], change: dict[str, Any], invalid: dict[str, Any]
) -> None:
    register = path[: path.rindex("/")]
    assert error(client.get(path)) == (404, "not_found")
    created = client.post(register, json=document)
    assert (created.status_code, created.json()) == (201, document)
    assert client.get(path).json() == document

    assert client.post(register, json=document | change).status_code == 200
    assert client.get(path).json() == document | change

    refused = client.post(register, json=document | invalid)
    assert error(refused) == (400, "invalid_request")
    assert next(iter(invalid)) in refused.json()["error"]["message"]
    assert error(client.post(register, json={})) == (400, "invalid_request")
    assert client.get(path).json() == document | change


def test_unknown_addresses_and_wrong_methods_are_refused_in_json(client: httpx.Client) -> None:
    assert error(client.get("/nothing/here")) == (404, "not_found")
    assert error(client.get("/")) == (404, "not_found")
    for method, path, allow in [
        ("DELETE", "/payments", "GET, HEAD, POST"),
        ("PUT", "/policies/P1", "GET, HEAD"),
        ("GET", "/policies", "POST"),
        ("HEAD", "/flood-reports", "POST"),
    ]:
        response = client.request(method, path)
        assert (response.status_code, response.headers["Allow"]) == (405, allow)
    assert error(client.request("BREW", "/health")) == (501, "invalid_request")


def test_head_answers_as_get_without_the_body(client: httpx.Client) -> None:
    got, headed = client.get("/health"), client.head("/health")
    assert (headed.status_code, headed.content) == (200, b"")
    assert headed.headers["Content-Length"] == got.headers["Content-Length"] == str(len(got.content))


def test_one_connection_carries_many_requests_refused_ones_too(sandbox: SandboxProcess) -> None:
    body = json.dumps(ORDER).encode()
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: %d\r\n%s\r\n"
    requests = head % (b"/payments", len(body), b"") + body
    requests += head % (b"/nowhere", len(body), b"") + body
    requests += head % (b"/payments", len(body), b"Connection: close\r\n") + body
    assert re.findall(rb"HTTP/1.1 (\d+)", exchange(sandbox, requests)) == [b"201", b"404", b"201"]


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /payments HTTP/1.1\r\n\r\n", 411),
        (b"POST /payments HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST /payments HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /payments HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n", 400),
        (b"POST /payments HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
        (b"POST /payments HTTP/1.1\r\nContent-Length: 30000000\r\n\r\n" + b"x" * 30_000_000, 413),
        (b"GET /payments/%ff HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
    ],
    ids=lambda value: value if isinstance(value, int) else value[:70].decode().replace("\r\n", " "),
)
def test_malformed_http_is_refused_in_json(sandbox: SandboxProcess, request_head: bytes, status: int) -> None:
    head, _, body = exchange(sandbox, request_head).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close" in head
    assert set(json.loads(body)["error"]) == {"type", "message"}


def exchange(sandbox: SandboxProcess, request: bytes) -> bytes:
    """What the sandbox sends in answer to these bytes, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", sandbox.port), timeout=10) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))
