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

import msgspec

from anaphora.prompt import Call, Params, PromptBlock, PromptIR, Segment
from anaphora.values import (
    Conversation,
    Extras,
    Message,
    ResultPart,
    Role,
    SegmentRole,
    Text,
    ToolCall,
    ToolResult,
)
from anaphora.wire.fields import Fields
from anaphora.wire.reading import converts_errors, message_ids, request_error

from .carried import Put, carried
from .images import read_image
from .incoming import WireMessage, read_call, read_message, read_parts
from .parse_params import plain_params, read_params
from .plain import Talk, read_plain
from .tools import read_tool
from .unanswered import Unanswered
from .usual import Read, try_usual

_ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


@converts_errors(request_error)
def parse(body: bytes, path: str = "") -> Call:  # noqa: ARG001
    """The call a request makes; `InvalidRequest` names the field that cannot be."""
    plain = read_plain(body)
    if plain is None:
        return _parse_fields(Fields(body, "$", request_error))
    request, talk = plain
    params = plain_params(request.options, request.stream) if request.only_options else None
    extras = None
    if params is None:
        params, extras = read_params(request.rest(body), request.stream)
    return _call(request.model, talk, request.tools or [], params, extras)


def _parse_fields(fields: Fields) -> Call:
    """The same, field by field, for requests that hold something unusual."""
    fields.drop_nulls()
    model = fields.take("model", str)
    read = _messages(fields.maybe("messages", list[msgspec.Raw]) or [])
    tools = fields.maybe("tools", list[msgspec.Raw]) or []
    params, extras = read_params(fields, fields.maybe("stream", bool))
    blocks = _system_blocks(read[0]) if read else ()
    names = message_ids(len(read) - len(blocks))
    messages = [
        Message(id=name, role=role, parts=parts)
        for name, (role, parts) in zip(names, read[len(blocks) :], strict=True)
    ]
    return _call(model, (blocks, messages), tools, params, extras)


def _call(
    model: str,
    talk: Talk,
    tools: list[msgspec.Raw],
    params: Params,
    extras: Extras | None,
) -> Call:
    blocks, messages = talk
    conversation = Segment(SegmentRole.CONVERSATION, Conversation(messages))
    return Call(
        ir=PromptIR(system_blocks=blocks, segments=(conversation,)),
        model=model,
        tools=tuple([read_tool(raw, f"$.tools[{at}]") for at, raw in enumerate(tools)]),
        params=params,
        extras=extras,
    )


def _system_blocks(first: Read) -> tuple[PromptBlock, ...]:
    """The system prompt, when the first message is one and nothing but a text. A blank one stays a
    message: it keeps the model from a system prompt of its own."""
    role, parts = first
    if role != "system" or len(parts) != 1 or not isinstance(parts[0], Text):
        return ()
    return (PromptBlock("system0", parts[0].text),) if parts[0].text.strip() else ()


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────


def _messages(raws: list[msgspec.Raw]) -> list[Read]:
    """Any messages: each in one pass when it is a usual one, field by field when it is not."""
    messages: list[Read] = []
    unanswered = Unanswered()
    for index, raw in enumerate(raws):
        said = try_usual(raw, index, unanswered) or _read(raw, index, unanswered)
        messages.append(said)
        if said[0] == "assistant":
            unanswered = Unanswered(said[1])
    return messages


def _read(raw: msgspec.Raw, index: int, unanswered: Unanswered) -> Read:
    path = f"$.messages[{index}]"
    said, rest = read_message(raw, path, request_error)
    if said.role not in _ROLES:
        raise request_error(f"{said.role!r} is not a role here", f"{path}.role")
    if said.role == "tool":
        return "tool", (_result(said, rest, unanswered),)
    calls = _calls(said, index, path)
    return _ROLES[said.role], read_parts(said, rest, calls, answer=False)


def _calls(said: WireMessage, index: int, path: str) -> list[ToolCall]:
    return [
        read_call(raw, f"{path}.tool_calls[{at}]", request_error, f"call_{index}_{at}")
        for at, raw in enumerate(said.tool_calls or ())
    ]


def _result(said: WireMessage, rest: bytes, unanswered: Unanswered) -> ToolResult:
    """A tool's answer: to the call it names, or else to the first that it may be the answer to."""
    name = said.tool_name or None
    call_id = said.tool_call_id or unanswered.first(name)
    unanswered.answer(call_id)
    unsaid = [field for field in ("tool_call_id", "tool_name") if not getattr(said, field)]
    text = said.content or ""
    content: str | tuple[ResultPart, ...] = text
    if said.images:
        pictures = [read_image(image) for image in said.images]
        content = (*pictures, Text(text)) if text else tuple(pictures)
    extras = carried(rest, Put(tuple(unsaid)))
    return ToolResult(call_id, content, name=name, extras=extras)
