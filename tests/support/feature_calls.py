"""Calls that use one feature and nothing else.

Each function returns a maker that takes the name of a wire; only provider-specific features depend
on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec.structs import replace

from anaphora import wire
from anaphora.prompt import (
    Call,
    Earlier,
    MarkRequest,
    OutputSchema,
    Params,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Reasoning,
    ToolChoice,
)
from anaphora.values import (
    Bytes,
    Conversation,
    FileId,
    Image,
    Message,
    Opaque,
    ProviderTool,
    Reply,
    Text,
    Thinking,
    Tool,
    ToolCall,
    Ttl,
)

Make: TypeAlias = Callable[[str], Call]


PNG = Bytes(b"\x89PNG\r\n\x1a\n", "image/png")
PDF = Bytes(b"%PDF-1.7", "application/pdf")
WAV = Bytes(b"RIFF", "audio/wav")
SCHEMA = '{"properties":{"a":{"type":"string"}},"required":["a"],"type":"object"}'
LOOK = Tool("look", "Looks.", SCHEMA)
SYSTEM = PromptBlock("identity", "Be brief.")


def base(**fields: Any) -> Call:
    """A call without special features."""
    messages = fields.pop("messages", [Message.user("hello", id="u1")])
    system = fields.pop("system", (SYSTEM,))
    plan = fields.pop("cache", PromptCachePlan())
    ir = PromptIR.chat(Conversation(messages), system=system, cache=plan)
    if "continuation" in fields:
        ir = replace(ir, continuation=fields.pop("continuation"))
    params = Params(**{"max_tokens": 4096, **fields.pop("params", {})})
    return Call(ir=ir, model="any", params=params, **fields)


def params(**values: Any) -> Make:
    return lambda _: base(params=values)


def reasoning(**values: Any) -> Make:
    return lambda _: base(params={"reasoning": Reasoning(**values)})


def choice(mode: Any, name: str | None = None, parallel: bool | None = None) -> Make:
    tool_choice = ToolChoice(mode, name, parallel)
    return lambda _: base(tools=(LOOK,), params={"tool_choice": tool_choice})


def output(**more: Any) -> Make:
    return params(output=OutputSchema(SCHEMA, **more))


def user(*parts: Any) -> Make:
    return lambda _: base(messages=[Message.user("look", *parts, id="u1")])


def messages(*messages: Message) -> Make:
    return lambda _: base(messages=messages, tools=(LOOK,))


def result(content: Any, **fields: Any) -> Make:
    return messages(
        Message.user("hello"),
        Message.assistant(ToolCall("c1", "look", "{}")),
        Message.tool("c1", content, **fields),
    )


def plan(**fields: Any) -> Make:
    return lambda _: base(cache=PromptCachePlan(**fields), tools=(LOOK,))


def mark(request: MarkRequest) -> Make:
    return plan(marks=(request,))


def another(name: str) -> str:
    """A wire of another provider."""
    return "anthropic" if name != "anthropic" else "gemini"


def thought(name: str) -> list[Message]:
    """A tool loop with the provider's reasoning, as its wire reads the reply."""
    thinking = Thinking("hm", "c2ln" if name in ("anthropic", "gemini", "bedrock") else None)
    if name == "openai_responses":
        thinking = Thinking("hm", data="c2ln")
    parts = (thinking, ToolCall("c1", "look", "{}"))
    message = Message(id="r", role="assistant", parts=parts)
    reply = Reply(id="r", model="m", message=message, stop_reason="tool_calls")
    codec = wire.get(name)
    message_read = codec.read_reply(codec.write_reply(reply)).message
    call = next(part for part in message_read.parts if isinstance(part, ToolCall))
    return [Message.user("hello"), message_read, Message.tool(call.id, "found")]


_PROVIDER_TOOLS = {
    "anthropic": '{"type":"web_search_20250305","name":"web_search"}',
    "openai_chat": '{"type":"custom","custom":{"name":"grep"}}',
    "openai_responses": '{"type":"web_search"}',
    "gemini": '{"googleSearch":{}}',
    "bedrock": '{"systemTool":{"name":"web_search"}}',
}


def provider_tool(name: str) -> Call:
    return base(tools=(ProviderTool(name, "search", _PROVIDER_TOOLS[name]),))


def cited(name: str) -> Call:
    text = Text("found", {name: '{"xCited":[1]}'})
    return base(messages=[Message.user("hello"), Message.assistant(text), Message.user("go on")])


def unknown_field(name: str) -> Call:
    return base(extras={name: '{"xUnheardOf":1}'})


def file_id(name: str) -> Call:
    return base(messages=[Message.user("look", Image(FileId(name, "file_1")))])


def earlier(name: str) -> Call:
    return base(cache=PromptCachePlan(diagnose=True, compare_with=Earlier(name, "r_1")))


def opaque(name: str) -> Call:
    kind, json = "x", '{"x":1}' if name in ("gemini", "bedrock") else '{"type":"x","x":1}'
    message = Message.assistant("ok", Opaque(name, kind, json))
    return base(messages=[Message.user("hello"), message, Message.user("go on")])


def foreign(make: Make) -> Make:
    return lambda name: make(another(name))


def mark_on_message(ttl: Ttl) -> Make:
    return mark(PartMark("u1", (), ttl))
