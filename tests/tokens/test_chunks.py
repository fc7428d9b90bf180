"""Counts of a growing prompt: they add up, keep what was counted, and cost what is new."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anaphora import catalog
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, OutputSchema, Params, PromptIR
from anaphora.rendered import Rendered
from anaphora.tokens import Calibration, Count, Counts, count_chunks, tally, tokenizer
from anaphora.values import (
    Bytes,
    Conversation,
    Image,
    Message,
    ProviderTool,
    Text,
    Tool,
    ToolCall,
    ToolResult,
)
from anaphora.wire import anthropic, gemini, openai_chat, openai_responses

CLAUDE = catalog.profile("anthropic", "claude-sonnet-4-5")
GPT = catalog.profile("openai", "gpt-4o")
GEMINI = catalog.profile("google", "gemini-2.5-pro")
WEATHER = Tool("get_weather", "The weather in a city.", '{"type":"object","properties":{}}')

#: A wire, and a model on it.
PLACES: dict[str, tuple[Any, catalog.Profile]] = {
    "anthropic": (anthropic, CLAUDE),
    "openai_chat": (openai_chat, GPT),
    "openai_responses": (openai_responses, GPT),
    "gemini": (gemini, GEMINI),
}
on_every_wire = pytest.mark.parametrize("place", PLACES)
few = settings(max_examples=25)

#: Taken before any test runs: the watch over prefixes keeps every rendering alive.
UNWATCHED = anthropic.render


def render(
    place: str,
    conversation: Conversation,
    previous: Rendered | None = None,
    *,
    tools: tuple[Any, ...] = (),
    tail: tuple[Message, ...] = (),
    output: OutputSchema | None = None,
    system: str = "Be brief.",
) -> Rendered:
    wire, profile = PLACES[place]
    ir = PromptIR.chat(conversation, system=system, tail=tail)
    params = Params(max_tokens=100, output=output)
    call = Call(ir=ir, model=profile.id, tools=tools, params=params)
    rendered: Rendered = wire.render(call, profile, previous)
    return rendered


def count(place: str, rendered: Rendered, calibration: Calibration | None = None) -> Counts:
    return count_chunks(rendered, PLACES[place][1], calibration)


texts = st.text(min_size=1, max_size=200)
turns = st.lists(st.tuples(texts, texts), min_size=1, max_size=5)


def grown(conversation: Conversation, said: str, answered: str) -> Conversation:
    return conversation.append(Message.user(said), Message.assistant(answered))


# ── Laws ─────────────────────────────────────────────────────────────────────────────────────────


@on_every_wire
@few
@given(said=turns)
def test_more_chunks_are_never_fewer_tokens(place: str, said: list[tuple[str, str]]) -> None:
    conversation = Conversation()
    for pair in said:
        conversation = grown(conversation, *pair)
    counts = list(count(place, render(place, conversation)))
    for fewer, more in itertools.pairwise(counts):
        assert fewer.tokens <= more.tokens
        assert fewer.high <= more.high


@on_every_wire
@few
@given(said=turns, data=st.data())
def test_stretches_add_up_to_the_whole(
    place: str, said: list[tuple[str, str]], data: st.DataObject
) -> None:
    conversation = Conversation()
    for pair in said:
        conversation = grown(conversation, *pair)
    counts = count(place, render(place, conversation))
    cut = data.draw(st.integers(0, len(counts)))
    parts, whole = counts.between(0, cut) + counts.between(cut, len(counts)), counts.total
    # Each stretch is rounded by itself: up, and its bounds outwards.
    assert whole.tokens <= parts.tokens <= whole.tokens + 1
    assert whole.low <= parts.low + 2
    assert whole.high <= parts.high


@on_every_wire
@few
@given(said=turns)
def test_what_was_counted_stays_when_more_is_said(place: str, said: list[tuple[str, str]]) -> None:
    conversation, rendered, before = Conversation(), None, list[Count]()
    for pair in said:
        conversation = grown(conversation, *pair)
        rendered = render(place, conversation, rendered)
        counts = list(count(place, rendered))
        assert counts[: len(before)] == before
        before = counts


@on_every_wire
@few
@given(said=turns, bills=st.lists(st.integers(1, 10**6), min_size=5, max_size=5))
def test_bills_keep_the_order_and_what_was_counted(
    place: str, said: list[tuple[str, str]], bills: list[int]
) -> None:
    """Whatever was billed: counts grow along the prompt, bounds frame them, and saying more does
    not change what the same calibration said of what was there."""
    conversation, rendered = Conversation(), None
    calibration, before = Calibration(), list[Count]()
    for pair, billed in zip(said, bills, strict=False):
        conversation = grown(conversation, *pair)
        rendered = render(place, conversation, rendered)
        counts = list(count(place, rendered, calibration))
        assert counts[: len(before)] == before
        assert all(one.low <= one.tokens <= one.high for one in counts)
        assert all(a.tokens <= b.tokens for a, b in itertools.pairwise(counts))
        calibration = count(place, rendered, calibration).billed(billed)
        before = list(count(place, rendered, calibration))
        assert before[-1] == Count.exactly(billed)


def test_counts_are_a_sequence() -> None:
    counts = count("anthropic", render("anthropic", Conversation([Message.user("Hi")])))
    assert list(counts) == [counts[at] for at in range(len(counts))]
    assert counts[-1] == counts.total
    assert counts.upto(0) == Count.exactly(0)
    with pytest.raises(IndexError, match="chunk 2 of 2"):
        counts[2]


# ── Cost ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("exact", [False, True])
def test_a_turn_counts_what_it_adds(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    count = tally.Tally._count

    def watched(self: tally.Tally, chunks: int, log: Any, method: tally.Method) -> None:
        before = len(self._rows)
        count(self, chunks, log, method)
        counted.extend(range(before, len(self._rows), tally._ROW))

    monkeypatch.setattr(tally.Tally, "_count", watched)
    by = tokenizer("o200k") if exact else None
    conversation, rendered, calibration = Conversation(), None, Calibration()
    own: Any = {"tools": (Tool("own", "Nobody else has it."),), "system": "Nobody else is told."}
    for turn in range(20):
        conversation = grown(conversation, f"turn {turn}", "yes")
        rendered = render("openai_chat", conversation, rendered, **own)
        counted.clear()
        counts = count_chunks(rendered, GPT, calibration, tokenizer=by)
        assert not counted, "nothing is counted before it is asked for"
        calibration = counts.billed(100 + 20 * turn)
        assert list(counts)
        # Two messages; at first the system prompt and the tool as well.
        assert len(counted) == (2 if turn else 4)


def test_totals_are_let_go_with_the_log() -> None:
    ir = PromptIR.chat([Message.user("Hi")])
    call = Call(ir=ir, model=CLAUDE.id, params=Params(max_tokens=100))
    rendered = UNWATCHED(call, CLAUDE)
    assert count_chunks(rendered, CLAUDE).total.tokens
    assert rendered.runs[0].log in tally._tallies
    known = len(tally._tallies)
    del rendered, ir, call
    gc.collect()
    assert len(tally._tallies) < known


# ── What is no text, and what no byte shows ──────────────────────────────────────────────────────


@on_every_wire
@pytest.mark.parametrize("size", [10, 3_000_000])
def test_an_image_is_not_its_base64(place: str, size: int) -> None:
    said = Message.user("Look:", Image(Bytes(bytes(size), "image/png")))
    total = count(place, render(place, Conversation([said]))).total
    assert total.tokens < 2000
    assert total.holds(300)
    assert total.holds(4000)


def test_nor_is_an_image_in_a_tool_result() -> None:
    call = Message.assistant(ToolCall("c1", "look", "{}"))
    image = Image(Bytes(bytes(300_000), "image/png"))
    result = Message(role="tool", parts=(ToolResult("c1", (Text("Here:"), image)),))
    said = Conversation([Message.user("Look"), call, result])
    total = count("anthropic", render("anthropic", said, tools=(WEATHER,))).total
    assert total.tokens < 2500
    assert total.holds(1600)


def test_a_long_word_in_a_plain_result_is_text() -> None:
    call = Message.assistant(ToolCall("c1", "look", "{}"))
    result = Message(role="tool", parts=(ToolResult("c1", "x" * 9000),))
    said = Conversation([Message.user("Look"), call, result])
    total = count("anthropic", render("anthropic", said)).total
    assert total.tokens > 9000 / CLAUDE.bytes_per_token.value


def test_tools_cost_claude_more_than_they_say() -> None:
    without, having = (
        count(
            "anthropic", render("anthropic", Conversation([Message.user("Hi")]), tools=tools)
        ).total
        for tools in ((), (WEATHER,))
    )
    # As billed: 470 tokens and more for one small function.
    assert having.tokens - without.tokens > 400
    assert having.holds(555)


def test_a_providers_own_tool_may_bring_anything() -> None:
    search = ProviderTool("anthropic", "web_search", '{"type":"web_search_1","name":"web_search"}')
    said = Conversation([Message.user("Hi")])
    total = count("anthropic", render("anthropic", said, tools=(search,))).total
    assert total.holds(2218)  # as one was billed
    assert total.holds(600)


@pytest.mark.parametrize("exact", [False, True])
def test_the_schema_of_the_answer_counts(exact: bool) -> None:
    by = tokenizer("o200k") if exact else None
    said = Conversation([Message.user("Hi")])
    schema = OutputSchema('{"type":"object","properties":{"city":{"type":"string"}}}')
    plain = count_chunks(render("openai_chat", said), GPT, tokenizer=by).total
    formed = count_chunks(render("openai_chat", said, output=schema), GPT, tokenizer=by).total
    assert 10 <= formed.tokens - plain.tokens <= 40


# ── Refusals ─────────────────────────────────────────────────────────────────────────────────────


def test_a_tokenizer_of_another_family_is_refused() -> None:
    rendered = render("openai_chat", Conversation([Message.user("Hi")]))
    with pytest.raises(InvalidRequest, match="tokenizer: gpt-4o has the tokenizer o200k, not cl"):
        count_chunks(rendered, GPT, tokenizer=tokenizer("cl100k"))


def test_a_wire_whose_framing_nobody_measured_is_refused() -> None:
    rendered = render("gemini", Conversation([Message.user("Hi")]))
    with pytest.raises(InvalidRequest, match="measured on openai_chat, openai_responses, not on g"):
        count_chunks(rendered, GPT, tokenizer=tokenizer("o200k"))
