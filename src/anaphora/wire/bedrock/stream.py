"""Reader of Converse's event stream.

Texts and reasoning begin without an event; `metadata` has the counts and mostly comes last. The
reply is complete once the stop reason and the counts have come, or the connection ends after the
stop reason. Unknown kinds of blocks are assembled from their pieces and kept whole. Each event has
a padding `p`, which is ignored.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from msgspec import Raw

from anaphora.canonical import dumps
from anaphora.catalog import names
from anaphora.errors import Parse
from anaphora.values import (
    Event,
    Extras,
    Opaque,
    Part,
    Text,
    Thinking,
    ToolCall,
)
from anaphora.values.fields import FrozenExtras
from anaphora.wire.eventstream import Frame, FrameDecoder
from anaphora.wire.lenient import LenientDecoder, Unknown
from anaphora.wire.parts import following
from anaphora.wire.reading import (
    DECODE_ERRORS,
    Members,
    decode_members,
    extras_of,
    replace_lone_surrogates,
    reply_error,
)
from anaphora.wire.replies import TEXT_LIMIT, EventReader, ReplyBuilder

from .errors import read_exception
from .media import read_media
from .params import read_path
from .reply import STOPS, read_inclusive_usage, read_reply, read_usage
from .types import (
    NULL,
    SERVER_TOOL,
    WIRE,
    BlockDelta,
    DeltaEvent,
    MessageStart,
    MessageStop,
    MetadataEvent,
    StartEvent,
    StopEvent,
    decode_base64,
)

_DELTA = LenientDecoder[DeltaEvent](DeltaEvent)
_START = LenientDecoder[StartEvent](StartEvent)
_STOP = LenientDecoder[StopEvent](StopEvent)
_MESSAGE_START = LenientDecoder[MessageStart](MessageStart)
_MESSAGE_STOP = LenientDecoder[MessageStop](MessageStop)
_METADATA = LenientDecoder[MetadataEvent](MetadataEvent)
_decode_delta = _DELTA.strict
#: Models whose streams count cached tokens as input (maximhq/bifrost#6942, 2026-09-07).
_CACHED_IN_INPUT = "openai."


class _OpenBlock:
    """A block that has begun: what its part consists of besides text."""

    __slots__ = ("citations", "data", "others", "signature", "size")

    def __init__(self) -> None:
        self.signature = ""
        self.data: list[str] = []
        self.citations: list[bytes] = []
        self.others: dict[str, Any] = {}
        """The members of a block that is kept whole, by its kind."""
        self.size = 0

    def count(self, size: int) -> None:
        """Limit what is collected besides text."""
        self.size += size
        if self.size > TEXT_LIMIT:
            raise Parse(f"a block of more than {TEXT_LIMIT} bytes", path="stream")

    def text(self, text: str) -> Part:
        if not self.citations:
            return Text(text)
        cited = b'{"citationsContent":{"citations":[%b]}}' % b",".join(self.citations)
        return Text(text, FrozenExtras({WIRE: cited.decode()}))

    def thinking(self, text: str) -> Part:
        if self.data and not text and not self.signature:
            return Thinking(data=_joined(self.data), provider=WIRE)
        return Thinking(text, self.signature or None, provider=WIRE)

    def whole(self, text: str) -> Part:
        """A block that is kept whole; a text is the input of a call."""
        if text and isinstance(self.others.get("toolUse"), dict):
            self.others["toolUse"]["input"] = Raw(text.encode())
        kind = next(iter(self.others), "block")
        raw = msgspec.json.encode(self.others)
        if [*self.others] == ["image"]:
            members = decode_members(raw)
            image = read_media("image", members["image"], {}, "stream.image", reply_error)
            if image is not None:
                return image
        return Opaque(WIRE, kind, raw.decode())

    def add(self, kind: str, value: Any) -> None:
        """More of a block that is kept whole."""
        known = self.others.setdefault(kind, {})
        if isinstance(value, list) and isinstance(known, dict):
            known["content"] = [*known.get("content", ()), *value]
        elif isinstance(value, dict) and isinstance(known, dict):
            _join(known, value)
        else:
            self.others[kind] = value


def _join(known: dict[str, Any], value: dict[str, Any]) -> None:
    """Adds the members of a piece: texts and bytes continue those before."""
    for name, each in value.items():
        before = known.get(name)
        if isinstance(before, dict) and isinstance(each, dict):
            _join(before, each)
        elif isinstance(before, str) and isinstance(each, str):
            known[name] = _joined([before, each]) if name == "bytes" else before + each
        else:
            known[name] = each


def _joined(data: list[str]) -> str:
    """Base64 of all pieces."""
    if len(data) == 1:
        return data[0]
    pieces = [decode_base64(each) for each in data]
    if any(each is None for each in pieces):
        return "".join(data)
    return base64.b64encode(b"".join(each or b"" for each in pieces)).decode()


class StreamReader(EventReader):
    """The frames of Converse's stream."""

    def __init__(self, path: str = "", read_body: Any = read_reply) -> None:
        """`path` of the request, or its model, decides how its counts are read."""
        super().__init__(read_body, ReplyBuilder())
        self._source = self._frames = FrameDecoder()
        self._blocks: dict[int, _OpenBlock] = {}
        self._counted = False
        model = read_path(path)[0] if path.startswith("/") else path
        inclusive = names.base_model(WIRE, model).startswith(_CACHED_IN_INPUT)
        self._read_usage = read_inclusive_usage if inclusive else read_usage
        self._fields: Members = {}
        self._ended: set[int] = set()

    def _is_complete(self) -> bool:
        return super()._is_complete() and self._frames.complete

    def _read(self, frame: Frame, events: list[Event]) -> None:
        headers, payload = frame
        kind = headers.get(":event-type", "")
        if kind == "contentBlockDelta":
            try:
                event = _decode_delta(payload)
                delta, index = event.delta, event.contentBlockIndex or 0
                if delta.text is not None and index in self._build.open:
                    events.append(self._build.add_text(index, delta.text))
                    return
                events += self._on_delta(event, None)
                return
            except DECODE_ERRORS:
                payload = replace_lone_surrogates(payload)
            event, unknown = _DELTA.decode(payload, "stream", reply_error)
            events += self._on_delta(event, unknown)
        elif headers.get(":message-type", "event") != "event":
            events += self._build.fail(read_exception(headers, payload))
        else:
            events += self._on(kind, replace_lone_surrogates(payload))

    def _on(self, kind: str, payload: bytes) -> list[Event]:
        build = self._build
        if kind == "contentBlockStart":
            start, unknown = _START.decode(payload, "stream", reply_error)
            return self._on_start(start, unknown)
        if kind == "contentBlockStop":
            stop, unknown = _STOP.decode(payload, "stream", reply_error)
            self._note(kind, unknown)
            return self._end(stop.contentBlockIndex or 0)
        if kind == "messageStart":
            _, unknown = _MESSAGE_START.decode(payload, "stream", reply_error)
            self._keep(unknown)
            return build.start("", "")
        if kind == "messageStop":
            end, unknown = _MESSAGE_STOP.decode(payload, "stream", reply_error)
            self._keep(unknown)
            build.stop_reason_raw = end.stopReason or ""
            build.stop_reason = STOPS.get(build.stop_reason_raw, "other")
            return self._finish() if self._counted else []
        if kind == "metadata":
            metadata, unknown = _METADATA.decode(payload, "stream", reply_error)
            self._keep(unknown)
            events = build.start("", "")
            if metadata.usage != NULL:
                events += build.read_usage(self._read_usage, bytes(metadata.usage), "stream.usage")
            self._counted = True
            return events + (self._finish() if build.stop_reason_raw is not None else [])
        return []

    def _keep(self, unknown: Unknown | None) -> None:
        """Fields for the extras of the reply."""
        if unknown is not None:
            self._fields |= unknown.remaining()

    def _note(self, kind: str, unknown: Unknown | None) -> None:
        if unknown is not None:
            self._build.note_dropped_fields(kind, unknown.remaining())

    def _finish(self) -> list[Event]:
        build = self._build
        events: list[Event] = []
        for index in sorted(build.open):
            events += self._end(index)
        build.extras = extras_of(WIRE, self._fields)
        return events + build.finish()

    # ── Blocks ───────────────────────────────────────────────────────────────────────────────────

    def _on_start(self, event: StartEvent, unknown: Unknown | None) -> list[Event]:
        build, index, call = self._build, event.contentBlockIndex or 0, event.start.toolUse
        if index in build.open or index in self._ended:
            raise Parse(f"part {index} begins twice", path="stream")
        block = self._blocks[index] = _OpenBlock()
        inner = unknown.take("start") if unknown is not None else None
        others = {} if inner is None else inner.remaining()
        self._note("contentBlockStart", unknown)
        if call is not None:
            own = decode_members(others.get("toolUse", b"{}"))
            if own.get("type") != Raw(b'"%b"' % SERVER_TOOL.encode()):
                extras = extras_of(WIRE, others)
                return self._begin_call(index, call.toolUseId, call.name, extras)
            known = {"toolUseId": call.toolUseId, "name": call.name}
            others["toolUse"] = Raw(dumps(known)[:-1] + following(own) + b"}")
        for kind, raw in others.items():
            block.count(len(bytes(raw)))
            block.add(kind, msgspec.json.decode(raw))
        kind = "image" if [*others] == ["image"] else "opaque" if others else "text"
        return build.begin(index, kind, block.whole if others else block.text)

    def _begin_call(self, index: int, id: str, name: str, extras: Extras | None) -> list[Event]:
        def finish(text: str) -> Part:
            return ToolCall(id, name, text or "{}", extras)

        return self._build.begin(index, "tool_call", finish, id=id, name=name, extras=extras)

    def _on_delta(self, event: DeltaEvent, unknown: Unknown | None) -> list[Event]:
        index, delta = event.contentBlockIndex or 0, event.delta
        if index in self._ended:
            raise Parse(f"more of part {index}, which is not open", path="stream")
        inner = unknown.take("delta") if unknown is not None else None
        others = {} if inner is None else inner.remaining()
        self._note("contentBlockDelta", unknown)
        events = self._begin(index, delta, others)
        block = self._blocks[index]
        piece = delta.reasoningContent
        if delta.text is not None:
            events.append(self._build.add_text(index, delta.text))
        elif delta.toolUse is not None:
            events.append(self._build.add_text(index, delta.toolUse.input))
        elif piece is not None:
            if piece.text:
                events.append(self._build.add_text(index, piece.text))
            block.count(len(piece.signature or "") + len(piece.redactedContent or ""))
            block.signature += piece.signature or ""
            if piece.redactedContent is not None:
                block.data.append(piece.redactedContent)
        elif delta.citation != NULL:
            block.count(len(bytes(delta.citation)))
            block.citations.append(bytes(delta.citation))
        for kind, raw in others.items():
            block.count(len(bytes(raw)))
            block.add(kind, msgspec.json.decode(raw))
        return events

    def _begin(self, index: int, delta: BlockDelta, others: Members) -> list[Event]:
        """The beginning of a block that had none: of a text, reasoning, or an unknown kind."""
        if index in self._build.open:
            return []
        block = self._blocks[index] = _OpenBlock()
        if delta.reasoningContent is not None:
            return self._build.begin(index, "thinking", block.thinking)
        if delta.toolUse is not None:
            raise Parse(f"more of part {index}, which is not open", path="stream")
        if others and delta.text is None and delta.citation == NULL:
            return self._build.begin(index, "opaque", block.whole)
        return self._build.begin(index, "text", block.text)

    def _end(self, index: int) -> list[Event]:
        events: list[Event] = []
        if index not in self._build.open and index not in self._ended:
            # An empty block has no other event.
            block = self._blocks[index] = _OpenBlock()
            events += self._build.begin(index, "text", block.text)
        self._ended.add(index)
        self._blocks.pop(index, None)
        return events + self._build.end(index)
