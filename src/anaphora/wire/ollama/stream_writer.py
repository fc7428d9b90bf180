"""Ollama's stream, written."""

from __future__ import annotations

import datetime

from anaphora.canonical import string
from anaphora.values import (
    Event,
    Message,
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
    Usage,
    UsageUpdate,
)
from anaphora.wire.ndjson import encode_line

from .assistant import members, sort_parts
from .carried import how_put, is_fields, message_fields
from .failure import write_failure
from .reply import EPOCH, write_end

_FIELDS = {"text": "content", "refusal": "content", "thinking": "thinking"}


class StreamWriter:
    """Events in, bytes out: the stream Ollama would send.

    Text and reasoning are told as they come; calls, pictures and what is carried along when they
    are whole. What Ollama has no field for is left out.
    """

    def __init__(self) -> None:
        self._model, self._date = "", EPOCH
        self._usage = Usage()
        self._fields: dict[int, str] = {}
        """The message's field that each open part is told in."""
        self._told: set[int] = set()

    def write(self, event: Event) -> bytes:
        if isinstance(event, ReplyStart):
            self._model = event.model
            if event.created is not None:
                self._date = string(moment_of(event.created))
        elif isinstance(event, PartStart):
            if event.kind in _FIELDS:
                self._fields[event.index] = _FIELDS[event.kind]
        elif isinstance(event, PartDelta):
            return self._more(event.index, event.delta)
        elif isinstance(event, PartEnd):
            return self._end_part(event.index, event.part)
        elif isinstance(event, UsageUpdate):
            self._usage = event.usage
        elif isinstance(event, ReplyEnd):
            return self._end(event.reply)
        else:
            assert isinstance(event, ReplyFail)
            return encode_line(write_failure(event.message))
        return b""

    def _more(self, index: int, text: str) -> bytes:
        field = self._fields.get(index)
        if field is None:
            return b""
        self._told.add(index)
        return self._line(_said(field, text))

    def _end_part(self, index: int, part: Part) -> bytes:
        """What was not yet told of a part, now that it is whole."""
        if isinstance(part, Text | Refusal | Thinking):
            untold = index not in self._told and part.text
            field = "thinking" if isinstance(part, Thinking) else "content"
            return self._line(_said(field, part.text)) if untold else b""
        if is_fields(part):
            fields = message_fields((part,))
            return self._line(b'"content":"",' + fields) if fields else b""
        said = sort_parts(Message(role="assistant", parts=(part,)), [], answer=True)
        if not said.anything:
            return b""
        # An id that was made up is made again from the moment, when the line has the same.
        moment = how_put(part.extras).moment if isinstance(part, ToolCall) else None
        return self._line(members(said), None if moment is None else string(moment))

    def _end(self, reply: Reply) -> bytes:
        return encode_line(write_end(reply, b'{"role":"assistant","content":""}', self._usage))

    def _line(self, said: bytes, moment: bytes | None = None) -> bytes:
        return encode_line(
            b'{"model":'
            + string(self._model)
            + b',"created_at":'
            + (moment or self._date)
            + b',"message":{"role":"assistant",'
            + said
            + b'},"done":false}'
        )


def moment_of(seconds: float) -> str:
    """A time as Ollama writes one."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _said(field: str, text: str) -> bytes:
    if field == "content":
        return b'"content":' + string(text)
    return b'"content":"","thinking":' + string(text)
