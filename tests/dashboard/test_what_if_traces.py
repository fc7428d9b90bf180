"""What if, on recorded conversations: the estimate from the rows of a log, which have no text, is
held against the simulator with all of the text."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from decimal import Decimal
from functools import cache

import msgspec
import pytest
from support import traces

from anaphora import catalog
from anaphora.audit import AuditEnvelope
from anaphora.audit.call_rows import BlockDigests, blocks_of, usage_row
from anaphora.cache.plan import AppMemory, Planner
from anaphora.cache.simulator import Mark, RenderedPrompt, Simulator
from anaphora.catalog.prices import nano_usd
from anaphora.dashboard.what_if import ProviderModel, what_if
from anaphora.rendered import Plan, Rendered
from anaphora.values import Ttl

pytestmark = pytest.mark.skipif(traces.missing() is not None, reason=str(traces.missing()))

#: Of each file so many conversations, and of each so many calls.
CONVERSATIONS, CALLS = 4, 40
#: Seconds between two calls, again and again: both TTLs expire at some of them.
PAUSES = (4.0, 20.0, 3.0, 280.0, 5.0, 900.0, 8.0, 30.0, 4000.0, 6.0)
START = 1_790_000_000.0
#: Output tokens, and seconds to the first of them.
OUTPUT, FIRST = 120, 0.5
SONNET = ProviderModel("anthropic", "claude-sonnet-4-5")
OPUS = ProviderModel("anthropic", "claude-opus-4-5")
FILES = ("pi_claude", "claude_code")


def recorded_calls(file: str) -> Iterator[Iterator[tuple[float, Rendered]]]:
    """The calls of each conversation, and when they were made."""
    at, pauses = START, itertools.cycle(PAUSES)

    def calls(trace: traces.Trace) -> Iterator[tuple[float, Rendered]]:
        nonlocal at
        for sent in trace.sent[:CALLS]:
            at += next(pauses)
            yield at, sent.rendered

    for trace in traces.traces(file)[:CONVERSATIONS]:
        yield calls(trace)


@cache
def billed_log(file: str, model: ProviderModel, ttl: Ttl) -> tuple[AuditEnvelope, ...]:
    """The log of the conversations of a file, each call with a marker at its end and one in the
    middle, as the simulator bills them."""
    simulator, digests = Simulator(catalog.rules(*model)), BlockDigests(bytes(32))
    price, log = price_of(model), []
    for number, conversation in enumerate(recorded_calls(file)):
        for turn, (at, rendered) in enumerate(conversation):
            plan = Plan(marks=marks(rendered, ttl))
            prompt = RenderedPrompt(rendered, plan)
            usage = simulator.call(prompt, at=at, began=at + FIRST).usage(OUTPUT)
            log.append(
                AuditEnvelope(
                    at=at,
                    provider="anthropic",
                    model=model.model,
                    first=FIRST,
                    seconds=2.0,
                    usage=usage_row(usage),
                    cost_nano_usd=nano_usd(price.of(usage)),
                    conversation=f"c{number}",
                    turn=turn,
                    verdict="hit" if turn else "first",
                    blocks=blocks_of(rendered, plan, digests),
                )
            )
    return tuple(log)


def price_of(model: ProviderModel) -> catalog.Price:
    price = catalog.price(*model[:2], datetime.datetime.fromtimestamp(START, datetime.UTC))
    assert price is not None
    return price


def marks(rendered: Rendered, ttl: Ttl) -> tuple[Mark, ...]:
    last = len(rendered) - 1
    return tuple(Mark(chunk, ttl) for chunk in sorted({last // 2, last}))


def billed(log: tuple[AuditEnvelope, ...]) -> int:
    return sum(call.cost_nano_usd or 0 for call in log)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(("ttl", "other"), [("5m", "1h"), ("1h", "5m")])
def test_estimate_with_another_ttl(file: str, ttl: Ttl, other: Ttl) -> None:
    (row,) = what_if(billed_log(file, SONNET, ttl), ttl=other).rows
    assert row.cost is not None
    assert row.cost.low <= billed(billed_log(file, SONNET, other)) <= row.cost.high


@pytest.mark.parametrize("file", FILES)
def test_estimate_on_another_model(file: str) -> None:
    row = what_if(billed_log(file, SONNET, "5m"), model=OPUS).rows[-2]
    assert row.scenario.title == "On anthropic/claude-opus-4-5"
    assert row.cost is not None
    assert row.cost.low <= billed(billed_log(file, OPUS, "5m")) <= row.cost.high


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("first", [25, 60, 100])
def test_range_holds_conversations_that_began_before(file: str, first: int) -> None:
    """What was cached before the first call of a view is not known."""
    result = what_if(billed_log(file, SONNET, "5m")[first:], model=OPUS)
    assert result.began_before
    for title, model, ttl in (
        ("All markers with a TTL of 1h", SONNET, "1h"),
        ("On anthropic/claude-opus-4-5", OPUS, "5m"),
    ):
        (row,) = [row for row in result.rows if row.scenario.title == title]
        assert row.cost is not None
        assert row.cost.low <= billed(billed_log(file, model, ttl)[first:]) <= row.cost.high


@pytest.mark.parametrize("file", FILES)
def test_estimate_with_placed_markers_is_that_of_the_planner(file: str) -> None:
    price = price_of(SONNET)
    memory, total = AppMemory(catalog.rules(*SONNET)), Decimal(0)
    for conversation in recorded_calls(file):
        planner = Planner(memory)
        for at, rendered in conversation:
            plan = planner.plan(rendered, at=at)
            sent = planner.sent(rendered, plan, at=at, began=at + FIRST)
            total += price.of(sent.outcome.usage(OUTPUT)) or 0
    row = what_if(billed_log(file, SONNET, "5m")).rows[-1]
    assert row.scenario.title == "With Anaphora's markers"
    assert row.cost is not None
    assert row.cost.estimate == pytest.approx(int(total * 10**9), rel=0.01)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("named", [True, False])
def test_calls_as_they_were_sent_cost_their_bill(file: str, named: bool) -> None:
    """Where no conversation is named, what was read links the calls."""
    log = billed_log(file, SONNET, "5m")
    if not named:
        log = tuple(msgspec.structs.replace(call, conversation="") for call in log)
    check = what_if(log).check
    assert check.error is not None
    assert check.error < 0.02


def test_branches_of_one_conversation_are_told_apart() -> None:
    """Two agents under one id, at the same time: what a call read says which one it continues."""
    calls = [call for file in FILES for call in billed_log(file, SONNET, "5m")]
    check = what_if(calls).check
    assert check.error is not None
    assert check.error < 0.05
