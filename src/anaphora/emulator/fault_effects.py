"""Effects of faults on responses: errors, slow and broken connections, wrong content.

An error is in the format of the response's wire, or of its dialect if that has a format of its own.
"""

from __future__ import annotations

import copy
import email.utils
import math
from collections.abc import Callable
from functools import partial

import msgspec

from anaphora import errors, wire
from anaphora.errors import AnaphoraError, Upstream
from anaphora.values import ReplyEnd, ReplyFail
from anaphora.wire import eventstream, sse
from anaphora.wire.replies import reply_events

from .exchange import JSON, SSE, EmulatorResponse, ResponseChunk
from .hosts import DEFAULT_WIRE, HOSTS, host_name
from .hosts.host import Host
from .strict import overflow_row

#: The tokens and the limit in the error of an overflow fault.
_OVERFLOW = (208_310, 200_000)
#: Into how many pieces a whole body is split for a slow drip.
_DRIP_PIECES = 16
#: Bytes before the texts of a reply, by wire; the last fit any JSON string.
_TEXT_STARTS = (b'"text":"', b'"content":"', b'"delta":"', b'":"')


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    seconds: float = 0.0
    after: int | None = None
    """Chunks that are still sent; None: half of them."""
    now: float = 0.0
    """When the request arrived, for dates in the error."""

    def apply(self, response: EmulatorResponse) -> EmulatorResponse:
        """The faulty response; the given one is not changed."""
        faulty = copy.deepcopy(response)
        KINDS[self.name].effect(faulty, self)
        return faulty


class FaultKind(msgspec.Struct, frozen=True):
    effect: Callable[[EmulatorResponse, Fault], None]
    """Changes a response in place."""
    settings: tuple[str, ...] = ()
    """The settings it has: `seconds`, `after`."""
    seconds: float | None = None
    """The default of `seconds`."""
    unbilled: bool = False
    """The request is rejected before its prompt is read: nothing is cached or billed."""


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────


def _error(response: EmulatorResponse, error: Upstream) -> None:
    """Replaces the response by the error, and keeps its headers except those about the body."""
    codec = wire.get(response.dialect or response.wire or DEFAULT_WIRE)
    response.status, headers, body = codec.write_error(error)
    response.headers.pop("cache-control", None)
    response.headers |= {"content-type": JSON, **headers}
    response.stream, response.chunks = False, [ResponseChunk(0.0, body)]


#: Formats of the time to wait besides the provider's own (Google's is in the body).
_RETRY_HEADERS: dict[str, Callable[[Fault], dict[str, str]]] = {
    "rate-limit-seconds": lambda fault: {"retry-after": f"{fault.seconds:g}"},
    "rate-limit-ms": lambda fault: {"retry-after-ms": f"{fault.seconds * 1000:g}"},
    # Rounded up: an earlier retry would come too early.
    "rate-limit-date": lambda fault: {
        "retry-after": email.utils.formatdate(math.ceil(fault.now + fault.seconds), usegmt=True)
    },
    "rate-limit-bare": lambda _: {},
}


def _rate_limit(response: EmulatorResponse, fault: Fault) -> None:
    header = _RETRY_HEADERS.get(fault.name)
    wait = fault.seconds if header is None else None
    message = "This request would exceed the rate limit."
    _error(response, errors.RateLimited(message, status=429, retry_after=wait))
    response.headers |= {} if header is None else header(fault)


def _spend_cap(response: EmulatorResponse, _: Fault) -> None:
    code = _host(response).spend_cap_code
    _error(response, errors.QuotaExhausted("The spend limit is reached.", code=code))


def _server_error(response: EmulatorResponse, _: Fault, status: int) -> None:
    if status == 500:
        _error(response, Upstream("Internal server error", status=500))
    else:
        _error(response, errors.Overloaded("Overloaded", status=status))


def _ok_error(response: EmulatorResponse, fault: Fault) -> None:
    """An error with status 200."""
    _server_error(response, fault, 503)
    response.status = 200


def _context_overflow(response: EmulatorResponse, fault: Fault) -> None:
    """The prompt is too long: rejected at once, or in the stream after `after` events."""
    provider = response.dialect.partition("/")[0] or wire.PROVIDERS[response.wire]
    row = overflow_row(provider, response.wire)
    message, code = row.write(*_OVERFLOW), row.code or "invalid_request_error"
    if fault.after is None or not response.stream:
        _error(response, errors.ContextOverflow(message, status=400, code=code))
    else:
        _break_off(response, fault, ReplyFail("ContextOverflow", message, code))


def _stream_error(response: EmulatorResponse, fault: Fault) -> None:
    """The stream ends with the provider's error; a whole response fails at once."""
    if response.stream:
        code = _host(response).overloaded_code
        _break_off(response, fault, ReplyFail("Overloaded", "Overloaded", code))
    else:
        _server_error(response, fault, 500)


def _break_off(response: EmulatorResponse, fault: Fault, failure: ReplyFail) -> None:
    """Ends the stream with the failure."""
    end = _position(response, fault)
    event = wire.get(response.dialect or response.wire).writer().write(failure)
    event = event.replace(b'"sequence_number":0', b'"sequence_number":%d' % end)
    if _is_array(response):
        event = event.removeprefix(b"data: ").strip()
        event = (b",\n" if end else b"[") + event + b"]"
    response.chunks[end:] = [ResponseChunk(0.0, event)]


# ── Slow and broken connections: no byte of the response changes ─────────────────────────────────


def _timeout(response: EmulatorResponse, _: Fault) -> None:
    response.hang = True


def _reset(response: EmulatorResponse, fault: Fault) -> None:
    """Dropped before the first byte, or after `after` chunks."""
    response.reset = True
    if fault.after is not None:
        _cut(response, fault)


def _slow_first_byte(response: EmulatorResponse, fault: Fault) -> None:
    for chunk in response.chunks[:1]:
        chunk.delay += fault.seconds


def _slow_drip(response: EmulatorResponse, fault: Fault) -> None:
    _split_body(response, _DRIP_PIECES)
    for chunk in response.chunks:
        chunk.delay += fault.seconds


def _cut(response: EmulatorResponse, fault: Fault) -> None:
    """Ends after `after` chunks; a whole response in its middle."""
    _split_body(response, 2)
    response.cut_after = _position(response, fault)


# ── Wrong content ────────────────────────────────────────────────────────────────────────────────


def _broken_json(response: EmulatorResponse, fault: Fault) -> None:
    """One chunk lacks its last closing brace."""

    def unclose(data: bytes) -> bytes:
        end = data.rfind(b"}")
        return data if end < 0 else data[:end] + data[end + 1 :]

    _change_chunk(response, fault, unclose)


def _broken_utf8(response: EmulatorResponse, fault: Fault) -> None:
    """One text holds bytes that are not UTF-8. Clients skip most other fields unread."""

    def garble(data: bytes) -> bytes:
        starts = (data.find(start) + len(start) for start in _TEXT_STARTS if start in data)
        index = next(starts, None)
        return data if index is None else data[:index] + b"\xff\xfe" + data[index:]

    _change_chunk(response, fault, garble)


def _wrong_content_type(response: EmulatorResponse, _: Fault) -> None:
    response.headers["content-type"] = "text/html; charset=utf-8"


def _wrong_form(response: EmulatorResponse, _: Fault) -> None:
    """JSON for a stream request, an event stream for any other, as some gateways send."""
    codec = wire.get(response.dialect or response.wire)
    if response.stream:
        reader = codec.reader()
        end = [*reader.feed(response.body), *reader.close()][-1]
        if not isinstance(end, ReplyEnd):
            return  # there is no whole reply
        data, kind = msgspec.json.format(codec.write_reply(end.reply), indent=2), JSON
    else:
        try:
            reply = codec.read_reply(response.body)
        except AnaphoraError:
            return  # an error, a list of models
        data = b"".join(map(codec.writer().write, reply_events(reply)))
        kind = _host(response).stream_type
    response.headers["content-type"] = kind
    response.chunks = [ResponseChunk(response.chunks[0].delay, data)]
    response.stream = not response.stream


def _duplicate_events(response: EmulatorResponse, fault: Fault) -> None:
    """One event of a stream is sent twice; a whole response has none."""
    if not response.stream or not response.chunks:
        return
    index = _position(response, fault)
    data = response.chunks[index].data
    if _is_array(response):
        data = b",\n" + data.lstrip(b"[,\n")
    response.chunks.insert(index + 1, ResponseChunk(0.0, data))


def _unknown_events(response: EmulatorResponse, fault: Fault) -> None:
    """An event that no client knows; in a whole response a field."""
    if not response.stream:
        body = response.body
        if body[:1] == b"{":
            comma = b"," if body[1:2] != b"}" else b""
            response.chunks[0].data = b'{"emulator_unknown":{}' + comma + body[1:]
        return
    name, data = _host(response).unknown_event
    kind = response.headers.get("content-type")
    if kind == eventstream.CONTENT_TYPE:
        data = eventstream.encode_event(name, eventstream.padded(data))
    else:
        data = b",\n" + data if _is_array(response) else sse.encode_event(name, data)
    response.chunks.insert(max(1, _position(response, fault)), ResponseChunk(0.0, data))


# ── Helpers ──────────────────────────────────────────────────────────────────────────────────────


def _host(response: EmulatorResponse) -> type[Host]:
    name = host_name(wire.dialect_of(response.dialect)) if response.dialect else response.wire
    return HOSTS[name]


def _position(response: EmulatorResponse, fault: Fault) -> int:
    """After how many chunks: `after`, or half of them; never after all."""
    wanted = len(response.chunks) // 2 if fault.after is None else fault.after
    return max(0, min(wanted, len(response.chunks) - 1))


def _change_chunk(
    response: EmulatorResponse, fault: Fault, change: Callable[[bytes], bytes]
) -> None:
    """Changes the chunk at the fault's position, or the next one that can be changed."""
    start = _position(response, fault)
    if response.headers.get("content-type") == eventstream.CONTENT_TYPE:
        change = partial(_in_frame, change=change)
    for chunk in (*response.chunks[start:], *response.chunks[:start]):
        data = change(chunk.data)
        if data != chunk.data:
            chunk.data = data
            return


def _in_frame(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A frame with a changed payload; its checksums are right."""
    (frame,) = eventstream.FrameDecoder().feed(data)
    return eventstream.encode_frame(frame.headers, change(frame.payload))


def _split_body(response: EmulatorResponse, count: int) -> None:
    """Splits a whole body into about `count` pieces; a stream has its chunks."""
    body = response.body
    if response.stream or not body:
        return
    delay, size = response.chunks[0].delay, -(-len(body) // count)
    starts = range(0, len(body), size)
    response.chunks = [ResponseChunk(0.0, body[start : start + size]) for start in starts]
    response.chunks[0].delay = delay


def _is_array(response: EmulatorResponse) -> bool:
    """Whether it is Gemini's stream as one JSON array."""
    one_by_one = (SSE, eventstream.CONTENT_TYPE)
    return response.stream and response.headers.get("content-type") not in one_by_one


#: By the name in files and in the header.
KINDS: dict[str, FaultKind] = {
    **{
        name: FaultKind(_rate_limit, ("seconds",), 1, unbilled=True)
        for name in ("rate-limit", *_RETRY_HEADERS)
    },
    "spend-cap": FaultKind(_spend_cap, unbilled=True),
    "500": FaultKind(partial(_server_error, status=500), unbilled=True),
    "503": FaultKind(partial(_server_error, status=503), unbilled=True),
    "529": FaultKind(partial(_server_error, status=529), unbilled=True),
    "ok-error": FaultKind(_ok_error),
    "timeout": FaultKind(_timeout),
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
