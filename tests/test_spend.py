"""What calls cost is reserved before they are sent and settled by their answers; at its spend cap a run waits before
anything is sent, and goes on at that step when it is given more."""

from datetime import timedelta
from io import StringIO

import pytest
from browsing import browser, text
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import IntegrityError
from stage import Killed, Stage, fresh, one_stretch
from worker_process import finish_with_a_kill_at

from approvals.models import Approval
from approvals.testing import answer
from runs import engine, repair, spending
from runs.errors import BadRequest, OutcomeUnknown, Refused, Retryable
from runs.models import AuditEvent, Call
from runs.reconciliation import settle_by_hand
from runs.testing import drain, move_clock
from runs.tools import Money, tool
from runs.workflows import Caps

TEN = Money(1000, "USD")
WHY = "granted by the head of claims"


@pytest.fixture
def stage(people):
    with Stage(people) as stage:
        yield stage


def model(stage: Stage, name: str = "test.ask", **terms):
    """A model call with a price, whose far side is the receiver."""

    @tool(name, model=True, **{"price": TEN} | terms)
    def ask(*, prompt: str = "?") -> dict:
        return stage.receiver(prompt, {})

    return ask


def asks(stage: Stage, used, *prompts: str, name: str = "think") -> None:
    """A step that uses the tool once for each prompt."""

    def step(ctx):
        return {name: [ctx.call(used, prompt=prompt) for prompt in prompts]}

    step.__name__ = name
    stage.flow.step(step)


def spent(run) -> list[tuple[str, int, int, int | None]]:
    return [(line.currency, line.settled, line.reserved, line.cap) for line in spending.of(fresh(run))]


# The cap


@pytest.mark.parametrize(("cap", "sent"), [(2999, 2), (3000, 3), (3001, 3)])
def test_a_call_that_would_go_over_the_cap_is_not_sent_and_the_run_waits(stage, cap, sent):
    stage.flow.caps = Caps(spend=Money(cap, "USD"))
    asks(stage, model(stage), "a", "b", "c")
    run = stage.begin()
    assert stage.receiver.keys == ["a", "b", "c"][:sent]
    assert spent(run) == [("USD", sent * 1000, 0, cap)]
    if sent == 3:
        assert run.status == "completed"
        return
    sentence = (
        "It has spent or reserved 20.00 of its 29.99 USD, and test.ask in step think may cost 10.00 USD; "
        "raise the cap or cancel it"
    )
    assert (run.status, run.wait_kind, run.wait_name, run.worker) == ("waiting", "cap", sentence, "")
    assert (run.transitions.last().why, Call.objects.count()) == (sentence, 2)


@pytest.mark.parametrize(("cap", "is_sent"), [(999, False), (1000, True)])
def test_an_effect_over_the_cap_leaves_no_intent(stage, cap, is_sent):
    stage.flow.caps = Caps(spend=Money(cap, "USD"))
    stage.calls_then_goes_on(stage.tool(price=TEN))
    run = stage.begin()
    assert (run.status, run.wait_kind) == (("completed", "") if is_sent else ("waiting", "cap"))
    assert (len(stage.receiver.keys), Call.objects.count()) == (int(is_sent), int(is_sent))


def test_a_raised_cap_lets_it_go_on_at_that_step_and_what_was_read_is_not_paid_again(stage):
    stage.flow.caps = Caps(spend=Money(1500, "USD"))
    asks(stage, model(stage), "a", "b", "c")
    run = stage.begin()
    assert (run.position, stage.receiver.keys) == (0, ["a"])
    for more, keys in ((2000, ["a", "b"]), (2999, ["a", "b"]), (3000, ["a", "b", "c"])):
        repair.raise_cap("run-1", spend=Money(more, "USD"), by=stage.people.ops, why=WHY)
        drain()
        assert stage.receiver.keys == keys
    run = fresh(run)
    assert (run.status, run.checkpoints.get().attempt, spent(run)) == ("completed", 1, [("USD", 3000, 0, 3000)])
    details = list(AuditEvent.objects.filter(kind="cap-raised").values_list("detail", flat=True))
    assert details[0] == f"spend 20.00 USD: {WHY}"


def test_a_spend_cap_that_is_raised_keeps_the_other_caps(stage):
    stage.flow.caps = Caps(spend=TEN, steps=1)
    asks(stage, model(stage), "a", name="one")
    asks(stage, model(stage, "test.more"), "b", name="two")
    run = stage.begin()
    repair.raise_cap("run-1", steps=5, why=WHY)
    drain()
    assert fresh(run).wait_name.startswith("It has spent")
    repair.raise_cap("run-1", spend=Money(2000, "USD"), why=WHY)
    drain()
    run = fresh(run)
    assert (run.status, run.caps) == ("completed", {"steps": 5, "spend": {"minor": 2000, "currency": "USD"}})


def test_waiting_at_the_cap_uses_up_no_attempt(stage):
    stage.flow.caps = Caps(spend=Money(1, "USD"))
    asks(stage, model(stage), "a")
    run = stage.begin()
    for _ in range(5):
        repair.retry_now("run-1", why=WHY)
        drain()
    assert (fresh(run).status, fresh(run).attempt, fresh(run).wait_kind) == ("waiting", 0, "cap")


def test_an_author_cannot_catch_the_cap(stage):
    stage.flow.caps, ask = Caps(spend=Money(1, "USD")), model(stage)

    @stage.flow.step
    def swallows(ctx):
        try:
            return ctx.call(ask)
        except Exception:
            return {"swallowed": True}

    run = stage.begin()
    assert (run.status, run.position) == ("waiting", 0)


def test_an_approved_effect_at_the_cap_keeps_its_approval_and_is_sent_once_when_the_cap_is_raised(stage):
    stage.flow.caps = Caps(spend=Money(1, "USD"))
    stage.asks_then_pays(stage.tool(requires_approval=True, price=TEN))
    approval = stage.asked()
    answer(approval, stage.people.adjuster)
    drain()
    assert (fresh(approval.run).wait_kind, stage.receiver.keys) == ("cap", [])
    repair.raise_cap("run-1", spend=TEN, why=WHY)
    drain()
    assert (fresh(approval.run).status, stage.receiver.keys) == ("completed", ["run-1:step2"])
    assert Approval.objects.count() == 1


def test_a_run_without_a_cap_spends_and_is_told_of(stage):
    asks(stage, model(stage), "a", "b")
    run = stage.begin()
    assert (run.status, spent(run)) == ("completed", [("USD", 2000, 0, None)])


def test_what_has_no_price_is_not_counted_and_a_run_at_its_cap_may_still_use_it(stage):
    stage.flow.caps = Caps(spend=TEN)
    free = model(stage, "test.free", price=None)
    ask = model(stage)

    @stage.flow.step
    def both(ctx):
        return {"answers": [ctx.call(ask, prompt="dear"), ctx.call(free, prompt="free"), ctx.call(free, prompt="2")]}

    run = stage.begin()
    assert (run.status, spent(run)) == ("completed", [("USD", 1000, 0, 1000)])


# What it costs


def test_a_price_by_the_arguments_is_reserved_and_a_cost_by_the_answer_is_settled(stage):
    stage.flow.caps = Caps(spend=Money(5000, "USD"))
    ask = model(
        stage,
        price=lambda arguments: Money(100 * len(arguments["prompt"]), "USD"),
        cost=lambda answer: Money(answer["cost_minor"], "USD"),
    )
    seen = []

    def while_it_is_sent(key):
        seen.append(spent(engine.find("run-1", None)))
        return {"cost_minor": 7}

    stage.receiver.script = [while_it_is_sent]
    asks(stage, ask, "0123456789")
    run = stage.begin()
    assert seen == [[("USD", 0, 1000, 5000)]]
    assert spent(run) == [("USD", 7, 0, 5000)]


def test_a_call_that_cost_more_than_its_price_is_recorded_as_it_was_and_the_next_waits(stage):
    stage.flow.caps = Caps(spend=Money(2500, "USD"))
    stage.receiver.script = [{"minor": 2600}]
    asks(stage, model(stage, cost=lambda answer: Money(answer["minor"], "USD")), "a", "b")
    run = stage.begin()
    assert (run.wait_kind, spent(run), stage.receiver.keys) == ("cap", [("USD", 2600, 0, 2500)], ["a"])


@pytest.mark.parametrize("cost", [lambda answer: answer["no such"], lambda a: Money(1, "EUR"), lambda a: 5])
def test_a_cost_that_cannot_be_read_is_the_price_and_the_answer_is_kept(stage, cost, caplog):
    stage.flow.caps = Caps(spend=TEN)
    asks(stage, model(stage, cost=cost), "a")
    run = stage.begin()
    assert (run.status, spent(run)) == ("completed", [("USD", 1000, 0, 1000)])
    assert any("cannot be read from its answer" in message for message in caplog.messages)


@pytest.mark.parametrize("price", [Money(1, "EUR"), lambda a: Money(1, "EUR")])
def test_a_price_in_another_currency_than_the_cap_is_refused_before_sending(stage, price):
    stage.flow.caps = Caps(spend=TEN)
    asks(stage, model(stage, price=price), "a")
    run = stage.begin()
    assert (run.status, stage.receiver.keys) == ("dead", [])
    assert "test.ask is priced in EUR, and the run's spend cap is in USD" in run.reason


@pytest.mark.parametrize("price", [lambda a: 5, lambda a: None])
def test_a_price_that_is_no_money_is_refused_before_sending(stage, price):
    asks(stage, model(stage, price=price), "a")
    run = stage.begin()
    assert (run.status, stage.receiver.keys) == ("dead", [])


@pytest.mark.parametrize(("minor", "currency"), [(-1, "USD"), (1.5, "USD"), (True, "USD"), (1, "usd"), (1, "US")])
def test_money_is_whole_minor_units_of_a_currency(minor, currency):
    with pytest.raises(ValueError, match=r"Money|currency"):
        Money(minor, currency)


def test_a_tool_with_a_cost_and_no_price_is_refused_at_start_up(stage):
    with pytest.raises(ImproperlyConfigured, match="needs a price"):
        model(stage, price=None, cost=lambda answer: TEN)


# Outcomes


def fails_first(stage: Stage, error: Exception) -> None:
    stage.flow.caps = Caps(spend=Money(2500, "USD"))
    stage.receiver.script = [error]


@pytest.mark.parametrize("is_effect", [False, True], ids=["model", "effect"])
@pytest.mark.parametrize(
    ("error", "reserved"),
    [(Retryable("later"), 1000), (OutcomeUnknown("lost"), 1000), (OSError("reset"), 1000), (Refused("no"), 0)],
    ids=["retryable", "unknown", "unclassed", "refused"],
)
def test_what_is_not_known_keeps_its_one_reservation_and_what_was_refused_gives_it_back(
    stage, error, reserved, is_effect
):
    fails_first(stage, error)
    if is_effect:
        stage.calls_then_goes_on(stage.tool(price=TEN))
    else:
        asks(stage, model(stage), "a")
    run = stage.begin()
    assert spent(run) == [("USD", 0, reserved, 2500)]
    if reserved:
        stage.later()
        assert (fresh(run).status, spent(run), Call.objects.get().sends) == ("completed", [("USD", 1000, 0, 2500)], 2)


def test_a_refused_read_that_is_redriven_is_reserved_anew(stage):
    fails_first(stage, Refused("no"))
    asks(stage, model(stage), "a")
    run = stage.begin()
    assert (run.status, Call.objects.get().state) == ("dead", "refused")
    repair.raise_cap("run-1", spend=Money(999, "USD"), why="no more than this")
    repair.redrive("run-1", why="mended there")
    drain()
    assert (fresh(run).wait_kind, len(stage.receiver.keys)) == ("cap", 1)
    repair.raise_cap("run-1", spend=Money(2500, "USD"), why=WHY)
    drain()
    assert (fresh(run).status, spent(run), Call.objects.count()) == ("completed", [("USD", 1000, 0, 2500)], 1)


@pytest.mark.parametrize(("outcome", "settled"), [("confirmed", 1000), ("refused", 0)])
def test_an_unknown_effect_that_a_person_settles_is_spent_or_given_back(stage, outcome, settled):
    fails_first(stage, OutcomeUnknown("lost"))
    stage.calls_then_goes_on(stage.tool(price=TEN, delivery="at-most-once"))
    run = stage.begin()
    assert spent(run) == [("USD", 0, 1000, 2500)]
    settle_by_hand("run-1:step1", outcome=outcome, by=None, why="the bank says so")
    assert spent(run) == [("USD", settled, 0, 2500)]


def test_a_fork_spends_its_own_and_not_what_its_origin_did(stage):
    stage.flow.caps = Caps(spend=TEN)
    asks(stage, model(stage), "a")
    asks(stage, model(stage, "test.free", price=Money(0, "USD")), "b", name="after")
    stage.begin()
    fork = repair.fork("run-1", "run-2", position=2, why="again")
    drain()
    assert (fresh(fork).status, spent(fork)) == ("completed", [("USD", 0, 0, 1000)])


def test_the_answer_of_a_worker_that_lost_its_run_is_kept_and_not_paid_again(stage):
    """It was frozen while the model answered; another worker sent the same, and both were answered."""
    stage.flow.caps = Caps(spend=TEN)

    def frozen_meanwhile(key):
        move_clock(timedelta(seconds=120))
        drain()
        return {"from": "the first"}

    stage.receiver.script = [frozen_meanwhile, {"from": "the second"}]
    asks(stage, model(stage), "a")
    run = stage.begin()
    assert (fresh(run).status, spent(run)) == ("completed", [("USD", 1000, 0, 1000)])
    call = Call.objects.get()
    assert (call.sends, call.answer) == (2, {"from": "the second"})
    assert run.checkpoints.get().output == {"think": [{"from": "the second"}]}


def test_an_answer_that_was_paid_is_recorded_though_the_storage_cannot_be_written(stage, settings, tmp_path):
    stage.flow.caps = Caps(spend=TEN)
    (tmp_path / "a file").write_text("")
    location = {"OPTIONS": {"location": str(tmp_path / "a file")}}
    settings.STORAGES = settings.STORAGES | {"artefacts": settings.STORAGES["artefacts"] | location}
    stage.receiver.script = [{"reply": "x" * 40_000}]
    ask = model(stage)

    @stage.flow.step
    def think(ctx):
        return {"length": len(ctx.call(ask)["reply"])}

    run = stage.begin()
    assert (run.status, spent(run), Call.objects.get().sends) == ("completed", [("USD", 1000, 0, 1000)], 1)


# Crashes


@pytest.mark.parametrize("point", ["reserved", "answered", "recorded"])
def test_killed_round_a_priced_model_call_nothing_is_reserved_twice_or_lost(stage, tmp_path, point):
    stage.flow.caps = Caps(spend=Money(1999, "USD"))
    asks(stage, model(stage), "a")
    run = engine.start(stage.flow, key="run-1", input={}, team=stage.people.team)
    assert finish_with_a_kill_at(run, f"run-1:step1:test.ask-{point}", tmp_path / "points", lambda run: None)
    assert (run.status, spent(run), Call.objects.count()) == ("completed", [("USD", 1000, 0, 1999)], 1)
    assert Call.objects.get().sends == (1 if point == "recorded" else 2)


@pytest.mark.parametrize("point", ["intending", "intended", "sending", "answered", "recorded"])
def test_killed_round_a_priced_effect_nothing_is_reserved_twice_or_lost(stage, tmp_path, point):
    stage.flow.caps = Caps(spend=Money(1999, "USD"))
    stage.calls_then_goes_on(stage.tool(price=TEN))
    run = engine.start(stage.flow, key="run-1", input={}, team=stage.people.team)
    assert finish_with_a_kill_at(run, f"run-1:step1:test.pay-{point}", tmp_path / "points", lambda run: None)
    assert (run.status, spent(run), Call.objects.count()) == ("completed", [("USD", 1000, 0, 1999)], 1)


def test_a_worker_that_dies_while_a_call_is_under_way_leaves_its_reservation(stage):
    stage.flow.caps = Caps(spend=Money(1999, "USD"))
    stage.receiver.script = [Killed()]
    asks(stage, model(stage), "a")
    run = engine.start(stage.flow, key="run-1", input={}, team=stage.people.team)
    with pytest.raises(Killed):
        one_stretch()
    assert spent(run) == [("USD", 0, 1000, 1999)]


def test_a_worker_that_lost_its_run_reserves_and_sends_nothing(stage):
    stage.flow.caps = Caps(spend=TEN)
    ask = model(stage)

    @stage.flow.step
    def late(ctx):
        repair.pause("run-1", why="stop")
        return ctx.call(ask)

    run = stage.begin()
    assert (fresh(run).status, stage.receiver.keys, Call.objects.count()) == ("paused", [], 0)


# People


def test_the_page_of_a_run_and_its_commands_tell_what_was_spent(stage):
    stage.flow.caps = Caps(spend=Money(2500, "USD"))
    stage.receiver.script = [{}, OutcomeUnknown("lost")]
    asks(stage, model(stage), "a", "b")
    stage.begin()
    page = text(browser(stage.people.ops).get("/runs/run-1/"))
    assert "Spent 10.00 of 25.00 USD, and 10.00 reserved" in page
    assert "cost $10.00" in page
    assert "$10.00 reserved" in page
    assert "Spent 10.00 of 25.00 USD, and 10.00 reserved" in said("show", "run-1")


def said(*words: str) -> str:
    out = StringIO()
    call_command("runs", *words, stdout=out)
    return out.getvalue()


def test_the_cap_is_raised_by_command(stage):
    stage.flow.caps = Caps(spend=Money(1, "USD"))
    asks(stage, model(stage), "a")
    run = stage.begin()
    said("raise-cap", "run-1", "--spend", "1000:USD", "--why", WHY)
    drain()
    assert fresh(run).status == "completed"


@pytest.mark.parametrize("word", ["1000", "10.00:USD", "-5:USD", "1000:usd", ":USD", "\u0665:USD"])
def test_what_is_no_money_is_refused_by_the_command(stage, word):
    with pytest.raises((CommandError, SystemExit)):
        said("raise-cap", "run-1", f"--spend={word}", "--why", WHY)


@pytest.mark.parametrize(
    ("cap", "given", "sentence"),
    [
        (None, TEN, "has no spend cap"),
        (TEN, Money(5000, "EUR"), "is in USD, not in EUR"),
        (TEN, Money(0, "USD"), "positive value"),
    ],
)
def test_a_cap_that_cannot_be_raised_so_is_refused_with_a_sentence(stage, cap, given, sentence):
    from runs.waits import event

    stage.flow.caps = Caps(spend=cap)

    @stage.flow.step
    def hear(ctx):
        return event("papers", expires_in=timedelta(days=1))

    run = stage.begin()
    with pytest.raises(BadRequest, match=sentence):
        repair.raise_cap("run-1", spend=given, why=WHY)
    assert fresh(run).caps is None


@pytest.mark.parametrize(
    "columns",
    [{"price_minor": 5, "currency": ""}, {"price_minor": -5}, {"cost_minor": -1}, {"price_minor": None}],
    ids=str,
)
def test_the_database_refuses_a_price_that_is_no_money(stage, columns):
    asks(stage, model(stage), "a")
    stage.begin()
    with pytest.raises(IntegrityError, match="call_price_is_money"):
        Call.objects.update(**columns)
