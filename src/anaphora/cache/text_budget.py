"""How much text of remembered prompts is kept.

    texts = TextBudget(32 * 1024 * 1024)
    texts.use(rendered)         its text is the newest; that of the least recent prompts is dropped

A prompt without its text is still recognised, continued and counted: its log keeps where the chunks
are and their keys. Only a change of it cannot be shown to the byte.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import NamedTuple
from weakref import ref

from anaphora.rendered import ChunkLog, Rendered

#: The most logs that one call looks at.
_MOST_TRIED = 16


class _Held(NamedTuple):
    log: ref[ChunkLog]
    size: int
    """The bytes of its text."""
    fixed: bool
    """Its text cannot be dropped."""


class TextBudget:
    """The text of the logs that some indexes remember. Not for several threads at once."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.size = 0
        """The bytes of all text."""
        self._fixed_size = 0
        """The bytes of the text that cannot be dropped."""
        self._logs: OrderedDict[int, _Held] = OrderedDict()
        """Logs by their identity, the least recent first."""

    @property
    def is_full(self) -> bool:
        """Whether the text that cannot be dropped is too much."""
        return self._fixed_size > self.most_bytes

    def use(self, rendered: Rendered) -> None:
        """Counts the text of a prompt, and drops that of older ones if it is too much."""
        for run in rendered.runs:
            log, key = run.log, id(run.log)
            self._release(key)
            held, fixed = len(log.buffer), log.request is None
            self._logs[key] = _Held(ref(log, partial(self._release, key)), held, fixed)
            self.size += held
            self._fixed_size += held if fixed else 0
        for _ in range(_MOST_TRIED):
            if self.size <= self.most_bytes:
                break
            key, held_log = next(iter(self._logs.items()))
            oldest = held_log.log()
            if oldest is None or oldest.request is None or oldest.request() is not None:
                self._logs.move_to_end(key)  # its request is in use, or its text is fixed
                continue
            self._release(key)
            oldest.drop_text()

    def _release(self, key: int, _: object = None) -> None:
        found = self._logs.pop(key, None)
        if found is not None:
            self.size -= found.size
            self._fixed_size -= found.size if found.fixed else 0
