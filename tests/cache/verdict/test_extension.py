"""A prompt that extends the one before it is predicted by arithmetic: as the simulator would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.planted import PLACES, body, spec, split

from anaphora import catalog
from anaphora.cache.sent_call import made_call, updated_bills
from anaphora.cache.simulator import RenderedPrompt, Simulator
from anaphora.cache.verdict import SentCall
from anaphora.cache.verdict.prediction import _simulate_pair, simulate_extension
from anaphora.catalog import CacheRules
from anaphora.rendered import Mark, Plan, Rendered
from anaphora.values import Ttl, Usage

CHAT = catalog.rules("openai", "gpt-4o", "openai_chat")
#: Where a prompt is cached token by token: in granules, with cached replies, on one's own server.
RULES = {
    "openai": CHAT,
    "cached replies": replace(CHAT, output_cached=replace(CHAT.slots, value=True)),
    "no minimum": replace(CHAT, minimum_tokens=replace(CHAT.minimum_tokens, value=16),
                          granule_tokens=replace(CHAT.granule_tokens, value=16)),
    "vllm": catalog.rules("vllm", "some-model", "openai_chat"),
    "anthropic": catalog.rules("anthropic", "claude-sonnet-4-5", "anthropic"),
}  # fmt: skip


def _beginning(rendered: Rendered, chunks: int) -> Rendered:
    """The first chunks of a prompt, which shares their bytes in memory."""
    runs, left = [], chunks
    for run in rendered.runs:
        if left > 0:
            runs.append(replace(run, count=min(left, run.count)))
        left -= run.count
    return replace(rendered, runs=tuple(runs), cacheable=chunks)


def _sent(rules: CacheRules, chunks: int, gap: float, began: float, usage: Usage) -> list[SentCall]:
    place = PLACES["openai_chat"]
    asked = spec()
    asked["messages"] += [("assistant", ["an answer " * 300]), ("user", ["a question " * 200])]
    whole = split(place, body(place, asked))
    earlier = SentCall(rendered=_beginning(whole, chunks), at=1e6, began=1e6 + began, usage=usage)
    later = SentCall(rendered=replace(whole, bills=updated_bills(earlier, rules)), at=1e6 + gap)
    return [earlier, later]


@pytest.mark.parametrize("name", RULES)
@given(
    chunks=st.integers(1, 10),
    gap=st.sampled_from([-1.0, 0.0, 0.5, 5.0, 60.0, 299.0, 301.0, 4000.0, 90_000.0]),
    began=st.sampled_from([0.0, 0.5, 5.0]),
    tokens=st.integers(0, 5000),
    reasoning=st.sampled_from([None, 0, 100]),
)
def test_an_extension_is_predicted_as_the_simulator_would(
    name: str, chunks: int, gap: float, began: float, tokens: int, reasoning: int | None
) -> None:
    rules = RULES[name]
    usage = Usage(uncached=tokens, read=0, output=10, reasoning=reasoning)
    earlier, later = _sent(rules, chunks, gap, began, usage)
    bills = later.rendered.bills
    assert later.at is not None
    assert earlier.at is not None
    made = made_call(rules, earlier.at, began=earlier.began, reasoning=reasoning)
    found = simulate_extension(rules, earlier, later, made, max(earlier.at, later.at), bills)
    before = RenderedPrompt(replace(earlier.rendered, bills=bills), earlier.marks)
    simulated = _simulate_pair(Simulator(rules), before, earlier, later)
    assert found is None or found == simulated
    if name == "openai" and began < gap < 299:
        assert found is not None


MARKED = {
    "anthropic": RULES["anthropic"],
    "one position": replace(RULES["anthropic"], lookback_positions=None, lookback_unit=None),
    "two slots": replace(RULES["anthropic"], slots=replace(CHAT.slots, value=2)),
    "tool runs": replace(RULES["anthropic"],
                         lookback_unit=replace(CHAT.slots, value="tool_runs")),
    "qwen": catalog.rules("alibaba", "qwen3-max", "openai_chat"),
    "openai 5.6": catalog.rules("openai", "gpt-5.6", "openai_responses"),
}  # fmt: skip
_MARKS = st.lists(
    st.tuples(st.integers(0, 11), st.sampled_from(["5m", "1h"])),
    max_size=5,
    unique_by=lambda m: m[0],
)


@pytest.mark.parametrize("name", MARKED)
@given(
    chunks=st.integers(1, 10),
    gap=st.sampled_from([-1.0, 0.0, 0.5, 5.0, 60.0, 299.0, 301.0, 4000.0]),
    began=st.sampled_from([0.0, 0.5, 5.0]),
    tokens=st.integers(0, 5000),
    marks=st.tuples(_MARKS, _MARKS),
)
def test_marked_extension_is_predicted_as_the_simulator_would(
    name: str,
    chunks: int,
    gap: float,
    began: float,
    tokens: int,
    marks: tuple[list[tuple[int, Ttl]], list[tuple[int, Ttl]]],
) -> None:
    rules = MARKED[name]
    usage = Usage(uncached=tokens, read=0, output=10)
    earlier, later = _sent(rules, chunks, gap, began, usage)
    first, second = (tuple(Mark(*mark) for mark in sorted(each)) for each in marks)
    earlier = replace(earlier, plan=Plan(marks=tuple(m for m in first if m.chunk < chunks)))
    later = replace(
        later, plan=Plan(marks=tuple(m for m in second if m.chunk < len(later.rendered)))
    )
    bills = updated_bills(earlier, rules)
    later = replace(later, rendered=replace(later.rendered, bills=bills))
    assert earlier.at is not None
    at = max(earlier.at, earlier.at + gap)
    made = made_call(rules, earlier.at, began=earlier.began)
    found = simulate_extension(rules, earlier, later, made, at, bills)
    before = RenderedPrompt(replace(earlier.rendered, bills=bills), earlier.marks)
    simulated = _simulate_pair(Simulator(rules), before, earlier, later)
    assert found is None or found == simulated
    if name == "anthropic" and began < gap < 299 and simulated[1].read:
        assert found is not None


def test_what_cannot_be_added_up_is_simulated() -> None:
    usage = Usage(uncached=2000, read=0, output=10)
    earlier, later = _sent(CHAT, 4, 10.0, 1.0, usage)
    made = made_call(CHAT, 1e6, began=1e6 + 1)

    def found(one: SentCall, two: SentCall, at: float = 1e6 + 10) -> bool:
        return simulate_extension(CHAT, one, two, made, at, two.rendered.bills) is not None

    assert found(earlier, later)
    envelope = replace(later.rendered.envelope, cache_params=(("tool_choice", b'"none"'),))
    other = replace(later, rendered=replace(later.rendered, envelope=envelope))
    assert not found(earlier, other)  # a parameter
    assert not found(earlier, replace(later, route="elsewhere"))
    assert not found(earlier, later, at=1e6 + 1)  # not readable yet
    assert not found(earlier, later, at=1e6 + 90_000)  # expired
    assert not found(later, earlier)  # the prompt was cut
