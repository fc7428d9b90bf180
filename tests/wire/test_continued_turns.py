"""A turn that continues the one before equals a rendering of the whole prompt, whatever else of the
call changed: an earlier message, tools, system prompt, parameters, marks, the model, a branch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import strategies as some
from support.laws import anthropic, bedrock, gemini, openai_chat, openai_responses
from support.laws.case import WireCase

from anaphora import catalog
from anaphora.errors import InvalidRequest
from anaphora.prompt import Call, Params, PromptCachePlan, PromptIR, Segment
from anaphora.rendered import Plan, Rendered
from anaphora.values import Conversation, Message, SegmentRole, Text, ToolCall, ToolResult

CASES = [module.CASE for module in (anthropic, openai_chat, openai_responses, gemini, bedrock)]
PLANS = st.just(PromptCachePlan()) | some.cache_plans
PLAIN = [
    Message(role="assistant", parts=(Text("Yes."), ToolCall("c", "f", "{}"))),
    Message(role="tool", parts=(ToolResult("c", "found"),)),
    Message(role="assistant", parts=(Text("Done."),)),
    Message.user("And?"),
]
CHANGES = ("append",) * 6 + ("edit", "cut", "copy", "tools", "system", "params", "cache", "model")


def facts(case: WireCase, rendered: Rendered) -> dict[str, Any]:
    """All that planning and sending read of a rendering."""
    plan = Plan(marks=rendered.marks[:4], automatic=rendered.automatic)
    request = case.codec.assemble(rendered, plan)
    return {
        "body": request.body.join(),
        "path": request.path,
        "headers": request.headers,
        "chunks": [(c.path, c.splice, c.kind, c.role) for c in rendered],
        "data": rendered.data(),
        "cacheable": rendered.cacheable,
        "marks": rendered.marks,
        "automatic": rendered.automatic,
        "frozen": rendered.frozen,
        "frozen_with": rendered.frozen_with,
        "markers": rendered.markers,
        "message_ttl": rendered.message_ttl,
        "messages_cacheable": rendered.messages_cacheable,
        "notices": rendered.notices,
        "cache_params": rendered.envelope.cache_params,
        "ends": [
            run.log.message_ends[: len(run.source)]
            for run in rendered.runs
            if run.section == "messages"
        ],
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_turn_equals_a_whole_rendering(case: WireCase, data: st.DataObject) -> None:
    # Not through the guard of conftest.py: what comes before need not continue.
    render = import_module(f"anaphora.wire.{case.name}.render").render
    turns = data.draw(case.turns)
    if data.draw(st.booleans()):
        turns = [PLAIN[:2], PLAIN[2:3], *turns, PLAIN]  # without notices: these continue
    conversation = Conversation([Message.user("hello")])
    call: dict[str, Any] = {
        "model": data.draw(st.sampled_from(case.models)),
        "tools": data.draw(some.tools),
        "blocks": data.draw(some.blocks),
        "params": Params(max_tokens=64),
        "cache": data.draw(PLANS) if data.draw(st.booleans()) else PromptCachePlan(),
    }
    rendered: list[Rendered] = []
    for turn in turns:
        change = data.draw(st.sampled_from(CHANGES))
        if change == "append":
            conversation = conversation.append(*turn)
        elif change == "edit" and turn:
            messages = list(conversation)
            messages[data.draw(st.integers(0, len(messages) - 1))] = turn[0]
            conversation = Conversation([Message.user("hello"), *messages[1:]])
        elif change == "cut":
            kept = data.draw(st.integers(1, len(conversation)))
            conversation = Conversation(conversation[:kept]).append(*turn)
        elif change == "copy":
            conversation = Conversation(list(conversation)).append(*turn)
        elif change == "params":
            call["params"] = Params(max_tokens=data.draw(st.sampled_from([64, 65])))
        elif change in call:
            drawn = {"tools": some.tools, "cache": PLANS, "model": st.sampled_from(case.models)}
            call[change] = data.draw(drawn[change])
        else:
            call["blocks"] = data.draw(some.blocks)
        made = Call(
            ir=PromptIR(
                system_blocks=call["blocks"],
                segments=(Segment(SegmentRole.CONVERSATION, conversation),),
                cache=call["cache"],
            ),
            model=call["model"],
            tools=call["tools"],
            params=call["params"],
        )
        profile = case.relaxed(catalog.profile(case.provider, made.model))
        previous = (
            data.draw(st.sampled_from([*rendered[-1:], *rendered[-1:], *rendered]))
            if rendered
            else None
        )
        try:
            cold = render(made, profile)
        except InvalidRequest:
            with pytest.raises(InvalidRequest):
                render(made, profile, previous)
            continue
        warm = render(made, profile, previous)
        assert facts(case, warm) == facts(case, cold)
        rendered.append(warm)
