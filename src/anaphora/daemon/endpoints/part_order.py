"""Events of a stream with one part of text at a time.

Chat Completions and Ollama do not say when a text or a reasoning ends, so that their readers end
all parts with the reply. The blocks of Anthropic and the items of Responses follow each other.
"""

from __future__ import annotations

from msgspec.structs import replace

from anaphora.values import Event, Part, PartDelta, PartEnd, PartStart, Refusal, Text, Thinking

_TEXTS: dict[str, type[Text] | type[Thinking] | type[Refusal]] = {
    "text": Text,
    "thinking": Thinking,
    "refusal": Refusal,
}


class PartOrder:
    """Ends a text when the next part begins; one that goes on afterwards is a part of its own."""

    def __init__(self) -> None:
        self._kinds: dict[int, str] = {}
        """Of the parts of text, by the index that their reader gave them."""
        self._indexes: dict[int, int] = {}
        self._count = 0
        self._open: int | None = None
        self._texts: list[str] = []
        self._split: set[int] = set()
        """Parts that were ended before their reader did."""

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
        """Ends the part of text that is open."""
        if self._open is None:
            return []
        index, self._open = self._open, None
        self._split.add(index)
        part: Part = _TEXTS[self._kinds[index]]("".join(self._texts))
        return [PartEnd(self._indexes[index], part)]
