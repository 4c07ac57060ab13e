"""What each profile of the sandbox makes of idempotency keys, and how long by its clock it remembers them."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from sandbox_process import ORDER, SandboxDidNotStart, SandboxProcess, error, pay, wait_until

HONOURS_KEYS = ["ietf", "stripe", "success_only", "lax"]
COMPARES = {"ietf": (422, "idempotency_key_reused"), "stripe": (400, "idempotency_error")}
COMPARES |= {"success_only": (422, "idempotency_key_reused")}
DAY = 24 * 3600


@contextmanager
def provider(folder: Path, profile: str, **options: float) -> Iterator[tuple[SandboxProcess, httpx.Client]]:
    with SandboxProcess(folder / "store", profile=profile, **options) as sandbox:
        with httpx.Client(base_url=sandbox.url, timeout=30) as client:
            yield sandbox, client


def told(response: httpx.Response) -> tuple[int, bool]:
    """The status, and whether it was said to be the saved answer."""
    return response.status_code, response.headers.get("Idempotent-Replayed") == "true"


@pytest.mark.parametrize("profile", HONOURS_KEYS)
def test_a_key_pays_once_and_gets_its_first_answer_again(tmp_path: Path, profile: str) -> None:
    with provider(tmp_path, profile) as (sandbox, client):
        first, again = pay(client, "k"), pay(client, "k")
        assert (told(first), told(again)) == ((201, False), (201, True))
        assert again.content == first.content
        assert len(sandbox.payments()) == 1


@pytest.mark.parametrize("profile", COMPARES)
def test_another_body_under_a_used_key_is_refused_and_the_first_answer_stands(tmp_path: Path, profile: str) -> None:
    with provider(tmp_path, profile) as (sandbox, client):
        first = pay(client, "k")
        assert error(pay(client, "k", amount_minor=1)) == COMPARES[profile]
        assert pay(client, "k").content == first.content
        assert len(sandbox.payments()) == 1


def test_lax_does_not_look_at_the_body(tmp_path: Path) -> None:
    with provider(tmp_path, "lax") as (sandbox, client):
        first, other = pay(client, "k"), pay(client, "k", amount_minor=1, payee="somebody else")
        assert (told(other), other.content) == ((201, True), first.content)
        sandbox.script("500_stored")
        failed, other = pay(client, "l"), pay(client, "l", amount_minor=1)
        assert (told(other), other.content) == ((500, True), failed.content)
        assert [line["key"] for line in sandbox.payments()] == ["k"]


def test_without_keys_every_request_pays_with_a_key_or_none(tmp_path: Path) -> None:
    with provider(tmp_path, "none") as (sandbox, client):
        answers = [pay(client, "k"), pay(client, "k"), pay(client, "k", amount_minor=1), pay(client, "k" * 256)]
        answers.append(client.post("/payments", json=ORDER))
        assert [told(answer) for answer in answers] == [(201, False)] * 5
        assert len({answer.json()["payment"] for answer in answers}) == 5
        assert [line["key"] for line in sandbox.payments()] == ["k", "k", "k", None, None]
        sandbox.restart()
        assert len(client.get("/payments?key=k").json()["payments"]) == 3


@pytest.mark.parametrize("fault", ["500_stored", "402_stored"])
@pytest.mark.parametrize("profile", ["ietf", "stripe", "lax"])
def test_a_failure_after_execution_began_is_saved_and_outlives_a_kill(tmp_path: Path, profile: str, fault: str) -> None:
    with provider(tmp_path, profile) as (sandbox, client):
        sandbox.script(fault)
        first = pay(client, "k")
        assert told(first) == (int(fault[:3]), False)
        sandbox.restart()
        again = pay(client, "k")
        assert (told(again), again.content) == ((int(fault[:3]), True), first.content)
        assert sandbox.payments() == []


@pytest.mark.parametrize("profile", ["ietf", "stripe"])
def test_a_saved_failure_is_compared_with_what_is_asked_like_any_answer(tmp_path: Path, profile: str) -> None:
    with provider(tmp_path, profile) as (sandbox, client):
        sandbox.script("500_stored")
        pay(client, "k")
        assert error(pay(client, "k", amount_minor=1)) == COMPARES[profile]
        assert told(pay(client, "k")) == (500, True)


@pytest.mark.parametrize("fault", ["500_stored", "402_stored"])
@pytest.mark.parametrize("profile", ["success_only", "none"])
def test_where_failures_are_not_saved_the_request_is_attempted_again(tmp_path: Path, profile: str, fault: str) -> None:
    with provider(tmp_path, profile) as (sandbox, client):
        sandbox.script(fault)
        assert told(pay(client, "k")) == (int(fault[:3]), False)
        assert told(pay(client, "k")) == (201, False)
        assert len(sandbox.payments()) == 1


@pytest.mark.parametrize("profile", HONOURS_KEYS)
def test_nothing_is_saved_for_an_invalid_request_or_a_conflict(tmp_path: Path, profile: str) -> None:
    with provider(tmp_path, profile) as (sandbox, client):
        assert error(pay(client, "k", amount_minor=0)) == (400, "invalid_request")
        sandbox.script("409")
        assert error(pay(client, "k")) == (409, "in_progress")
        assert told(pay(client, "k", amount_minor=7)) == (201, False)
        assert [line["amount_minor"] for line in sandbox.payments()] == [7]


@pytest.mark.parametrize("profile", HONOURS_KEYS)
def test_a_key_stands_for_a_day_by_the_sandboxs_clock_and_then_for_a_new_request(tmp_path: Path, profile: str) -> None:
    with provider(tmp_path, profile) as (sandbox, client):
        first = pay(client, "k")
        sandbox.advance(DAY - 600)
        assert told(pay(client, "k")) == (201, True)
        sandbox.advance(600)
        other = pay(client, "k", amount_minor=1)
        assert told(other) == (201, False)
        assert other.json()["payment"] != first.json()["payment"]
        assert told(pay(client, "k", amount_minor=1)) == (201, True)
        assert [line["key"] for line in sandbox.payments()] == ["k", "k"]
        assert len(client.get("/payments?key=k").json()["payments"]) == 2


def test_a_saved_failure_is_forgotten_with_its_key(tmp_path: Path) -> None:
    with provider(tmp_path, "stripe") as (sandbox, client):
        sandbox.script("500_stored")
        pay(client, "k")
        sandbox.advance(DAY)
        assert told(pay(client, "k")) == (201, False)
        assert told(pay(client, "k")) == (201, True)


def test_the_clock_stays_moved_after_a_kill_and_dates_what_is_made(tmp_path: Path) -> None:
    with provider(tmp_path, "ietf") as (sandbox, client):
        before = pay(client, "k").json()["created_at"]
        sandbox.advance(2 * DAY)
        sandbox.advance(0.5)
        sandbox.restart()
        clock = client.get("/clock").json()
        after = pay(client, "k").json()["created_at"]
        assert clock["ahead_seconds"] == 2 * DAY + 0.5
        assert before[:10] < after[:10] == clock["now"][:10]


@pytest.mark.parametrize("step", [{}, {"advance_seconds": -1}, {"advance_seconds": True}, {"advance_seconds": 1e12}])
def test_the_clock_moves_forward_only(tmp_path: Path, step: dict[str, float]) -> None:
    with provider(tmp_path, "ietf") as (_, client):
        assert error(client.post("/clock", json=step)) == (400, "invalid_request")
        assert client.get("/clock").json()["ahead_seconds"] == 0


def test_payments_are_listed_from_one_instant_to_before_another_in_pages(tmp_path: Path) -> None:
    with provider(tmp_path, "ietf") as (sandbox, client):
        made = []
        for number in range(5):
            made.append(pay(client, f"k{number}", reference=f"r{number}", amount_minor=number + 1).json())
            sandbox.advance(3600)
        period = {"from": made[1]["created_at"], "to": made[4]["created_at"], "limit": "2"}
        first = client.get("/payments", params=period).json()
        second = client.get("/payments", params=period | {"after": first["next"]}).json()

        listed = first["payments"] + second["payments"]
        assert (len(first["payments"]), second["next"]) == (2, None)
        columns = ("key", "reference", "amount_minor", "currency", "created_at")
        assert [tuple(payment[name] for name in columns) for payment in listed] == [
            (f"k{number}", f"r{number}", number + 1, "USD", made[number]["created_at"]) for number in (1, 2, 3)
        ]


@pytest.mark.parametrize("moment", ["yesterday", "2026-11-28T09:14:00", "0001-01-01T00:00:00+14:00", ""])
def test_a_period_that_is_not_told_exactly_is_refused(tmp_path: Path, moment: str) -> None:
    with provider(tmp_path, "ietf") as (_, client):
        assert error(client.get("/payments", params={"from": moment})) == (400, "invalid_request")


def test_a_ticket_is_found_after_its_delay_and_every_request_opens_one(tmp_path: Path) -> None:
    wish = {"reference": "claim-1", "subject": "Inspect", "text": "Second visit"}

    def found() -> list[str]:
        return [ticket["ticket"] for ticket in client.get("/tickets?reference=claim-1").json()["tickets"]]

    with provider(tmp_path, "ietf", ticket_delay=600) as (sandbox, client):
        opened = [client.post("/tickets", json=wish, headers={"Idempotency-Key": "k"}).json() for _ in range(2)]
        client.post("/tickets", json=wish | {"reference": "claim-2"})
        assert found() == []
        sandbox.advance(300)
        assert found() == []
        sandbox.restart()
        sandbox.advance(300)
        wait_until(lambda: len(found()) == 2)
        assert found() == [ticket["ticket"] for ticket in opened]
        assert sandbox.tickets()[:2] == opened
        assert [(line["n"], line["kind"], line["subject"]) for line in opened] == [
            (1, "ticket", "Inspect"),
            (2, "ticket", "Inspect"),
        ]
        assert len(sandbox.tickets()) == 3


def test_a_ticket_needs_its_three_texts_and_a_search_its_reference(tmp_path: Path) -> None:
    with provider(tmp_path, "ietf") as (sandbox, client):
        assert error(client.post("/tickets", json={"reference": "r", "subject": "s"})) == (400, "invalid_request")
        assert error(client.get("/tickets")) == (400, "invalid_request")
        assert sandbox.tickets() == []


def test_tickets_that_were_altered_are_not_served(tmp_path: Path) -> None:
    with provider(tmp_path, "ietf") as (sandbox, client):
        client.post("/tickets", json={"reference": "r", "subject": "s", "text": "t"})
        sandbox.kill()
        tickets = sandbox.store / "tickets.jsonl"
        tickets.write_text(tickets.read_text().replace('"n": 1', '"n": 2'))
        with pytest.raises(SandboxDidNotStart, match=r"cannot be trusted: line 1 of tickets\.jsonl"):
            sandbox.start()


def test_a_store_of_an_earlier_version_is_indexed_anew(tmp_path: Path) -> None:
    with provider(tmp_path, "ietf") as (sandbox, client):
        first = pay(client, "k")
        sandbox.stop()
        database = sqlite3.connect(sandbox.store / "sandbox.sqlite3")
        database.executescript(
            "DROP TABLE payments; CREATE TABLE payments (n INTEGER PRIMARY KEY, payment TEXT NOT NULL UNIQUE,"
            " key TEXT NOT NULL UNIQUE, reference TEXT NOT NULL, line TEXT NOT NULL); PRAGMA user_version = 0"
        )
        line = (sandbox.store / "journal.jsonl").read_text().strip()
        values = (1, json.loads(line)["payment"], "k", "r", line)
        database.execute("INSERT INTO payments VALUES (?, ?, ?, ?, ?)", values)
        database.commit()
        database.close()
        sandbox.start()
        assert pay(client, "k").content == first.content
        assert len(sandbox.payments()) == 1
