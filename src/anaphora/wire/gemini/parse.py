"""A generateContent request, read into a call.

Everything stays where it stood and as it was written: arguments and schemas keep their text, ids
that are missing stay missing on this wire, unknown fields travel along as extras. Normalised are
only:

- names in snake_case become camelCase, a single element a list of one;
- `null`, and an empty list or object of settings or tools, mean the same as a missing field;
- the path names the model, so a `model` in the body goes; the system instruction has no role;
- blank texts of the system instruction are left out;
- a content without a role is the user's, and so is one of the role `function`;
- functions that stand together share one tool object, and every other tool has its own;
- no parameters, no arguments and no response mean the same as empty ones;
- an empty description is none; levels of thinking are written in capitals; bytes are written in
  the usual base64;
- messages get ids by position.
"""

from __future__ import annotations

import msgspec

from anaphora.prompt import Call, Params, PromptBlock, PromptIR, Segment
from anaphora.values import AnyTool, Conversation, Extras, Message, Role, SegmentRole, Text
from anaphora.wire.fields import Fields
from anaphora.wire.reading import converts_errors, message_ids, request_error
from anaphora.wire.seen import SYSTEMS, TOOLS, seen

from .address import model_id, read_path
from .ids import with_ids
from .incoming import content_fields, read_parts
from .naming import elements, named
from .parse_params import plain_params, read_params
from .plain import read_plain
from .tools import read_tools
from .usual import Read, try_content

_ROLES: dict[str, Role] = {"user": "user", "function": "user", "model": "assistant"}


@converts_errors(request_error)
def parse(body: bytes, path: str = "") -> Call:
    """The call a request makes; `InvalidRequest` names the field that cannot be. The path names
    the model, and says whether a stream is asked for."""
    model, stream = read_path(path)
    plain = read_plain(body)
    if plain is None:
        fields = named(body, "$", request_error)
        model = model or model_id(fields.maybe("model", str) or "")
        fields.raw("model")
        return _parse_fields(fields, model, stream)
    messages, request = plain
    if not model and request.model:
        model = model_id(request.model)
    params = plain_params(request.generation_config, stream) if request.only_talks else None
    if params is None:
        return _parse_fields(request.rest(), model, stream, messages)
    return _call(messages, model, params)


def _parse_fields(
    fields: Fields, model: str, stream: bool, messages: list[Message] | None = None
) -> Call:
    """The same, field by field, for requests that hold more than a conversation."""
    tools = _tools(fields.raw("tools") or b"null")
    blocks = _system(fields)
    if messages is None:
        messages = _messages(fields)
    params, extras = read_params(fields, stream)
    return _call(messages, model, params, blocks, tools, extras)


def _call(
    messages: list[Message],
    model: str,
    params: Params,
    blocks: tuple[PromptBlock, ...] = (),
    tools: tuple[AnyTool, ...] = (),
    extras: Extras | None = None,
) -> Call:
    conversation = Segment(SegmentRole.CONVERSATION, Conversation(messages))
    ir = PromptIR(system_blocks=blocks, segments=(conversation,))
    return Call(ir=ir, model=model, tools=tools, params=params, extras=extras)


@seen(TOOLS)
def _tools(listed: bytes) -> tuple[AnyTool, ...]:
    """The same list comes with every turn."""
    return read_tools(elements(Fields(b'{"tools":%b}' % listed, "$", request_error), "tools"))


def _system(fields: Fields) -> tuple[PromptBlock, ...]:
    raw = fields.raw("systemInstruction")
    if raw is None or raw == b"null":
        return ()
    blocks = _blocks(raw)
    if blocks is None:
        fields.put("systemInstruction", raw)
    return blocks or ()


@seen(SYSTEMS)
def _blocks(raw: bytes) -> tuple[PromptBlock, ...] | None:
    """The system prompt, when it holds nothing but texts; anything else travels along whole. The
    same comes with every turn."""
    content = named(raw, "$.systemInstruction", request_error)
    content.drop_nulls()
    parts = read_parts(elements(content, "parts"), "$.systemInstruction.parts", request_error)
    content.raw("role")
    texts = [part for part in parts if isinstance(part, Text)]
    if len(texts) < len(parts) or content.rest():
        return None
    return tuple(
        PromptBlock(f"system{index}", text.text, extras=text.extras)
        for index, text in enumerate(texts)
    )


# ── Contents ─────────────────────────────────────────────────────────────────────────────────────


def _messages(fields: Fields) -> list[Message]:
    """All contents: each in one pass when it is a usual one, field by field when it is not."""
    read = with_ids(
        try_content(raw) or _read(raw, f"$.contents[{index}]")
        for index, raw in enumerate(elements(fields, "contents"))
    )
    names = message_ids(len(read))
    return [
        Message(id=name, role=role, parts=parts)
        for name, (role, parts) in zip(names, read, strict=True)
    ]


def _read(raw: msgspec.Raw, path: str) -> Read:
    """Any content, field by field."""
    fields = named(raw, path, request_error)
    role = fields.maybe("role", str) or "user"
    if role not in _ROLES:
        raise fields.fail(f"{role!r} is not a role here; use user or model", "role")
    parts = read_parts(elements(fields, "parts"), f"{path}.parts", request_error)
    return _ROLES[role], [*parts, *content_fields(fields)]
