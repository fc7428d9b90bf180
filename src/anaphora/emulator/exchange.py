"""One request and one response of the emulator, without a socket."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import msgspec

from anaphora.errors import InvalidRequest, RequestRejected
from anaphora.wire.reading import DECODE_ERRORS, decode_reason

if TYPE_CHECKING:
    from .journal import CallRecord

JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"
NULL = msgspec.Raw(b"null")

#: Digits of a number in a query, and characters of an invalid one that an error shows.
_DIGITS, _SHOWN = 15, 40

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class EmulatorRequest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    method: str
    path: str
    """Without the query."""
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    """Names in lower case."""
    body: bytes = b""
    now: float = 0.0
    """Arrival time in seconds since 1970, by the emulator's clock."""

    @functools.cached_property
    def fields(self) -> dict[str, msgspec.Raw]:
        return decode_object(self.body)

    def value(self, field: str, default: Any = None) -> Any:
        raw = self.fields.get(field)
        return default if raw is None else decode_value(raw, field)


def decode_object(body: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The top-level fields of a JSON object; an empty body has none."""
    try:
        return _decode_object(body or b"{}")
    except DECODE_ERRORS as problem:
        reason = decode_reason(problem, body)
        raise RequestRejected(f"the body is not a JSON object: {reason}", status=400) from None


def decode_value(raw: bytes | msgspec.Raw, field: str) -> Any:
    """The value of a field. Raw JSON may contain a number that is out of range."""
    try:
        return msgspec.json.decode(raw)
    except DECODE_ERRORS as problem:
        raise RequestRejected(f"{field}: {problem}", status=400, param=field) from None


def decode_items(raw: bytes | msgspec.Raw) -> tuple[bytes, ...]:
    """The elements of a list as JSON; none for any other value, which the wire's checks reject."""
    try:
        return tuple(map(bytes, msgspec.json.decode(raw, type=list[msgspec.Raw])))
    except DECODE_ERRORS:
        return ()


def whole_number(text: str, name: str) -> int:
    """A number in a query. `str.isdigit` is also true of `²`, which `int` does not read."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise InvalidRequest(f"must be a whole number, got {text[:_SHOWN]!r}", path=name)
    return int(text)


def nested(value: Any, *keys: str) -> Any:
    """The value at the end of a path of keys; None without one."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


class ResponseChunk(msgspec.Struct, gc=False):
    """A piece of a response, and the seconds to wait before it is sent."""

    delay: float
    data: bytes


class EmulatorResponse(msgspec.Struct, kw_only=True):
    """One HTTP response; the flags describe faults of the connection."""

    status: int = 200
    headers: dict[str, str] = {}
    chunks: list[ResponseChunk] = []
    """One for each event of a stream; otherwise the body."""
    stream: bool = False
    wire: str = ""
    dialect: str = ""
    """Like `wire`, read by faults."""
    hang: bool = False
    """Nothing is ever sent."""
    reset: bool = False
    """The connection is dropped: before the first byte, or after `cut_after` chunks."""
    cut_after: int | None = None
    """The connection ends after this many chunks, in the middle of the response."""
    call: CallRecord | None = None
    """The billed call. Its cache writes can be read when the response begins or ends."""

    @property
    def body(self) -> bytes:
        return b"".join(chunk.data for chunk in self.chunks)


def json_response(
    body: bytes, *, status: int = 200, headers: dict[str, str] | None = None
) -> EmulatorResponse:
    """A response in one piece; JSON unless `headers` has another type."""
    merged = {"content-type": JSON, **(headers or {})}
    return EmulatorResponse(status=status, headers=merged, chunks=[ResponseChunk(0.0, body)])
