"""Reads a generateContent request into a call.

Positions and spelling are kept: arguments and schemas keep their text, missing ids stay missing on
this wire, unknown fields become extras. The few forms that are normalised are listed in
`tests/support/roundtrip/rules.py`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from anaphora.prompt import Call, PromptBlock, PromptIR, Segment
from anaphora.values import (
    AnyTool,
    Audio,
    Bytes,
    Document,
    Extras,
    FileId,
    Image,
    Opaque,
    Part,
    ProviderTool,
    ResultPart,
    Role,
    SegmentRole,
    Source,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Url,
)
from anaphora.values.fields import FrozenExtras
from anaphora.wire.lenient import LenientDecoder, Unknown
from anaphora.wire.memo import SYSTEM_PROMPTS, TOOL_LISTS
from anaphora.wire.parts import fields_part
from anaphora.wire.reading import (
    Members,
    converts_errors,
    decode_members,
    encode_members,
    extras_of,
    numbered,
    request_error,
)
from anaphora.wire.walking import Walk

from . import types
from .fields import TABLE
from .params import model_id, read_params, read_path
from .parts import output_text, read_response
from .types import (
    CONTENT_FIELDS,
    FORM,
    MADE_ID,
    MEMO,
    NULL,
    WIRE,
    camel,
    raw_list,
)

_REQUEST = LenientDecoder[types.GenerateContentRequest](types.GenerateContentRequest, protobuf=True)
_CONTENT = LenientDecoder[types.Content](types.Content, protobuf=True)
_TOOL = LenientDecoder[types.ToolObject](types.ToolObject, protobuf=True)

_ROLES: dict[str, Role] = {"user": "user", "function": "user", "model": "assistant"}


@converts_errors(request_error)
def parse(body: bytes, path: str = "", first: int = 0) -> Call:
    """The call of a request; `InvalidRequest` names the field that is invalid. The path names the
    model and whether to stream. With `first`, the contents are those of a conversation after so
    many others."""
    model, stream = read_path(path)
    request, unknown = _REQUEST.decode(body, "$", request_error)
    fields = {} if unknown is None else unknown.take_elements("contents")
    messages = _read_contents(request.contents or [], fields, body, first)
    rest = {} if unknown is None else unknown.remaining()
    blocks: tuple[PromptBlock, ...] | None = ()
    if request.systemInstruction != NULL:
        blocks = _read_system(bytes(request.systemInstruction))
        if blocks is None:
            rest["systemInstruction"] = request.systemInstruction
    params, extras = read_params(request, rest, stream)
    conversation = Segment(SegmentRole.CONVERSATION, numbered(messages, first))
    return Call(
        ir=PromptIR(system_blocks=blocks or (), segments=(conversation,)),
        model=model if model or not request.model else model_id(request.model),
        tools=() if request.tools is NULL else _read_tools(bytes(request.tools)),
        params=params,
        extras=extras,
    )


def _read_contents(
    contents: list[types.Content], unknown: dict[int, Unknown], body: bytes, first: int
) -> list[tuple[Role, tuple[Part, ...]]]:
    sent: list[Raw] = []
    last: dict[int, list[Raw]] = {}
    """The parts of the content that is being read."""

    def raw_part(index: int, at: int) -> Raw:
        if not sent:
            sent.extend(raw_list(body, "contents"))
        if index not in last:
            last.clear()
            last[index] = list(raw_list(sent[index - first], "parts"))
        return last[index][at]

    reader = PartReader(raw_part)
    read = reader.part
    messages: list[tuple[Role, tuple[Part, ...]]] = []
    for index, content in enumerate(contents, first):
        role = _ROLES.get(content.role or "user")
        if role is None:
            reason = f"{content.role!r} is not a role here; use user or model"
            raise request_error(reason, f"$.contents[{index}].role")
        given = content.parts or ()
        if len(given) == 1 and not unknown:
            messages.append((role, (read(given[0], None, index, 0),)))
            continue
        parts: list[Part] = []
        if unknown and index - first in unknown:
            parts = reader.content(content, unknown[index - first], index)
        else:
            for part in given:
                parts.append(read(part, None, index, len(parts)))
        messages.append((role, tuple(parts)))
    return messages


# ── Parts ────────────────────────────────────────────────────────────────────────────────────────

#: Members of a part besides the one that determines its kind.
_BESIDE = frozenset(
    "thought thoughtSignature mediaProcessing mediaResolution partMetadata speechMetadata"
    " videoMetadata".split()
)
_OWN_FILES = ("gs://", "files/", "https://generativelanguage.googleapis.com/")


class PartReader:
    """Reads the parts of one request or reply. `raw` returns the bytes of a part, by its content
    (an index, or the id of the reply) and its index there."""

    def __init__(self, raw: Callable[[Any, int], Raw]) -> None:
        self._raw = raw
        self._waiting: dict[str, deque[str]] = defaultdict(deque)
        """Generated ids of calls that had none and have no result yet, by function."""
        self._in_output = False
        """Whether the last result was a text in `output`: the next one likely is as well."""

    def content(
        self, content: types.Content, unknown: Unknown | None, place: int | str | None
    ) -> list[Part]:
        """The parts of a content, and one for its unknown fields."""
        inner = {} if unknown is None else unknown.take_elements("parts")
        parts: list[Part] = []
        for index, part in enumerate(content.parts or ()):
            parts.append(self.part(part, inner.get(index), place, index))
        if unknown is not None:
            parts += fields_part(WIRE, CONTENT_FIELDS, unknown.remaining())
        return parts

    def part(
        self, part: types.WirePart, unknown: Unknown | None, place: int | str | None, index: int
    ) -> Part:
        """A part. A call without an id gets one made of `place` and `index`; a result without one
        gets that of the first unanswered call of its function. A part that is not exactly one of
        the known kinds is kept whole."""
        text, call, response = part.text, part.functionCall, part.functionResponse
        if part.inlineData is not None or part.fileData is not None:
            media = None
            if text is None and call is None and response is None:
                media = _read_media(part, _extras(part, unknown))
            return media or _read_other(self._raw(place, index))
        extras = None
        if part.thoughtSignature is not NULL or part.thought is not None or unknown is not None:
            if text is not None and call is None and response is None:
                return _read_text(text, part, unknown)
            extras = _extras(part, unknown)
        if text is not None:
            if call is None and response is None:
                return Text(text)
            return _read_other(self._raw(place, index))
        if call is not None:
            if response is not None:
                return _read_other(self._raw(place, index))
            name, call_id, arguments = call.name or "", call.id, str(call.args, "utf-8")
            if not call_id:
                call_id = f"call_{index}" if place is None else f"call_{place}_{index}"
                self._waiting[name].append(call_id)
                extras = MADE_ID if extras is None else _with_made_id(extras)
            return ToolCall(call_id, name, "{}" if arguments == "null" else arguments, extras)
        if response is None:
            return _read_other(self._raw(place, index))
        return self._result(response, extras, unknown, place, index)

    def _result(
        self,
        response: types.FunctionResponse,
        extras: Extras | None,
        unknown: Unknown | None,
        place: int | str | None,
        index: int,
    ) -> ToolResult | Opaque:
        """A function's result; kept whole if it has a part that is not allowed in a result."""
        call_id, error = response.id, False
        text = output_text(response.response) if self._in_output else None
        if text is None:
            self._in_output, text = False, str(response.response, "utf-8")
            # An object with another first member than `output` or `error`, which may be written in
            # escapes, is the tool's own.
            if text[0] != "{" or text[1] != '"' or text[2] in "oe\\":
                text, error, form = read_response(text)
                self._in_output = not error and text[:1] != "{"
                if form is not None:
                    extras = form if extras is None else {**extras, **form}
        content: str | tuple[ResultPart, ...] = text
        if response.parts:
            parts = self._result_parts(response.parts, unknown, place, index)
            if parts is None:
                return _read_other(self._raw(place, index))
            # An empty object beside them means no text.
            bare = bytes(response.response).translate(None, b" \t\r\n") in (b"{}", b"null")
            content = parts if bare else (Text(text), *parts)
        if not call_id:
            calls = self._waiting[response.name or ""]
            call_id = calls.popleft() if calls else f"call_{place}_{index}"
            extras = MADE_ID if extras is None else _with_made_id(extras)
        return ToolResult(call_id, content, error, response.name, extras)

    def _result_parts(
        self,
        parts: list[types.WirePart],
        unknown: Unknown | None,
        place: int | str | None,
        index: int,
    ) -> tuple[ResultPart, ...] | None:
        """The parts beside a result's text; None if one of them is not allowed there."""
        inner = None if unknown is None else unknown.members.get("functionResponse")
        beside = inner.take_elements("parts") if isinstance(inner, Unknown) else {}
        reader = PartReader(
            lambda _, at: raw_list(self._raw(place, index), "functionResponse", "parts")[at]
        )
        read: list[ResultPart] = []
        for at, each in enumerate(parts):
            part = reader.part(each, beside.get(at), None, at)
            if not isinstance(part, Text | Image | Document | Audio | Opaque):
                return None
            read.append(part)
        return tuple(read)


def _extras(part: types.WirePart, unknown: Unknown | None) -> Extras | None:
    """The signature, a `thought` that does not belong to a text, and unknown members."""
    signature = part.thoughtSignature
    if unknown is None and part.thought is None:
        written = str(signature, "utf-8")
        if written == "null":
            return None
        return FrozenExtras({WIRE: f'{{"thoughtSignature":{written}}}'})
    members: Members = {}
    if signature != NULL:
        members["thoughtSignature"] = signature
    if part.thought is not None and part.text is None:
        members["thought"] = Raw(b"true" if part.thought else b"false")
    return extras_of(WIRE, members | ({} if unknown is None else unknown.remaining()))


def _with_made_id(extras: Extras) -> Extras:
    """The extras with the flag that the id is generated."""
    form, made = extras.get(FORM), MADE_ID[FORM]
    return {**extras, FORM: made if form is None else f"{made[:-1]},{form[1:]}"}


def _read_text(text: str, part: types.WirePart, unknown: Unknown | None) -> Text | Thinking:
    if not part.thought:
        return Text(text, _extras(part, unknown))
    if bytes(part.thoughtSignature)[:1] != b'"':
        return Thinking(text, provider=WIRE, extras=_extras(part, unknown))
    signature = msgspec.json.decode(part.thoughtSignature, type=str)
    extras = unknown.extras(WIRE) if unknown is not None else None
    return Thinking(text, signature, provider=WIRE, extras=extras)


def _read_media(part: types.WirePart, extras: Extras | None) -> Part | None:
    """Bytes or a file; None if it is neither, or a video, which no other wire has."""
    blob, file = part.inlineData, part.fileData
    source: Source
    if blob is not None:
        data = None if blob.data is None else types.decode_base64(blob.data)
        if file is not None or not blob.mimeType or data is None:
            return None
        source = Bytes(data, blob.mimeType)
    else:
        if file is None or not file.mimeType or file.fileUri is None:
            return None
        source = Url(file.fileUri, file.mimeType)
        if file.fileUri.startswith(_OWN_FILES):
            source = FileId("google", file.fileUri, file.mimeType)
    kind = (source.media_type or "").partition("/")[0]
    if kind == "video":
        return None
    if kind == "image":
        return Image(source, extras=extras)
    return Audio(source, extras=extras) if kind == "audio" else Document(source, extras=extras)


def _read_other(raw: Raw) -> Opaque:
    names = map(camel, decode_members(raw))
    kind = next((name for name in names if name not in _BESIDE), "part")
    return Opaque(WIRE, f"part {kind}" if kind == CONTENT_FIELDS else kind, bytes(raw).decode())


# ── System instruction and tools ─────────────────────────────────────────────────────────────────

_NO_PARAMETERS = '{"properties":{},"type":"object"}'


@MEMO.remember(SYSTEM_PROMPTS)
def _read_system(raw: bytes) -> tuple[PromptBlock, ...] | None:
    """The system prompt if it holds only texts; otherwise None."""
    content, unknown = _CONTENT.decode(raw, "$.systemInstruction", request_error)
    reader = PartReader(lambda _, index: raw_list(raw, "parts")[index])
    blocks: list[PromptBlock] = []
    for index, part in enumerate(reader.content(content, unknown, None)):
        if not isinstance(part, Text):
            return None
        blocks.append(PromptBlock(f"system{index}", part.text, extras=part.extras))
    return tuple(blocks)


@MEMO.remember(TOOL_LISTS)
def _read_tools(raw: bytes) -> tuple[AnyTool, ...]:
    """All tools in order. One object may hold functions and several of Gemini's own tools."""
    tools: list[AnyTool] = []
    for found in Walk(TABLE).tools(raw, "$.tools"):
        tool, unknown = _TOOL.decode(found.raw, found.path, request_error)
        beside = unknown or Unknown({})
        inner = beside.take_elements("functionDeclarations")
        for at, function in enumerate(tool.functionDeclarations or ()):
            path = f"{found.path}.functionDeclarations[{at}]"
            tools.append(_read_function(function, inner.get(at), path))
        for name, value in beside.remaining().items():
            tools.append(ProviderTool(WIRE, camel(name), encode_members({name: value}).decode()))
    return tuple(tools)


def _read_function(function: types.FunctionDeclaration, unknown: Unknown | None, path: str) -> Tool:
    """A declaration with its schema unchanged, in either form."""
    rest = {} if unknown is None else unknown.remaining()
    given, form = bytes(function.parametersJsonSchema), {}
    schema, own = given.decode(), ""
    if schema == "null":
        schema = _NO_PARAMETERS
        if "parameters" in rest:
            own, given = "parameters", bytes(rest.pop("parameters"))
    elif types.has_own_types(given):
        own = "parametersJsonSchema"
    if own:
        schema = types.json_schema(given, f"{path}.{own}")
        form = {FORM: f'{{"{own}":{given.decode()}}}'}
    extras = {**(extras_of(WIRE, rest) or {}), **form}
    return Tool(function.name, function.description or "", schema, extras=extras or None)
