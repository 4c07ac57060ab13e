"""The unmodified `stripe` library against the sandbox: create, replay, conflict, list, errors, saved failures."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sandbox_process import SandboxProcess, pay

stripe = pytest.importorskip("stripe", reason="the stripe library is not installed (pip install '.[stripe]')")

SECRET = "sk_test_sandbox"
ASKED = {"amount": 184_000, "currency": "usd", "destination": "acct_0042", "transfer_group": "claim-0042:step6"}
ASKED |= {"description": "Flood claim 0042 § Ännchen", "metadata": {"reference": "claim-0042", "note": "a=b&c[d]"}}


@pytest.fixture(params=["stripe", "ietf"])
def sandbox(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SandboxProcess]:
    """Stripe's manner, and the sandbox's default: what the library sees is Stripe's API all the same."""
    with SandboxProcess(tmp_path / "store", profile=request.param) as process:
        yield process


def connected(sandbox: SandboxProcess, secret: str = SECRET) -> Any:
    """The library's transfers, sending each request once."""
    client = stripe.StripeClient(
        secret,
        base_addresses={"api": sandbox.url},
        max_network_retries=0,
        http_client=stripe.RequestsClient(timeout=30),
    )
    return getattr(client, "v1", client).transfers


@pytest.fixture
def transfers(sandbox: SandboxProcess, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(stripe, "enable_telemetry", False)
    return connected(sandbox)


def create(transfers: Any, key: str = "k", **changed: Any) -> Any:
    return transfers.create(params=ASKED | changed, options={"idempotency_key": key})


def refused(kind: type[Exception], transfers: Any, key: str = "k", **changed: Any) -> Any:
    """Status, type, code and parameter of the error object that the library raises."""
    with pytest.raises(kind) as raised:
        create(transfers, key, **changed)
    error = raised.value.json_body["error"]
    assert error["message"]
    assert raised.value.request_id.startswith("req_")
    return raised.value.http_status, error["type"], error.get("code"), error.get("param")


def headers(thing: Any) -> Any:
    return thing.last_response.headers


def test_a_transfer_is_created_as_asked_and_is_a_payment_like_any_other(
    sandbox: SandboxProcess, transfers: Any
) -> None:
    made = create(transfers)
    assert made.last_response.data.items() >= ASKED.items()
    assert (made.object, made.reversed, made.livemode) == ("transfer", False, False)
    assert made.id.startswith("tr_")
    assert headers(made)["Request-Id"].startswith("req_")
    assert headers(made)["Idempotency-Key"] == "k"
    (line,) = sandbox.payments()
    assert (line["payment"], line["key"], line["amount_minor"], line["currency"], line["payee"]) == (
        made.id,
        "k",
        184_000,
        "USD",
        "acct_0042",
    )
    (listed,) = httpx.get(f"{sandbox.url}/payments?reference=claim-0042").json()["payments"]
    assert listed["payment"] == made.id
    assert transfers.retrieve(made.id).created == made.created


def test_a_repeat_is_told_the_first_answer_and_says_so(sandbox: SandboxProcess, transfers: Any) -> None:
    first, again = create(transfers), create(transfers)
    assert again.last_response.body == first.last_response.body
    assert "Idempotent-Replayed" not in headers(first)
    assert headers(again)["Idempotent-Replayed"] == "true"
    assert headers(again)["Request-Id"] != headers(first)["Request-Id"]
    assert len(sandbox.payments()) == 1


def test_other_parameters_under_a_used_key_are_an_idempotency_error(sandbox: SandboxProcess, transfers: Any) -> None:
    first = create(transfers)
    for changed in ({"amount": 1}, {"metadata": {"reference": "other"}}, {"destination": "acct_0043"}):
        assert refused(stripe.IdempotencyError, transfers, **changed) == (400, "idempotency_error", None, None)
    pay(httpx.Client(base_url=sandbox.url), "own")
    assert refused(stripe.IdempotencyError, transfers, "own")[1] == "idempotency_error"
    assert create(transfers).id == first.id
    assert len(sandbox.payments()) == 2


@pytest.mark.parametrize(
    ("changed", "code", "param"),
    [
        ({"amount": "1.5"}, "parameter_invalid_integer", "amount"),
        ({"amount": 0}, "parameter_invalid_integer", "amount"),
        ({"amount": 2**53}, "parameter_invalid_integer", "amount"),
        ({"amount": {"value": "1"}}, "parameter_invalid", "amount"),
        ({"currency": "us"}, "parameter_invalid", "currency"),
        ({"destination": ""}, "parameter_missing", "destination"),
        ({"destinaton": "acct"}, "parameter_unknown", "destinaton"),
        ({"metadata": {"k" * 41: "v"}}, "parameter_invalid", "metadata"),
        ({"metadata": {"k": "v" * 501}}, "parameter_invalid", "metadata"),
        ({"metadata": {f"k{number}": "v" for number in range(51)}}, "parameter_invalid", "metadata"),
        ({"transfer_group": {"a": "b"}}, "parameter_invalid", "transfer_group"),
    ],
    ids=str,
)
def test_invalid_parameters_are_refused_by_name_and_leave_the_key_free(
    sandbox: SandboxProcess, transfers: Any, changed: dict[str, Any], code: str, param: str
) -> None:
    kind = stripe.InvalidRequestError
    assert refused(kind, transfers, **changed) == (400, "invalid_request_error", code, param)
    assert sandbox.payments() == []
    assert "Idempotent-Replayed" not in headers(create(transfers))


def test_without_a_test_key_nothing_is_done(sandbox: SandboxProcess) -> None:
    for secret in ("sk_live_real", "nonsense"):
        with pytest.raises(stripe.AuthenticationError) as raised:
            create(connected(sandbox, secret))
        assert raised.value.http_status == 401
    missing = httpx.post(f"{sandbox.url}/v1/transfers", data={"amount": "1"})
    assert (missing.status_code, missing.json()["error"]["type"]) == (401, "invalid_request_error")
    assert sandbox.payments() == []
    assert "sk_live_real" not in (sandbox.store / "requests.jsonl").read_text()


def test_unknown_objects_and_addresses_are_error_objects(sandbox: SandboxProcess, transfers: Any) -> None:
    with pytest.raises(stripe.InvalidRequestError) as raised:
        transfers.retrieve("tr_none")
    assert (raised.value.http_status, raised.value.code) == (404, "resource_missing")
    elsewhere = httpx.get(f"{sandbox.url}/v1/charges", headers={"Authorization": f"Bearer {SECRET}"})
    assert (elsewhere.status_code, elsewhere.json()["error"]["type"]) == (404, "invalid_request_error")


def test_transfers_are_listed_newest_first_in_pages(sandbox: SandboxProcess, transfers: Any) -> None:
    made = [create(transfers, f"k{number}", amount=number + 1).id for number in range(5)]
    page = transfers.list(params={"limit": 2})
    assert ([transfer.id for transfer in page.data], page.has_more) == ([made[4], made[3]], True)
    following = transfers.list(params={"limit": 3, "starting_after": made[3]})
    assert ([transfer.id for transfer in following.data], following.has_more) == ([made[2], made[1], made[0]], False)
    assert [transfer.id for transfer in page.auto_paging_iter()] == made[::-1]


def test_transfers_are_found_by_group_payee_and_time(sandbox: SandboxProcess, transfers: Any) -> None:
    made = []
    for number in range(4):
        made.append(create(transfers, f"k{number}", transfer_group=f"g{number % 2}", destination=f"acct_{number}"))
        sandbox.advance(100)

    def found(**params: Any) -> list[int]:
        ids = [transfer.id for transfer in made]
        return sorted(ids.index(transfer.id) for transfer in transfers.list(params=params).data)

    assert found(transfer_group="g1") == [1, 3]
    assert found(transfer_group="g1", destination="acct_3") == [3]
    assert found(created={"gte": made[1].created, "lt": made[3].created}) == [1, 2]
    assert found(created={"gt": made[1].created, "lte": made[3].created}) == [2, 3]
    assert found(created=made[2].created) == [2]
    assert found(transfer_group="g") == []


@pytest.mark.parametrize("params", [{"limit": 0}, {"limit": 101}, {"status": "paid"}, {"starting_after": "tr_none"}])
def test_a_list_that_cannot_be_meant_is_refused(transfers: Any, params: dict[str, Any]) -> None:
    with pytest.raises(stripe.InvalidRequestError):
        transfers.list(params=params)


def test_what_was_paid_elsewhere_is_listed_too(sandbox: SandboxProcess, transfers: Any) -> None:
    own = pay(httpx.Client(base_url=sandbox.url), "own").json()
    (listed,) = transfers.list().data
    assert (listed.id, listed.amount, listed.currency) == (own["payment"], own["amount_minor"], "usd")


def test_a_500_is_saved_and_told_again(sandbox: SandboxProcess, transfers: Any) -> None:
    sandbox.script("500_stored")
    assert refused(stripe.APIError, transfers) == (500, "api_error", None, None)
    with pytest.raises(stripe.APIError) as again:
        create(transfers)
    assert (again.value.http_status, again.value.headers["Idempotent-Replayed"]) == (500, "true")
    assert again.value.headers["Stripe-Should-Retry"] == "false"
    sandbox.advance(24 * 3600)
    assert create(transfers).amount == 184_000
    assert len(sandbox.payments()) == 1


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        ("409", "APIError", (409, "invalid_request_error", "idempotency_key_in_use", None)),
        ("429", "RateLimitError", (429, "invalid_request_error", "rate_limit", None)),
        ("500", "APIError", (500, "api_error", None, None)),
        ("402_stored", "InvalidRequestError", (400, "invalid_request_error", "balance_insufficient", None)),
    ],
)
def test_faults_are_told_in_stripes_words(
    sandbox: SandboxProcess, transfers: Any, fault: str, kind: str, told: tuple[object, ...]
) -> None:
    sandbox.script(fault)
    assert refused(getattr(stripe, kind), transfers) == told
    assert sandbox.payments() == []


def test_the_librarys_own_retry_after_a_lost_answer_pays_once(sandbox: SandboxProcess, transfers: Any) -> None:
    for fault in ("lost_answer", "409"):
        sandbox.script(fault)
        options = {"idempotency_key": fault, "max_network_retries": 2}
        assert transfers.create(params=ASKED, options=options).amount == 184_000
    assert [line["key"] for line in sandbox.payments()] == ["lost_answer", "409"]


@pytest.mark.parametrize(("fault", "kind"), [("garbage", "APIError"), ("reset", "APIConnectionError")])
def test_what_cannot_be_read_is_an_error_of_the_library(
    sandbox: SandboxProcess, transfers: Any, fault: str, kind: str
) -> None:
    sandbox.script(fault)
    with pytest.raises(getattr(stripe, kind)):
        create(transfers)
    sandbox.script("other_amount")
    assert create(transfers).amount == 184_001


def test_transfers_and_their_answers_outlive_a_kill_and_a_lost_index(sandbox: SandboxProcess, transfers: Any) -> None:
    first = create(transfers)
    sandbox.kill()
    for file in sandbox.store.glob("sandbox.sqlite3*"):
        file.unlink()
    sandbox.restart()
    assert create(transfers).last_response.body == first.last_response.body
    assert [transfer.id for transfer in transfers.list(params={"transfer_group": ASKED["transfer_group"]}).data] == [
        first.id
    ]
