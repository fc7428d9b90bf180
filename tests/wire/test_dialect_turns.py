"""A provider's words of one turn are the next turn's while they say the same; what comes out is
what a rendering from nothing gives, whichever provider the turn before went to."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.prompt import Call, Params, PromptCachePlan, PromptIR, Reasoning, ToolChoice
from anaphora.rendered import Plan, Rendered
from anaphora.values import Conversation, Message, Tool

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
