"""What the payment provider of the sandbox promises while it lives: one payment a key, refusals that change nothing."""

import json
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from sandbox_process import ORDER, SandboxProcess, error, pay, wait_until

SEQUENCES = json.loads((Path(__file__).parent / "vectors" / "idempotency_sequences.json").read_text("utf-8"))


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path / "store") as process:
        yield process


@pytest.fixture
def client(sandbox: SandboxProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=sandbox.url, timeout=30) as client:
        yield client


def send(client: httpx.Client, key: str, text: str | bytes) -> httpx.Response:
    return client.post("/payments", content=text, headers={"Idempotency-Key": key})


def was_replayed(response: httpx.Response) -> bool:
    return response.headers.get("Idempotent-Replayed") == "true"


def test_it_says_where_it_listens_and_leaves_the_address_in_its_store(sandbox: SandboxProcess) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", sandbox.url)
    assert (sandbox.store / "url").read_text() == sandbox.url + "\n"
    assert httpx.get(f"{sandbox.url}/health").json() == {"status": "ok"}


def test_a_payment_is_answered_and_journalled_in_full(sandbox: SandboxProcess, client: httpx.Client) -> None:
    response = pay(client, "claim-0042:step6", note={"any": ["thing", 1.5]})

    assert response.status_code == 201
    assert not was_replayed(response)
    answer = response.json()
    told = {member: ORDER[member] for member in ("amount_minor", "currency", "payee", "reference")}
    assert answer == {**told, "payment": answer["payment"], "status": "succeeded", "created_at": answer["created_at"]}
    assert re.fullmatch(r"pay_[0-9a-f]{24}", answer["payment"])
    assert sandbox.payments() == [
        {
            **told,
            "n": 1,
            "at": answer["created_at"],
            "payment": answer["payment"],
            "key": "claim-0042:step6",
            "request": {**ORDER, "note": {"any": ["thing", 1.5]}},
        }
    ]


def test_the_same_key_and_body_get_the_first_answer_and_pay_nothing(
    sandbox: SandboxProcess, client: httpx.Client
) -> None:
    first = pay(client, "k")
    again = send(client, '"k"', json.dumps(dict(reversed(ORDER.items())), indent=3))

    assert (first.status_code, was_replayed(first)) == (201, False)
    assert (again.status_code, was_replayed(again), again.content) == (201, True, first.content)
    assert len(sandbox.payments()) == 1


@pytest.mark.parametrize("change", [{"amount_minor": 184001}, {"claim": "0043"}, {"urgent": 1}, {"more": None}])
def test_the_same_key_with_another_body_is_refused_and_the_first_payment_stands(
    sandbox: SandboxProcess, client: httpx.Client, change: dict[str, Any]
) -> None:
    first = pay(client, "k", urgent=True)

    assert error(pay(client, "k", **{"urgent": True, **change})) == (422, "idempotency_key_reused")
    assert pay(client, "k", urgent=True).content == first.content
    assert [line["payment"] for line in sandbox.payments()] == [first.json()["payment"]]


def test_a_key_still_being_answered_is_in_progress_and_its_payment_already_made(tmp_path: Path) -> None:
    slow = SandboxProcess(tmp_path / "store", payment_delay=1.5)
    with slow, httpx.Client(base_url=slow.url, timeout=30) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(pay, client, "k")
        wait_until(lambda: len(slow.payments()) == 1)

        while_in_progress = pay(client, "k")
        found = client.get("/payments", params={"key": "k"}).json()["payments"]

        assert error(while_in_progress) == (409, "in_progress")
        assert while_in_progress.headers["Retry-After"] == "1"
        assert [payment["payment"] for payment in found] == [first.result().json()["payment"]]
        assert was_replayed(pay(client, "k"))
        assert len(slow.payments()) == 1


def test_a_payment_without_exactly_one_readable_key_is_refused(sandbox: SandboxProcess, client: httpx.Client) -> None:
    def status_with(*values: bytes) -> tuple[int, str]:
        return error(client.post("/payments", json=ORDER, headers=[(b"Idempotency-Key", value) for value in values]))

    assert status_with() == (400, "idempotency_key_missing")
    for values in [
        (b"",),
        (b'""',),
        (b"a", b"a"),
        (b'"a',),
        (b'"a" ; b=1',),
        (b'"a\\x"',),
        (b"caf\xe9",),
        (b"k" * 256,),
    ]:
        assert status_with(*values) == (400, "idempotency_key_invalid"), values
    assert sandbox.payments() == []


def test_a_key_is_the_same_bare_or_quoted(sandbox: SandboxProcess, client: httpx.Client) -> None:
    assert pay(client, '"say \\"yes\\""').status_code == 201
    assert was_replayed(pay(client, 'say "yes"'))
    assert [line["key"] for line in sandbox.payments()] == ['say "yes"']


INVALID_MEMBERS = [
    ("amount_minor", 0),
    ("amount_minor", -1),
    ("amount_minor", True),
    ("amount_minor", 10.0),
    ("amount_minor", "10"),
    ("amount_minor", None),
    ("amount_minor", 2**53),
    ("currency", "usd"),
    ("currency", "USDX"),
    ("currency", "ÄÖÜ"),
    ("currency", 840),
    ("payee", ""),
    ("payee", " "),
    ("reference", ["claim-0042"]),
    ("claim", 42),
]
INVALID_TEXTS = [
    ("JSON", b""),
    ("JSON", b"{"),
    ("JSON", json.dumps(ORDER).encode() + b"x"),
    ("JSON", json.dumps(ORDER | {"amount_minor": float("nan")}).encode()),
    ("JSON", json.dumps(ORDER | {"note": float("-inf")}).encode()),
    ("too large", json.dumps(ORDER).replace("184000", '184000, "note": 1e999').encode()),
    ("object", json.dumps([ORDER]).encode()),
    ("amount_minor", b'{"amount_minor": 1, ' + json.dumps(ORDER).encode()[1:]),
    ("inner", json.dumps(ORDER)[:-1].encode() + b', "note": [{"inner": 1, "inner": 1}]}'),
    ("Unicode", json.dumps(ORDER | {"payee": "\ud800"}).encode()),
    ("Unicode", json.dumps(ORDER | {"\udc00": 1}).encode()),
    ("UTF-8", json.dumps(ORDER).replace("acct", "é").encode("latin-1")),
    ("nested", json.dumps(ORDER)[:-1].encode() + b', "note": ' + b"[" * 65 + b"]" * 65 + b"}"),
    ("nested", b"[" * 400_000),
]
INVALID_BODIES = [
    *INVALID_TEXTS,
    *((member, json.dumps(ORDER | {member: value}).encode()) for member, value in INVALID_MEMBERS),
    *(
        (left_out, json.dumps({m: v for m, v in ORDER.items() if m != left_out}).encode())
        for left_out in list(ORDER)[:4]
    ),
]


def test_an_invalid_body_is_refused_by_name_and_leaves_the_key_free(
    sandbox: SandboxProcess, client: httpx.Client
) -> None:
    for named, text in INVALID_BODIES:
        refused = send(client, "k", text)
        assert error(refused) == (400, "invalid_request"), text[:200]
        assert named in refused.json()["error"]["message"], text[:200]
    assert sandbox.payments() == []
    assert not was_replayed(pay(client, "k"))
    assert len(sandbox.payments()) == 1


def test_a_body_over_one_megabyte_is_refused_with_an_answer(sandbox: SandboxProcess, client: httpx.Client) -> None:
    assert pay(client, "k", note="x" * 990_000).status_code == 201
    assert error(pay(client, "l", note="x" * 1_000_000)) == (413, "body_too_large")
    assert error(pay(client, "l", note="x" * 20_000_000)) == (413, "body_too_large")
    assert len(sandbox.payments()) == 1


def body_of(call: dict[str, Any]) -> str:
    """The call's payload as it is written, with the members that this provider obliges put behind its own."""
    text = call.get("payload_text") or json.dumps(call["payload"])
    amount = json.loads(text).get("amount", "1.00")
    in_minor = int(amount.replace(".", "")) if re.fullmatch(r"\d+\.\d\d", amount) else amount
    obliged = {"amount_minor": in_minor, "payee": "acct", "reference": call["key"].split(":")[0] or "none"}
    if '"currency"' not in text:
        obliged["currency"] = "USD"
    return text.rstrip().removesuffix("}") + ", " + json.dumps(obliged)[1:]


EXPECTED = {"executed": (201, False), "replayed": (201, True), "invalid": (400, False), "refused": (400, False)}
EXPECTED |= {"failed E1": (402, False), "saved error E1": (402, True)}
CONFLICT = {"ietf": (422, False), "stripe": (400, False)}
CONFLICT_TYPES = {"idempotency_key_reused", "idempotency_error"}


@pytest.mark.parametrize("profile", CONFLICT)
@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda sequence: sequence["id"])
def test_the_idempotency_sequences_hold(tmp_path: Path, profile: str, sequence: dict[str, Any]) -> None:
    expected = {"refused: key used": CONFLICT[profile]} | EXPECTED
    first_answers: dict[str, bytes] = {}
    told: Counter[str] = Counter()
    process = SandboxProcess(tmp_path / "store", profile=profile)
    with process as sandbox, httpx.Client(base_url=sandbox.url, timeout=30) as client:
        for call in sequence["calls"]:
            if "permanent error" in call.get("tool_result", ""):
                sandbox.script("402_stored")
            key = re.sub(r"<(\d+) characters>", lambda length: "k" * int(length[1]), call["key"])
            response = send(client, key, body_of(call))
            outcome = next(expected[start] for start in expected if call["expect"].startswith(start))
            assert (response.status_code, was_replayed(response)) == outcome, call["expect"]
            if response.status_code in (201, 402):
                assert first_answers.setdefault(key, response.content) == response.content
            told[response.json().get("error", {}).get("type", "paid")] += 1
            assert len(sandbox.payments()) == call.get("effects", len(sandbox.payments()))

        assert len(sandbox.payments()) == sequence.get("effects", len(first_answers))
        executed = sum(line["status"] in (201, 402) and not line["replayed"] for line in sandbox.requests())
        assert executed == sequence.get("tool_calls", executed)
        counted = {
            "key replays": sum(line["replayed"] for line in sandbox.requests()),
            "replays with a different payload": sum(told[kind] for kind in CONFLICT_TYPES),
        }
    assert {name: counted[name] for name in sequence.get("metrics", {})} == sequence.get("metrics", {})


def test_twenty_requests_at_once_with_one_key_make_one_payment(sandbox: SandboxProcess, client: httpx.Client) -> None:
    together = threading.Barrier(20)

    def pay_together(_: int) -> httpx.Response:
        with httpx.Client(base_url=sandbox.url, timeout=30) as own_connection:
            together.wait()
            return pay(own_connection, "k")

    with ThreadPoolExecutor(20) as pool:
        responses = list(pool.map(pay_together, range(20)))

    kinds = Counter((response.status_code, was_replayed(response)) for response in responses)
    assert kinds[201, False] == 1
    assert kinds[201, True] + kinds[409, False] == 19
    assert len({response.content for response in responses if response.status_code == 201}) == 1
    assert len(sandbox.payments()) == 1


def test_many_keys_in_parallel_each_make_their_payment(sandbox: SandboxProcess, client: httpx.Client) -> None:
    with ThreadPoolExecutor(10) as pool:
        responses = list(pool.map(lambda i: pay(client, f"claim-{i}:step6", amount_minor=i + 1), range(200)))

    assert {response.status_code for response in responses} == {201}
    lines = sandbox.payments()
    assert [line["n"] for line in lines] == list(range(1, 201))
    assert {line["key"]: line["amount_minor"] for line in lines} == {f"claim-{i}:step6": i + 1 for i in range(200)}
    assert {line["payment"] for line in lines} == {response.json()["payment"] for response in responses}


def test_payments_are_found_by_reference_by_key_and_by_id(sandbox: SandboxProcess, client: httpx.Client) -> None:
    made = [pay(client, f"k{i}", reference=f"r{i % 2}", note=i).json() for i in range(4)]

    def found(**filters: str) -> list[str]:
        answer = client.get("/payments", params=filters).json()
        assert answer["next"] is None
        return [payment["payment"] for payment in answer["payments"]]

    assert found() == [payment["payment"] for payment in made]
    assert found(reference="r1") == [made[1]["payment"], made[3]["payment"]]
    assert found(key="k2") == [made[2]["payment"]]
    assert found(reference="r0", key="k1") == found(reference="r") == found(reference="") == []
    one = client.get(f"/payments/{made[3]['payment']}").json()
    assert one.items() >= {**made[3], "key": "k3"}.items()
    assert one["request"] == {**ORDER, "reference": "r1", "note": 3}
    assert error(client.get("/payments/pay_none")) == (404, "not_found")


def test_payments_are_listed_in_pages_in_the_order_they_were_made(
    sandbox: SandboxProcess, client: httpx.Client
) -> None:
    made = [pay(client, f"k{i}").json()["payment"] for i in range(5)]
    pages, parameters = [], {"limit": "2"}
    while parameters:
        answer = client.get("/payments", params=parameters).json()
        pages.append([payment["payment"] for payment in answer["payments"]])
        parameters = {"limit": "2", "after": answer["next"]} if answer["next"] else {}
    assert pages == [made[:2], made[2:4], made[4:]]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "after=pay_none", "refrence=r", "key=a&key=b", "key=%ff"]
)
def test_a_query_that_cannot_be_meant_is_refused_instead_of_matching_everything(
    client: httpx.Client, query: str
) -> None:
    assert error(client.get(f"/payments?{query}")) == (400, "invalid_request")


def test_a_fault_inside_is_told_in_json_without_a_trace_and_takes_no_key(
    sandbox: SandboxProcess, client: httpx.Client
) -> None:
    database = sqlite3.connect(sandbox.store / "sandbox.sqlite3", timeout=10)
    database.execute("ALTER TABLE payments RENAME TO hidden")
    failed = pay(client, "k")
    assert error(failed) == (500, "internal_error")
    assert "sqlite" not in failed.text.lower()
    assert "Traceback" in sandbox.stderr()
    database.execute("ALTER TABLE hidden RENAME TO payments")
    database.close()
    assert (pay(client, "k").status_code, len(sandbox.payments())) == (201, 1)


def test_every_answer_is_in_the_request_log(sandbox: SandboxProcess, client: httpx.Client) -> None:
    pay(client, "k")
    pay(client, '"k"')
    pay(client, "k", amount_minor=1)
    client.get("/payments?key=k")
    logged = [(r["method"], r["path"], r["key"], r["status"], r["replayed"]) for r in sandbox.requests()]
    assert logged == [
        ("POST", "/payments", "k", 201, False),
        ("POST", "/payments", "k", 201, True),
        ("POST", "/payments", "k", 422, False),
        ("GET", "/payments?key=k", None, 200, False),
    ]
