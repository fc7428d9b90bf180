"""How a call asks for one thing and nothing else.

Each of these makes the maker of a call. What is one wire's own depends on the wire's name; all else
is the same for all.
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
    """A call that asks for nothing special."""
    talk = fields.pop("talk", [Message.user("hello", id="u1")])
    system = fields.pop("system", (SYSTEM,))
    plan = fields.pop("cache", PromptCachePlan())
    ir = PromptIR.chat(Conversation(talk), system=system, cache=plan)
    if "continuation" in fields:
        ir = replace(ir, continuation=fields.pop("continuation"))
    params = Params(**{"max_tokens": 4096, **fields.pop("params", {})})
    return Call(ir=ir, model="any", params=params, **fields)


def params(**asked: Any) -> Make:
    return lambda _: base(params=asked)


def reasoning(**asked: Any) -> Make:
    return lambda _: base(params={"reasoning": Reasoning(**asked)})


def choice(mode: Any, name: str | None = None, parallel: bool | None = None) -> Make:
    asked = ToolChoice(mode, name, parallel)
    return lambda _: base(tools=(LOOK,), params={"tool_choice": asked})


def output(**more: Any) -> Make:
    return params(output=OutputSchema(SCHEMA, **more))


def user(*parts: Any) -> Make:
    return lambda _: base(talk=[Message.user("look", *parts, id="u1")])


def talk(*messages: Message) -> Make:
    return lambda _: base(talk=messages, tools=(LOOK,))


def result(content: Any, **fields: Any) -> Make:
    return talk(
        Message.user("hello"),
        Message.assistant(ToolCall("c1", "look", "{}")),
        Message.tool("c1", content, **fields),
    )


def plan(**fields: Any) -> Make:
    return lambda _: base(cache=PromptCachePlan(**fields), tools=(LOOK,))


def mark(asked: MarkRequest) -> Make:
    return plan(marks=(asked,))


def another(name: str) -> str:
    """A wire whose words mean nothing to that one."""
    return "anthropic" if name != "anthropic" else "gemini"


def thought(name: str) -> list[Message]:
    """A tool loop in which a provider reasoned, as its wire reads the answer."""
    said = Thinking("hm", "c2ln" if name in ("anthropic", "gemini") else None)
    if name == "openai_responses":
        said = Thinking("hm", data="c2ln")
    parts = (said, ToolCall("c1", "look", "{}"))
    message = Message(id="r", role="assistant", parts=parts)
    reply = Reply(id="r", model="m", message=message, stop="tool_calls")
    codec = wire.get(name)
    heard = codec.read_reply(codec.write_reply(reply)).message
    call = next(part for part in heard.parts if isinstance(part, ToolCall))
    return [Message.user("hello"), heard, Message.tool(call.id, "found")]


_PROVIDER_TOOLS = {
    "anthropic": '{"type":"web_search_20250305","name":"web_search"}',
    "openai_chat": '{"type":"custom","custom":{"name":"grep"}}',
    "openai_responses": '{"type":"web_search"}',
    "gemini": '{"googleSearch":{}}',
    "ollama": '{"type":"web_search"}',
}


def provider_tool(name: str) -> Call:
    return base(tools=(ProviderTool(name, "search", _PROVIDER_TOOLS[name]),))


def cited(name: str) -> Call:
    said = Text("found", {name: '{"xCited":[1]}'})
    return base(talk=[Message.user("hello"), Message.assistant(said), Message.user("go on")])


def unheard_of(name: str) -> Call:
    return base(extras={name: '{"xUnheardOf":1}'})


def file_id(name: str) -> Call:
    return base(talk=[Message.user("look", Image(FileId(name, "file_1")))])


def earlier(name: str) -> Call:
    return base(cache=PromptCachePlan(diagnose=True, compare_with=Earlier(name, "r_1")))


def opaque(name: str) -> Call:
    kind, json = "x", '{"x":1}' if name == "gemini" else '{"type":"x","x":1}'
    said = Message.assistant("ok", Opaque(name, kind, json))
    return base(talk=[Message.user("hello"), said, Message.user("go on")])


def foreign(make: Make) -> Make:
    return lambda name: make(another(name))


def mark_on_message(ttl: Ttl) -> Make:
    return mark(PartMark("u1", (), ttl))
