"""The texts of remembered calls, counted: each text of messages for itself, and tools and system
blocks that many calls share once; and a text that was dropped, as far as a later prompt has it.

    with_text_of(earlier, later)        for what compares texts

What both prompts begin with, and blocks that occur in both, are read from the later one. The others
are placeholders of the same size: it is known which block changed, but not its earlier text.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec.structs import replace

from anaphora.rendered import ChunkLog, ChunkRun, Rendered
from anaphora.rendered.chunks import not_kept
from anaphora.rendered.request_log import RequestLog

from .compared_prompt import GLUE, run_hashes
from .sent_call import SentCall, same_keys


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


def with_text_of(earlier: SentCall, later: Rendered) -> SentCall:
    """The earlier call, the text of whose prompt may have been dropped."""
    rendered = earlier.rendered
    if rendered.has_text:
        return earlier
    runs = tuple(run if run.log.has_text else _rebuilt(run, later) for run in rendered.runs)
    return replace(earlier, rendered=replace(rendered, runs=runs))


def _rebuilt(run: ChunkRun, later: Rendered) -> ChunkRun:
    like = [each for each in later.runs if each.section == run.section and each.log.has_text]
    first = next((each for each in like if each.log.base is run.log.base), None)
    shared = 0
    if first is not None:
        shared = min(run.count, first.count)
    elif like:
        first = like[0]
        shared = same_keys(run.log, first.log, min(run.count, first.count))
    log, blocks = run.log, dict[int, bytes]()
    for other in like if shared < run.count else ():
        data, hashes = other.log, run_hashes(other)
        for index in range(shared if other is first else 0, other.count):
            blocks[hashes[index]] = data.slice(data.start(index), data.ends[index])
    hashes = run_hashes(run)
    text = b"".join(
        _sized(blocks.get(hashes[index]), log.ends[index] - log.start(index), hashes[index])
        for index in range(shared, run.count)
    )
    if first is None:
        rebuilt = RequestLog(log.base, 0, 0, text, _nothing)
    else:
        rebuilt = _reading(log, first.log, shared, text)
    rebuilt.keys = log.keys  # those of the columns may be of a prompt with another beginning
    return replace(run, log=rebuilt)


def _reading(log: ChunkLog, later: ChunkLog, shared: int, text: bytes) -> RequestLog:
    """A log whose first chunks are those of a later one, followed by this text."""
    message = log.message_of(shared)
    begin = log.message_ends[message - 1] if message else 0
    text = later.slice(log.start(begin), log.start(shared)) + text

    def earlier(own: ChunkLog, first: int, end: int) -> bytes:
        low, high = (own.message_ends[each - 1] if each else 0 for each in (first, end))
        return later.slice(own.start(low), own.start(high))

    return RequestLog(log.base, message, log.start(begin), text, earlier)


def _nothing(log: ChunkLog, first: int, end: int) -> bytes:  # noqa: ARG001
    return b""


def _sized(block: bytes | None, size: int, key: int) -> bytes:
    """A block with as much glue as it had, or a placeholder."""
    if block is None:
        return not_kept(key, size)
    return block if len(block) == size else block.lstrip(GLUE).rjust(size)
