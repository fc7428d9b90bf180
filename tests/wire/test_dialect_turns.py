"""A provider's words of one turn are the next turn's while they say the same; what comes out is
what a rendering from nothing gives, whichever provider the turn before went to."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.cache.plan.memory import AppMemory
from anaphora.cache.plan.planner import MarkerPlanner
from anaphora.prompt import (
    Call,
    Params,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Reasoning,
    ToolChoice,
)
from anaphora.rendered import Plan, Rendered
from anaphora.values import Conversation, Message, Text, Tool, ToolCall

#: Each with a model; rows of every wire, with headers, places and words of their own.
SPEAKERS = [
    ("deepseek", "deepseek-chat"),
    ("deepseek/anthropic", "deepseek-chat"),
    ("deepseek/openai_responses", "deepseek-chat"),
    ("xai", "grok-4"),
    ("mistral", "mistral-large-latest"),
    ("openrouter", "openai/gpt-5.1"),
    ("google", "gemini-2.5-flash"),
    ("openai_chat", "gpt-5.1"),
    ("anthropic", "claude-sonnet-4-5"),
]
speak = cache(wire.get)

PARAMS = st.builds(
    Params,
    max_tokens=st.sampled_from([100, 200]),
    reasoning=st.none() | st.builds(Reasoning, effort=st.sampled_from(["low", "high"])),
    tool_choice=st.none() | st.builds(ToolChoice, st.sampled_from(["auto", "required", "none"])),
    service_tier=st.none() | st.just("flex"),
)
CACHES = st.builds(
    PromptCachePlan, key=st.none() | st.just("k"), retention=st.none() | st.just("24h")
)
TURNS = st.lists(
    st.tuples(st.sampled_from(SPEAKERS), PARAMS | st.just(Params(max_tokens=100)), CACHES),
    min_size=2,
    max_size=5,
)
TOOLS = (Tool("look_up", "Looks something up.", '{"type":"object"}'),)


def encoded(name: str, rendered: Rendered) -> list[object]:
    one = rendered.envelope
    plan = Plan(marks=rendered.marks)
    request = speak(name).assemble(rendered, plan)
    return [
        (one.path, one.headers, one.head, one.tail, one.cache_params, one.notices),
        (rendered.key_place, rendered.notices, rendered.frozen_with, rendered.markers),
        (request.path, request.headers, request.body.join()),
    ]


@pytest.mark.breaks_prefix(reason="the next turn may go to another provider")
@given(TURNS)
def test_warm_turn_equals_cold_turn(
    turns: list[tuple[tuple[str, str], Params, PromptCachePlan]],
) -> None:
    messages = Conversation([Message.user("hello")])
    previous: Rendered | None = None
    for (name, model), params, plan in turns:
        profile = catalog.profile(wire.provider_of(name), model)
        ir = PromptIR.chat(messages, system="Be brief.", cache=plan)
        call = Call(ir=ir, model=model, tools=TOOLS, params=params)
        rendered = speak(name).render(call, profile, previous)
        assert encoded(name, rendered) == encoded(name, speak(name).render(call, profile))
        previous = rendered
        messages = messages.append(Message.assistant("hi"), Message.user("and?"))


@each_row("name, model", SPEAKERS, ids=str)
def test_unchanged_envelope_is_reused(name: str, model: str) -> None:
    profile = catalog.profile(wire.provider_of(name), model)
    messages = Conversation([Message.user("hello")])
    params = Params(max_tokens=100, reasoning=Reasoning(effort="low"))
    call = Call(ir=PromptIR.chat(messages), model=model, params=params)
    first = speak(name).render(call, profile)
    more = messages.append(Message.assistant("hi"), Message.user("and?"))
    second = speak(name).render(
        Call(ir=PromptIR.chat(more), model=model, params=params), profile, first
    )
    assert second.envelope is first.envelope


# ── Contents of Chat messages ────────────────────────────────────────────────────────────────────

CHAT = [
    (row.name, "some-model", bool(row.markers))
    for row in catalog.dialects().rows
    if row.wire == "openai_chat"
]
CHAT += [("openai/openai_chat", "gpt-5.6", True), ("openai/openai_chat", "gpt-5", False)]
STORY = [
    Message.user("hello"),
    Message.assistant("Looking.", ToolCall("c", "look_up", "{}")),
    Message.tool("c", "found"),
    Message.system("The user went away."),
    Message.assistant("So it is."),
    Message.user('and "now"?'),
]
"""Each text is alone in its message."""


@each_row("name, model, marked", CHAT, ids=str)
def test_lone_texts_are_strings_unless_a_mark_may_reach_them(
    name: str, model: str, marked: bool
) -> None:
    """Over three turns with a mark that moves, the shape of no message changes."""
    codec, profile = speak(name), catalog.profile(wire.provider_of(name), model)
    previous: Rendered | None = None
    sent: list[dict[str, Any]] = []
    for length in (1, 3, 6):
        conversation = Conversation(STORY[:length])
        mark = PartMark(conversation[-1].id, (0,) if length != 3 else (0, 0))
        ir = PromptIR.chat(conversation, system="Be brief.", cache=PromptCachePlan(marks=(mark,)))
        rendered = codec.render(Call(ir=ir, model=model, tools=TOOLS), profile, previous)
        assert len(rendered.marks) == bool(rendered.markers) == marked
        planned = MarkerPlanner(
            AppMemory(catalog.rules(wire.provider_of(name), model, "openai_chat"))
        ).plan(rendered, at=0.0)
        assert not planned.marks or marked
        if previous is not None:
            before, now = ([chunk.data for chunk in each] for each in (previous, rendered))
            assert now[: len(before)] == before
        body = json.loads(codec.assemble(rendered, Plan(marks=rendered.marks)).body.join())
        markers = [
            name for name in ("cache_control", "prompt_cache_breakpoint") if name in str(body)
        ]
        assert len(markers) == marked
        shapes = without(body["messages"], markers)
        assert shapes[: len(sent)] == sent
        sent, previous = shapes, rendered
    for message in sent:
        assert isinstance(message["content"], str) == (not marked or message["role"] == "assistant")
    read = codec.parse(json.dumps({"model": model, "messages": sent}).encode()).ir
    assert [message.text for message in read.body_chat()] == [message.text for message in STORY]


def without(messages: list[dict[str, Any]], markers: list[str]) -> list[dict[str, Any]]:
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            for marker in markers:
                part.pop(marker, None)
    return messages


@pytest.mark.parametrize("name", ["deepseek", "mistral"])
def test_several_texts_are_one_string_if_the_host_takes_no_lists(name: str) -> None:
    codec, profile = speak(name), catalog.profile(name, "deepseek-chat")
    blocks = (PromptBlock.plain("identity", 'I am "A".'), PromptBlock.plain("knowledge", "[1]"))
    conversation = Conversation([Message.user("one", "two"), Message.assistant("a", "b")])
    result = Message.tool("c", (Text("x"), Text("y")))
    ir = PromptIR.chat(conversation.append(result), system=blocks)
    first = codec.render(Call(ir=ir, model="deepseek-chat"), profile)
    assert [chunk.label for chunk in first][:2] == ["identity", "knowledge"]
    contents = [
        message["content"]
        for message in json.loads(codec.assemble(first, Plan()).body.join())["messages"]
    ]
    expected = ['I am "A".\n\n[1]', "one\n\ntwo", "a\n\nb", "x\n\ny"]
    assert contents == expected or (name == "mistral" and all(len(each) == 2 for each in contents))
