"""Reader of Chat's event stream.

Only the first choice becomes events; further ones are collected and kept in the reply's extras.
Unknown events and chunks after the end are ignored. A missing `[DONE]` is a failure only if no
finish reason came before it. An error in the stream ends it with the parts so far. A JSON body in
place of events is read as the whole reply.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from anaphora.canonical import dumps
from anaphora.errors import Parse
from anaphora.values import Delta, Event, Reply, Usage
from anaphora.wire.errors import from_json
from anaphora.wire.lenient import LenientDecoder, Unknown
from anaphora.wire.reading import (
    DECODE_ERRORS,
    Members,
    encode_members,
    extras_of,
    object_members,
    reply_error,
)
from anaphora.wire.replies import EventReader, left_out_choices
from anaphora.wire.sse import DONE

from . import types
from .choice_builder import ChoiceBuilder
from .reply import read_reply, read_stop, read_usage, take_text
from .types import BESIDE, NULL, WIRE

_CHOICES = LenientDecoder[list[types.ChoiceDelta] | None](list[types.ChoiceDelta] | None)

_decode_text = msgspec.json.Decoder(types.TextChunk).decode

#: Fields of a chunk that mean nothing in a reply.
_IGNORED = ("object", "obfuscation")


class StreamReader(EventReader):
    """The chunks of Chat's stream."""

    reply_fields: tuple[str, ...] = ()
    """Fields of deltas that are facts about the reply, kept in its extras."""

    def __init__(
        self,
        path: str = "",  # noqa: ARG002
        read_body: Callable[[bytes], Reply] = read_reply,
    ) -> None:
        self._choice = ChoiceBuilder()
        super().__init__(read_body, self._choice.build)
        self._fields: Members = {}
        """Fields of chunks that are kept in the reply's extras; the last value counts."""
        self._beside: Members = {}
        """Fields of deltas that are facts about the reply."""
        self._finished = False

    def _more_text(self, payload: bytes) -> Delta | None:
        """The event of a chunk with a piece of text and nothing else, as nearly every chunk is."""
        index = self._choice.text_index
        if index is None:
            return None
        try:
            (choice,) = _decode_text(payload).choices
        except (*DECODE_ERRORS, ValueError):
            return None
        text = choice.delta.content
        return self._build.add_text(index, text) if text and not choice.index else None

    def _is_complete(self) -> bool:
        return self._finished

    def _read(self, payload: bytes, events: list[Event]) -> None:
        if (more := self._more_text(payload)) is not None:
            events.append(more)
            return
        if payload.strip() in (b"", DONE):
            events += self._finish() if payload.strip() else []
            return
        chunk = {
            name: raw
            for name, raw in object_members(payload, "stream", reply_error).items()
            if name not in _IGNORED and bytes(raw) != b"null"
        }
        reply_id, model = take_text(chunk, "id", "stream"), take_text(chunk, "model", "stream")
        raw = chunk.pop("choices", NULL)
        choices, unknown = _CHOICES.decode_list(raw, "stream.choices", reply_error)
        usage, error = chunk.pop("usage", None), chunk.pop("error", None)
        self._fields |= chunk
        if choices or reply_id:  # Azure reports on the prompt before the reply has an id
            events += self._build.start(reply_id, model)
        for index, choice in enumerate(choices or ()):
            events += self._on_choice(choice, unknown.get(index))
        if usage is not None:
            events += self._build.read_usage(read_usage, bytes(usage), "stream.usage")
        if error is not None:
            events += self._build.fail(from_json(error))

    def _on_choice(self, delta: types.ChoiceDelta, unknown: Unknown | None) -> list[Event]:
        """Unknown fields of a choice and of a call are kept. Those of a delta are left out with a
        notice: as fields of the message they would be sent back to the host, and hosts reject
        them."""
        if delta.index:
            self._build.notices["choices"] = left_out_choices("stream.choices")
            return []
        choice = self._choice
        if unknown is None:
            events = choice.add(delta, {})
        else:
            inner = unknown.take("delta") or Unknown({})
            events = choice.add(delta, inner.take_elements("tool_calls"))
            rest = inner.remaining()
            for name in self.reply_fields:
                if name in rest:
                    self._beside[name] = rest.pop(name)
            self._build.note_dropped_fields("delta", rest)
            choice.keep(unknown.remaining())
        if delta.finish_reason is not None:
            choice.build.stop_reason_raw = delta.finish_reason
            choice.build.stop_reason = read_stop(delta.finish_reason)
        if delta.usage is not NULL and (usage := bytes(delta.usage)) != b"null":
            events += self._build.read_usage(read_usage, usage, "stream.choices.usage")
        self._finished = self._finished or delta.finish_reason is not None
        return events

    def _finish(self) -> list[Event]:
        if not self._build.started:
            problem = Parse("the stream ended before its first chunk", path="stream")
            return self._build.fail(problem)
        events = self._choice.end_parts()
        if self._build.usage == Usage() and (usage := _groq_usage(self._fields)):
            events += self._build.read_usage(read_usage, usage, "stream.x_groq.usage")
        fields = self._fields
        if self._choice.fields:
            fields["choice"] = msgspec.Raw(dumps(self._choice.fields))
        if self._beside:
            fields[BESIDE] = msgspec.Raw(encode_members(self._beside))
        self._build.extras = extras_of(WIRE, fields)
        return events + self._build.finish()


class _Groq(msgspec.Struct, frozen=True):
    usage: msgspec.Raw = NULL


def _groq_usage(fields: Members) -> bytes | None:
    """The usage in `x_groq`, which Groq sends in every stream."""
    try:
        usage = bytes(msgspec.json.decode(fields.get("x_groq", b"{}"), type=_Groq).usage)
    except DECODE_ERRORS:
        return None
    return None if usage == b"null" else usage
