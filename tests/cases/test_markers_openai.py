"""CASES C where OpenAI's breakpoints can meet the same fate (gpt-5.6 and later)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anaphora import catalog, wire
from anaphora.cache.plan import plan_once
from anaphora.prompt import Call, Params, PartMark, PromptBlock, PromptCachePlan, PromptIR, ToolMark
from anaphora.values import Message, Tool, ToolCall

MODEL = "gpt-5.6"
WIRES = ["openai_chat", "openai_responses"]

HISTORY = (
    Message.user("question", id="u1"),
    Message.assistant("let me see", ToolCall("t1", "look", '{"a": 1}'), id="a1"),
    Message.tool("t1", "result", id="r1"),
    Message.assistant("answer", id="a2"),
    Message.user("next", id="u2"),
)


def body_of(name: str, model: str = MODEL, **fields: Any) -> tuple[dict[str, Any], list[str]]:
    marks = fields.pop("marks", ())
    ir = PromptIR.chat(HISTORY, cache=PromptCachePlan(marks=marks), **fields)
    call = Call(ir=ir, model=model, tools=(Tool("look"),), params=Params(max_tokens=16))
    codec = wire.get(name)
    rendered = codec.render(call, catalog.profile("openai", model))
    plan = plan_once(rendered, catalog.rules("openai", model), reuse_expected=True)
    body: dict[str, Any] = json.loads(codec.assemble(rendered, plan).body.join())
    return body, [notice.code for notice in (*rendered.notices, *plan.notices)]


def breakpoints(body: dict[str, Any]) -> list[tuple[str, str]]:
    """(text of the part, TTL) in the order of the body."""
    result: list[tuple[str, str]] = []

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            if "prompt_cache_breakpoint" in value:
                ttl = value["prompt_cache_breakpoint"].get("ttl", "30m")
                result.append((value.get("text", "?"), ttl))
            for item in value.values():
                visit(item)
        elif isinstance(value, list):
            for item in value:
                visit(item)

    visit(body.get("messages", body.get("input")))
    return result


@pytest.mark.parametrize("name", WIRES)
def test_bifrost_1935_markers_on_tool_results_are_kept(name: str) -> None:
    body, notices = body_of(name, marks=(PartMark("r1", (0,), "30m"),))
    assert ("result", "30m") in breakpoints(body)
    assert not notices
    again = wire.get(name).parse(json.dumps(body).encode())
    assert len(again.ir.cache.marks) == len(breakpoints(body))


@pytest.mark.parametrize("name", WIRES)
def test_litellm_17250_1078_32155_the_ttl_asked_for_or_a_notice(name: str) -> None:
    kept, notices = body_of(name, marks=(PartMark("u1", (0,), "12h"),))
    assert ("question", "12h") in breakpoints(kept)
    assert "ttl_changed" not in notices
    _, codes = body_of(name, marks=(PartMark("u1", (0,), "1h"),))
    assert "ttl_changed" in codes


@pytest.mark.parametrize("name", WIRES)
def test_langchain_34542_34920_never_on_what_may_not_carry_one(name: str) -> None:
    body, notices = body_of(name, marks=(PartMark("a1", (0,), "30m"), ToolMark("look", "30m")))
    assert "let me see" not in dict(breakpoints(body))
    assert "prompt_cache_breakpoint" not in json.dumps(body["tools"])
    assert notices.count("mark_left_out") == 2


@pytest.mark.parametrize("name", WIRES)
def test_harness_sdk_3571_the_callers_point_stays_where_it_was(name: str) -> None:
    mark = PartMark("u2", (0,), "30m")
    body, _ = body_of(name, marks=(mark,), tail=[Message.user("the time is 09:41")])
    assert ("next", "30m") in breakpoints(body)
    assert "the time is 09:41" not in dict(breakpoints(body))


@pytest.mark.parametrize("name", WIRES)
def test_pydantic_ai_3467_sub2api_176_gcmp_83_all_markers_count(name: str) -> None:
    """Four writes a request, and the implicit one is among them."""
    marks = tuple(PartMark(at, (), "30m") for at in ("u1", "r1", "u2"))
    system = [PromptBlock.cached_short(f"b{at}", f"block {at}") for at in range(3)]
    body, notices = body_of(name, marks=marks, system=system)
    assert len(breakpoints(body)) == 3
    assert "marker_left_out" in notices


@pytest.mark.parametrize("name", WIRES)
def test_codex_35300_a_model_without_breakpoints_gets_none(name: str) -> None:
    body, notices = body_of(name, model="gpt-5", marks=(PartMark("u1", (0,), "30m"),))
    assert breakpoints(body) == []
    assert "mark_left_out" in notices
