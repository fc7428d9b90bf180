"""The texts of remembered calls, counted: each text of messages for itself, and tools and system
blocks that many calls share once."""

from __future__ import annotations

from collections import OrderedDict

from anaphora.rendered import ChunkLog, Rendered


class KeptTexts:
    """The calls whose text is kept, by their numbers, the oldest first."""

    def __init__(self) -> None:
        self._messages: OrderedDict[int, int] = OrderedDict()
        self._leading: OrderedDict[int, tuple[ChunkLog, ...]] = OrderedDict()
        self._uses: dict[ChunkLog, int] = {}
        """The number of calls with the same tools or system blocks."""
        self._messages_size = self._leading_size = 0

    @property
    def size(self) -> int:
        return self._messages_size + self._leading_size

    def add(self, number: int, rendered: Rendered) -> None:
        own, shared = 0, list[ChunkLog]()
        for run in rendered.runs:
            log, base = run.log, run.log.base
            if not log.has_text:
                continue
            if base is log or run.section == "messages":
                own += len(run.lead) + (log.ends[run.count - 1] if run.count else 0)
            else:
                shared.append(base)
        if own:
            self._messages[number] = own
            self._messages_size += own
        if shared:
            self._leading[number] = tuple(shared)
            for base in shared:
                self._uses[base] = self._uses.get(base, 0) + 1
                if self._uses[base] == 1:
                    self._leading_size += _size(base)

    def drop(self, number: int, *, leading: bool) -> None:
        """The text of the messages of a call was dropped, or all of it (`leading`)."""
        self._messages_size -= self._messages.pop(number, 0)
        for base in self._leading.pop(number, ()) if leading else ():
            self._uses[base] -= 1
            if not self._uses[base]:
                del self._uses[base]
                self._leading_size -= _size(base)

    def oldest(self, most_bytes: int) -> tuple[int, bool] | None:
        """A call whose text is to be dropped, and whether all of it; None if all texts together
        have at most so many bytes. Tools and system blocks may take half of these: they are what
        changes most."""
        if self._messages_size + self._leading_size <= most_bytes:
            return None
        if self._messages and (self._messages_size > most_bytes // 2 or not self._leading):
            return next(iter(self._messages)), False
        return next(iter(self._leading)), True


def _size(base: ChunkLog) -> int:
    return base.start(len(base))
