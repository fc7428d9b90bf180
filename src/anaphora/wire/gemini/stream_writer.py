"""Gemini's event stream, written: whole chunks, and nothing behind the last one."""

from __future__ import annotations

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
    Usage,
    UsageUpdate,
)
from anaphora.wire.fields import Fields
from anaphora.wire.sse import encode_event

from .failure import write_failure
from .messages import open_content, said_parts
from .naming import OWN, WIRE
from .parts import extra_members, is_fields
from .reply import identity, write_candidates
from .usage import write_usage

_OPEN = open_content(Message(role="assistant", parts=()))


class StreamWriter:
    """Events in, bytes out. Text goes out as it comes, everything else when it is whole."""

    def __init__(self) -> None:
        self._start = ReplyStart("", "")
        self._usage = Usage()
        self._thought: dict[int, bool] = {}
        """The texts that are being said, and which of them are thoughts."""
        self._told: set[int] = set()

    def write(self, event: Event) -> bytes:
        if isinstance(event, ReplyStart):
            self._start = event
        elif isinstance(event, PartStart):
            if event.kind in ("text", "refusal", "thinking"):
                self._thought[event.index] = event.kind == "thinking"
        elif isinstance(event, PartDelta):
            return self._more(event)
        elif isinstance(event, PartEnd):
            return self._part(event.index, event.part)
        elif isinstance(event, UsageUpdate):
            self._usage = event.usage
        elif isinstance(event, ReplyEnd):
            return self._end(event.reply)
        elif isinstance(event, ReplyFail):
            return encode_event("", write_failure(event))
        return b""

    def _more(self, event: PartDelta) -> bytes:
        thought = self._thought.get(event.index)
        if thought is None:
            return b""
        self._told.add(event.index)
        flag = b',"thought":true' if thought else b""
        return self._chunk(b'{"text":' + string(event.delta) + flag + b"}")

    def _part(self, index: int, part: Part) -> bytes:
        """A part is whole. What goes with a text comes behind it, with no more of it."""
        if index in self._told and isinstance(part, Text | Refusal | Thinking):
            beside = _beside(part)
            if beside is None:
                return b""
            part = beside
        message = Message(role="assistant", parts=(part,))
        if is_fields(part):
            return self._chunk(opening=open_content(message))
        data = [said for _, said in said_parts(message, [])]
        return self._chunk(*data) if data else b""

    def _end(self, reply: Reply) -> bytes:
        came = Fields(b"{" + extra_members(reply.extras) + b"}", f"extras.{WIRE}")
        usage = reply.usage if reply.usage != Usage() else self._usage
        members = write_candidates(reply, came, b"")
        if usage != Usage():
            members.append(b'"usageMetadata":' + write_usage(usage))
        members += identity(self._start.id, self._start.model)
        if rest := came.rest():
            members.append(rest)
        return encode_event("", b"{" + b",".join(members) + b"}")

    def _chunk(self, *parts: bytes, opening: bytes = _OPEN) -> bytes:
        candidate = b'{"content":' + opening + b",".join(parts) + b']},"index":0}'
        members = [b'"candidates":[' + candidate + b"]"]
        return encode_event(
            "", b"{" + b",".join([*members, *identity(self._start.id, self._start.model)]) + b"}"
        )


def _beside(part: Text | Refusal | Thinking) -> Part | None:
    """What a text that was said already carries besides; None when nothing."""
    if isinstance(part, Thinking):
        own = part.provider in (None, *OWN)
        signed = own and (part.signature is not None or extra_members(part.extras))
        return Thinking("", part.signature, provider=WIRE, extras=part.extras) if signed else None
    return Text("", part.extras) if extra_members(part.extras) else None
