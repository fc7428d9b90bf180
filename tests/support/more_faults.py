"""Faults that only tests of clients need, beside those of the emulator.

with more_faults():
    emulated.transport.faults = ["slow-drip; seconds=0.05"]
"""

from __future__ import annotations

import contextlib
import email.utils
import math
import time
from collections.abc import Iterator

import msgspec

from anaphora import errors, wire
from anaphora.emulator.exchange import JSON, EmulatorResponse, ResponseChunk
from anaphora.emulator.fault_effects import (
    KINDS,
    Fault,
    FaultKind,
    change_chunk,
    host_of,
    position,
    replace_by_error,
    split_body,
)
from anaphora.errors import AnaphoraError
from anaphora.values import ReplyEnd
from anaphora.wire import sse
from anaphora.wire.replies import reply_events

#: Bytes before the texts of a reply, by wire; the last fit any JSON string.
_TEXT_STARTS = (b'"text":"', b'"content":"', b'"delta":"', b'":"')
#: Names and data of events that no client knows.
_UNKNOWN = {
    "anthropic": ("emulator_unknown", b'{"type":"emulator_unknown","data":{}}'),
    "openai_responses": (
        "response.emulator_unknown",
        b'{"type":"response.emulator_unknown","sequence_number":0}',
    ),
    "openai_chat": (
        "",
        b'{"id":"","object":"emulator.unknown","created":0,"model":"","choices":[]}',
    ),
    "gemini": ("", b'{"emulatorUnknown":{}}'),
}


@contextlib.contextmanager
def more_faults() -> Iterator[None]:
    KINDS.update(_KINDS)
    try:
        yield
    finally:
        for name in _KINDS:
            del KINDS[name]


def _limited(response: EmulatorResponse, fault: Fault) -> None:
    """With a wait in another format than the provider's own."""
    replace_by_error(response, errors.RateLimited("Too many requests.", status=429))
    # Rounded up: an earlier retry would come too early.
    date = email.utils.formatdate(math.ceil(time.time() + fault.seconds), usegmt=True)
    response.headers |= {
        "rate-limit-seconds": {"retry-after": f"{fault.seconds:g}"},
        "rate-limit-ms": {"retry-after-ms": f"{fault.seconds * 1000:g}"},
        "rate-limit-date": {"retry-after": date},
    }[fault.name]


def _slow_drip(response: EmulatorResponse, fault: Fault) -> None:
    split_body(response, 16)
    for chunk in response.chunks:
        chunk.delay += fault.seconds


def _broken_utf8(response: EmulatorResponse, fault: Fault) -> None:
    """One text holds bytes that are not UTF-8. Clients skip most other fields unread."""

    def garble(data: bytes) -> bytes:
        starts = (data.find(start) + len(start) for start in _TEXT_STARTS if start in data)
        index = next(starts, None)
        return data if index is None else data[:index] + b"\xff\xfe" + data[index:]

    change_chunk(response, fault, garble)


def _wrong_content_type(response: EmulatorResponse, _: Fault) -> None:
    response.headers["content-type"] = "text/html; charset=utf-8"


def _wrong_form(response: EmulatorResponse, _: Fault) -> None:
    """JSON for a stream request, an event stream for any other, as some gateways send."""
    codec = wire.get(response.dialect or response.wire)
    if response.stream:
        reader = codec.reader()
        end = [*reader.feed(response.body), *reader.close()][-1]
        assert isinstance(end, ReplyEnd)
        data, kind = msgspec.json.format(codec.write_reply(end.reply), indent=2), JSON
    else:
        try:
            reply = codec.read_reply(response.body)
        except AnaphoraError:
            return  # an error, a list of models
        data = b"".join(map(codec.writer().write, reply_events(reply)))
        kind = host_of(response).stream_type
    response.headers["content-type"] = kind
    response.chunks = [ResponseChunk(response.chunks[0].delay, data)]
    response.stream = not response.stream


def _duplicate_events(response: EmulatorResponse, fault: Fault) -> None:
    """One event of a stream is sent twice; a whole response has none."""
    if response.stream and response.chunks:
        index = position(response, fault)
        response.chunks.insert(index + 1, ResponseChunk(0.0, response.chunks[index].data))


def _unknown_events(response: EmulatorResponse, fault: Fault) -> None:
    """An event that no client knows; in a whole response a field."""
    if response.stream:
        data = sse.encode_event(*_UNKNOWN[response.wire])
        response.chunks.insert(max(1, position(response, fault)), ResponseChunk(0.0, data))
    elif response.body[:1] == b"{":
        response.chunks[0].data = b'{"emulator_unknown":{},' + response.body[1:]


_KINDS = {
    **{
        f"rate-limit-{form}": FaultKind(_limited, ("seconds",), 1, unbilled=True)
        for form in ("seconds", "ms", "date")
    },
    "slow-drip": FaultKind(_slow_drip, ("seconds",), 0.2),
    "broken-utf8": FaultKind(_broken_utf8, ("after",)),
    "wrong-content-type": FaultKind(_wrong_content_type),
    "wrong-form": FaultKind(_wrong_form),
    "duplicate-events": FaultKind(_duplicate_events, ("after",)),
    "unknown-events": FaultKind(_unknown_events, ("after",)),
}
