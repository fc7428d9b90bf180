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

from typing import Literal

import msgspec

from anaphora.prompt import Call, PromptBlock, PromptIR
from anaphora.values import Conversation, Message, Part, Role, Text, Thinking, ToolCall, ToolResult
from anaphora.wire.fields import UNREADABLE, Fields, bad_request, reads

from .address import model_id, read_path
from .ids import with_ids
from .incoming import content_fields, read_parts
from .naming import WIRE, elements, named
from .parse_params import read_params
from .results import read_answer, same_answer
from .tools import read_tools

# ── What nearly every content is made of ─────────────────────────────────────────────────────────

_EMPTY = msgspec.Raw(b"{}")


class _Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    args: msgspec.Raw = _EMPTY
    id: str = ""


class _Response(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    response: msgspec.Raw
    id: str = ""


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One of text, call and response; a signature goes with the first two."""

    text: str | None = None
    thought: bool = False
    thought_signature: str | None = None
    function_call: _Call | None = None
    function_response: _Response | None = None


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["user", "model"]
    parts: list[_Part]


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What tools mostly answer with: one of the two."""

    output: str | None = None
    error: str | None = None


_usual_contents = msgspec.json.Decoder(list[_Content]).decode
_usual = msgspec.json.Decoder(_Content).decode
_usual_answer = msgspec.json.Decoder(_Answer).decode

_ROLES: dict[str, Role] = {"user": "user", "function": "user", "model": "assistant"}
_Read = tuple[Role, list[Part]]


@reads(bad_request)
def parse(body: bytes, path: str = "") -> Call:
    """The call a request makes; `InvalidRequest` names the field that cannot be. The path names
    the model, and says whether a stream is asked for."""
    model, stream = read_path(path)
    fields = named(body, "$", bad_request)
    model = model or model_id(fields.maybe("model", str) or "")
    fields.raw("model")
    tools = read_tools(elements(fields, "tools"))
    blocks = _system(fields)
    read = _contents(fields)
    params, extras = read_params(fields, stream)
    messages = [
        Message(id=f"m{index}", role=role, parts=parts)
        for index, (role, parts) in enumerate(with_ids(read))
    ]
    return Call(
        ir=PromptIR.chat(Conversation(messages), system=blocks),
        model=model,
        tools=tools,
        params=params,
        extras=extras,
    )


def _system(fields: Fields) -> tuple[PromptBlock, ...]:
    """The system prompt, when it holds nothing but texts; anything else travels along whole."""
    raw = fields.raw("systemInstruction")
    if raw is None or raw == b"null":
        return ()
    content = named(raw, "$.systemInstruction", bad_request)
    content.drop_nulls()
    parts = read_parts(elements(content, "parts"), "$.systemInstruction.parts", bad_request)
    content.raw("role")
    texts = [part for part in parts if isinstance(part, Text)]
    if len(texts) < len(parts) or content.rest():
        fields.put("systemInstruction", raw)
        return ()
    return tuple(
        PromptBlock(f"system{index}", text.text, extras=text.extras)
        for index, text in enumerate(texts)
    )


# ── Contents ─────────────────────────────────────────────────────────────────────────────────────


def _contents(fields: Fields) -> list[_Read]:
    """All contents: in one pass when they are usual ones, one by one when they are not."""
    raw = fields.raw("contents") or b"[]"
    try:
        return [_read_usual(content) for content in _usual_contents(raw)]
    except (*UNREADABLE, _Unusual):
        fields.put("contents", raw)
    found = elements(fields, "contents")
    return [_read(raw, f"$.contents[{index}]") for index, raw in enumerate(found)]


def _read_usual(content: _Content) -> _Read:
    return _ROLES[content.role], [_part(part) for part in content.parts]


def _read(raw: msgspec.Raw, path: str) -> _Read:
    """Any content, field by field when it is no usual one."""
    try:
        return _read_usual(_usual(raw))
    except (*UNREADABLE, _Unusual):
        pass
    fields = named(raw, path, bad_request)
    role = fields.maybe("role", str) or "user"
    if role not in _ROLES:
        raise fields.fail(f"{role!r} is not a role here; use user or model", "role")
    parts = read_parts(elements(fields, "parts"), f"{path}.parts", bad_request)
    return _ROLES[role], [*parts, *content_fields(fields)]


class _Unusual(Exception):
    """To be read field by field."""


def _part(part: _Part) -> Part:
    """A part that came with nothing unusual."""
    said, signature = part.text, part.thought_signature
    call, response = part.function_call, part.function_response
    if said is not None and call is None and response is None:
        if part.thought:
            return Thinking(said, signature, provider=WIRE)
        return Text(said) if signature is None else Text(said, _signed(signature))
    if said is not None or part.thought or (call is None) == (response is None):
        raise _Unusual
    if call is not None:
        extras = None if signature is None else _signed(signature)
        args = bytes(call.args).decode()
        return ToolCall(call.id, call.name, "{}" if args == "null" else args, extras)
    assert response is not None
    if signature is not None:
        raise _Unusual
    return _result(response)


def _result(response: _Response) -> ToolResult:
    raw = bytes(response.response)
    try:
        said = _usual_answer(raw)
    except UNREADABLE:
        text, error = read_answer(raw)
        if raw == b"null" or not same_answer(raw, text, error):
            raise _Unusual from None
        return ToolResult(response.id, text, error, response.name)
    if said.error is not None and said.output is None:
        return ToolResult(response.id, said.error, True, response.name)
    if said.output is None or said.error is not None or said.output[:1] == "{":
        raise _Unusual
    return ToolResult(response.id, said.output, False, response.name)


def _signed(signature: str) -> dict[str, str]:
    return {WIRE: '{"thoughtSignature":' + msgspec.json.encode(signature).decode() + "}"}
