"""One candidate of a streamed answer, put together from its chunks.

A chunk holds whole parts, except that text comes in pieces: texts that stand together and are both
thoughts, or both not, are one part. A signature may come with any piece and belongs to the part.
"""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.errors import Parse
from anaphora.values import Event, Opaque, Part, Text, Thinking, ToolCall
from anaphora.wire.fields import Fields
from anaphora.wire.reading import DECODE_ERRORS, reply_error
from anaphora.wire.replies import TEXT_LIMIT, ReplyBuilder

from .incoming import read_part
from .naming import WIRE, elements
from .partial_args import OpenArguments, pieces_of
from .parts import CONTENT_FIELDS
from .reply import numbered

#: What is told of an answer bit by bit: the lists in it grow, and may repeat what was told.
_TOLD_AGAIN = ("groundingMetadata", "citationMetadata", "urlContextMetadata")
#: The lists in it grow, and what comes twice was said twice.
_GROWING = ("logprobsResult",)


class Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A piece of text, and nothing unusual beside it."""

    text: str
    thought: bool = False
    thought_signature: str | None = None


_said = msgspec.json.Decoder(Said).decode


class _OpenText:
    """A text, or a thought, that is still being said."""

    __slots__ = ("index", "signature", "thought")

    def __init__(self, index: int, thought: bool) -> None:
        self.index = index
        self.thought = thought
        self.signature: str | None = None

    def takes(self, said: Said) -> bool:
        other = self.signature is not None and said.thought_signature is not None
        return said.thought == self.thought and not (
            other and said.thought_signature != self.signature
        )

    def finish(self, text: str) -> Part:
        if self.thought:
            return Thinking(text, self.signature, provider=WIRE)
        if self.signature is None:
            return Text(text)
        return Text(text, {WIRE: dumps({"thoughtSignature": self.signature}).decode()})


class StreamedCandidate:
    """The parts of one candidate, and what stands beside them."""

    def __init__(self) -> None:
        self.build = ReplyBuilder()
        self.stop_raw: str | None = None
        self._beside: dict[str, list[Any]] = {}
        """Fields beside the content: grounding, ratings, log probabilities."""
        self._content: dict[str, msgspec.Raw] = {}
        """Fields of the content that have no name here."""
        self._open: _OpenText | None = None
        self._pending: tuple[int, OpenArguments] | None = None
        """A call whose arguments come in pieces, and its place."""
        self._count = 0
        self._extra_size = 0

    def add(self, candidate: Fields) -> list[Event]:
        candidate.drop_nulls()
        candidate.raw("index")
        self.stop_raw = candidate.maybe("finishReason", str) or self.stop_raw
        content = candidate.nested("content")
        events: list[Event] = []
        if content is not None:
            for raw in elements(content, "parts"):
                events += self._part(raw)
            content.raw("role")
            if content.rest():
                self._content |= msgspec.json.decode(content.whole(), type=dict[str, msgspec.Raw])
        if beside := candidate.rest():
            self._collect(b"{" + beside + b"}")
        return events

    def end(self) -> list[Event]:
        """The candidate is whole: its parts are ended, and the fields of its content come last."""
        events = self.end_open()
        if self._content:
            json = msgspec.json.encode(self._content).decode()
            events += self._whole(Opaque(WIRE, CONTENT_FIELDS, json))
            self._content = {}
        return events

    @property
    def beside(self) -> dict[str, Any]:
        """What was told beside the content. Later words hold, except where it is told bit by
        bit."""
        return {
            name: _together(told, again=name in _TOLD_AGAIN)
            if name in (*_TOLD_AGAIN, *_GROWING)
            else told[-1]
            for name, told in self._beside.items()
        }

    def end_open(self) -> list[Event]:
        """Whatever comes next is another part."""
        if self._pending is not None:
            index, arguments = self._pending
            whole = arguments.finish()
            events = self.build.delta(index, whole.arguments) + self.build.end(index)
            self._pending = None
            return events
        if self._open is None:
            return []
        index, self._open = self._open.index, None
        return self.build.end(index)

    def _part(self, raw: msgspec.Raw) -> list[Event]:
        try:
            return self.say(_said(raw))
        except DECODE_ERRORS:
            return self._whole(read_part(raw, "stream.parts", reply_error))

    def say(self, said: Said) -> list[Event]:
        events: list[Event] = []
        if self._open is None or not self._open.takes(said):
            if not said.text and said.thought_signature is None:
                return []  # nothing was said
            events += self.end_open()
            self._open = _OpenText(self._next(), said.thought)
            kind = "thinking" if said.thought else "text"
            events += self.build.begin(self._open.index, kind, self._open.finish)
        if said.thought_signature is not None:
            self._open.signature = said.thought_signature
        if said.text:
            events.append(self.build.add_text(self._open.index, said.text))
        return events

    def _whole(self, part: Part) -> list[Event]:
        """A part that came in one piece."""
        if self._pending is not None and isinstance(part, ToolCall):
            return self._more_of_call(part)
        events = self.end_open()
        index = self._next()
        if isinstance(part, ToolCall):
            return events + self._call(index, part)
        if isinstance(part, Text | Thinking):
            kind = type(part).__name__.lower()
            events += self.build.begin(index, kind, lambda _: part)
            return events + self.build.delta(index, part.text) + self.build.end(index)
        self.count_extra(msgspec.json.encode(part))
        return events + self.build.add_whole(index, str(msgspec.to_builtins(part)["type"]), part)

    def _call(self, index: int, call: ToolCall) -> list[Event]:
        (named,) = numbered([call], self.build.id, index)
        assert isinstance(named, ToolCall)
        events = self.build.begin(
            index, "tool_call", lambda _: self._called(named), id=named.id, name=named.name
        )
        if pieces_of(call) is not None:
            self._pending = (index, OpenArguments(named))
            return events + self._more_of_call(call)
        return events + self.build.delta(index, named.arguments) + self.build.end(index)

    def _more_of_call(self, call: ToolCall) -> list[Event]:
        """Arguments in pieces: they are told when they are whole. A call that says nothing is the
        end of them."""
        assert self._pending is not None
        pieces = pieces_of(call)
        if pieces is None:
            return self.end_open() + (self._call(self._next(), call) if call.name else [])
        self._pending[1].add(pieces.more)
        return [] if pieces.goes_on else self.end_open()

    def _called(self, call: ToolCall) -> ToolCall:
        return call if self._pending is None else self._pending[1].finish()

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def _collect(self, beside: bytes) -> None:
        self.count_extra(beside)
        for name, value in msgspec.json.decode(beside).items():
            told = self._beside.setdefault(name, [])
            if name not in (*_TOLD_AGAIN, *_GROWING):
                told.clear()
            told.append(value)

    def count_extra(self, data: bytes) -> None:
        """What is kept beside the text is bounded, too."""
        self._extra_size += len(data)
        if self._extra_size > 2 * TEXT_LIMIT:
            raise Parse(f"more than {2 * TEXT_LIMIT} bytes beside the text", path="stream")


def _together(told: list[Any], *, again: bool) -> Any:
    """What was told in pieces, as if at once: objects field by field, lists one behind the other.
    With `again`, what stands in a list already is not put there twice."""
    if all(isinstance(value, dict) for value in told):
        fields: dict[str, list[Any]] = {}
        for value in told:
            for name, item in value.items():
                fields.setdefault(name, []).append(item)
        return {name: _together(items, again=again) for name, items in fields.items()}
    if all(isinstance(value, list) for value in told):
        items = [item for value in told for item in value]
        return list({msgspec.json.encode(i): i for i in items}.values()) if again else items
    return told[-1]
