"""Reads the items of a request's input or of a reply into parts, and complete replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from anaphora.canonical import string
from anaphora.errors import Upstream
from anaphora.values import (
    Bytes,
    Document,
    FileId,
    Image,
    Message,
    Opaque,
    Part,
    Refusal,
    Reply,
    Role,
    Source,
    StopReason,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Ttl,
    Url,
    Usage,
    WriteTtl,
)
from anaphora.wire.errors import ErrorObject, from_object
from anaphora.wire.lenient import LenientDecoder, OtherBlock, Unknown
from anaphora.wire.markers import PlacedMark, read_breakpoint, take_breakpoint
from anaphora.wire.openai import SystemPlace, counted_usage, decode_data_url, keep_place
from anaphora.wire.reading import (
    DECODE_ERRORS,
    ErrorFactory,
    Members,
    converts_errors,
    decode_members,
    decode_value,
    encode_members,
    extras_of,
    object_members,
    replaces_lone_surrogates,
    reply_error,
    request_error,
)
from anaphora.wire.replies import (
    positive_counts,
    read_counts,
    valid_count,
)

from . import types
from .fields import APP_ITEMS
from .items import is_content
from .types import (
    ITEM,
    NULL,
    ROLES,
    UNNAMED,
    WIRE,
    IncompleteDetails,
    InputDetails,
    ReplyFields,
    ResponsesUsage,
)

#: An item's role, its parts, and its breakpoints.
ReadItem: TypeAlias = tuple[Role, tuple[Part, ...], Sequence[PlacedMark[Ttl | None]]]

_PLACES = {
    "system": SystemPlace("system", "message"),
    "developer": SystemPlace("developer", "message"),
}

_CALL_FIELDS = frozenset({"call_id", "name", "arguments"})

_CONTENT: LenientDecoder[types.Content] = LenientDecoder(types.Content)

_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


class ItemReader:
    """Reads one item of a request or a reply; errors name its path."""

    __slots__ = ("_fail", "_marks", "_path", "_role")

    def __init__(self, path: str, fail: ErrorFactory, role: str | None = None) -> None:
        self._path = path
        self._fail = fail
        self._role = role
        self._marks: list[PlacedMark[Ttl | None]] = []

    def read(self, raw: msgspec.Raw) -> ReadItem:
        """Members that are not read become extras; an item of another type is kept whole."""
        members = object_members(raw, self._path, self._fail)
        kind = _take_text(members, "type")
        if kind is None:
            if members.pop("type", NULL) != NULL:
                raise self._fail("expected a text", f"{self._path}.type")
            # Only messages and references may lack a type.
            says = "role" in members or (self._role is not None and "content" in members)
            kind = "item_reference" if "id" in members and not says else "message"
        role: Role = "user" if kind in APP_ITEMS else "assistant"
        item: ReadItem | None = None
        if kind == "reasoning":
            return "assistant", (self._reasoning(members),), ()
        if kind == "message":
            if self._role is not None and members.get("role", NULL) == NULL:
                members["role"] = msgspec.Raw(string(self._role))
            name = self._take(members, "role")
            role = ROLES.get(name, "user")
            item = self.message(name, *self._take_content(members, "content"), members)
        elif kind == "function_call" and members.keys() >= _CALL_FIELDS:
            call_id = self._take(members, "call_id")
            name, arguments = self._take(members, "name"), self._take(members, "arguments")
            call = ToolCall(call_id, name, arguments, extras_of(WIRE, members))
            item = "assistant", (call,), ()
        elif kind == "function_call_output":
            content, unknown = self._take_content(members, "output")
            role, own_id = "user", _take_text(members, "call_id")
            if own_id is not None:
                item = self.output(own_id, content, unknown, members)
        if item is None and is_content(kind) and self._fail is request_error:
            raise self._fail(f"{kind!r} is no item", f"{self._path}.type")
        return item or (role, (Opaque(WIRE, kind, bytes(raw).decode()),), ())

    def message(
        self, name: str, content: types.Content, unknown: dict[int, Unknown], fields: Members
    ) -> ReadItem | None:
        """A message; None if it has to be kept whole. `fields` are those of the item itself."""
        role = ROLES.get(name)
        if role is None:
            return None
        extras = extras_of(ITEM, fields)
        if role == "system":
            extras = keep_place(extras, _PLACES[name])
        if isinstance(content, str):
            return role, (Text(content, extras),), ()
        parts = self._content(content, unknown, role, "content")
        if not parts:
            return None
        if extras is None and role == "assistant":
            extras = {ITEM: "{}"}  # keeps the item apart from its neighbours
        if extras is not None:
            first = parts[0]
            if isinstance(first, Opaque):
                return None
            parts[0] = msgspec.structs.replace(first, extras={**(first.extras or {}), **extras})
        return role, tuple(parts), self._marks

    def output(
        self, call_id: str, output: types.Content, unknown: dict[int, Unknown], fields: Members
    ) -> ReadItem:
        extras = extras_of(WIRE, fields)
        if isinstance(output, str):
            return "tool", (ToolResult(call_id, output, extras=extras),), ()
        content: Any = tuple(self._content(output, unknown, "tool", "output", (0,)) or ())
        return "tool", (ToolResult(call_id, content, extras=extras),), self._marks

    def _reasoning(self, members: Members) -> Thinking:
        """Reasoning with its fields unchanged; its text is its summary and its content."""
        data = _take_text(members, "encrypted_content")
        raw = encode_members(members)
        fields = decode_value(raw, types.ReasoningFields, self._path, self._fail)
        texts = [piece.text for piece in (*(fields.summary or ()), *(fields.content or ()))]
        extras = extras_of(WIRE, members)
        return Thinking("\n\n".join(texts), data=data, provider=WIRE, extras=extras)

    def _take(self, members: Members, name: str) -> str:
        """Remove and return a text field, which is required."""
        text = _take_text(members, name)
        if text is None:
            why = "expected a text" if name in members else "is missing"
            raise self._fail(why, f"{self._path}.{name}")
        return text

    def _take_content(
        self, members: Members, name: str
    ) -> tuple[types.Content, dict[int, Unknown]]:
        if name not in members:
            raise self._fail("is missing", f"{self._path}.{name}")
        return _CONTENT.decode_list(members.pop(name), f"{self._path}.{name}", self._fail)

    def _content(
        self,
        content: Sequence[types.ContentPart | OtherBlock],
        unknown: dict[int, Unknown],
        role: Role,
        field: str,
        below: tuple[int, ...] = (),
    ) -> list[Part] | None:
        """The parts of a message or of a tool's output; None if one of them looks like an item."""
        parts: list[Part] = []
        for index, part in enumerate(content):
            path = f"{self._path}.{field}[{index}]"
            read = self._part(part, unknown.get(index), role, path, (*below, index))
            if read is None:
                return None
            parts.append(read)
        return parts

    def _part(
        self,
        part: types.ContentPart | OtherBlock,
        unknown: Unknown | None,
        role: Role,
        path: str,
        position: tuple[int, ...],
    ) -> Part | None:
        if type(part) is OtherBlock:
            members = dict(part.members)
            marked = False
            if role != "assistant":
                marked, ttl, extras = take_breakpoint(members, path, WIRE, self._fail)
            if marked:
                self._marks.append((position, ttl, extras))
            return _read_other(part.tag, members, role)
        marker: Members = {}
        if part.prompt_cache_breakpoint is not None:
            ttl, extras = read_breakpoint(part, unknown, WIRE, path, self._fail)
            if role == "assistant":
                # The provider accepts none there: it stays among the extras.
                own = decode_members(_encode(part.prompt_cache_breakpoint))
                own |= decode_members((extras or {}).get(WIRE, "{}"))
                marker = {"prompt_cache_breakpoint": msgspec.Raw(encode_members(own))}
            else:
                self._marks.append((position, ttl, extras))
        members = marker | (unknown.remaining(nulls=True) if unknown is not None else {})
        if type(part) is types.InputText:
            return Text(part.text, extras_of(WIRE, members))
        if type(part) is types.OutputText:
            for name in ("logprobs", "annotations"):
                if (raw := getattr(part, name)) is not NULL:
                    members = {name: raw, **members}
            if role == "assistant":
                return Text(part.text, extras_of(WIRE, members))
            members = {"text": msgspec.Raw(string(part.text)), **members}
        elif role == "assistant":
            return Refusal(part.refusal, extras_of(WIRE, members))
        else:
            members = {"refusal": msgspec.Raw(string(part.refusal)), **members}
        kind = str(type(part).__struct_config__.tag)
        return _opaque(kind, {"type": msgspec.Raw(string(kind)), **members})


def _read_other(kind: str, members: Members, role: Role) -> Part | None:
    """An image, a file, or a part of another type, which is kept whole."""
    rest = {name: raw for name, raw in members.items() if name != "type"}
    part: Part | None = None
    if role != "assistant" and kind == "input_image":
        part = _read_image(rest)
    elif role != "assistant" and kind == "input_file":
        part = _read_file(rest)
    if part is not None:
        return part
    return _opaque(kind, members) if is_content(kind) or role == "tool" else None


def _opaque(kind: str, members: Members) -> Opaque:
    return Opaque(WIRE, kind, encode_members(members).decode())


def _take_text(members: Members, name: str) -> str | None:
    """Remove and return a text field; any other value stays."""
    raw = members.get(name)
    if raw is None:
        return None
    try:
        text = _decode_text(raw)
    except DECODE_ERRORS:
        return None
    del members[name]
    return text


def _read_image(members: Members) -> Image | None:
    url = _take_text(members, "image_url")
    source: Source
    if url is not None:
        source = _at(url)
    elif (file_id := _take_text(members, "file_id")) is not None:
        source = FileId("openai", file_id)
    else:
        return None
    return Image(source, _take_text(members, "detail"), extras_of(WIRE, members))


def _read_file(members: Members) -> Document | None:
    names = [name for name in ("file_data", "file_url", "file_id") if name in members]
    value = _take_text(members, names[0]) if len(names) == 1 else None
    if value is None:
        return None
    source: Source = Url(value)
    if names == ["file_data"]:
        source = _at(value)
        if not isinstance(source, Bytes):
            return None
    elif names == ["file_id"]:
        source = FileId("openai", value)
    title = _take_text(members, "filename")
    extras = extras_of(WIRE, members)
    if title is None and names == ["file_data"]:
        extras = {**(extras or {}), UNNAMED: "{}"}
    return Document(source, title, extras=extras)


def _at(url: str) -> Source:
    source = decode_data_url(url)
    return source if source is not None and source.media_type.isascii() else Url(url)


# ── Replies ───────────────────────────────────────────────────────────────────────────────────────

#: Why a reply is incomplete.
REASONS: dict[str, StopReason] = {"max_output_tokens": "length", "content_filter": "refusal"}

#: A compacted conversation, which an endpoint of its own returns.
COMPACTED = "response.compaction"

_decode_error = msgspec.json.Decoder(ErrorObject).decode

decode_usage = msgspec.json.Decoder(ResponsesUsage).decode


@replaces_lone_surrogates
@converts_errors(reply_error)
def read_reply(body: bytes) -> Reply:
    """The reply in `body`. `Parse` names the field that is missing or wrong; the error of a failed
    response is raised."""
    rest = object_members(body, "$", reply_error)
    reply = decode_value(body, ReplyFields, "$", reply_error)
    if reply.object not in (None, "response", COMPACTED):
        raise reply_error(f"expected a response, not {reply.object!r}", "$.object")
    if (error := _failure(reply)) is not None:
        raise error
    if reply.output is None:
        raise reply_error("is missing", "$.output")
    # A compacted conversation names no model, and some servers name neither.
    for name in ("id", "output") if reply.object == COMPACTED else ("id", "model", "output"):
        rest.pop(name, None)
    parts: list[Part] = []
    for index, raw in enumerate(reply.output):
        parts += read_output(raw, f"$.output[{index}]")
    # A usage that is not an object stays among the other fields.
    counted = rest.pop("usage") if bytes(reply.usage)[:1] == b"{" else NULL
    usage, notices = read_counts(read_usage, bytes(counted), "$.usage")
    stop, stop_reason_raw = _read_stop(reply.status, reply.incomplete_details, parts)
    return Reply(
        id=reply.id or "",
        model="" if reply.object == COMPACTED else reply.model or "",
        message=Message(id=reply.id or "", role="assistant", parts=tuple(parts)),
        stop_reason=stop,
        stop_reason_raw=stop_reason_raw,
        usage=usage,
        notices=notices,
        extras=extras_of(WIRE, rest),
    )


def _failure(reply: ReplyFields) -> Upstream | None:
    """The error of a failed response."""
    if reply.status != "failed":
        return None
    try:
        return from_object(_decode_error(reply.error), 200)
    except DECODE_ERRORS:
        return None


def read_output(raw: msgspec.Raw, path: str) -> list[Part]:
    """The parts of one item of a reply. Messages without a role are the model's."""
    return list(ItemReader(path, reply_error, "assistant").read(raw)[1])


def _read_stop(
    status: str | None, incomplete: IncompleteDetails | None, parts: list[Part]
) -> tuple[StopReason, str | None]:
    """Why the model stopped, and OpenAI's name for it. Some servers give a reason although the
    status is completed."""
    reason = incomplete.reason if incomplete is not None else None
    if reason is not None:
        return REASONS.get(reason, "other"), reason
    if status == "completed":
        called = any(isinstance(part, ToolCall) for part in parts)
        return "tool_calls" if called else "end", status
    return "other", status


def read_usage(raw: bytes) -> Usage:
    usage = decode_usage(raw)
    details = usage.input_tokens_details or InputDetails()
    read, written = valid_count(details.cached_tokens), _written(details)
    output = usage.output_tokens
    return counted_usage(
        raw,
        usage.input_tokens,
        read,
        written,
        output,
        usage.output_tokens_details,
        usage.total_tokens,
    )


def _written(details: InputDetails) -> dict[WriteTtl, int] | None:
    by_ttl, total = details.cache_write_tokens_details, valid_count(details.cache_write_tokens)
    if by_ttl is None:
        return None if total is None else {"unsplit": total} if total else {}
    written: dict[WriteTtl, int] = {
        "12h": valid_count(by_ttl.ttl_12h_tokens) or 0,
        "30m": valid_count(by_ttl.ttl_30m_tokens) or 0,
    }
    if total is not None and (rest := total - sum(written.values())) > 0:
        written["unsplit"] = rest
    return positive_counts(written)
