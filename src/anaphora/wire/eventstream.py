"""AWS's binary event stream (`application/vnd.amazon.eventstream`): its frames read and written.

    frame     length, length of the headers, checksum of both; headers; payload; checksum of all
    headers   each: length of the name, name, type, value

Numbers are big-endian, checksums are CRC-32. Bytes come in pieces of any size; both checksums of
each frame are checked, and a frame beyond the limits is an error before it is collected. The frames
before a broken one are returned; `problem` then tells what is wrong, and later bytes are ignored.

Some gateways answer a stream request with one JSON body. No frame begins with a bracket, as its
length would be beyond the limit, so bytes that do are collected in `body` and yield no frames.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

from anaphora.canonical import string
from anaphora.errors import InvalidRequest, Parse

CONTENT_TYPE = "application/vnd.amazon.eventstream"

#: The limits of AWS's own clients.
HEADERS_LIMIT = 128 * 1024
PAYLOAD_LIMIT = 24 * 1024 * 1024
#: The largest JSON body that is read in place of a stream.
_BODY_LIMIT = 64 * 1024 * 1024
_LIMITS = f"at most {HEADERS_LIMIT} bytes of headers and {PAYLOAD_LIMIT} of payload"

_PRELUDE = struct.Struct(">III")
_CHECKSUM = struct.Struct(">I")
_SHORT = struct.Struct(">H")
_BEFORE_HEADERS, _AROUND = _PRELUDE.size, _PRELUDE.size + _CHECKSUM.size
#: The types of header values: these have the size, and these two begin with it.
_FIXED = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
_BYTES, _TEXT = 6, 7
#: A stream has a handful of different headers, which are parsed once.
_MOST_KNOWN = 64
#: What Bedrock pads events with, so that their sizes do not tell the text.
_PADDING = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

_unpack_prelude = _PRELUDE.unpack_from
_unpack_checksum = _CHECKSUM.unpack_from


class Frame(NamedTuple):
    headers: Mapping[str, str]
    """Those whose values are texts; AWS sends no others."""
    payload: bytes


class FrameDecoder:
    """Decodes bytes into complete frames. The time is proportional to the bytes, however small the
    pieces are."""

    __slots__ = ("_buffer", "_known", "_needed", "_position", "_started", "body", "problem")

    def __init__(self) -> None:
        self._buffer = bytearray()
        """The bytes of the incomplete frame."""
        self._needed = _BEFORE_HEADERS
        """Its size, as far as it is known."""
        self._position = 0
        """The offset of the incomplete frame in the stream, for errors."""
        self._known: dict[bytes, Mapping[str, str]] = {}
        self._started = False
        self.body: bytearray | None = None
        """The JSON body so far, if the bytes are one instead of frames."""
        self.problem: Parse | None = None
        """What is wrong with the frame after those that were returned."""

    @property
    def complete(self) -> bool:
        """Whether the bytes so far end with a frame."""
        return not self._buffer

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now."""
        if self.problem is not None:
            return []
        if not self._started:
            data = self._start(data)
        if self.body is not None:
            self.body += data
            if len(self.body) > _BODY_LIMIT:
                self.problem = Parse(f"a body of more than {_BODY_LIMIT} bytes", path="stream")
            return []
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        frames: list[Frame] = []
        try:
            at = self._read(data, frames)
        except Parse as problem:
            self.problem = problem
            return frames
        if at < len(data):
            self._buffer += data[at:]
        self._position += at
        return frames

    def _read(self, data: bytes, frames: list[Frame]) -> int:
        """Adds the complete frames; returns where the next one begins."""
        at, size, known = 0, len(data), self._known
        self._needed = _BEFORE_HEADERS
        while size - at >= _BEFORE_HEADERS:
            total, header_size, checksum = _unpack_prelude(data, at)
            if crc32(data[at : at + 8]) != checksum:
                raise self._broken(at, "the checksum of its lengths is wrong")
            if total < _AROUND + header_size:
                raise self._broken(at, f"its {total} bytes are fewer than its headers take")
            if header_size > HEADERS_LIMIT or total - header_size > PAYLOAD_LIMIT + _AROUND:
                raise self._broken(at, f"it has {total} bytes; there are {_LIMITS}")
            if size - at < total:
                self._needed = total
                break
            end, start = at + total - _CHECKSUM.size, at + _BEFORE_HEADERS
            # The checksum of all continues that of the lengths, and includes it.
            if crc32(data[at + 8 : end], checksum) != _unpack_checksum(data, end)[0]:
                raise self._broken(at, "its checksum is wrong")
            payload_at = start + header_size
            raw = data[start:payload_at]
            headers = known.get(raw)
            if headers is None:
                headers = self._headers(raw, at)
            frames.append(Frame(headers, data[payload_at:end]))
            at = end + _CHECKSUM.size
        return at

    def _start(self, data: bytes) -> bytes:
        """The bytes so far; none while it is undecided whether they are frames or a JSON body."""
        if self._buffer:
            data = bytes(self._buffer) + data
            self._buffer.clear()
        begin = data.lstrip(b" \t\r\n")
        if begin:
            self._started = True
            if begin[:1] in (b"{", b"["):
                self.body = bytearray()
        elif len(data) >= _BEFORE_HEADERS:
            self._started = True
        else:
            self._buffer += data
            return b""
        return data

    def _headers(self, raw: bytes, at: int) -> Mapping[str, str]:
        headers: dict[str, str] = {}
        position, end = 0, len(raw)
        try:
            while position < end:
                begin = position + 1
                position = begin + raw[position]
                name, kind = raw[begin:position].decode(), raw[position]
                position += 1
                size = _FIXED.get(kind)
                if size is None:
                    if kind not in (_BYTES, _TEXT):
                        raise self._broken(at, f"a header has the unknown type {kind}")
                    (size,) = _SHORT.unpack_from(raw, position)
                    position += _SHORT.size
                value = raw[position : position + size]
                position += size
                if len(value) < size:
                    break
                if kind == _TEXT:
                    headers[name] = value.decode()
        except (IndexError, struct.error, UnicodeDecodeError):
            position = end + 1
        if position != end:
            raise self._broken(at, "its headers cannot be read")
        if len(self._known) < _MOST_KNOWN:
            self._known[raw] = headers
        return headers

    def _broken(self, at: int, reason: str) -> Parse:
        return Parse(f"the frame at byte {self._position + at}: {reason}", path="stream")


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────


def encode_frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """A frame with these headers."""
    encoded = b"".join(map(_header, headers.items()))
    if len(encoded) > HEADERS_LIMIT or len(payload) > PAYLOAD_LIMIT:
        raise InvalidRequest(f"a frame has {_LIMITS}", path="stream")
    lengths = struct.pack(">II", _AROUND + len(encoded) + len(payload), len(encoded))
    message = lengths + _CHECKSUM.pack(crc32(lengths)) + encoded + payload
    return message + _CHECKSUM.pack(crc32(message))


def _header(header: tuple[str, str]) -> bytes:
    name, value = header[0].encode(), header[1].encode()
    if not 0 < len(name) < 256 or len(value) > 0x7FFF:
        reason = "a header has a name of 1 to 255 bytes, and a value of at most 32767"
        raise InvalidRequest(reason, path="stream")
    return bytes((len(name),)) + name + bytes((_TEXT,)) + _SHORT.pack(len(value)) + value


def encode_event(kind: str, payload: bytes) -> bytes:
    """An event with a payload of JSON."""
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return encode_frame(headers, payload)


def encode_exception(kind: str, message: str) -> bytes:
    """An exception, which ends a stream; `kind` begins with a small letter."""
    headers = {
        ":exception-type": kind,
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    return encode_frame(headers, b'{"message":' + string(message) + b"}")


def padded(payload: bytes) -> bytes:
    """An object with Bedrock's padding `p`, whose length differs from event to event."""
    length = 2 + crc32(payload) % (len(_PADDING) - 1)
    comma = b"," if len(payload) > 2 else b""
    return payload[:-1] + comma + b'"p":"' + _PADDING[:length].encode() + b'"}'
