"""CASES B: order and serialisation, on the wire. (Registries are tested in tests/prompt.)"""

from __future__ import annotations

import itertools
import json
from typing import Any

from anaphora import catalog
from anaphora.prompt import Call, Params, PromptIR
from anaphora.tools import ToolRegistry
from anaphora.values import Conversation, Message, Tool, ToolCall, from_json, to_json
from anaphora.wire import anthropic

MODEL = "claude-sonnet-4-5"
PROFILE = catalog.profile("anthropic", MODEL)

LISTING = {
    "tools": [
        {"name": name, "description": name, "inputSchema": {"type": "object", "properties": {}}}
        for name in ("read", "write", "search", "run")
    ]
}


def tool_bytes(tools: tuple[Tool, ...]) -> bytes:
    call = Call(
        ir=PromptIR.chat([Message.user("hi")]),
        model=MODEL,
        tools=tools,
        params=Params(max_tokens=1),
    )
    rendered = anthropic.render(call, PROFILE)
    return rendered.data(len(tools))


def listed(order: tuple[dict[str, Any], ...]) -> bytes:
    registry = ToolRegistry()
    registry.add_mcp({"tools": list(order)}, call=lambda name, arguments: "")
    return tool_bytes(registry.tools())


def test_bifrost_3362_tools_in_map_order_give_one_tool_section() -> None:
    assert len({listed(order) for order in itertools.permutations(LISTING["tools"])}) == 1


def test_bifrost_2347_registering_one_by_one_gives_the_same_section() -> None:
    registry = ToolRegistry()
    for tool in reversed(LISTING["tools"]):
        registry.add_mcp({"tools": [tool]}, call=lambda name, arguments: "")
    assert tool_bytes(registry.tools()) == listed(tuple(LISTING["tools"]))


def test_oh_my_pi_890_a_reconnect_that_reorders_tools_keeps_even_the_object() -> None:
    registry = ToolRegistry()
    registry.add_mcp(LISTING, call=lambda name, arguments: "")
    before = registry.tools()
    again = {"tools": LISTING["tools"][::-1]}
    registry.add_mcp(again, call=lambda name, arguments: "", replace=True)
    assert registry.tools() is before


def test_librefang_3765_a_hot_reload_keeps_the_prefix_of_a_running_conversation() -> None:
    registry = ToolRegistry()
    registry.add_mcp(LISTING, call=lambda name, arguments: "")
    conversation = Conversation([Message.user("hi")])

    def call(conversation: Conversation) -> Call:
        ir = PromptIR.chat(conversation)
        return Call(ir=ir, model=MODEL, tools=registry.tools(), params=Params(max_tokens=1))

    before = anthropic.render(call(conversation), PROFILE)
    for name in ("read", "write", "search", "run"):
        registry.remove(name)
    registry.add_mcp({"tools": LISTING["tools"][::-1]}, call=lambda name, arguments: "")
    after = anthropic.render(call(conversation.append(Message.assistant("hello"))), PROFILE, before)
    assert after.cacheable_data().startswith(before.cacheable_data())


def test_dspy_10216_arguments_survive_a_jsonb_round_trip() -> None:
    call = ToolCall("1", "search", '{"query": "tea",  "limit": 3, "a": {"z": 1, "b": 2}}')
    live = Message.assistant(call)
    # jsonb sorts keys by length and then by bytes, and drops white space.
    stored = json.loads(to_json(live))
    jsonb = json.dumps(dict(sorted(stored.items(), key=lambda item: (len(item[0]), item[0]))))
    reloaded = from_json(jsonb, Message)

    def content(message: Message) -> bytes:
        ir = PromptIR.chat([Message.user("hi"), message])
        made = Call(ir=ir, model=MODEL, params=Params(max_tokens=1))
        return anthropic.render(made, PROFILE).data()

    assert content(live) == content(reloaded)
    assert call.arguments.encode() in content(reloaded)


def test_sglang_34553_properties_and_required_may_swap_places() -> None:
    def made(schema: dict[str, Any]) -> bytes:
        registry = ToolRegistry()
        registry.add_schema("search", "Search.", schema, lambda arguments: "")
        return tool_bytes(registry.tools())

    properties = {"query": {"type": "string", "description": "what"}, "limit": {"type": "integer"}}
    one = made({"type": "object", "properties": properties, "required": ["query", "limit"]})
    two = made({"required": ["limit", "query"], "properties": properties, "type": "object"})
    assert one == two
    # Models answer in the order of the properties, so that order is kept as declared.
    assert one.index(b'"query"') < one.index(b'"limit"')


def test_openclaw_58037_a_listing_without_guaranteed_order_changes_no_byte() -> None:
    assert listed(tuple(LISTING["tools"])) == listed(
        tuple(LISTING["tools"][2:] + LISTING["tools"][:2])
    )


def test_deepagents_2497_new_objects_of_an_equal_listing_change_no_byte() -> None:
    copy = tuple(json.loads(json.dumps(tool)) for tool in LISTING["tools"])
    assert listed(copy) == listed(tuple(LISTING["tools"]))
