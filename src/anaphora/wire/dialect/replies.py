"""Replies of a dialect: the provider's own counts, stop reasons and errors, also in streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.catalog import Dialect
from anaphora.catalog.dialect_rows import ErrorShape, UsageShape
from anaphora.errors import Upstream
from anaphora.values import (
    Event,
    PartDelta,
    PartEnd,
    PartStart,
    Reply,
    ReplyEnd,
    ReplyFail,
    Usage,
    UsageUpdate,
)
from anaphora.wire.errors import KINDS, error_class, overflow_class
from anaphora.wire.parts import partition
from anaphora.wire.reading import DECODE_ERRORS, decode_members
from anaphora.wire.replies import positive_counts, valid_count

from .requests import own_part

_NAMES = {kind: name for name, kind in KINDS.items()}


def read_counts(usage: Usage, shape: UsageShape | None) -> Usage:
    """The counts, including those in fields that only this provider has."""
    if shape is None or usage.raw is None:
        return usage
    if usage.read is not None and (
        shape.written_ttl is None if usage.written else not shape.written
    ):
        return usage  # the wire's own fields have all counts
    raw = _object(usage.raw)
    read, written = usage.read, usage.written
    if read is None:
        read = _count(raw, shape.read)
    if not written and (wrote := _count(raw, shape.written)) is not None:
        written = positive_counts({"unsplit": wrote})
    if written and shape.written_ttl is not None:
        written = {shape.written_ttl: sum(written.values())}
    if (read, written) == (usage.read, usage.written):
        return usage
    if usage.input is None:
        uncached = _count(raw, shape.uncached)
        return msgspec.structs.replace(usage, uncached=uncached, read=read, written=written)
    uncached, read, written, overlap = partition(usage.input, read, written)
    return msgspec.structs.replace(
        usage, uncached=uncached, read=read, written=written, overlap=usage.overlap + overlap
    )


def write_counts(raw: str, usage: Usage, shape: UsageShape) -> str:
    """A usage object of the wire, with the counts also in the provider's own fields."""
    counts = _object(raw)
    for places, tokens in (
        (shape.read, usage.read),
        (shape.uncached, usage.uncached),
        (shape.written, usage.written_total),
    ):
        for place in places if tokens is not None else ():
            *outer, name = place.split(".")
            holder = counts
            for level in outer:
                holder = holder.setdefault(level, {})
            holder[name] = tokens
    return dumps(counts).decode()


def read_stops(reply: Reply, dialect: Dialect) -> Reply:
    """The reply with the provider's own stop reason mapped."""
    if reply.stop_reason != "other" or reply.stop_reason_raw not in dialect.stops:
        return reply
    return msgspec.structs.replace(reply, stop_reason=dialect.stops[reply.stop_reason_raw])


def _object(raw: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except DECODE_ERRORS:
        return {}


def _count(usage: Any, places: tuple[str, ...]) -> int | None:
    for place in places:
        value = usage
        for level in place.split("."):
            value = value.get(level) if isinstance(value, dict) else None
        if isinstance(value, int) and not isinstance(value, bool):
            return valid_count(value)
    return None


def find_error(body: bytes | str, shape: ErrorShape, status: int = 200) -> Upstream | None:
    """The error in the provider's own form that a reply holds; None if there is none."""
    if isinstance(body, bytes) and dumps(shape.at) not in body and b"\\u" not in body:
        return None  # nearly every reply has no such field
    try:
        content = msgspec.json.decode(decode_members(body)[shape.at], type=dict[str, Any])
    except (*DECODE_ERRORS, KeyError):
        return None
    value = content.get(shape.code)
    code = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
    if code is None or code in shape.fine:
        return None
    if code not in shape.kinds and status >= 400 and shape.at == "error":
        return None  # the wire's own reader reads more of it
    if code in shape.kinds:
        kind = KINDS[shape.kinds[code]]
    else:
        kind = error_class(status if status >= 400 else 500, None, {})
    message = content.get(shape.message)
    text = message if isinstance(message, str) and message else f"code {code}"
    return overflow_class(kind, text)(text, status=status, code=code)


def write_error(error: Upstream, shape: ErrorShape) -> bytes | None:
    """The error in the provider's own form; None if it has no code for it."""
    name = _NAMES.get(type(error))
    code = error.code if shape.kinds.get(error.code or "") == name else None
    if code is None:
        code = next((code for code, kind in shape.kinds.items() if kind == name), None)
    if code is None:
        return None
    value = int(code) if code.isdigit() and not shape.texts else code
    return dumps({shape.at: {shape.code: value, shape.message: str(error)}})


class DialectReader:
    """The wire's stream reader, with the provider's own counts, stop reasons and errors."""

    def __init__(self, inner: Any, dialect: Dialect, decode: Callable[[Reply], Reply]) -> None:
        """`decode` reads what is the provider's own in a whole reply."""
        self._inner = inner
        self._dialect = dialect
        self._decode = decode

    def feed(self, data: bytes) -> list[Event]:
        return self._decoded(self._inner.feed(data))

    def close(self) -> list[Event]:
        return self._decoded(self._inner.close())

    def _decoded(self, events: list[Event]) -> list[Event]:
        # Most events are deltas, which are the wire's.
        return [event if type(event) is PartDelta else self._own(event) for event in events]

    def _own(self, event: Event) -> Event:
        dialect = self._dialect
        if isinstance(event, UsageUpdate):
            return UsageUpdate(read_counts(event.usage, dialect.usage))
        if isinstance(event, PartEnd):
            return PartEnd(event.index, own_part(event.part, dialect))
        if isinstance(event, ReplyFail):
            return self._failure(event)
        if not isinstance(event, ReplyEnd):
            return event
        reply = self._decode(event.reply)
        error: Upstream | None = None
        if dialect.errors is not None:
            error = find_error((reply.extras or {}).get(dialect.wire, "{}"), dialect.errors)
        if error is None:
            return ReplyEnd(reply)
        name = type(error).__name__
        return ReplyFail(name, str(error), code=error.code, partial=reply)

    def _failure(self, event: ReplyFail) -> ReplyFail:
        """The failure, classified by the provider's own codes, and the reply before it."""
        shape = self._dialect.errors
        kind = shape.kinds.get(event.code or "") if shape is not None else None
        return msgspec.structs.replace(
            event,
            error=event.error if kind is None else KINDS[kind].__name__,
            partial=None if event.partial is None else self._decode(event.partial),
        )


class DialectWriter:
    """The wire's stream writer, with counts in the provider's fields, and with tool calls in one
    piece if the provider sends them so."""

    def __init__(self, inner: Any, dialect: Dialect, encode: Callable[[Usage], Usage]) -> None:
        """`encode` writes counts into the provider's usage object."""
        self._inner = inner
        self._dialect = dialect
        self._encode = encode
        self._calls: set[int] = set()
        """The tool calls that are written when they are complete."""

    def write(self, event: Event) -> bytes:
        if self._dialect.whole_calls and self._is_written_later(event):
            return b""
        if isinstance(event, UsageUpdate):
            event = UsageUpdate(self._encode(event.usage))
        elif isinstance(event, ReplyEnd):
            usage = self._encode(event.reply.usage)
            event = ReplyEnd(msgspec.structs.replace(event.reply, usage=usage))
        written: bytes = self._inner.write(event)
        return written

    def _is_written_later(self, event: Event) -> bool:
        if isinstance(event, PartStart) and event.kind == "tool_call":
            self._calls.add(event.index)
        return isinstance(event, PartStart | PartDelta) and event.index in self._calls
