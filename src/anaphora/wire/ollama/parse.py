"""A request to Ollama, read into a call.

Everything stays where it stood and as it was written: arguments and schemas keep their text,
unknown fields travel along as extras. Normalised are only:

- `stream` is true when it is missing, and always written out;
- roles are written small; missing content is an empty text; missing messages are none;
- `null`, an empty list of images, calls, tools or stops, an empty description, name or id, empty
  reasoning and no options mean the same as a missing field;
- a function's `type` is written out in a tool and left out in a call; no arguments and no
  parameters mean the same as an empty object of them;
- a leading system message that says something becomes the system prompt;
- a call without an id gets one by its position, and a result without one the id of the call it
  answers; neither is sent back;
- messages get ids by position.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, Literal

import msgspec

from anaphora.prompt import Call, OutputSchema, Params, PromptBlock, PromptIR, Reasoning
from anaphora.values import (
    Conversation,
    Message,
    Part,
    ResultPart,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from anaphora.wire.fields import Fields, bad_request, reads

from .carried import Put, carried
from .images import read_image
from .incoming import WireMessage, read_call, read_message, read_parts
from .params import OPTIONS
from .tools import read_tool
from .usual import Read, take_usual, try_usual

_ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


@reads(bad_request)
def parse(body: bytes, path: str = "") -> Call:  # noqa: ARG001
    """The call a request makes; `InvalidRequest` names the field that cannot be."""
    fields = Fields(body, "$", bad_request)
    fields.drop_nulls()
    model = fields.take("model", str)
    read = take_usual(fields)
    if read is None:
        read = _messages(fields.maybe("messages", list[msgspec.Raw]) or [])
    tools = fields.maybe("tools", list[msgspec.Raw]) or []
    schema = fields.raw("format")
    # The bare word `json` is no schema: it travels along.
    other = b"" if schema is None or schema[:1] == b"{" else b'"format":' + schema
    params = _params(fields, None if schema is None or other else schema)
    blocks = _system_blocks(read[0]) if read else ()
    messages = [
        Message(id=f"m{index}", role=role, parts=parts)
        for index, (role, parts) in enumerate(read[len(blocks) :])
    ]
    return Call(
        ir=PromptIR.chat(Conversation(messages), system=blocks),
        model=model,
        tools=tuple(read_tool(raw, f"$.tools[{at}]") for at, raw in enumerate(tools)),
        params=params,
        extras=carried(b",".join(part for part in (other, fields.rest()) if part), Put()),
    )


def _system_blocks(first: Read) -> tuple[PromptBlock, ...]:
    """The system prompt, when the first message is one and nothing but a text. A blank one stays a
    message: it keeps the model from a system prompt of its own."""
    role, parts = first
    if role != "system" or len(parts) != 1 or not isinstance(parts[0], Text):
        return ()
    return (PromptBlock("system0", parts[0].text),) if parts[0].text.strip() else ()


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────


class _Unanswered:
    """The calls of the last assistant message that no result has answered yet."""

    def __init__(self, parts: tuple[Part, ...] = ()) -> None:
        self._names = {part.id: part.name for part in parts if isinstance(part, ToolCall)}
        self._waiting: dict[str, deque[str]] = {}
        for call_id, name in self._names.items():
            self._waiting.setdefault(name, deque()).append(call_id)

    def answer(self, call_id: str) -> None:
        self._names.pop(call_id, None)

    def first(self, name: str | None) -> str:
        """The first call of that tool, or of any; empty when there is none."""
        call_id = next(iter(self._names), "")
        if name is not None:
            waiting = self._waiting.get(name, deque())
            while waiting and waiting[0] not in self._names:
                waiting.popleft()
            call_id = waiting[0] if waiting else ""
        self.answer(call_id)
        return call_id


def _messages(raws: list[msgspec.Raw]) -> list[Read]:
    """Any messages: each in one pass when it is a usual one, field by field when it is not."""
    messages: list[Read] = []
    unanswered = _Unanswered()
    for index, raw in enumerate(raws):
        role, parts = try_usual(raw) or _read(raw, index, unanswered)
        if role == "assistant":
            unanswered = _Unanswered(parts)
        elif role == "tool" and isinstance(parts[0], ToolResult):
            unanswered.answer(parts[0].call_id)
        messages.append((role, parts))
    return messages


def _read(raw: msgspec.Raw, index: int, unanswered: _Unanswered) -> Read:
    path = f"$.messages[{index}]"
    said, rest = read_message(raw, path, bad_request)
    if said.role not in _ROLES:
        raise bad_request(f"{said.role!r} is not a role here", f"{path}.role")
    if said.role == "tool":
        return "tool", (_result(said, rest, unanswered),)
    calls = _calls(said, index, path)
    return _ROLES[said.role], read_parts(said, rest, calls, answer=False)


def _calls(said: WireMessage, index: int, path: str) -> list[ToolCall]:
    return [
        read_call(raw, f"{path}.tool_calls[{at}]", bad_request, f"call_{index}_{at}")
        for at, raw in enumerate(said.tool_calls or ())
    ]


def _result(said: WireMessage, rest: bytes, unanswered: _Unanswered) -> ToolResult:
    """A tool's answer: to the call it names, or else to the first that it may be the answer to."""
    name = said.tool_name or None
    call_id = said.tool_call_id or unanswered.first(name)
    unsaid = [field for field in ("tool_call_id", "tool_name") if not getattr(said, field)]
    text = said.content or ""
    content: str | tuple[ResultPart, ...] = text
    if said.images:
        pictures = [read_image(image) for image in said.images]
        content = (*pictures, Text(text)) if text else tuple(pictures)
    extras = carried(rest, Put(tuple(unsaid)))
    return ToolResult(call_id, content, name=name, extras=extras)


# ── Parameters ───────────────────────────────────────────────────────────────────────────────────


class _Options(msgspec.Struct, frozen=True):
    """The options that have a name here. A negative limit is none: it is carried along."""

    num_predict: Annotated[int, msgspec.Meta(ge=0)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop: tuple[str, ...] = ()


_Level = Literal["low", "medium", "high", "max"]


def _params(fields: Fields, schema: bytes | None) -> Params:
    """The parameters, taken out one by one; what is not understood stays for the extras."""
    stream = fields.maybe("stream", bool)
    options = fields.partly("options", _Options) or _Options()
    named = {name: getattr(options, option) for name, option in OPTIONS.items()}
    return Params(
        **named,
        reasoning=_reasoning(fields),
        output=None if schema is None else OutputSchema(schema.decode()),
        stream=stream is not False,
    )


def _reasoning(fields: Fields) -> Reasoning | None:
    thinks = fields.known("think", bool)
    if thinks is not None:
        return Reasoning("enabled" if thinks else "disabled")
    level = fields.known("think", _Level)  # type: ignore[arg-type]
    return None if level is None else Reasoning(effort=str(level))
