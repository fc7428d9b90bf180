"""How much text of remembered prompts is kept.

    texts = TextBudget(32 * 1024 * 1024)
    texts.use(rendered)         its text is the newest; that of the least recent prompts is dropped

A prompt without its text is still recognised, continued and counted: its log keeps where the chunks
are and their keys. Only a change of it cannot be shown to the byte.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TypeAlias
from weakref import ref

from anaphora.rendered import ChunkLog, Rendered

#: A log, and the bytes of its text.
_Held: TypeAlias = tuple[ref[ChunkLog], int]


class TextBudget:
    """The text of the logs that some indexes remember. Not for several threads at once."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.size = 0
        """The bytes of all text."""
        self._logs: OrderedDict[int, _Held] = OrderedDict()
        """Logs whose text can be dropped, by their identity, the least recent first."""
        self._fixed: dict[int, _Held] = {}
        """The others."""

    @property
    def is_full(self) -> bool:
        """Whether there is more text than there may be, none of which can be dropped."""
        return self.size > self.most_bytes

    def use(self, rendered: Rendered) -> None:
        """Counts the text of a prompt, and drops that of older ones if it is too much."""
        used = set()
        for run in rendered.runs:
            log, key = run.log, id(run.log)
            used.add(key)
            self._release(key)
            held = len(log.buffer)
            logs = self._fixed if log.read_again is None else self._logs
            logs[key] = ref(log, partial(self._release, key)), held
            self.size += held
        while self.size > self.most_bytes and self._logs:
            key = next(iter(self._logs))
            if key in used:
                break
            oldest = self._logs[key][0]()
            if oldest is not None and oldest.read_again is None:
                self._fixed[key] = self._logs.pop(key)
                continue
            self._release(key)
            if oldest is not None:
                oldest.drop_text()

    def _release(self, key: int, _: object = None) -> None:
        found = self._logs.pop(key, None) or self._fixed.pop(key, None)
        if found is not None:
            self.size -= found[1]
