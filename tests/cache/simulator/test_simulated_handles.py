"""Gemini's cachedContents, by PROVIDERS.md, section 3: creation at the input price, reads at the
read price, storage by the hour, gone when its time is over."""

from __future__ import annotations

from fractions import Fraction

import pytest
from support.prompts import chat

from anaphora import catalog
from anaphora.cache.simulator import RenderedPrompt, Simulator, TokenRuns
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, PromptIR
from anaphora.rendered import CacheHandle, Plan
from anaphora.rendered.held import held_digest
from anaphora.values import Conversation, Message
from anaphora.wire import gemini

RULES = catalog.rules("google", "gemini-3.1-pro-preview")
HANDLE = "cachedContents/abc"


def held(*more: tuple[str, int]) -> TokenRuns:
    return TokenRuns.given([("guide", 50_000), *more], held=1, handle=HANDLE)


def test_creating_a_handle_is_input_and_calls_read_it() -> None:
    simulator = Simulator(RULES)
    made = simulator.hold(HANDLE, 50_000, at=0, seconds=3600)
    assert (made.read, made.written, made.uncached) == (0, {}, 50_000)
    for at in (1, 1800, 3599):
        outcome = simulator.call(held(("q", 30)), at=at)
        assert (outcome.read, outcome.uncached) == (50_000, 30)
        assert outcome.spans[0].reason == "held"


def test_reading_does_not_extend_a_handle_and_expired_ones_are_rejected() -> None:
    simulator = Simulator(RULES)
    simulator.hold(HANDLE, 50_000, at=0, seconds=3600)
    simulator.call(held(("q", 30)), at=3599)
    with pytest.raises(InvalidRequest, match="ended 10 s ago"):
        simulator.call(held(("q", 30)), at=3610)


def test_extending_counts_from_now() -> None:
    simulator = Simulator(RULES)
    simulator.hold(HANDLE, 50_000, at=0, seconds=300)
    simulator.extend(HANDLE, at=200, seconds=300)
    assert simulator.call(held(), at=499).read == 50_000
    with pytest.raises(InvalidRequest, match="ended"):
        simulator.extend(HANDLE, at=501, seconds=300)


STORAGE = [
    # seconds asked for, released after, looked at after, hours paid
    (3600, None, 1800, Fraction(1, 2)),
    (3600, None, 9999, Fraction(1)),
    (3600, 900, 9999, Fraction(1, 4)),
    (300, None, 9999, Fraction(1, 12)),
]


@pytest.mark.parametrize("seconds, released, at, hours", STORAGE)
def test_storage_is_paid_for_the_time_it_is_held(
    seconds: int, released: int | None, at: int, hours: Fraction
) -> None:
    simulator = Simulator(RULES)
    simulator.hold(HANDLE, 1_000_000, at=0, seconds=seconds)
    if released is not None:
        simulator.release(HANDLE, at=released)
    assert simulator.token_hours(at) == pytest.approx(1_000_000 * hours)
    # 4.50 dollars for a million tokens and hour (3.1 Pro).
    assert RULES.storage_price is not None
    cost_usd = simulator.token_hours(at) / 1e6 * RULES.storage_price.value
    assert cost_usd == pytest.approx(4.5 * hours)


def test_short_prefixes_and_duplicate_handles_are_rejected() -> None:
    simulator = Simulator(RULES)
    with pytest.raises(
        InvalidRequest, match="100 tokens are too few for a handle; the minimum is 4096"
    ):
        simulator.hold(HANDLE, 100, at=0, seconds=60)
    simulator.hold(HANDLE, 5000, at=0, seconds=60)
    with pytest.raises(InvalidRequest, match="already"):
        simulator.hold(HANDLE, 5000, at=1, seconds=60)
    with pytest.raises(InvalidRequest, match="does not exist"):
        simulator.release("cachedContents/other", at=2)


def test_the_implicit_cache_is_separate() -> None:
    simulator = Simulator(RULES)
    simulator.hold(HANDLE, 50_000, at=0, seconds=3600)
    simulator.call(held(("q", 30)), at=1)
    assert simulator.call(chat([("guide", 50_000), ("q", 30)]), at=2).read == 0


def test_a_plan_with_a_handle_reads_it() -> None:
    ir = PromptIR.chat(Conversation([Message.user("hi")]), system="Be careful. " * 4000)
    rendered = gemini.render(
        Call(ir=ir, model="gemini-3.1-pro-preview"),
        catalog.profile("google", "gemini-3.1-pro-preview"),
    )
    handle = CacheHandle(HANDLE, 1, held_digest(rendered, 1))
    prompt = RenderedPrompt(rendered, Plan(held=handle))
    outcome = Simulator(RULES).call(prompt, at=0)
    assert (outcome.read, outcome.spans[0].reason) == (prompt.tokens(0), "held")
    assert outcome.total == prompt.total


def test_ended_handles_are_summed_and_forgotten() -> None:
    simulator = Simulator(RULES)
    for at in range(3000):
        simulator.hold(f"cachedContents/{at}", 5000, at=at * 10.0, seconds=5)
    assert len(simulator) < 1100
    assert simulator.token_hours(1e9) == pytest.approx(3000 * 5000 * 5 / 3600)
