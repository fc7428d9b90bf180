"""Writes replies, streams and model lists in the caller's wire.

Provider bytes that the call hands out go to the app unchanged; everything else is written from the
reply or its events. Models are those granted to the app.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from anaphora import wire as wires
from anaphora.daemon.access.granted_models import with_nearest
from anaphora.daemon.calls.call import AppReply, StreamHead, StreamPiece
from anaphora.daemon.faces import face_of
from anaphora.daemon.faces.face import JSON, Face
from anaphora.daemon.faces.framing import JsonList, late_comment
from anaphora.daemon.values import GrantedModel
from anaphora.errors import AnaphoraError, NotFound
from anaphora.values import (
    Event,
    Notice,
    Part,
    PartDelta,
    PartEnd,
    PartStart,
    Refusal,
    Reply,
    ReplyEnd,
    ReplyFail,
    ReplyStart,
    Text,
    Thinking,
    ToolCall,
)

from .errors import wire_error
from .headers import notices_text, own_headers, provider_request_id, returned_headers, verdict_text

#: Parts of text by kind.
_TEXTS: dict[str, type[Text] | type[Thinking] | type[Refusal]] = {
    "text": Text,
    "thinking": Thinking,
    "refusal": Refusal,
}


def write_reply(
    wire: str, reply: AppReply, notices: tuple[Notice, ...] = ()
) -> tuple[dict[str, str], bytes]:
    """Headers and body of a complete reply."""
    face = face_of(wire)
    same = reply.wire == face.wire
    if reply.body is not None and same:
        body = reply.body
    else:
        named = _named(reply.reply, face, reply.request_id)
        if not same:
            parts = tuple(_translated(part, face) for part in named.message.parts)
            message = replace(named.message, parts=parts)
            named = replace(named, message=message)
        body = wires.get(wire).write_reply(named, time.time())
    headers = returned_headers(reply.headers) if same else {}
    headers["content-type"] = face.reply_type
    headers |= own_headers(
        wire,
        reply.request_id,
        provider=reply.provider,
        notices=notices + reply.notices,
        verdict=reply.verdict,
        cost_usd=reply.cost_usd,
        provider_request_id=provider_request_id(reply.headers),
    )
    return headers, body


def stream_headers(
    wire: str, head: StreamHead, notices: tuple[Notice, ...], *, as_list: bool = False
) -> dict[str, str]:
    """Headers of a stream."""
    headers = returned_headers(head.headers) if head.wire == face_of(wire).wire else {}
    headers["content-type"] = JSON if as_list else face_of(wire).stream_type
    headers["cache-control"] = "no-cache"
    return headers | own_headers(
        wire,
        head.request_id,
        provider=head.provider,
        notices=notices + head.notices,
        verdict=head.verdict,
        provider_request_id=provider_request_id(head.headers),
    )


def write_models(wire: str, models: Iterable[GrantedModel]) -> bytes:
    """The list of models, each once even if several providers have it."""
    face, listed = face_of(wire), {one.model: one for one in reversed(tuple(models))}
    return face.models_body([face.model_row(one) for one in reversed(tuple(listed.values()))])


def write_model(wire: str, models: Sequence[GrantedModel], name: str) -> bytes:
    """One model. Raises `NotFound` for one that is not granted."""
    name = name.removeprefix("models/")
    for one in models:
        if one.model == name:
            return face_of(wire).model_body(one)
    reason = with_nearest(f"there is no model {name[:100]!r}", name, models)
    raise NotFound(reason, status=404, code="model_not_found", param="model")


def _named(value: Reply | ReplyStart, face: Face, request_id: str) -> Any:
    """A reply, or its beginning, with an id, which some providers do not give."""
    if value.id or not face.reply_id_prefix:
        return value
    id = face.reply_id_prefix + request_id.removeprefix("req_")
    return replace(value, id=id)


def _translated(part: Part, face: Face) -> Part:
    """A part of another provider's reply for the caller's wire. Reasoning becomes plain text:
    signatures and ids of stored reasoning are valid only at their own provider."""
    if isinstance(part, Thinking) and part.text:
        return replace(face.reasoning, text=part.text)
    if isinstance(part, Thinking):
        return replace(part, signature=None)
    if isinstance(part, ToolCall) and not face.shows_call_ids:
        return replace(part, id="")
    return part


class StreamBody:
    """The bytes of one stream. `asks_usage`: the caller of Chat requested a chunk with the usage;
    otherwise it is removed. `as_list`: write a JSON list, as Gemini does without `alt=sse`."""

    def __init__(
        self, wire: str, head: StreamHead, *, asks_usage: bool = True, as_list: bool = False
    ) -> None:
        self._face = face = face_of(wire)
        self._request_id = head.request_id
        self._known = head.notices
        self._same_wire = head.wire == face.wire
        self._passes = head.passes_bytes and self._same_wire and not face.form
        self._write_event: Callable[[Event], bytes] | None = None
        """Used if bytes are not passed through, or for an error."""
        self._ended = False
        ordered = face.orders_parts and face_of(head.wire).ends_texts_late
        self._order = PartOrder() if ordered else None
        frame = face.frame(asks_usage=asks_usage, passes=self._passes)
        self._frame = JsonList() if as_list else frame

    def feed(self, piece: StreamPiece) -> bytes:
        if self._passes and piece.data is not None:
            data = piece.data
            for event in piece.events:
                if isinstance(event, ReplyFail):
                    self._ended = True
        elif self._passes:
            # The connection broke, so the provider sent no error event.
            data = b"".join(self._write(e) for e in piece.events if isinstance(e, ReplyFail))
        else:
            data = b"".join(map(self._write, piece.events))
        return data if self._frame is None else self._frame.feed(data)

    def fail(self, problem: AnaphoraError) -> bytes:
        """The bytes of an error in the middle of a stream."""
        if self._ended:
            return b""
        error = wire_error(problem, self._face.name)
        code = error.code if self._same_wire else self._face.stream_error_code(error)
        event = ReplyFail(type(error).__name__, str(error), code)
        data = self._write(event)
        return data if self._frame is None else self._frame.feed(data)

    def finish(self, reply: AppReply | None) -> bytes:
        """The bytes after the last piece."""
        fields = {} if reply is None else self._late_fields(reply)
        return late_comment(fields) if self._frame is None else self._frame.finish(fields)

    def _write(self, event: Any) -> bytes:
        self._ended = self._ended or isinstance(event, ReplyFail)
        if isinstance(event, ReplyStart):
            event = _named(event, self._face, self._request_id)
            if event.created is None:
                event = replace(event, created=time.time())
        elif isinstance(event, PartEnd) and not self._same_wire:
            event = PartEnd(event.index, _translated(event.part, self._face))
        elif isinstance(event, PartStart) and event.kind == "thinking" and not self._same_wire:
            event = PartStart(event.index, "thinking", name=self._face.reasoning_field)
        elif isinstance(event, ReplyEnd):
            event = ReplyEnd(_named(event.reply, self._face, self._request_id))
        events = [event] if self._order is None else self._order.feed(event)
        write = self._write_event
        if write is None:
            write = wires.get(self._face.name).writer().write
            write = write if self._same_wire else self._face.event_writer(write)
            self._write_event = write
        return b"".join(map(write, events))

    def _late_fields(self, reply: AppReply) -> dict[str, Any]:
        fields: dict[str, Any] = {"request_id": reply.request_id}
        if reply.cost_usd is not None:
            fields["cost_usd"] = f"{reply.cost_usd:f}"
        if reply.verdict is not None:
            fields["verdict"] = json.loads(verdict_text(reply.verdict))
        late = tuple(notice for notice in reply.notices if notice not in self._known)
        if late:
            fields["notices"] = json.loads(notices_text(late))
        return fields


class PartOrder:
    """Orders the events of a stream so that one text part is open at a time: a text ends when the
    next part begins, and a continuation becomes a new part.

    Chat Completions does not mark the end of a text or reasoning, so its reader ends all parts with
    the reply. Anthropic's blocks and Responses' items must follow each other."""

    def __init__(self) -> None:
        self._kinds: dict[int, str] = {}
        """The text parts by the index that their reader gave them."""
        self._indexes: dict[int, int] = {}
        self._count = 0
        self._open: int | None = None
        self._texts: list[str] = []
        self._split: set[int] = set()
        """Parts that were ended before their reader ended them."""

    def feed(self, event: Event) -> list[Event]:
        if isinstance(event, PartStart):
            return [*self._end(), self._start(event)]
        if isinstance(event, PartDelta):
            return self._delta(event)
        if isinstance(event, PartEnd):
            return self._ended(event)
        return [event]

    def _start(self, event: PartStart) -> PartStart:
        self._indexes[event.index] = self._count
        self._count += 1
        if event.kind in _TEXTS:
            self._kinds[event.index] = event.kind
            self._open, self._texts = event.index, []
        return replace(event, index=self._indexes[event.index])

    def _delta(self, event: PartDelta) -> list[Event]:
        events: list[Event] = []
        index = event.index
        if index in self._kinds:
            if index != self._open:
                events = [*self._end(), self._start(PartStart(index, self._kinds[index]))]
            self._texts.append(event.delta)
        return [*events, replace(event, index=self._indexes[index])]  # type: ignore[list-item]

    def _ended(self, event: PartEnd) -> list[Event]:
        if event.index not in self._split:
            if event.index == self._open:
                self._open = None
            return [replace(event, index=self._indexes.get(event.index, event.index))]
        return self._end() if event.index == self._open else []

    def _end(self) -> list[Event]:
        """Ends the open text part."""
        if self._open is None:
            return []
        index, self._open = self._open, None
        self._split.add(index)
        part: Part = _TEXTS[self._kinds[index]]("".join(self._texts))
        return [PartEnd(self._indexes[index], part)]
