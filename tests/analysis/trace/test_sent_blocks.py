"""The blocks of calls that follow each other: as if each call were counted alone, at the cost of
what it adds."""

from __future__ import annotations

from functools import partial
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.python_calls import COMMANDS, python_calls
from support.small_traces import assistant, at, bill, calls_tool, tool, trace_of, user

from anaphora import catalog
from anaphora.analysis.trace.account import BilledLengths
from anaphora.analysis.trace.blocks import TraceBlocks
from anaphora.analysis.trace.format import Trace, TraceUsage
from anaphora.analysis.trace.sent_blocks import SentBlocks
from anaphora.tokens import tokens_in

MODELS = [("anthropic", "claude-sonnet-4-5"), ("openai", "gpt-5.4"), ("deepseek", "deepseek-chat")]
MESSAGES = 12


def blocks_of(trace: Trace) -> TraceBlocks:
    rules = catalog.rules(trace.provider, trace.model)
    return TraceBlocks(trace, catalog.profile(trace.provider, trace.model), rules)


def counted_alone(sizes: list[int], known: list[int | None]) -> list[int]:
    """The tokens up to each block: those of the bills, and in between in proportion to the text.
    Where an earlier bill is higher than a later one, it is left out."""
    ends = [tokens_in(text, 4.0) for text in accumulate(sizes)]
    points: list[tuple[int, int]] = []
    for end, count in zip(ends, known, strict=True):
        if count is not None:
            points = [point for point in points if point[1] <= count and point[0] != end]
            points.append((end, count))
    counts = []
    for end in ends:
        below, billed = max((point for point in points if point[0] < end), default=(0, 0))
        above = next((point for point in points if point[0] >= end), None)
        if above is None:
            counts.append(billed + end - below)
        else:
            counts.append(billed + (end - below) * (above[1] - billed) // (above[0] - below))
    return counts


@given(
    st.lists(
        st.tuples(
            st.integers(1, MESSAGES),
            st.lists(st.tuples(st.integers(0, MESSAGES - 1), st.integers(0, 300)), max_size=3),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_counts_depend_on_what_is_known_and_not_on_the_calls_before(
    steps: list[tuple[int, list[tuple[int, int]]]],
) -> None:
    """Each step learns the counts of some prefixes, then sends some messages."""
    messages = [user("word " * (n % 5 + 2)) for n in range(MESSAGES)]
    conversation = blocks_of(trace_of(messages=messages, system_tokens_unknown=False))
    sent, lengths = SentBlocks(conversation, strips=False), BilledLengths()
    sent.send(at(0, MESSAGES, None))
    keys = [sent.key(position) for position in range(len(sent))]
    sizes = [block.size.text for block in conversation.messages]
    assert len(keys) == MESSAGES
    for count, learned in steps:
        for position, tokens in learned:
            lengths[keys[position]] = tokens
        sent.send(at(0, count, None))
        sent.count(lengths, (4.0, 4.0, 4.0, 4.0))
        known = [lengths.known(key) for key in keys[:count]]
        expected = counted_alone(sizes[:count], known)
        assert [sent.tokens(position) for position in range(len(sent))] == expected
        assert list(sent.all_tokens()) == list(zip(keys, expected, strict=False))
        for tokens in (0, 77, expected[-1]):
            distances = [abs(each - tokens) for each in expected]
            assert sent.nearest(tokens) == distances.index(min(distances))


def long_trace(turns: int, provider: str, model: str) -> Trace:
    """A conversation whose turns have a tool call each; the prompt grows by the same every time."""
    messages, calls, total, left = [], [], 5000, 0
    for turn in range(turns):
        messages += [user(f"question {turn}"), calls_tool(f"call {turn}"), tool(f"call {turn}")]
        for sent in (len(messages) - 2, len(messages)):
            total += 40
            new = TraceUsage(cache_read=left, input=total - left, output=9)
            if provider == "anthropic":
                new = bill(read=left, written=total - left)
            calls.append(at(turn * 30.0 + sent % 3, sent, new))
            left = total if provider == "anthropic" else total // 128 * 128
        messages.append(assistant(f"answer {turn}"))
    return trace_of(*calls, messages=messages, provider=provider, model=model)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("provider, model", MODELS)
@pytest.mark.long
def test_the_cost_of_a_call_does_not_grow_with_the_conversation(
    provider: str, model: str, command: str
) -> None:
    """A conversation of twice the length costs about twice as much; four times, were every block
    visited at every call."""
    traces = [long_trace(turns, provider, model) for turns in (1, 16, 32)]
    _, shorter, longer = [python_calls(partial(COMMANDS[command], [trace])) for trace in traces]
    assert longer < 2.4 * shorter
