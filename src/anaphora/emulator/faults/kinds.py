"""The kinds of faults, and what each does to a response.

An error is in the format of the response's wire, or of its dialect where that has its own.
"""

from __future__ import annotations

import email.utils
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, TypeAlias

import msgspec

from anaphora import errors, wire
from anaphora.emulator.exchange import (
    JSON,
    NDJSON,
    SSE,
    EmulatorResponse,
    ResponseChunk,
    json_response,
)
from anaphora.emulator.hosts import DEFAULT_WIRE, HOSTS
from anaphora.emulator.strict import overflow_row
from anaphora.errors import Upstream
from anaphora.values import ReplyEnd, ReplyFail
from anaphora.wire import sse
from anaphora.wire.replies import reply_events

RetryFormat: TypeAlias = Literal["own", "seconds", "milliseconds", "date", "none"]
"""How the time to wait is sent: as the provider does (Google in the body, the others in
`retry-after`), in a header of that format, or not at all."""

#: The tokens and the limit in the error of an overflow fault.
_OVERFLOW = (208_310, 200_000)
#: Into how many pieces a whole body is split for a slow drip.
_DRIP_PIECES = 16
#: What precedes the texts of a reply on the wires; the last precedes any text.
_TEXT_STARTS = (b'"text":"', b'"content":"', b'"delta":"', b'":"')


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    seconds: float = 0.0
    after: int | None = None
    """Chunks that are still sent; None: half of them."""
    now: float = 0.0
    """When the request came: dates count from there."""

    def apply(self, response: EmulatorResponse) -> EmulatorResponse:
        return KINDS[self.name].effect(response, self)


class FaultKind(msgspec.Struct, frozen=True):
    effect: Callable[[EmulatorResponse, Fault], EmulatorResponse]
    settings: tuple[str, ...] = ()
    """The settings it has: `seconds`, `after`."""
    seconds: float | None = None
    """The default of `seconds`."""
    unbilled: bool = False
    """The request is rejected before its prompt is read: nothing is cached or billed."""


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────


def _error(response: EmulatorResponse, error: Upstream) -> EmulatorResponse:
    """The error in place of the response, which keeps its headers that are not about the body."""
    codec = wire.get(response.dialect or response.wire or DEFAULT_WIRE)
    status, headers, body = codec.write_error(error)
    kept = {name: value for name, value in response.headers.items() if name != "cache-control"}
    replaced = json_response(body, status=status, headers={**kept, **headers})
    return msgspec.structs.replace(replaced, wire=response.wire)


def _rate_limit(
    response: EmulatorResponse, fault: Fault, retry_format: RetryFormat
) -> EmulatorResponse:
    seconds = fault.seconds
    message = "This request would exceed the rate limit."
    wait = seconds if retry_format == "own" else None
    limited = _error(response, errors.RateLimited(message, status=429, retry_after=wait))
    if retry_format == "seconds":
        limited.headers["retry-after"] = f"{seconds:g}"
    elif retry_format == "milliseconds":
        limited.headers["retry-after-ms"] = f"{seconds * 1000:g}"
    elif retry_format == "date":
        # Rounded up: an earlier retry would come too early.
        date = email.utils.formatdate(math.ceil(fault.now + seconds), usegmt=True)
        limited.headers["retry-after"] = date
    return limited


def _spend_cap(response: EmulatorResponse, _: Fault) -> EmulatorResponse:
    return _error(response, HOSTS[response.wire].spend_cap_error("The spend limit is reached."))


def _server_error(response: EmulatorResponse, _: Fault, status: int) -> EmulatorResponse:
    if status == 500:
        return _error(response, Upstream("Internal server error", status=500))
    return _error(response, errors.Overloaded("Overloaded", status=status))


def _ok_error(response: EmulatorResponse, fault: Fault) -> EmulatorResponse:
    """An error with a status of success."""
    return msgspec.structs.replace(_server_error(response, fault, 503), status=200)


def _context_overflow(response: EmulatorResponse, fault: Fault) -> EmulatorResponse:
    """The prompt is too long: rejected at once, or in the stream after `after` events."""
    provider = response.dialect.partition("/")[0] or wire.PROVIDERS[response.wire]
    row = overflow_row(provider, response.wire)
    message, code = row.write(*_OVERFLOW), row.code or "invalid_request_error"
    error = errors.ContextOverflow(message, status=400, code=code)
    if fault.after is None or not response.stream:
        return _error(response, error)
    return _broken_off(response, fault, ReplyFail(type(error).__name__, message, code))


def _stream_error(response: EmulatorResponse, fault: Fault) -> EmulatorResponse:
    """The stream ends with the provider's error; a whole response fails at once."""
    if not response.stream:
        return _server_error(response, fault, 500)
    code = HOSTS[response.wire].overloaded_code
    return _broken_off(response, fault, ReplyFail("Overloaded", "Overloaded", code))


def _broken_off(response: EmulatorResponse, fault: Fault, failure: ReplyFail) -> EmulatorResponse:
    """The stream with the failure as its last event."""
    end = _position(response, fault)
    event = wire.get(response.wire).writer().write(failure)
    event = event.replace(b'"sequence_number":0', b'"sequence_number":%d' % end)
    if _is_array(response):
        event = event.removeprefix(b"data: ").strip()
        event = (b",\n" if end else b"[") + event + b"]"
    return _with_chunks(response, (*response.chunks[:end], ResponseChunk(0.0, event)))


# ── Slow and broken connections: no byte of the response changes ─────────────────────────────────


def _reset(response: EmulatorResponse, fault: Fault) -> EmulatorResponse:
    """Dropped before the first byte, or after `after` chunks."""
    if fault.after is not None:
        response = _cut(response, fault)
    return msgspec.structs.replace(response, reset=True)


def _slow_first_byte(response: EmulatorResponse, fault: Fault) -> EmulatorResponse:
    if not response.chunks:
        return response
    first, *rest = response.chunks
    return _with_chunks(response, (ResponseChunk(first.delay + fault.seconds, first.data), *rest))


def _slow_drip(response: EmulatorResponse, fault: Fault) -> EmulatorResponse:
    chunks = response.chunks if response.stream else _pieces(response, _DRIP_PIECES)
    later = (ResponseChunk(chunk.delay + fault.seconds, chunk.data) for chunk in chunks)
    return _with_chunks(response, later)


def _cut(response: EmulatorResponse, fault: Fault) -> EmulatorResponse:
    """Ends after `after` chunks; a whole response in its middle."""
    if not response.stream:
        response = _with_chunks(response, _pieces(response, 2))
    return msgspec.structs.replace(response, cut_after=_position(response, fault))


# ── Wrong content ────────────────────────────────────────────────────────────────────────────────


def _broken_json(response: EmulatorResponse, fault: Fault) -> EmulatorResponse:
    """One chunk lacks its last closing brace."""

    def unclose(data: bytes) -> bytes:
        end = data.rfind(b"}")
        return data if end < 0 else data[:end] + data[end + 1 :]

    return _changed(response, fault, unclose)


def _broken_utf8(response: EmulatorResponse, fault: Fault) -> EmulatorResponse:
    """One text holds bytes that are not UTF-8. Clients skip most other fields unread."""

    def garble(data: bytes) -> bytes:
        starts = (data.find(start) + len(start) for start in _TEXT_STARTS if start in data)
        index = next(starts, None)
        return data if index is None else data[:index] + b"\xff\xfe" + data[index:]

    return _changed(response, fault, garble)


def _wrong_content_type(response: EmulatorResponse, _: Fault) -> EmulatorResponse:
    headers = {**response.headers, "content-type": "text/html; charset=utf-8"}
    return msgspec.structs.replace(response, headers=headers)


def _wrong_form(response: EmulatorResponse, _: Fault) -> EmulatorResponse:
    """JSON for a stream request, an event stream for any other, as some gateways send."""
    codec = wire.get(response.dialect or response.wire)
    if response.stream:
        reader = codec.reader()
        end = [*reader.feed(response.body), *reader.close()][-1]
        if not isinstance(end, ReplyEnd):
            return response  # there is no whole reply
        data, kind = msgspec.json.format(codec.write_reply(end.reply), indent=2), JSON
    else:
        data = b"".join(map(codec.writer().write, reply_events(codec.read_reply(response.body))))
        kind = HOSTS[response.wire].stream_type
    return msgspec.structs.replace(
        response,
        headers={**response.headers, "content-type": kind},
        chunks=(ResponseChunk(response.chunks[0].delay, data),),
        stream=not response.stream,
    )


def _duplicate_events(response: EmulatorResponse, fault: Fault) -> EmulatorResponse:
    """One event of a stream is sent twice; a whole response has none."""
    if not response.stream or not response.chunks:
        return response
    index = _position(response, fault)
    data = response.chunks[index].data
    if _is_array(response):
        data = b",\n" + data.lstrip(b"[,\n")
    return _inserted(response, index + 1, data)


def _unknown_events(response: EmulatorResponse, fault: Fault) -> EmulatorResponse:
    """An event that no client knows; in a whole response a field."""
    if not response.stream:
        body = response.body
        if body[:1] != b"{":
            return response
        body = b'{"emulator_unknown":{}' + (b"," if body[1:2] != b"}" else b"") + body[1:]
        return _with_chunks(response, (ResponseChunk(response.chunks[0].delay, body),))
    name, data = HOSTS[response.wire].unknown_event
    if response.headers.get("content-type") == NDJSON:
        data += b"\n"
    else:
        data = b",\n" + data if _is_array(response) else sse.encode_event(name, data)
    return _inserted(response, max(1, _position(response, fault)), data)


# ── Helpers ──────────────────────────────────────────────────────────────────────────────────────


def _position(response: EmulatorResponse, fault: Fault) -> int:
    """After how many chunks: `after`, or half of them; never after all."""
    wanted = len(response.chunks) // 2 if fault.after is None else fault.after
    return max(0, min(wanted, len(response.chunks) - 1))


def _with_chunks(response: EmulatorResponse, chunks: Iterable[ResponseChunk]) -> EmulatorResponse:
    return msgspec.structs.replace(response, chunks=tuple(chunks))


def _inserted(response: EmulatorResponse, index: int, data: bytes) -> EmulatorResponse:
    chunks = response.chunks
    return _with_chunks(response, (*chunks[:index], ResponseChunk(0.0, data), *chunks[index:]))


def _changed(
    response: EmulatorResponse, fault: Fault, change: Callable[[bytes], bytes]
) -> EmulatorResponse:
    """One chunk changed: the one at the fault's position, or the next that can be."""
    chunks = list(response.chunks)
    start = _position(response, fault)
    for index in (*range(start, len(chunks)), *range(start)):
        data = change(chunks[index].data)
        if data != chunks[index].data:
            chunks[index] = ResponseChunk(chunks[index].delay, data)
            break
    return _with_chunks(response, chunks)


def _pieces(response: EmulatorResponse, count: int) -> list[ResponseChunk]:
    """A whole body in about `count` pieces."""
    body = response.body
    size = max(1, -(-len(body) // count))
    delay = response.chunks[0].delay if response.chunks else 0.0
    return [
        ResponseChunk(0.0 if start else delay, body[start : start + size])
        for start in range(0, len(body), size)
    ]


def _is_array(response: EmulatorResponse) -> bool:
    """Whether it is Gemini's stream as one JSON array."""
    return response.stream and response.headers.get("content-type") not in (SSE, NDJSON)


def _limit_kind(retry_format: RetryFormat) -> FaultKind:
    effect = partial(_rate_limit, retry_format=retry_format)
    return FaultKind(effect, ("seconds",), 1, unbilled=True)


#: By the name in files and in the header.
KINDS: dict[str, FaultKind] = {
    "rate-limit": _limit_kind("own"),
    "rate-limit-seconds": _limit_kind("seconds"),
    "rate-limit-ms": _limit_kind("milliseconds"),
    "rate-limit-date": _limit_kind("date"),
    "rate-limit-bare": _limit_kind("none"),
    "spend-cap": FaultKind(_spend_cap, unbilled=True),
    "500": FaultKind(partial(_server_error, status=500), unbilled=True),
    "503": FaultKind(partial(_server_error, status=503), unbilled=True),
    "529": FaultKind(partial(_server_error, status=529), unbilled=True),
    "ok-error": FaultKind(_ok_error),
    "timeout": FaultKind(lambda response, _: msgspec.structs.replace(response, hang=True)),
    "reset": FaultKind(_reset, ("after",)),
    "slow-first-byte": FaultKind(_slow_first_byte, ("seconds",), 2),
    "slow-drip": FaultKind(_slow_drip, ("seconds",), 0.2),
    "cut": FaultKind(_cut, ("after",)),
    "stream-error": FaultKind(_stream_error, ("after",)),
    "broken-json": FaultKind(_broken_json, ("after",)),
    "broken-utf8": FaultKind(_broken_utf8, ("after",)),
    "context-overflow": FaultKind(_context_overflow, ("after",)),
    "wrong-content-type": FaultKind(_wrong_content_type),
    "wrong-form": FaultKind(_wrong_form),
    "duplicate-events": FaultKind(_duplicate_events, ("after",)),
    "unknown-events": FaultKind(_unknown_events, ("after",)),
}
