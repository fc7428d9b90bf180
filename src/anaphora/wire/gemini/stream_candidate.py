"""One candidate of a streamed answer, put together from its chunks.

A chunk holds whole parts, except that text comes in pieces: texts that stand together and are both
thoughts, or both not, are one part. A signature may come with any piece and belongs to the part.
"""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.errors import Parse
from anaphora.values import Event, Part, Text, Thinking, ToolCall
from anaphora.wire.building import TEXT_LIMIT, ReplyBuilder
from anaphora.wire.fields import UNREADABLE, Fields, bad_answer

from .incoming import content_fields, read_part
from .naming import WIRE, elements
from .reply import numbered

#: What is told of an answer bit by bit: the lists in it grow, and may repeat what was told.
_TOLD_AGAIN = ("groundingMetadata", "citationMetadata", "urlContextMetadata")
#: The lists in it grow, and what comes twice was said twice.
_GROWING = ("logprobsResult",)


class _Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A piece of text, and nothing unusual beside it."""

    text: str
    thought: bool = False
    thought_signature: str | None = None


_said = msgspec.json.Decoder(_Said).decode


class _OpenText:
    """A text, or a thought, that is still being said."""

    __slots__ = ("index", "signature", "thought")

    def __init__(self, index: int, thought: bool) -> None:
        self.index = index
        self.thought = thought
        self.signature: str | None = None

    def takes(self, said: _Said) -> bool:
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
        self.beside: dict[str, Any] = {}
        """Fields beside the content: grounding, ratings, log probabilities."""
        self._open: _OpenText | None = None
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
            for part in content_fields(content):
                events += self._whole(part)
        if beside := candidate.rest():
            self._collect(b"{" + beside + b"}")
        return events

    def end_text(self) -> list[Event]:
        """Whatever comes next is another part."""
        if self._open is None:
            return []
        index, self._open = self._open.index, None
        return self.build.end(index)

    def _part(self, raw: msgspec.Raw) -> list[Event]:
        try:
            return self._say(_said(raw))
        except UNREADABLE:
            return self._whole(read_part(raw, "stream.parts", bad_answer))

    def _say(self, said: _Said) -> list[Event]:
        events: list[Event] = []
        if self._open is None or not self._open.takes(said):
            if not said.text and said.thought_signature is None:
                return []  # nothing was said
            events += self.end_text()
            self._open = _OpenText(self._next(), said.thought)
            kind = "thinking" if said.thought else "text"
            events += self.build.begin(self._open.index, kind, self._open.finish)
        if said.thought_signature is not None:
            self._open.signature = said.thought_signature
        if said.text:
            events.append(self.build.said(self._open.index, said.text))
        return events

    def _whole(self, part: Part) -> list[Event]:
        """A part that came in one piece."""
        events = self.end_text()
        index = self._next()
        if isinstance(part, ToolCall):
            (part,) = numbered([part], self.build.id, index)
            assert isinstance(part, ToolCall)
            return events + self._call(index, part)
        if isinstance(part, Text | Thinking):
            kind = type(part).__name__.lower()
            events += self.build.begin(index, kind, lambda _: part)
            return events + self.build.delta(index, part.text) + self.build.end(index)
        self._count_extra(msgspec.json.encode(part))
        return events + self.build.whole(index, str(msgspec.to_builtins(part)["type"]), part)

    def _call(self, index: int, call: ToolCall) -> list[Event]:
        if call.extras is not None and '"partialArgs"' in call.extras.get(WIRE, ""):
            raise Parse(
                "arguments in pieces are not read; ask without streamFunctionCallArguments",
                path="stream.parts.functionCall.partialArgs",
            )
        events = self.build.begin(index, "tool_call", lambda _: call, id=call.id, name=call.name)
        return events + self.build.delta(index, call.arguments) + self.build.end(index)

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def _collect(self, beside: bytes) -> None:
        """Later words hold, except where an answer's are told bit by bit."""
        self._count_extra(beside)
        for name, value in msgspec.json.decode(beside).items():
            if name in (*_TOLD_AGAIN, *_GROWING) and name in self.beside:
                value = _grown(self.beside[name], value, again=name in _TOLD_AGAIN)
            self.beside[name] = value

    def _count_extra(self, data: bytes) -> None:
        self._extra_size += len(data)
        if self._extra_size > 2 * TEXT_LIMIT:
            raise Parse(f"more than {2 * TEXT_LIMIT} bytes beside the text", path="stream")


def _grown(before: Any, more: Any, *, again: bool) -> Any:
    if isinstance(before, dict) and isinstance(more, dict):
        grown = dict(before)
        for name, value in more.items():
            grown[name] = _grown(before[name], value, again=again) if name in before else value
        return grown
    if isinstance(before, list) and isinstance(more, list):
        return [*before, *(item for item in more if not again or item not in before)]
    return more
