"""What an app sees of an answer: the head and the pieces of a stream, and the reply. The bytes of
streams go to apps by whole events, and without the usage of a chat stream whose caller did not ask
for it."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace

from anaphora.client.failures import without_details
from anaphora.client.in_flight import InFlight
from anaphora.client.response import Record
from anaphora.daemon.access.isolation import own_extras, own_reply, own_usage
from anaphora.daemon.calls.call import (
    AppCall,
    AppReply,
    CallOutcome,
    CallTools,
    StreamHead,
    StreamPiece,
)
from anaphora.daemon.calls.conversations import CallMemory
from anaphora.daemon.calls.pipeline import CallStep
from anaphora.errors import Timeout
from anaphora.values import Event, Reply, ReplyEnd, ReplyStart, Usage, UsageUpdate
from anaphora.wire.reading import DECODE_ERRORS
from anaphora.wire.response_headers import REQUEST_IDS

from .settle import own_reads

#: What ends an event of SSE; ends of lines may be mixed.
_SSE_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
#: Of wires whose streams are not SSE.
_ENDS: dict[str, tuple[bytes, ...]] = {"ollama": (b"\n",)}


class RelayAnswer(CallStep):
    """Makes of what a provider answers what the app may see."""

    name = "relay"

    def __init__(self, tools: CallTools) -> None:
        self._watched = bool(tools.watchers)

    def after(self, call: AppCall, outcome: CallOutcome) -> None:
        flight, error = call.flight, outcome.error
        assert flight is not None
        if error is not None:
            if call.left is not None or isinstance(error, GeneratorExit):
                error = Timeout(0) if call.left is Timeout else asyncio.CancelledError()
            call.record = flight.failed_record(error)
            return
        reply, prepared = flight.reply, flight.prepared[flight.index]
        assert reply is not None
        notices = (*prepared.rendered.notices, *prepared.plan.notices, *prepared.notices)
        record = flight.build_record(
            prepared, (*notices, *call.refreshed, *reply.notices), observed=self._watched
        )
        if call.left is not None:
            record = flight.record = replace(record, error=call.left.__name__)
        call.record, call.reply = record, _app_reply(call, flight, reply, record)


def stream_head(
    memory: CallMemory, call: AppCall, flight: InFlight, events: tuple[Event, ...]
) -> StreamHead:
    """When the first events of a stream have arrived."""
    target, prepared = flight.target, flight.prepared[flight.index]
    if call.judge_early is not None:
        call.judge_early()
    if call.masked:
        call.own = own_reads(memory, call, target.rules)
    start = next((event for event in events if isinstance(event, ReplyStart)), None)
    return StreamHead(
        request_id=call.request_id,
        provider=target.endpoint.id,
        wire=target.endpoint.base_wire,
        model=(start.model if start is not None else "") or target.model,
        # Usage comes later: whether it has to be changed is not known yet.
        passes_bytes=call.passes_bytes and not call.masked,
        reply_id="" if start is None else start.id,
        headers=_passed(flight),
        verdict=call.early,
        notices=(*prepared.rendered.notices, *prepared.plan.notices, *prepared.notices),
    )


def stream_piece(call: AppCall, events: tuple[Event, ...], data: bytes) -> StreamPiece:
    assert call.head is not None
    if call.head.passes_bytes:
        return StreamPiece(events, data)
    if call.masked:
        events = tuple(_masked(call, event) for event in events)
    return StreamPiece(events)


def _app_reply(call: AppCall, flight: InFlight, reply: Reply, record: Record) -> AppReply:
    target, bound = flight.target, call.bound
    if call.masked:
        reply = own_reply(reply, call.usage)
    most = None
    if call.disputed:
        most = Usage(uncached=bound.input_tokens, output=bound.output_tokens)
    return AppReply(
        request_id=call.request_id,
        provider=target.endpoint.id,
        wire=target.endpoint.base_wire,
        model=reply.model or target.model,
        reply=reply,
        # Bytes that pass only where nothing is hidden would tell that.
        body=flight.body if call.passes_bytes and not call.masked else None,
        headers=_passed(flight),
        usage=call.usage,
        most_usage=most,
        cost_usd=call.shown_usd if call.hidden else flight.cost_usd,
        verdict=flight.verdict,
        notices=without_details(record.notices),
        attempts=record.attempts,
    )


def _masked(call: AppCall, event: Event) -> Event:
    """An event without what other apps wrote."""
    if isinstance(event, ReplyEnd):
        return ReplyEnd(own_reply(event.reply, call.usage))
    if isinstance(event, ReplyStart):
        return replace(event, extras=own_extras(event.extras))
    if isinstance(event, UsageUpdate):
        assert call.prepared is not None
        return UsageUpdate(own_usage(event.usage, call.own, call.prepared.plan)[0])
    return event


def _passed(flight: InFlight) -> tuple[tuple[str, str], ...]:
    """Headers of the provider's response that apps may see."""
    headers, redactor = flight.headers, flight.target.endpoint.redactor
    names = [name for name in REQUEST_IDS if name in headers]
    if len(names) == 1 and flight.request_id is not None:
        return ((names[0], flight.request_id),)
    return tuple((name, redactor(headers[name])) for name in names)


# ── Bytes that pass ───────────────────────────────────────────────────────────────────────────────


class WholeEvents:
    """Passes an event when it is complete: before, it could be an error of the provider, whose
    bytes never pass."""

    def __init__(self, wire: str = "", *, hides_usage: bool = False) -> None:
        """`hides_usage`: without the event of a chat stream that holds nothing but the usage."""
        self._hides_usage = hides_usage
        self._ends = _ENDS.get(wire, _SSE_ENDS)
        self._longest = max(map(len, self._ends))
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """The events that are complete now."""
        # Only what is new is looked at: an event may be large and arrive in many pieces.
        tail = bytes(self._rest[1 - self._longest :]) if self._longest > 1 else b""
        window = tail + data
        end = len(window) if window.endswith(self._ends) else self._end_in(window)
        if not end:
            self._rest += data
            return b""
        cut = end - len(tail)
        whole = bytes(self._rest) + data[:cut] if self._rest else data[:cut]
        self._rest = bytearray(data[cut:])
        return _without_usage(whole) if self._hides_usage else whole

    def _end_in(self, window: bytes) -> int:
        """The end of the last event that is complete; 0 where none is."""
        return max(at + len(mark) if (at := window.rfind(mark)) >= 0 else 0 for mark in self._ends)

    def close(self) -> bytes:
        """What is left behind the last event of a stream that has not failed."""
        rest, self._rest = bytes(self._rest), bytearray()
        return rest


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Chunk).decode


def _without_usage(events: bytes) -> bytes:
    if b'"usage"' not in events:
        return events
    ending = b"\r\n\r\n" if b"\r\n\r\n" in events else b"\n\n"
    return ending.join(each for each in events.split(ending) if not _is_usage(each))


def _is_usage(event: bytes) -> bool:
    if b'"usage"' not in event or not event.startswith(b"data:"):
        return False
    try:
        chunk = _decode(event[5:])
    except DECODE_ERRORS:
        return False
    return chunk.choices == [] and bytes(chunk.usage) != b"null"
