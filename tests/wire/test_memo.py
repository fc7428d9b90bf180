"""What is remembered between calls is never another call's, however alike the two look."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from support.tables import each_row

from anaphora import catalog, wire
from anaphora.cache.plan import plan_once
from anaphora.errors import AnaphoraError
from anaphora.prompt import Call, Params, PromptBlock, PromptCachePlan, PromptIR
from anaphora.values import Message, Tool

MODELS = {
    "anthropic": "claude-sonnet-5-5",
    "openai_chat": "gpt-4.1",
    "openai_responses": "gpt-5.1",
    "gemini": "gemini-2.5-flash",
}
every_wire = each_row("name", MODELS)


def body(name: str, call: Call) -> bytes:
    codec, provider = wire.get(name), wire.provider_of(name)
    rendered = codec.render(call, catalog.profile(provider, call.model))
    rules = catalog.rules(provider, call.model, name)
    return codec.assemble(rendered, plan_once(rendered, rules, reuse_expected=True)).body.join()


def asking(name: str, *, tools: Any = (), blocks: Any = (), key: Any = None, **params: Any) -> Call:
    ir = PromptIR(
        system_blocks=blocks,
        segments=PromptIR.chat([Message.user("Hello?")]).segments,
        cache=PromptCachePlan(key=key),
    )
    return Call(ir=ir, model=MODELS[name], tools=tools, params=Params(max_tokens=9, **params))


def test_calls_with_lone_surrogates_are_never_equal() -> None:
    """This wire sends no key, and does send what the key keeps from being compared."""
    encoded = [
        body("anthropic", asking("anthropic", key="\ud800", metadata={"user_id": name}))
        for name in ("alice", "bob")
    ]
    assert [b'"alice"' in encoded[0], b'"alice"' in encoded[1], b'"bob"' in encoded[1]] == [
        True,
        False,
        True,
    ]


@each_row(
    ("field", "fine", "wrong"),
    [
        ("metadata", {"a": "null"}, {"a": None}),
        ("metadata", {"1": "x"}, {1: "x"}),
        ("stop", ("eHl6",), (b"xyz",)),
        ("stop", ("2026-01-01",), (datetime.date(2026, 1, 1),)),
        ("temperature", None, float("nan")),
    ],
)
def test_invalid_call_is_rejected_after_similar_valid_call(
    field: str, fine: Any, wrong: Any
) -> None:
    body("openai_chat", asking("openai_chat", **{field: fine}))
    with pytest.raises(AnaphoraError):
        body("openai_chat", asking("openai_chat", **{field: wrong}))


@every_wire
def test_tools_appended_to_caller_list_are_sent(name: str) -> None:
    tools = [Tool("one")]
    body(name, asking(name, tools=tools))
    tools.append(Tool("two"))
    assert b'"two"' in body(name, asking(name, tools=tools))


@every_wire
def test_system_blocks_appended_to_caller_list_are_sent(name: str) -> None:
    blocks = [PromptBlock("a", "You are terse.")]
    body(name, asking(name, blocks=blocks))
    blocks.append(PromptBlock("b", "You are kind."))
    assert b"You are kind." in body(name, asking(name, blocks=blocks))


def test_parsed_values_are_shared_and_cannot_be_changed() -> None:
    system = b'"system":[{"type":"text","text":"a","citations":{}}]'
    tools = b'"tools":[{"name":"a","input_schema":{},"defer":true}]'
    messages = b'"messages":[{"role":"user","content":"a"}]'
    request = b'{"model":"m","max_tokens":9,%b,%b,%b}' % (system, tools, messages)
    one, two = wire.get("anthropic").parse(request), wire.get("anthropic").parse(request)
    assert one.tools is two.tools
    assert one.ir.system_blocks is two.ir.system_blocks
    block, tool = one.ir.system_blocks[0], one.tools[0]
    assert isinstance(tool, Tool)
    for extras in (block.extras, tool.extras):
        assert extras
        with pytest.raises(TypeError, match="cannot be changed"):
            extras.clear()  # type: ignore[attr-defined]
