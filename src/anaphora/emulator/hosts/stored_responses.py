"""Responses that OpenAI stores: fetched, streamed again, cancelled."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.emulator.exchange import (
    SSE,
    EmulatorResponse,
    ResponseChunk,
    decode_object,
    whole_number,
)
from anaphora.emulator.replies.stream import stream_events
from anaphora.errors import RequestRejected
from anaphora.values import Reply
from anaphora.wire import Wire

#: About the bytes of a response without its input and what it repeats of the request.
_RESPONSE_BYTES = 2_000
#: The share of its time that a background response is queued.
_QUEUED = 0.2


class StoredResponse(msgspec.Struct):
    """A response with the input of its chain. It is written when fetched, which most never are."""

    items: tuple[bytes, ...]
    reply: Reply
    codec: Wire
    background: bool
    created: float
    done: float
    """When a background response is complete."""
    canceled: bool = False

    def shown(self, now: float) -> bytes:
        """The response as far as it has come."""
        if now >= self.done and not self.canceled:
            return self.response
        queued = now < self.created + (self.done - self.created) * _QUEUED
        status = "cancelled" if self.canceled else "queued" if queued else "in_progress"
        fields = msgspec.json.decode(self.response, type=dict[str, Any])
        return dumps({**fields, "status": status, "output": [], "usage": None})

    def cancel(self, now: float) -> None:
        if not self.background:
            raise RequestRejected("Cannot cancel a synchronous response.", status=400)
        self.canceled = self.canceled or now < self.done

    def stream(self, now: float, after: str | None) -> EmulatorResponse:
        """The events of a background response, from the one after the number `after` on."""
        if not self.background or self.canceled:
            reason = "only background responses that are not cancelled can be streamed again"
            raise RequestRejected(reason, status=400, param="stream")
        first = 0 if after is None else whole_number(after, "starting_after") + 1
        writer = self.codec.writer()
        data = b"".join(writer.write(event) for event in stream_events(self.reply, self.created))
        events = [event + b"\n\n" for event in data.split(b"\n\n") if event]
        chunks = [ResponseChunk(0.0, event) for event in events[first:]] or [ResponseChunk(0, b"")]
        chunks[0].delay = max(0.0, self.done - now)
        headers = {"content-type": SSE, "cache-control": "no-cache"}
        return EmulatorResponse(headers=headers, chunks=chunks, stream=True)

    @property
    def response(self) -> bytes:
        return self.codec.write_reply(self.reply)

    @property
    def output(self) -> list[bytes]:
        raw = msgspec.json.decode(self.response, type=dict[str, msgspec.Raw])["output"]
        return list(map(bytes, msgspec.json.decode(raw, type=list[msgspec.Raw])))

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        extras = self.reply.extras or {}
        return _RESPONSE_BYTES + sum(map(len, self.items)) + sum(map(len, extras.values()))

    def list_items(self) -> bytes:
        """The input items, the latest first."""
        items = enumerate(map(decode_object, self.items))
        data: list[dict[str, Any]] = [{"id": f"item_{at}", **item} for at, item in items][::-1]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
        return msgspec.json.encode({"object": "list", "data": data, **ends, "has_more": False})
