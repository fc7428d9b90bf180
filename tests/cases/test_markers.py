"""CASES C: markers lost, moved or illegal. Each test is named after the thread it comes from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.rules import without_minimum

from anaphora import catalog
from anaphora.cache.plan import plan_once
from anaphora.prompt import Call, Params, PartMark, PromptBlock, PromptCachePlan, PromptIR, Segment
from anaphora.values import (
    CachePolicy,
    Conversation,
    Message,
    Opaque,
    SegmentRole,
    Thinking,
    Tool,
    ToolCall,
)
from anaphora.wire import anthropic

MODEL = "claude-sonnet-4-5"
PROFILE = catalog.profile("anthropic", MODEL)
RULES = without_minimum("anthropic", MODEL)

HISTORY = (
    Message.user("question", id="u1"),
    Message.assistant(ToolCall("t1", "look", '{"a": 1}'), id="a1"),
    Message.tool("t1", "result", id="r1"),
    Message.assistant("answer", id="a2"),
    Message.user("next", id="u2"),
)


def body_of(call: Call) -> tuple[dict[str, Any], list[str]]:
    rendered = anthropic.render(call, PROFILE)
    plan = plan_once(rendered, RULES, reuse_expected=True)
    body: dict[str, Any] = json.loads(anthropic.assemble(rendered, plan).body.join())
    return body, [notice.code for notice in (*rendered.notices, *plan.notices)]


def marked(*marks: PartMark, **fields: Any) -> Call:
    ir = PromptIR.chat(HISTORY, cache=PromptCachePlan(marks=marks), **fields)
    return Call(ir=ir, model=MODEL, params=Params(max_tokens=1))


def markers(body: dict[str, Any]) -> list[tuple[str, str]]:
    """(block, TTL) in hash order."""
    blocks = [*body.get("tools", []), *body.get("system", [])]
    blocks += [block for message in body["messages"] for block in message["content"]]
    return [
        (block.get("type", "tool"), block["cache_control"].get("ttl", "5m"))
        for block in blocks
        if "cache_control" in block
    ]


def test_bifrost_1935_markers_on_tool_use_and_tool_result_are_kept() -> None:
    body, _ = body_of(marked(PartMark("a1", (0,)), PartMark("r1", (0,))))
    assert ("tool_use", "5m") in markers(body)
    assert ("tool_result", "5m") in markers(body)
    again = anthropic.parse(json.dumps(body).encode())
    assert {PartMark("m1", (0,)), PartMark("m2", (0,))} <= set(again.ir.cache.marks)


@pytest.mark.parametrize("thread", ["litellm#17250", "litellm-docs#1078", "litellm#32155"])
def test_litellm_17250_1078_32155_the_ttl_asked_for_or_a_notice(thread: str) -> None:
    kept, _ = body_of(marked(PartMark("r1", (0,), "1h")))
    assert ("tool_result", "1h") in markers(kept), thread
    block = PromptBlock.cached_short("identity", "x")
    lengthened, notices = body_of(marked(PartMark("r1", (0,), "1h"), system=[block]))
    assert ("tool_result", "1h") in markers(lengthened)
    assert markers(lengthened)[0] == ("text", "1h")
    assert "ttl_lengthened" in notices


@pytest.mark.parametrize(
    "part",
    [
        Thinking("hm", "sig", provider="anthropic"),
        Thinking(data="x", provider="anthropic"),
        Opaque("anthropic", "novel_block", '{"type":"novel_block"}'),
    ],
)
def test_langchain_34542_34920_never_on_a_block_that_may_not_carry_one(part: Any) -> None:
    history = (Message.user("q"), Message.assistant("said", part, "more", id="a"))
    question = PromptCachePlan(marks=(PartMark("a", (1,)),))
    call = Call(ir=PromptIR.chat(history, cache=question), model=MODEL, params=Params(max_tokens=1))
    body, notices = body_of(call)
    assert "cache_control" not in body["messages"][1]["content"][1]
    assert notices == ["mark_left_out"]


def test_harness_sdk_3571_the_callers_point_stays_where_it_was() -> None:
    """A volatile tail behind the marked message does not pull the marker along."""
    body, _ = body_of(marked(PartMark("u2", (0,)), tail=[Message.user("the time is 09:41")]))
    last = body["messages"][-1]["content"]
    assert [("cache_control" in block, block["text"]) for block in last] == [
        (True, "next"),
        (False, "the time is 09:41"),
    ]


@pytest.mark.parametrize("thread", ["pydantic-ai#3467", "sub2api#176", "GCMP#83"])
def test_pydantic_ai_3467_sub2api_176_gcmp_83_all_markers_count(thread: str) -> None:
    """Tools, system, the caller's own, the planner's: together never more than four."""
    ir = PromptIR(
        system_blocks=(
            PromptBlock.cached_long("identity", "x"),
            PromptBlock.cached_short("skills", "y"),
        ),
        segments=(Segment(SegmentRole.CONVERSATION, Conversation(HISTORY)),),
        cache=PromptCachePlan(marks=(PartMark("r1"), PartMark("a2")), frozen_through="a1"),
    )
    tools = (Tool("look", cache=CachePolicy.EPHEMERAL_1H), Tool("see"))
    body, notices = body_of(Call(ir=ir, model=MODEL, tools=tools, params=Params(max_tokens=1)))
    assert len(markers(body)) == 4, thread
    assert ("tool_result", "5m") in markers(body)
    assert "marker_left_out" in notices


def test_sub2api_176_the_automatic_marker_takes_a_slot_too() -> None:
    marks = tuple(PartMark(message.id) for message in HISTORY[:4])
    ir = PromptIR.chat(HISTORY, cache=PromptCachePlan(marks=marks, automatic="5m"))
    body, notices = body_of(Call(ir=ir, model=MODEL, params=Params(max_tokens=1)))
    assert body["cache_control"] == {"type": "ephemeral"}
    assert len(markers(body)) == 3
    assert "marker_left_out" in notices


@pytest.mark.parametrize(
    "thread", ["headroom#2939", "claude-code-cache-fix#44", "vellum-assistant#22191"]
)
def test_headroom_2939_cache_fix_44_vellum_22191_never_an_hour_after_five_minutes(
    thread: str,
) -> None:
    system = [PromptBlock.cached_short("a", "x"), PromptBlock.cached_long("b", "y")]
    body, notices = body_of(marked(PartMark("u1", (0,), "1h"), system=system))
    assert [ttl for _, ttl in markers(body)] == ["1h", "1h", "1h", "5m"], thread
    assert "ttl_lengthened" in notices
