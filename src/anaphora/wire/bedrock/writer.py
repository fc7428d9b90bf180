"""Writes replies as Converse would stream them: frames with padding."""

from __future__ import annotations

from msgspec import Raw

from anaphora.canonical import string
from anaphora.values import (
    Opaque,
    PartDelta,
    PartEnd,
    PartStart,
    Refusal,
    Reply,
    ReplyFail,
    ReplyStart,
    Text,
    Thinking,
    ToolCall,
    Usage,
)
from anaphora.wire.eventstream import encode_event, padded
from anaphora.wire.parts import following, own_members
from anaphora.wire.reading import Members, decode_elements, decode_members, encode_members
from anaphora.wire.replies import EventWriter

from .errors import write_failure
from .parts import reply_block
from .reply import write_metadata, write_stop
from .types import WIRE

_LEADS = {
    "text": (b'{"text":', b"}"),
    "refusal": (b'{"text":', b"}"),
    "thinking": (b'{"reasoningContent":{"text":', b"}}"),
    "tool_call": (b'{"toolUse":{"input":', b"}}"),
}


class StreamWriter(EventWriter):
    """Events in, bytes out. Signatures, citations and opaque blocks are written at the end of their
    part."""

    def __init__(self) -> None:
        super().__init__()
        self._starts: dict[int, PartStart] = {}
        self._written: set[int] = set()

    def _start(self, event: ReplyStart) -> bytes:  # noqa: ARG002
        return _event("messageStart", b'{"role":"assistant"}')

    def _begin(self, event: PartStart) -> bytes:
        self._starts[event.index] = event
        if event.kind != "tool_call":
            return b""
        own = own_members(event.extras, WIRE)
        inner = decode_members(own.pop("toolUse", b"{}"))
        named = b'"toolUseId":%b,"name":%b' % (string(event.id or ""), string(event.name or ""))
        call = b'"toolUse":{' + named + following(inner) + b"}" + following(own)
        return _block("contentBlockStart", event.index, b'"start":{' + call + b"}")

    def _delta(self, event: PartDelta) -> bytes:
        start = self._starts.get(event.index)
        lead, end = _LEADS.get("text" if start is None else start.kind, (b"", b""))
        if not lead:
            return b""
        self._written.add(event.index)
        return _delta(event.index, lead + string(event.delta) + end)

    def _end_part(self, event: PartEnd) -> bytes:
        index, part, written = event.index, event.part, b""
        if isinstance(part, Thinking):
            if part.provider in (None, WIRE):
                written = _thinking_end(index, part, index in self._written)
        elif isinstance(part, Text) and part.extras is not None:
            written = self._citations(index, part)
        elif isinstance(part, Opaque):
            written = _opaque(index, part)
        if not written and index not in self._written and not isinstance(part, ToolCall):
            block = reply_block(part)
            if block is None:
                return b""
            if not isinstance(part, Text | Refusal | Thinking):
                written = _whole(index, decode_members(block))
        return written + _block("contentBlockStop", index, b"")

    def _citations(self, index: int, part: Text) -> bytes:
        cited = own_members(part.extras, WIRE).get("citationsContent", Raw(b"{}"))
        listed = decode_elements(decode_members(cited).get("citations", b"[]"))
        return b"".join(_delta(index, b'{"citation":' + bytes(each) + b"}") for each in listed)

    def _end(self, reply: Reply) -> bytes:
        fields = own_members(reply.extras, WIRE)
        stop = b'{"stopReason":' + string(write_stop(reply))
        more = fields.pop("additionalModelResponseFields", None)
        stop += following({} if more is None else {"additionalModelResponseFields": more}) + b"}"
        usage = reply.usage if reply.usage != Usage() else self._usage
        return _event("messageStop", stop) + _event("metadata", write_metadata(usage, fields))

    def _fail(self, event: ReplyFail) -> bytes:
        return write_failure(event)


def _event(kind: str, payload: bytes) -> bytes:
    return encode_event(kind, padded(payload))


def _block(kind: str, index: int, member: bytes) -> bytes:
    return _event(kind, b'{"contentBlockIndex":%d%b}' % (index, b"," + member if member else b""))


def _delta(index: int, delta: bytes) -> bytes:
    return _block("contentBlockDelta", index, b'"delta":' + delta)


def _thinking_end(index: int, part: Thinking, has_text: bool) -> bytes:
    if part.signature is None and part.data is not None and not has_text:
        return _delta(index, b'{"reasoningContent":{"redactedContent":' + string(part.data) + b"}}")
    if part.signature:
        signed = _delta(
            index, b'{"reasoningContent":{"signature":' + string(part.signature) + b"}}"
        )
        return signed
    return b""


def _opaque(index: int, part: Opaque) -> bytes:
    return _whole(index, decode_members(part.json)) if part.provider == WIRE else b""


def _whole(index: int, members: Members) -> bytes:
    """A whole block. Calls of the provider's tools, their results, and images have pieces."""
    for kind, name in (("toolUse", "input"), ("toolResult", "content"), ("image", "source")):
        if len(members) == 1 and bytes(members.get(kind, b""))[:1] == b"{":
            inner = decode_members(members[kind])
            value = inner.pop(name, None)
            if kind == "toolUse" and value is not None:
                value = Raw(b'{"input":' + string(bytes(value).decode()) + b"}")
            elif kind == "image" and value is not None:
                value = Raw(b'{"source":' + bytes(value) + b"}")
            start = b'"start":{"%b":%b}' % (kind.encode(), encode_members(inner))
            begin = _block("contentBlockStart", index, start)
            if value is None:
                return begin
            return begin + _delta(index, b'{"%b":%b}' % (kind.encode(), bytes(value)))
    return _block("contentBlockStart", index, b'"start":' + encode_members(members))
