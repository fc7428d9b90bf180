"""Requests of usual messages, read in one go. Most requests hold nothing else.

What `usual` reads message by message is one loop here: a function for each step would cost as much
as the steps. A law holds the two against each other.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Raw

from anaphora.prompt import PromptBlock
from anaphora.values import Extras, Message, Part, Role, Text, Thinking, ToolCall, ToolResult
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, message_ids, request_error

from .carried import WIRE, put_as
from .usual import NULL, Assistant, System, Tool, Unusual, User, UsualMessage, arguments_of

#: The system prompt, and what was said.
Talk: TypeAlias = tuple[tuple[PromptBlock, ...], list[Message]]


class PlainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request with no other fields than these."""

    model: str
    messages: list[UsualMessage]
    stream: bool | None = None
    tools: list[Raw] | None = None
    options: Raw = NULL
    format: Raw = NULL
    think: Raw = NULL
    keep_alive: Raw = NULL

    @property
    def only_options(self) -> bool:
        """Whether nothing is asked for but in the options."""
        return self.format is self.think is self.keep_alive is NULL

    def rest(self, body: bytes) -> Fields:
        """What is not read here, to be read field by field. What is left of these three then is
        carried along; of more than one in the order they came, which only the body knows."""
        named = (("options", self.options), ("think", self.think), ("keep_alive", self.keep_alive))
        given = [(name, raw) for name, raw in named if raw is not NULL]
        fields = Fields(body if len(given) > 1 else b"{}", "$", request_error)
        for name in ("model", "messages", "stream", "tools"):
            fields.raw(name)
        for name, raw in (*given, ("format", self.format)):
            if raw is not NULL:
                fields.put(name, bytes(raw))
        return fields


_request = msgspec.json.Decoder(PlainRequest).decode


def read_plain(body: bytes) -> tuple[PlainRequest, Talk] | None:
    """The request, and what is said in it; None when something is unusual."""
    try:
        request = _request(body)
        return request, _talk(request.messages)
    except (*DECODE_ERRORS, Unusual):
        return None


#: For a call without an id; for a result that names only its tool.
_NO_ID: Extras = put_as(("id",), None) or {}
_NO_CALL_ID: Extras = put_as(("tool_call_id",), None) or {}


def _talk(said: list[UsualMessage]) -> Talk:
    blocks: tuple[PromptBlock, ...] = ()
    if said and type(said[0]) is System and (text := said[0].content) and text.strip():
        blocks = (PromptBlock("system0", text),)
    messages: list[Message] = []
    names = message_ids(len(said))
    waiting: dict[str, str] = {}
    extras: Extras | None
    role: Role
    parts: tuple[Part, ...]
    for index, message in enumerate(said):
        content = message.content or ""
        if type(message) is User:
            role, parts = "user", (Text(content),)
        elif type(message) is Tool:
            name, call_id = message.tool_name or None, message.tool_call_id
            if call_id:
                waiting.pop(call_id, None)
                extras = None if name else put_as(("tool_name",), None)
            else:
                call_id = next(iter(waiting), "")
                if waiting and waiting.pop(call_id) != name and name:
                    raise Unusual  # not in the order of the calls
                extras = _NO_CALL_ID.copy() if name else put_as(("tool_call_id", "tool_name"), None)
            role, parts = "tool", (ToolResult(call_id, content, False, name, extras),)
        elif type(message) is Assistant:
            spoken: list[Part] = []
            waiting = {}
            calls = message.tool_calls
            if message.thinking:
                spoken.append(Thinking(message.thinking, provider=WIRE))
            if content or not (spoken or calls):
                spoken.append(Text(content))
            if calls:
                for at, call in enumerate(calls):
                    function, call_id = call.function, call.id
                    number, name = function.index, function.name
                    arguments = str(function.arguments, "utf-8")
                    if arguments[0] != "{":
                        arguments = arguments_of(call)
                    if call_id:
                        extras = None if number is None else put_as((), number)
                    else:
                        call_id = f"call_{index}_{at}"
                        extras = _NO_ID.copy() if number is None else put_as(("id",), number)
                    waiting[call_id] = name
                    spoken.append(ToolCall(call_id, name, arguments, extras))
            role, parts = "assistant", tuple(spoken)
        elif index < len(blocks):
            continue
        else:
            role, parts = "system", (Text(content),)
        messages.append(Message(id=names[len(messages)], role=role, parts=parts))
    return blocks, messages
