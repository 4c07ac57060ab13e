"""Propose otherwise, at the page: a field for each argument by its type, what is typed read exactly, a preview, and
only then a signature."""

import json
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from html import unescape
from typing import Any, Literal

import pydantic
import pytest
from browsing import Inline, browser, text
from stage import Stage, fresh, press, question, tamper

from approvals.argument_fields import ArgumentsForm
from approvals.gate import ask
from approvals.models import Approval, Authority, Decision, LedgerEntry, StatementTemplate
from approvals.testing import answer
from runs import tools
from runs.money import minor_units
from runs.testing import drain, move_clock
from runs.tools import tool


class Line(pydantic.BaseModel):
    net: int
    what: str


class Method(Enum):
    WIRE = "wire"
    CHEQUE = "cheque"


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


@pytest.fixture
def approval(stage):
    stage.asks_then_pays()
    return stage.asked("claim-0042")


@pytest.fixture
def ada(people):
    return browser(people.adjuster)


def address(approval):
    return f"/approvals/{approval.pk}/edit/"


def fields(page):
    """What the page's form would send as it stands, by the names of its controls."""
    html = page.content.decode() if hasattr(page, "content") else page
    form = html.split("<main")[1].split('<form class="panel-body"')[1].split("</form>")[0]
    found = dict(re.findall(r'<input(?=[^>]*name="([^"]+)")[^>]*value="([^"]*)"', form))
    found |= dict(re.findall(r'<textarea[^>]*name="([^"]+)"[^>]*>\n?([^<]*)</textarea>', form))
    for name, options in re.findall(r'<select[^>]*name="([^"]+)"[^>]*>(.*?)</select>', form):
        found[name] = re.search(r'value="([^"]*)" selected', options)[1]
    return {name: unescape(value) for name, value in found.items() if name != "csrfmiddlewaretoken"}


def preview(client, approval, comment="the roof was counted twice", **typed):
    sent = fields(client.get(address(approval))) | {f"argument-{name}": value for name, value in typed.items()}
    return client.post(address(approval), sent | {"comment": comment})


def sign(client, approval, page, **changes):
    return client.post(address(approval), fields(page) | {"act": "sign"} | changes)


# From the form to the signed proposal


def test_what_is_typed_is_shown_as_a_difference_then_signed_and_exactly_it_is_paid(stage, approval, ada, people):
    shown = preview(ada, approval, amount_minor="1,500.00")
    assert shown.status_code == 200
    assert "Amount $1,840.00 $1,500.00 ~ Changed" in text(shown)
    assert "Payee" not in text(shown).split("What would change")[1].split("What others will be asked")[0]
    assert "Sign and propose $1,500.00" in text(shown)
    assert not Decision.objects.exists()
    signed = sign(ada, approval, shown)
    assert signed.status_code == 303
    second = question(approval.run)
    assert (second.version, second.amount_minor, second.edited_by) == (2, 150_000, people.adjuster)
    assert second.payload_digest in shown.content.decode()
    press(second, people.second_adjuster)
    drain()
    assert [sent["amount_minor"] for _, sent in stage.receiver.received] == [150_000]


def test_each_argument_has_its_own_labelled_field_with_what_is_asked_now(approval, ada):
    page = ada.get(address(approval))
    html = page.content.decode()
    for name, label in (("amount_minor", "Amount"), ("currency", "Currency"), ("payee", "Payee"), ("claim", "Claim")):
        assert re.search(rf'<label for="id_argument-{name}">{label}', html)
        assert f'id="id_argument-{name}" name="argument-{name}"' in html
    sent = fields(page)
    assert (sent["argument-amount_minor"], sent["argument-currency"]) == ("1,840.00", "USD")
    assert Inline(html).found == []
    assert 'href="/approvals/' in ada.get(f"/approvals/{approval.pk}/").content.decode()


def test_changing_it_once_more_begins_with_what_was_previewed(approval, ada):
    shown = preview(ada, approval, amount_minor="1500", payee="p-9")
    again = ada.post(address(approval), fields(shown) | {"act": "change"})
    kept = fields(again)
    assert (kept["argument-amount_minor"], kept["argument-payee"]) == ("1,500.00", "p-9")
    assert kept["comment"] == "the roof was counted twice"


def test_what_was_previewed_in_another_currency_is_spelled_in_it(approval, ada):
    shown = preview(ada, approval, amount_minor="1500", currency="JPY")
    assert "1,500 JPY" in text(shown)
    again = fields(ada.post(address(approval), fields(shown) | {"act": "change"}))
    assert (again["argument-amount_minor"], again["argument-currency"]) == ("1,500", "JPY")
    sign(ada, approval, shown)
    assert question(approval.run).amount_minor == 1500


@pytest.mark.parametrize(
    ("typed", "label", "sentence"),
    [
        ({"amount_minor": "1500.5"}, "Amount", "Write an amount of USD such as 1,840.00."),
        ({"amount_minor": "15,00"}, "Amount", "such as 1,840.00"),
        ({"amount_minor": "1.5e3"}, "Amount", "such as 1,840.00"),
        ({"amount_minor": "-5"}, "Amount", "not below zero"),
        ({"amount_minor": ""}, "Amount", "such as 1,840.00"),
        ({"amount_minor": "90071992547409.92"}, "Amount", "largest number that can be signed"),
        ({"amount_minor": "9" * 5000}, "Amount", "such as 1,840.00"),
        ({"amount_minor": "1,500.00", "currency": "JPY"}, "Amount", "Write an amount of JPY such as 1,840."),
        ({"currency": "usd"}, "Currency", "three capital letters"),
        ({"currency": "DOLLARS"}, "Currency", "three capital letters"),
        ({"payee": "a\0b"}, "Payee", "Null characters"),
        ({}, "", "asked already"),
    ],
)
def test_what_cannot_be_is_refused_beside_its_field_and_what_was_typed_stays(approval, ada, typed, label, sentence):
    refused = preview(ada, approval, **typed)
    assert refused.status_code == 422
    html = refused.content.decode()
    assert "<title>Error:" in html
    assert text(refused).count(sentence) == (2 if label else 1)
    if label:
        name = {"Amount": "amount_minor"}.get(label, label.lower())
        assert f'href="#id_argument-{name}"' in html
        assert re.search(rf'id="id_argument-{name}-error-1"', html)
        assert re.search(rf'name="argument-{name}"[^>]*aria-invalid="true" aria-describedby="[^"]*error-1"', html)
    for name, value in typed.items():
        assert fields(refused)[f"argument-{name}"] == value
    assert fields(refused)["comment"] == "the roof was counted twice"
    assert not Decision.objects.exists()


def test_a_proposal_needs_a_reason_and_both_faults_are_told_at_once(approval, ada):
    refused = preview(ada, approval, comment=" ", amount_minor="x")
    assert refused.status_code == 422
    assert "Say why you propose something else" in text(refused)
    assert "Write an amount of USD" in text(refused)


# Types


@pytest.fixture
def typed_approval(stage):
    """Asked with one argument of each shape."""

    @tool("test.typed", effect=True, requires_approval=True, statement="Settle {claim} on {day}")
    def settle(
        *,
        idempotency_key: str,
        claim: str,
        count: int,
        day: date,
        at: datetime,
        urgent: bool,
        method: Method,
        kind: Literal["building", "contents"],
        lines: list[Line],
        rate: Decimal,
        limit_minor: int | None = None,
        note: str | None = None,
    ) -> dict[str, Any]:
        return stage.receiver(idempotency_key, {"claim": claim})

    @stage.flow.step
    def approve(ctx):
        action = settle.proposed(
            claim="c-1 ", count=3, day=date(2026, 3, 29), at=datetime(2026, 3, 29, 0, 30, tzinfo=UTC), urgent=False,
            method=Method.WIRE, kind="building", lines=[Line(net=5, what="a\u202eb")], rate=Decimal("1.50"),
            note=ctx.input.get("note"),
        )  # fmt: skip
        return ask(action, groups=["adjusters"], expires_in=timedelta(days=1))

    return stage.asked("run-1", note="one\ntwo  ")


def arguments(approval):
    return json.loads(approval.payload)["arguments"]


def test_a_form_left_as_it_is_is_the_very_same_action(typed_approval, ada):
    refused = preview(ada, typed_approval)
    assert refused.status_code == 422
    assert "asked already" in text(refused)


@pytest.mark.parametrize(
    ("typed", "changed"),
    [
        ({"count": "12"}, {"count": 12}),
        ({"count": "-1"}, {"count": -1}),
        ({"day": "2026-10-25"}, {"day": "2026-10-25"}),
        ({"at": "2026-10-25T02:30:00+01:00"}, {"at": "2026-10-25T02:30:00+01:00"}),
        ({"urgent": "true"}, {"urgent": True}),
        ({"method": '"cheque"'}, {"method": "cheque"}),
        ({"kind": '"contents"'}, {"kind": "contents"}),
        ({"lines": '[{"net": 7, "what": "x"}]'}, {"lines": [{"net": 7, "what": "x"}]}),
        ({"rate": '"2.25"'}, {"rate": "2.25"}),
        ({"limit_minor": "7"}, {"limit_minor": 7}),
        ({"note": ""}, {"note": None}),
        ({"note": "one\r\ntwo"}, {"note": "one\ntwo"}),
        ({"claim": " c-2 "}, {"claim": "c-2"}),
    ],
)
def test_each_type_is_read_as_what_it_is_and_nothing_else_changes(typed_approval, ada, typed, changed):
    shown = preview(ada, typed_approval, **typed)
    assert shown.status_code == 200, text(shown)
    assert sign(ada, typed_approval, shown).status_code == 303
    assert arguments(question(typed_approval.run)) == arguments(typed_approval) | changed


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ({"count": "1.0"}, "whole number"),
        ({"count": "1e3"}, "whole number"),
        ({"count": "\u0661"}, "whole number"),
        ({"count": "9007199254740992"}, "largest number"),
        ({"day": "29.03.2026"}, "Say a day"),
        ({"day": "2026-02-30"}, "Say a day"),
        ({"at": "2026-10-25T02:30:00"}, "Say the zone too"),
        ({"at": "tomorrow"}, "Say a day and a time"),
        ({"urgent": "yes"}, "Choose one of these"),
        ({"method": '"cash"'}, "Choose one of these"),
        ({"lines": "[1.5]"}, "Lines[0] is"),
        ({"lines": '[{"net": "seven", "what": "x"}]'}, "0.net: Input should be a valid integer"),
        ({"lines": "[{]"}, "is not JSON"),
        ({"lines": '[{"net": 1, "net": 2, "what": ""}]'}, "twice in one object"),
    ],
)
def test_what_is_not_of_its_type_is_refused_beside_it(typed_approval, ada, typed, sentence):
    refused = preview(ada, typed_approval, **typed)
    assert refused.status_code == 422
    assert text(refused).count(sentence) == 2
    name, value = next(iter(typed.items()))
    assert f'id="id_argument-{name}-error-1"' in refused.content.decode()
    if name not in ("urgent", "method"):
        assert fields(refused)[f"argument-{name}"] == value


def test_only_what_a_field_could_not_show_is_written_as_json(typed_approval):
    form = ArgumentsForm(tools.get("test.typed"), arguments(typed_approval))
    kinds = {name: field.kind for name, field in form.fields.items()}
    assert kinds == {
        "claim": "line", "count": "number", "day": "day", "at": "line", "urgent": "choice", "method": "choice",
        "kind": "choice", "lines": "json", "rate": "json", "limit_minor": "number", "note": "lines",
    }  # fmt: skip
    assert "\\u202e" in form["lines"].value()
    odd = ArgumentsForm(tools.get("test.typed"), arguments(typed_approval) | {"claim": "a\u200bb"})
    assert (odd.fields["claim"].kind, odd["claim"].value()) == ("json", '"a\\u200bb"')


@pytest.mark.parametrize(
    ("typed", "currency", "minor"),
    [
        ("1,840.00", "USD", 184_000),
        ("1840", "USD", 184_000),
        ("0.01", "USD", 1),
        ("1,840", "JPY", 1840),
        ("1.234", "KWD", 1234),
        ("-2.50", "USD", -250),
        ("0.1", "USD", None),
        ("1,84.00", "USD", None),
        ("1 840", "USD", None),
        (".50", "USD", None),
        ("1840.", "USD", None),
        ("1.00", "JPY", None),
        ("\u0661", "USD", None),
        ("$5", "USD", None),
    ],
)
def test_an_amount_is_read_exactly_or_not_at_all(typed, currency, minor):
    if minor is None:
        with pytest.raises(ValueError, match="Write an amount"):
            minor_units(typed, currency)
    else:
        assert minor_units(typed, currency) == minor


# Who, and when


@pytest.mark.parametrize("role", ["ops", "requester", "auditor", "superuser"])
def test_whoever_may_not_decide_is_led_back_and_a_sent_form_is_403_with_the_rule(approval, ada, people, role):
    sent = fields(ada.get(address(approval))) | {"comment": "so", "argument-payee": "me"}
    client = browser(getattr(people, role))
    assert client.get(address(approval))["Location"] == f"/approvals/{approval.pk}/"
    refused = client.post(address(approval), sent)
    assert refused.status_code == 403
    assert "You may not decide this" in text(refused)
    signed = client.post(address(approval), sent | {"act": "sign", "arguments": json.dumps({"amount_minor": 1})})
    assert signed.status_code == 403
    assert not Decision.objects.exists()


def test_strangers_get_404_from_every_step_of_it(approval, people):
    eve = browser(people.stranger)
    assert eve.get(address(approval)).status_code == 404
    for act in ("", "change", "sign"):
        assert eve.post(address(approval), {"act": act, "comment": "x", "arguments": "{}"}).status_code == 404


@pytest.mark.parametrize("act", ["", "sign"])
def test_a_proposal_on_what_was_decided_or_has_expired_says_so_and_changes_nothing(approval, ada, people, act):
    page = preview(ada, approval, amount_minor="1500")
    sent = fields(page) if act else fields(ada.get(address(approval))) | {"comment": "so"}
    answer(approval, people.second_adjuster)
    late = ada.post(address(approval), sent | {"act": act})
    assert late.status_code == 409
    assert "ben approved this" in text(late)
    assert LedgerEntry.objects.count() == 1


def test_after_the_deadline_it_is_410(approval, ada):
    page = preview(ada, approval, amount_minor="1500")
    move_clock(timedelta(days=3, minutes=1))
    assert sign(ada, approval, page).status_code == 410
    assert not Decision.objects.exists()


def test_facts_that_changed_behind_the_preview_are_shown_and_the_proposal_is_kept(stage, approval, ada):
    page = preview(ada, approval, amount_minor="1500")
    stage.facts["claim"] = "disputed"
    changed = sign(ada, approval, page)
    assert changed.status_code == 412
    assert "The facts changed since you saw them" in text(changed)
    assert "disputed" in text(changed)
    assert not Decision.objects.exists()
    assert sign(ada, approval, changed).status_code == 303
    assert question(approval.run).amount_minor == 150_000


def test_the_same_proposal_signed_twice_is_one(approval, ada):
    page = preview(ada, approval, amount_minor="1500")
    first, second = (sign(ada, approval, page) for _ in range(2))
    assert (second.status_code, second["Location"]) == (303, first["Location"])
    assert Approval.objects.count() == 2


@pytest.mark.parametrize("sent", ["{", "[]", "null", '{"amount_minor": 1, "more": 1}', '{"amount_minor": 1.5}'])
def test_arguments_that_a_browser_made_up_are_refused_by_the_tool_all_the_same(approval, ada, sent):
    page = preview(ada, approval, amount_minor="1500")
    assert sign(ada, approval, page, arguments=sent).status_code == 422
    assert not Decision.objects.exists()


def test_a_tool_that_is_gone_leaves_no_form_and_no_error(stage, approval, ada):
    page = preview(ada, approval, amount_minor="1500")
    tools._registry.pop("test.pay")
    assert "This code does not know the tool test.pay" in text(ada.get(f"/approvals/{approval.pk}/"))
    assert ada.get(address(approval)).status_code == 404
    assert sign(ada, approval, page).status_code == 404


def test_words_that_changed_since_the_first_version_are_those_of_the_second(stage, approval, ada, people):
    tools._registry.pop("test.pay")
    stage.tool(requires_approval=True, statement="Send {amount} to {payee}")
    page = preview(ada, approval, amount_minor="1500")
    sign(ada, approval, page)
    second = question(approval.run)
    assert second.statement == "Send 1,500.00 USD to p-1"
    assert second.statement_version == tools.get("test.pay").statement_version != approval.statement_version
    assert StatementTemplate.objects.filter(version=second.statement_version).exists()


def test_without_an_authority_the_form_is_not_reached(approval, ada):
    Authority.objects.update(valid_to=approval.asked_at)
    assert ada.get(address(approval)).status_code == 302


def test_hostile_text_is_text_on_the_form_and_the_preview(approval, ada):
    hostile = "</textarea><script>alert(1)</script>\"' onfocus=alert(1) {{ 7|add:7 }}"
    shown = preview(ada, approval, payee=hostile, comment=hostile)
    again = ada.post(address(approval), fields(shown) | {"act": "change"})
    for page in (shown, again):
        assert "<script>alert" not in page.content.decode()
        assert Inline(page.content.decode()).found == []
    assert fields(again)["argument-payee"] == hostile
    assert fresh(approval.run).status == "waiting"


def test_a_payload_that_was_changed_in_the_database_is_not_proposed_upon(approval, ada, database):
    page = preview(ada, approval, amount_minor="1500")
    tamper(database, "UPDATE approvals_approval SET payload = replace(payload, '184000', '999999')")
    assert sign(ada, approval, page).status_code == 412
    assert not Decision.objects.exists()
