"""Counts of a growing prompt: they add up, are kept, and examine only new chunks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora import catalog
from anaphora import tokens as estimates
from anaphora.prompt import Call, OutputSchema, Params, PromptIR
from anaphora.rendered import Kind, Plan, Rendered, media
from anaphora.rendered.media import Size, measured
from anaphora.tokens import Counts, for_model
from anaphora.values import (
    Audio,
    Bytes,
    Conversation,
    Document,
    Image,
    Message,
    ProviderTool,
    Text,
    Tool,
    ToolCall,
    ToolResult,
)
from anaphora.wire import anthropic, gemini, openai_chat, openai_responses
from anaphora.wire.cutting import cut

CLAUDE = catalog.profile("anthropic", "claude-sonnet-4-5")
GPT = catalog.profile("openai", "gpt-4o")
GEMINI = catalog.profile("google", "gemini-2.5-pro")
WEATHER = Tool("get_weather", "The weather in a city.", '{"type":"object","properties":{}}')
PICTURE = Image(Bytes(bytes(300_000), "image/png"))

#: A wire, and a model on it.
PLACES: dict[str, tuple[Any, catalog.Profile]] = {
    "anthropic": (anthropic, CLAUDE),
    "openai_chat": (openai_chat, GPT),
    "openai_responses": (openai_responses, GPT),
    "gemini": (gemini, GEMINI),
}
on_every_wire = pytest.mark.parametrize("place", PLACES)


def render(
    place: str,
    conversation: Conversation,
    previous: Rendered | None = None,
    *,
    tools: tuple[Any, ...] = (),
    output: OutputSchema | None = None,
    system: str = "Be brief.",
) -> Rendered:
    wire, profile = PLACES[place]
    ir = PromptIR.chat(conversation, system=system)
    params = Params(max_tokens=100, output=output)
    call = Call(ir=ir, model=profile.id, tools=tools, params=params)
    rendered: Rendered = wire.render(call, profile, previous)
    return rendered


def total(place: str, *messages: Message, **options: Any) -> int:
    return Counts(render(place, Conversation(messages), **options)).total


texts = st.text(min_size=1, max_size=200)
turns = st.lists(st.tuples(texts, texts), min_size=1, max_size=5)


def grown(conversation: Conversation, text: str, answered: str) -> Conversation:
    return conversation.append(Message.user(text), Message.assistant(answered))


# ── Laws ─────────────────────────────────────────────────────────────────────────────────────────


@on_every_wire
@given(turns_added=turns)
def test_counts_grow_along_the_prompt_and_stay_when_it_grows(
    place: str, turns_added: list[tuple[str, str]]
) -> None:
    conversation, rendered, before = Conversation(), None, list[int]()
    for pair in turns_added:
        conversation = grown(conversation, *pair)
        rendered = render(place, conversation, rendered)
        counts = Counts(rendered)
        now = [counts.tokens(chunks) for chunks in range(len(counts) + 1)]
        assert now[0] == 0
        assert now[-1] == counts.total
        assert all(fewer <= more for fewer, more in itertools.pairwise(now))
        assert now[: len(before)] == before
        before = now


@on_every_wire
@given(turns_added=turns)
def test_chunks_add_up_to_the_prompt(place: str, turns_added: list[tuple[str, str]]) -> None:
    """Rounded once: the sum of the sizes is the size of the sum."""
    conversation = Conversation([Message.user("Look:", PICTURE)])
    for pair in turns_added:
        conversation = grown(conversation, *pair)
    rendered = render(place, conversation, tools=(WEATHER,))
    counts = Counts(rendered)
    text = other = 0
    for chunks, size in enumerate(counts.sizes(), start=1):
        text, other = text + size.text, other + size.other
        assert Size(text, other).tokens(rendered.bytes_per_token) == counts.tokens(chunks)


@on_every_wire
def test_tokens_before_a_byte(place: str) -> None:
    conversation = Conversation([Message.user("One " * 99), Message.assistant("Two " * 99)])
    rendered = render(place, conversation.append(Message.user("Look:", PICTURE)))
    counts = Counts(rendered)
    for chunk in range(len(rendered)):
        assert counts.before(rendered.offset(chunk)) == counts.tokens(chunk)
    assert counts.before(rendered.size) == counts.total
    inside = [counts.before(offset) for offset in range(0, rendered.size, 997)]
    assert inside == sorted(inside)


@on_every_wire
def test_split_request_counts_like_the_rendered_one(place: str) -> None:
    wire, profile = PLACES[place]
    schema = OutputSchema('{"type":"object","properties":{"city":{"type":"string"}}}')
    conversation = Conversation([Message.user("Look:", PICTURE)])
    rendered = render(place, conversation, tools=(WEATHER,), output=schema)
    request = wire.assemble(rendered, Plan())
    split = for_model(cut(wire, request.body.join(), request.path), profile)
    assert Counts(split).total == Counts(rendered).total


# ── Cost ─────────────────────────────────────────────────────────────────────────────────────────


def test_turn_examines_new_chunks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    odd = media.not_text

    def watched(kind: Kind, size: int, data: Callable[[], bytes]) -> tuple[int, int]:
        looked.append(size)
        return odd(kind, size, data)

    monkeypatch.setattr(estimates, "not_text", watched)
    conversation, rendered = Conversation(), None
    tools = (Tool("own", "Of this test alone."),)
    for turn in range(20):
        answer = Message.assistant(f"I saw {turn}.")
        conversation = conversation.append(answer, Message.user("Look:", PICTURE))
        rendered = render("anthropic", conversation, rendered, tools=tools)
        looked.clear()
        assert Counts(rendered).total
        assert Counts(rendered).total
        # The image; at first the tool as well.
        assert len(looked) == (1 if turn else 2)


# ── Media, tools and other parts ─────────────────────────────────────────────────────────────────


@on_every_wire
@pytest.mark.parametrize("size", [10, 3_000_000])
def test_image_is_not_counted_as_base64(place: str, size: int) -> None:
    message = Message.user("Look:", Image(Bytes(bytes(size), "image/png")))
    assert 1000 < total(place, message) < 2000


@on_every_wire
def test_text_beside_an_image_counts(place: str) -> None:
    text = "What is the weather in Rome? " * 200
    alone = total(place, Message.user(text))
    assert alone + 1100 < total(place, Message.user(text, PICTURE)) < alone + 1400


@pytest.mark.parametrize("place", ["anthropic", "openai_chat", "openai_responses", "gemini"])
def test_document_is_not_counted_as_base64(place: str) -> None:
    message = Message.user("Read:", Document(Bytes(bytes(900_000), "application/pdf"), "a.pdf"))
    assert 1000 < total(place, message) < 2000


@pytest.mark.parametrize("place", ["openai_chat", "gemini"])
def test_audio_is_not_counted_as_base64(place: str) -> None:
    message = Message.user("Listen:", Audio(Bytes(bytes(900_000), "audio/wav")))
    assert 1000 < total(place, message) < 2000


@pytest.mark.parametrize("place", ["anthropic", "openai_chat", "openai_responses", "gemini"])
def test_plain_text_document_counts_as_text(place: str) -> None:
    text = "The rain in Spain falls mainly on the plain. " * 500
    message = Message.user("Read:", Document(Bytes(text.encode(), "text/plain"), "a.txt"))
    as_text = total(place, Message.user("Read:", text))
    assert total(place, message) == pytest.approx(as_text, rel=0.02)


@pytest.mark.parametrize("place", ["anthropic", "openai_responses"])
def test_image_in_a_tool_result_is_not_counted_as_base64(place: str) -> None:
    call = Message.assistant(ToolCall("c1", "look", "{}"))
    result = Message(role="tool", parts=(ToolResult("c1", (Text("Here:"), PICTURE)),))
    assert 1000 < total(place, Message.user("Look"), call, result) < 2500


def test_long_word_in_a_plain_result_counts_as_text() -> None:
    call = Message.assistant(ToolCall("c1", "look", "{}"))
    result = Message(role="tool", parts=(ToolResult("c1", "x" * 9000),))
    counted = total("anthropic", Message.user("Look"), call, result)
    assert counted > 9000 / CLAUDE.bytes_per_token.value


def test_encrypted_reasoning_counts_less_than_text() -> None:
    item = b'{"type":"reasoning","encrypted_content":"%s"}' % (b"gAAA" * 1000)
    assert measured(item, Kind.THINKING).tokens(4.4) == pytest.approx(500, abs=20)


def test_claude_bills_tools_beyond_their_text() -> None:
    with_tool = total("anthropic", Message.user("Hi"), tools=(WEATHER,))
    # As billed: 470 tokens and more for one small function.
    assert with_tool - total("anthropic", Message.user("Hi")) > 400


def test_provider_tool_includes_its_instructions() -> None:
    search = ProviderTool("anthropic", "web_search", '{"type":"web_search_1","name":"web_search"}')
    assert total("anthropic", Message.user("Hi"), tools=(search,)) > 1000


def test_output_schema_counts() -> None:
    schema = OutputSchema('{"type":"object","properties":{"city":{"type":"string"}}}')
    plain = total("openai_chat", Message.user("Hi"))
    assert 10 <= total("openai_chat", Message.user("Hi"), output=schema) - plain <= 40


def test_json_with_images_is_counted_without_them() -> None:
    block = b'{"type":"image","source":{"type":"base64","data":"%s"}}' % (b"A" * 400_000)
    assert measured(block).text < 100
    assert measured(b'"%s"' % (b"A" * 400_000)) == Size(400_002, 0)


# ── Bounds ───────────────────────────────────────────────────────────────────────────────────────


def test_bounds_narrow_after_the_first_usage() -> None:
    conversation = Conversation([Message.user("What is the weather? " * 500)])
    rendered = render("anthropic", conversation)
    counts, error = Counts(rendered), CLAUDE.token_error.value
    low, high = counts.bounds(error)
    assert low < counts.total * (1 - error / 2) < counts.total * (1 + error / 2) < high
    billed = round(counts.total * 1.15)
    bills = counts.billed(billed)
    assert Counts(rendered, bills).bounds(error) == (billed, billed)
    longer = render("anthropic", grown(conversation, "And now?", "Rain."), rendered)
    low, high = Counts(longer, bills).bounds(error)
    assert billed - 70 < low < high < billed + 200


def test_bill_calibrates_the_cached_part() -> None:
    """Three tokens are billed behind the tail, as Anthropic does, and 40 behind the system prompt."""
    rendered = render("anthropic", Conversation([Message.user("Hi " * 50)]), system="Hey. " * 900)
    counts = Counts(rendered)
    whole = counts.total + 100
    bills = counts.billed(whole, (len(counts), whole - 3))
    assert Counts(rendered, bills).total == whole - 3
    bills = counts.billed(whole, (1, whole - 40))
    assert Counts(rendered, bills).tokens(1) == whole - 40
    assert Counts(rendered, bills).total == whole


def test_mismatching_cached_part_is_ignored() -> None:
    """A provider that takes no notice of markers caches whole granules."""
    counts = Counts(render("anthropic", Conversation([Message.user("Hi " * 5000)])))
    whole = counts.total
    assert counts.billed(whole, (len(counts), whole - 500)) == counts.billed(whole)


@pytest.mark.parametrize("images", [1, 300])
def test_image_is_examined_once(images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the last chunk of a prompt, and without a copy of all that was found before it."""
    looked, copied = 0, 0
    look, odd = media.not_text, media.Odd

    def looking(*args: Any) -> tuple[int, int]:
        nonlocal looked
        looked += 1
        return look(*args)

    class Counting(odd):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any) -> None:
            nonlocal copied
            copied += 1
            super().__init__(*args)

    monkeypatch.setattr(estimates, "not_text", looking)
    monkeypatch.setattr(estimates, "Odd", Counting)
    picture = Image(Bytes(bytes(300), "image/png"))
    ir = PromptIR.chat([Message(role="user", parts=(picture,) * images)])
    call = Call(ir=ir, model=CLAUDE.id, params=Params(max_tokens=100))
    rendered = anthropic.render(call, CLAUDE)
    assert Counts(rendered).total == Counts(rendered).total
    assert looked == images
    assert copied == 2


@pytest.mark.parametrize("name", ["parametersJsonSchema", "parameters_json_schema"])
def test_schema_of_a_gemini_function_is_counted_as_text(name: str) -> None:
    """google-genai 3 writes this field in snake case."""
    function = {"name": "look_up", "description": "Looks up.", name: {"type": "object"}}
    body = {
        "contents": [{"role": "user", "parts": [{"text": "Hello"}]}],
        "tools": [{"functionDeclarations": [function]}],
    }
    path = "/v1/models/gemini-2.5-pro:generateContent"
    assert Counts(cut(gemini, json.dumps(body).encode(), path)).total < 100
