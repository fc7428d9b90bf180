"""Framing of streams: SSE events, a JSON list.

Late fields, known only after a stream's last event, are sent in an SSE comment after it, or in the
field `anaphora` of Gemini's last event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from anaphora.wire.reading import DECODE_ERRORS
from anaphora.wire.sse import EventDecoder

#: The end of an SSE event; line endings may be mixed.
SSE_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
_LONGEST_END = max(map(len, SSE_ENDS))


class WholeEvents:
    """Passes complete events only: an incomplete one could be a provider's error, whose bytes are
    never passed on."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """The events completed by these bytes."""
        # Only new bytes are searched: an event may be large and arrive in many pieces.
        tail = bytes(self._rest[1 - _LONGEST_END :])
        window = tail + data
        end = len(window) if window.endswith(SSE_ENDS) else self._end_in(window)
        if not end:
            self._rest += data
            return b""
        cut = end - len(tail)
        whole = bytes(self._rest) + data[:cut] if self._rest else data[:cut]
        self._rest = bytearray(data[cut:])
        return whole

    def _end_in(self, window: bytes) -> int:
        """The end of the last complete event; 0 if there is none."""
        return max(at + len(mark) if (at := window.rfind(mark)) >= 0 else 0 for mark in SSE_ENDS)

    def close(self) -> bytes:
        """The rest after the last event of a stream that has not failed."""
        rest, self._rest = bytes(self._rest), bytearray()
        return rest


class WholeFrames:
    """The same for frames of AWS's event stream, which begin with their size. Their checksums are
    checked by the reader of the stream."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        rest = self._rest
        rest += data
        end = 0
        while len(rest) >= end + 4:
            size = int.from_bytes(rest[end : end + 4])
            if not size or end + size > len(rest):
                break
            end += size
        whole = bytes(rest[:end])
        del rest[:end]
        return whole

    def close(self) -> bytes:
        return b""  # a frame that is not complete is an error


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Chunk).decode


class UsageFilter:
    """Passes the events of a chat stream unchanged, without the one that holds only the usage."""

    def __init__(self) -> None:
        self._whole = WholeEvents()

    def feed(self, data: bytes) -> bytes:
        events = self._whole.feed(data)
        if b'"usage"' not in events:
            return events
        ending = b"\r\n\r\n" if b"\r\n\r\n" in events else b"\n\n"
        return ending.join(each for each in events.split(ending) if not _is_usage(each))

    def close(self) -> bytes:
        return self._whole.close()

    def finish(self, fields: Mapping[str, Any]) -> bytes:
        return self.close() + late_comment(fields)


def _is_usage(event: bytes) -> bool:
    if b'"usage"' not in event or not event.startswith(b"data:"):
        return False
    try:
        chunk = _decode(event[5:])
    except DECODE_ERRORS:
        return False
    return chunk.choices == [] and bytes(chunk.usage) != b"null"


# ── The end of a stream ──────────────────────────────────────────────────────────────────────────


class StreamFrame(Protocol):
    """Changes the bytes of a stream on their way to the app."""

    def feed(self, data: bytes) -> bytes: ...

    def finish(self, fields: Mapping[str, Any]) -> bytes:
        """The bytes after the last piece, with the late fields."""
        ...


def late_comment(fields: Mapping[str, Any]) -> bytes:
    """The late fields as an SSE comment."""
    return b": anaphora " + _json(fields) + b"\n\n" if fields else b""


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


class LastObject:
    """Adds the late fields to the last event of Gemini's stream, recognized by the mark. Google's
    SDK does not accept comments."""

    def __init__(self, separators: tuple[bytes, ...], mark: bytes) -> None:
        self._separators = separators
        self._longest = max(map(len, separators))
        self._mark = mark
        self._rest = bytearray()
        self._last = b""

    def feed(self, data: bytes) -> bytes:
        # Only new bytes are searched: objects may be large and arrive in many pieces.
        start = max(0, len(self._rest) - self._longest)
        self._rest += data
        found = [each for each in self._separators if self._rest.find(each, start) >= 0]
        if not found:
            return b""
        separator = found[0]
        *objects, rest = bytes(self._rest).split(separator)
        self._rest = bytearray(rest)
        written = b""
        for each in objects:
            written, self._last = written + self._last, b""
            if self._mark in each:
                self._last = each + separator
            else:
                written += each + separator
        return written

    def finish(self, fields: Mapping[str, Any]) -> bytes:
        last = self._last.rstrip()
        if fields and last.endswith(b"}"):
            end = self._last[len(last) :]
            self._last = last[:-1] + b',"anaphora":' + _json(fields) + b"}" + end
        return self._last + bytes(self._rest)


class EventFrames:
    """Frames of AWS's event stream. They have no place for the late fields."""

    def feed(self, data: bytes) -> bytes:
        return data

    def finish(self, _fields: Mapping[str, Any]) -> bytes:
        return b""


class JsonList:
    """Events of an SSE stream as the elements of one JSON list."""

    def __init__(self) -> None:
        self._decoder = EventDecoder()
        self._empty = True

    def feed(self, data: bytes) -> bytes:
        written = b""
        for event in self._decoder.feed(data):
            written += (b"[" if self._empty else b",\n") + event
            self._empty = False
        return written

    def finish(self, _fields: Mapping[str, Any]) -> bytes:
        """A list has no place for the late fields."""
        return b"[]" if self._empty else b"]"
