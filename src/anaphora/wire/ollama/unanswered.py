"""Which call a result answers that does not say so."""

from __future__ import annotations

from collections import deque

from anaphora.values import Part, ToolCall


class Unanswered:
    """The calls of the last assistant message that no result has answered yet: their ids, and the
    tools they call."""

    __slots__ = ("_names", "_waiting")

    def __init__(self, parts: tuple[Part, ...] = ()) -> None:
        self._names = {part.id: part.name for part in parts if type(part) is ToolCall}
        self._waiting: dict[str, deque[str]] | None = None

    def answer(self, call_id: str) -> None:
        self._names.pop(call_id, None)

    def first(self, name: str | None) -> str:
        """The first call of that tool, or of any; empty when there is none. It is answered now."""
        call_id = next(iter(self._names), "")
        if name is not None and self._names.get(call_id) != name:
            call_id = self._search(name)
        self._names.pop(call_id, None)
        return call_id

    def _search(self, name: str) -> str:
        """Not in order: sorted by tool once, so that many results take no longer each."""
        if self._waiting is None:
            self._waiting = {}
            for call_id, called in self._names.items():
                self._waiting.setdefault(called, deque()).append(call_id)
        waiting = self._waiting.get(name, deque())
        while waiting and waiting[0] not in self._names:
            waiting.popleft()
        return waiting[0] if waiting else ""
