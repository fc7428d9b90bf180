"""Effects of faults on responses: errors, slow and broken connections, wrong content.

An error is in the format of the response's wire, or of its dialect if that has a format of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import msgspec

from anaphora import errors, wire
from anaphora.errors import Upstream
from anaphora.values import ReplyFail
from anaphora.wire import eventstream

from .exchange import JSON, SSE, EmulatorResponse, ResponseChunk
from .hosts import DEFAULT_WIRE, HOSTS, host_name
from .hosts.host import Host
from .strict import overflow_row

#: The tokens and the limit in the error of an overflow fault.
_OVERFLOW = (208_310, 200_000)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    seconds: float = 0.0
    after: int | None = None
    """Chunks that are still sent; None: half of them."""

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


def replace_by_error(response: EmulatorResponse, error: Upstream) -> None:
    """Replaces the response by the error, and keeps its headers except those about the body."""
    codec = wire.get(response.dialect or response.wire or DEFAULT_WIRE)
    response.status, headers, body = codec.write_error(error)
    response.headers.pop("cache-control", None)
    response.headers |= {"content-type": JSON, **headers}
    response.stream, response.chunks = False, [ResponseChunk(0.0, body)]


def _rate_limit(response: EmulatorResponse, fault: Fault) -> None:
    wait = None if fault.name == "rate-limit-bare" else fault.seconds
    message = "This request would exceed the rate limit."
    replace_by_error(response, errors.RateLimited(message, status=429, retry_after=wait))


def _spend_cap(response: EmulatorResponse, _: Fault) -> None:
    code = host_of(response).spend_cap_code
    replace_by_error(response, errors.QuotaExhausted("The spend limit is reached.", code=code))


def _server_error(response: EmulatorResponse, _: Fault, status: int) -> None:
    if status == 500:
        replace_by_error(response, Upstream("Internal server error", status=500))
    else:
        replace_by_error(response, errors.Overloaded("Overloaded", status=status))


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
        replace_by_error(response, errors.ContextOverflow(message, status=400, code=code))
    else:
        _break_off(response, fault, ReplyFail("ContextOverflow", message, code))


def _stream_error(response: EmulatorResponse, fault: Fault) -> None:
    """The stream ends with the provider's error; a whole response fails at once."""
    if response.stream:
        code = host_of(response).overloaded_code
        _break_off(response, fault, ReplyFail("Overloaded", "Overloaded", code))
    else:
        _server_error(response, fault, 500)


def _break_off(response: EmulatorResponse, fault: Fault, failure: ReplyFail) -> None:
    """Ends the stream with the failure."""
    end = position(response, fault)
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


def _cut(response: EmulatorResponse, fault: Fault) -> None:
    """Ends after `after` chunks; a whole response in its middle."""
    split_body(response, 2)
    response.cut_after = position(response, fault)


# ── Wrong content ────────────────────────────────────────────────────────────────────────────────


def _broken_json(response: EmulatorResponse, fault: Fault) -> None:
    """One chunk lacks its last closing brace."""

    def unclose(data: bytes) -> bytes:
        end = data.rfind(b"}")
        return data if end < 0 else data[:end] + data[end + 1 :]

    change_chunk(response, fault, unclose)


# ── Helpers ──────────────────────────────────────────────────────────────────────────────────────


def host_of(response: EmulatorResponse) -> type[Host]:
    name = host_name(wire.dialect_of(response.dialect)) if response.dialect else response.wire
    return HOSTS[name]


def position(response: EmulatorResponse, fault: Fault) -> int:
    """After how many chunks: `after`, or half of them; never after all."""
    wanted = len(response.chunks) // 2 if fault.after is None else fault.after
    return max(0, min(wanted, len(response.chunks) - 1))


def change_chunk(
    response: EmulatorResponse, fault: Fault, change: Callable[[bytes], bytes]
) -> None:
    """Changes the chunk at the fault's position, or the next one that can be changed."""
    start = position(response, fault)
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


def split_body(response: EmulatorResponse, count: int) -> None:
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
    "rate-limit": FaultKind(_rate_limit, ("seconds",), 1, unbilled=True),
    "rate-limit-bare": FaultKind(_rate_limit, unbilled=True),
    "spend-cap": FaultKind(_spend_cap, unbilled=True),
    "500": FaultKind(partial(_server_error, status=500), unbilled=True),
    "529": FaultKind(partial(_server_error, status=529), unbilled=True),
    "ok-error": FaultKind(_ok_error),
    "timeout": FaultKind(_timeout),
    "reset": FaultKind(_reset, ("after",)),
    "slow-first-byte": FaultKind(_slow_first_byte, ("seconds",), 2),
    "cut": FaultKind(_cut, ("after",)),
    "stream-error": FaultKind(_stream_error, ("after",)),
    "broken-json": FaultKind(_broken_json, ("after",)),
    "context-overflow": FaultKind(_context_overflow, ("after",)),
}
