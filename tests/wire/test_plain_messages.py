"""Plain messages are encoded in a shorter way than others. The bytes are the same: fields of another
wire, which are left out, make a message take the longer way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora import (
    Call,
    Message,
    Params,
    PromptIR,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    catalog,
    wire,
)
from anaphora.rendered import Plan
from anaphora.values import Part

MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai_chat": "gpt-5.6",
    "openai_responses": "gpt-5.6",
    "gemini": "gemini-2.5-flash",
    "bedrock": "anthropic.claude-sonnet-4-5-20250929-v1:0",
}
FOREIGN = {"elsewhere": "{}"}

words = st.text('ab \n"é', max_size=6)
texts = words.map(Text)
calls = st.builds(ToolCall, st.sampled_from(["c1", "c2"]), st.just("look"), st.just('{"a": 1}'))
results = st.builds(ToolResult, st.sampled_from(["c1", "c2"]), words, st.booleans())


def messages(role: str, parts: st.SearchStrategy[Part]) -> st.SearchStrategy[Message]:
    lists = st.lists(parts, min_size=1, max_size=3).map(tuple)
    return lists.map(lambda parts: Message(role=role, parts=parts))  # type: ignore[arg-type]


conversations = st.lists(
    messages("user", texts) | messages("assistant", texts | calls) | messages("tool", results),
    max_size=6,
)


def with_foreign_fields(message: Message) -> Message:
    parts = tuple(msgspec.structs.replace(part, extras=FOREIGN) for part in message.parts)
    return msgspec.structs.replace(message, parts=parts)


def chunks(name: str, conversation: list[Message]) -> tuple[list[Any], bytes]:
    call = Call(
        ir=PromptIR.chat([*conversation, Message.user("The end.")]),
        model=MODELS[name],
        tools=(Tool("look"),),  # Bedrock's models refuse tool calls in a request without tools
        params=Params(max_tokens=9),
    )
    codec = wire.get(name)
    rendered = codec.render(call, catalog.profile(wire.provider_of(name), call.model))
    listed = [(chunk.kind, chunk.data, chunk.splice, chunk.path) for chunk in rendered]
    return listed, codec.assemble(rendered, Plan()).body.join()


@pytest.mark.parametrize("name", wire.WIRES)
@given(conversation=conversations)
def test_the_shorter_way_gives_the_same_bytes(name: str, conversation: list[Message]) -> None:
    foreign = [with_foreign_fields(message) for message in conversation]
    assert chunks(name, conversation) == chunks(name, foreign)


@pytest.mark.parametrize("name", wire.WIRES)
@given(conversation=conversations, foreign=st.lists(st.booleans(), min_size=6, max_size=6))
def test_the_two_ways_may_alternate(
    name: str, conversation: list[Message], foreign: list[bool]
) -> None:
    mixed = [
        with_foreign_fields(message) if other else message
        for message, other in zip(conversation, foreign, strict=False)
    ]
    assert chunks(name, conversation) == chunks(name, mixed)
