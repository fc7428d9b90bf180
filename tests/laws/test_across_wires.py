"""Law 6, and what must survive a translation: call → wire A → call → wire B → call keeps what both
can say, and nothing of A leaks into B's request."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support import strategies as some

from anaphora import cache, catalog, wire
from anaphora.prompt import (
    Call,
    Params,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    ToolChoice,
)
from anaphora.rendered import Plan
from anaphora.values import (
    Conversation,
    Image,
    Message,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Url,
)

MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai_chat": "gpt-5.6",
    "openai_responses": "gpt-5.6",
    "ollama": "qwen3",
    "gemini": "gemini-2.5-flash",
}
PAIRS = list(itertools.permutations(sorted(MODELS), 2))

said = some.texts.filter(lambda text: bool(text.strip()))
json_objects = st.sampled_from(["{}", '{"a":1}', '{"b": [1, 2], "a": "é"}'])
images = st.builds(lambda: Image(Url("https://example.invalid/a.png")))


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """What every wire can say: texts, an image by address, calls and their results."""
    messages: list[Message] = []
    for turn in range(draw(st.integers(1, 4))):
        asked = draw(st.lists(st.one_of(st.builds(Text, said), images), min_size=1, max_size=2))
        messages.append(Message.user(*asked))
        if draw(st.booleans()):
            call = ToolCall(f"call_{turn}", "look", draw(json_objects))
            messages.append(Message.assistant(Text(draw(said)), call))
            messages.append(Message.tool(call.id, draw(said)))
        messages.append(Message.assistant(draw(said)))
    messages.append(Message.user(draw(said)))
    return Conversation(messages)


calls = st.builds(
    lambda talk, system, limit, choice: Call(
        ir=PromptIR.chat(talk, system=[PromptBlock("identity", system)]),
        model="any",
        tools=(Tool("look", "Looks.", '{"properties":{"a":{}},"type":"object"}'),),
        params=Params(max_tokens=limit, tool_choice=choice, temperature=None),
    ),
    conversations(),
    said.map(str.strip).filter(bool),
    st.integers(1, 4000),
    st.sampled_from([None, ToolChoice("auto"), ToolChoice("none"), ToolChoice("tool", "look")]),
)


def request(name: str, call: Call, *, planned: bool = False) -> bytes:
    codec, model = wire.get(name), MODELS[name]
    rendered = codec.render(
        replace(call, model=model), catalog.profile(wire.PROVIDERS[name], model)
    )
    plan = Plan(marks=rendered.marks)
    if planned:
        plan = cache.plan(rendered, catalog.rules(wire.PROVIDERS[name], model))
    return codec.assemble(rendered, plan).body.join()


def meaning(call: Call) -> dict[str, Any]:
    """What a call says, whatever the shape of its messages."""
    turns: list[tuple[str, Any]] = []
    for message in call.ir.body_chat():
        for part in message.parts:
            if isinstance(part, Text):
                turns.append((message.role, part.text))
            elif isinstance(part, ToolCall):
                turns.append(("call", (part.id, part.name, part.arguments)))
            elif isinstance(part, ToolResult):
                inner = part.content
                text = (
                    inner
                    if isinstance(inner, str)
                    else "".join(p.text for p in inner if isinstance(p, Text))
                )
                turns.append(("result", (part.call_id, text)))
            elif isinstance(part, Image) and isinstance(part.source, Url):
                turns.append(("image", part.source.url))
    return {
        "system": call.ir.system_field().strip(),
        "turns": turns,
        "tools": [(t.name, json.loads(t.schema)) for t in call.tools if isinstance(t, Tool)],
        "limit": call.params.max_tokens,
        "choice": call.params.tool_choice
        and (call.params.tool_choice.mode, call.params.tool_choice.name),
    }


def sayable(call: Call, names: tuple[str, ...]) -> Call:
    """The call without what one of these wires cannot say: Ollama fetches no images, and leaves the
    choice of tools to the model."""
    if "ollama" not in names:
        return call
    talk = [
        Message(
            role=message.role,
            parts=tuple(Text("a.png") if isinstance(p, Image) else p for p in message.parts),
        )
        for message in call.ir.body_chat()
    ]
    ir = PromptIR.chat(talk, system=call.ir.system_blocks)
    return replace(call, ir=ir, params=replace(call.params, tool_choice=None))


@pytest.mark.parametrize("first, second", PAIRS)
@settings(max_examples=40)
@given(call=calls)
def test_what_both_can_say_survives_both(first: str, second: str, call: Call) -> None:
    call = sayable(call, (first, second))
    there = wire.get(first).parse(request(first, call))
    back = wire.get(second).parse(request(second, there))
    assert meaning(there) == meaning(call)
    assert meaning(back) == meaning(call)


FOREIGN = {
    "anthropic": ["cache_control", "input_schema", "tool_use"],
    "openai_chat": ["prompt_cache_breakpoint", "tool_calls", "max_completion_tokens"],
    "openai_responses": ["prompt_cache_breakpoint", "function_call", "max_output_tokens"],
    "ollama": ["tool_calls", "tool_name", "num_predict"],
    "gemini": ["contents", "functionCall", "maxOutputTokens"],
}


@pytest.mark.parametrize("first, second", PAIRS)
def test_law_6_a_fallback_is_rendered_anew_and_nothing_leaks(first: str, second: str) -> None:
    """langchain#33709: a marker leaked into the fallback provider's request."""
    talk = Conversation(
        [
            Message.user("hello", id="u1"),
            Message.assistant(
                Thinking("hm", "sig", provider="anthropic"), ToolCall("c1", "look", "{}")
            ),
            Message.tool("c1", "found", id="r1"),
        ]
    )
    plan = PromptCachePlan(marks=(PartMark("u1"), PartMark("r1")))
    call = Call(
        ir=PromptIR.chat(talk, system=[PromptBlock.cached_long("identity", "x")], cache=plan),
        model="any",
        tools=(Tool("look"),),
        params=Params(max_tokens=10),
    )
    parsed = wire.get(first).parse(request(first, call, planned=True))
    other = request(second, parsed).decode()
    if second != "gemini":  # which names the model in the path
        assert json.loads(other)["model"] == MODELS[second]
    for word in set(FOREIGN[first]) - set(FOREIGN[second]):
        assert f'"{word}"' not in other
    assert "found" in other
