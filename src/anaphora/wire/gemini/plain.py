"""Requests of usual contents, read in one go. Most requests hold nothing else.

What `usual` reads part by part, and `ids` completes afterwards, is one loop here: a function for
each step would cost as much as the steps. A law holds the two against each other.
"""

from __future__ import annotations

from collections import deque

import msgspec
from msgspec import UNSET, Raw

from anaphora.values import Extras, Message, Part, Role, Text, ToolCall, ToolResult
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, message_ids, request_error

from .ids import without_id
from .parts import MADE_ID
from .results import MAY_BE_NAMED, read_named
from .usual import NULL, Unusual, UsualContent, read_usual, signed


class PlainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A request with no other fields than these."""

    contents: list[UsualContent]
    model: str | None = None
    system_instruction: Raw = NULL
    tools: Raw = NULL
    tool_config: Raw = NULL
    generation_config: Raw = NULL
    safety_settings: Raw = NULL
    cached_content: Raw = NULL

    @property
    def only_talks(self) -> bool:
        """Whether there is nothing else but a generation config."""
        return (
            self.system_instruction
            is self.tools
            is self.tool_config
            is self.safety_settings
            is self.cached_content
            is NULL
        )

    def rest(self) -> Fields:
        """What is not read here, to be read field by field."""
        fields = Fields(b"{}", "$", request_error)
        for name, raw in (
            ("safetySettings", self.safety_settings),
            ("cachedContent", self.cached_content),
            ("systemInstruction", self.system_instruction),
            ("tools", self.tools),
            ("toolConfig", self.tool_config),
            ("generationConfig", self.generation_config),
        ):
            if raw is not NULL:
                fields.put(name, bytes(raw))
        return fields


_request = msgspec.json.Decoder(PlainRequest).decode


def read_plain(body: bytes) -> tuple[list[Message], PlainRequest] | None:
    """The messages, and the request for the rest of it; None when something is unusual."""
    try:
        said = _request(body)
        if said.safety_settings is not NULL is not said.cached_content:
            return None  # they are carried along in the order they came, which is not known here
        return _messages(said.contents), said
    except (*DECODE_ERRORS, Unusual):
        return None


def _messages(contents: list[UsualContent]) -> list[Message]:
    messages: list[Message] = []
    extras: Extras | None
    waiting: dict[str, deque[str]] = {}
    names = message_ids(len(contents))
    for index, content in enumerate(contents):
        parts: list[Part] = []
        for part in content.parts:
            text, call, response = part.text, part.function_call, part.function_response
            signature = part.thought_signature
            if part.thought is not UNSET:
                parts.append(read_usual(part))
            elif text is not None:
                plain = signature is NULL and call is None and response is None
                parts.append(Text(text) if plain else read_usual(part))
            elif call is not None and response is None:
                name, call_id, arguments = call.name, call.id, str(call.args, "utf-8")
                extras = None if signature is NULL else signed(signature)
                if not call_id:
                    call_id = f"call_{index}_{len(parts)}"
                    extras = MADE_ID.copy() if extras is None else without_id(extras)
                    if name not in waiting:
                        waiting[name] = deque()
                    waiting[name].append(call_id)
                if arguments == "null":
                    arguments = "{}"
                parts.append(ToolCall(call_id, name, arguments, extras))
            elif response is not None and call is None and signature is NULL:
                name, call_id = response.name, response.id
                answer, error, extras = str(response.response, "utf-8"), False, None
                if answer[0] != "{" or answer[1] != '"' or answer[2] in MAY_BE_NAMED:
                    answer, error, extras = read_named(answer)
                if not call_id:
                    calls = waiting.get(name)
                    call_id = calls.popleft() if calls else f"call_{index}_{len(parts)}"
                    extras = MADE_ID.copy() if extras is None else without_id(extras)
                parts.append(ToolResult(call_id, answer, error, name, extras))
            else:
                raise Unusual
        role: Role = "user" if content.role == "user" else "assistant"
        messages.append(Message(id=names[index], role=role, parts=tuple(parts)))
    return messages
