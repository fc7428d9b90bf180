"""Logs of remembered requests: where the chunks are, apart from their text.

    droppable(rendered)             the same chunks, whose text can be dropped

`without_text` is what is remembered of a request: ends, kinds, keys and other facts. Reading text
from it raises, so that nothing can be computed from text that is gone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeAlias
from weakref import WeakValueDictionary, ref

from blake3 import blake3
from msgspec.structs import replace

from .chunks import ChunkRun, Rendered
from .log import ChunkLog, LogAppend

TextSource: TypeAlias = Callable[[ChunkLog, int, int], bytes]
"""Returns the text of the messages from one number up to another; for tools and system blocks, all
of it."""


class TextNotKept(LookupError):
    """The text of a remembered request was asked for."""


class LogColumns(ChunkLog):
    """Chunks without their text, and the facts about them that all requests share."""

    @classmethod
    def of_log(cls, log: ChunkLog, chunks: int, messages: int) -> LogColumns:
        """Those of the first chunks of a log with text."""
        columns = cls()
        log._copy_columns(columns, chunks, messages)
        columns.labels, columns.policies = log.labels, log.policies
        return columns

    def follow(self, log: ChunkLog, chunks: int, messages: int) -> None:
        """Adds what the same log has grown by."""
        count, known, opened = len(self.ends), len(self.ids), len(self.opens)
        self.ends += log.ends[count:chunks]
        self.splices += log.splices[count:chunks]
        self.kinds += log.kinds[count:chunks]
        self.message_ends += log.message_ends[known:messages]
        self.ids += log.ids[known:messages]
        last = bisect_right(log.opens, chunks - 1) if chunks else 0
        self.opens += log.opens[opened:last]
        self.roles += log.roles[opened:last]
        self.contextual |= log.contextual
        self.notices += [each for each in log.notices if known <= each[0] < messages]

    @property
    def has_text(self) -> bool:
        return False

    def slice(self, start: int, end: int) -> bytes:
        return bytes(self.view(start, end))

    def view(self, start: int, end: int) -> memoryview:
        if start < end:
            raise TextNotKept("the text of this prompt is not kept")
        return memoryview(b"")

    def _extend(self, addition: LogAppend) -> None:
        self._extend_columns(addition)

    def _copy(self, chunks: int, messages: int) -> ChunkLog:
        copy = LogColumns()
        self._copy_columns(copy, chunks, messages)
        return copy


def _of_columns(name: str) -> Any:
    """A fact that all requests share."""

    def put(log: RequestLog, value: Any) -> None:
        setattr(log.base, name, value)

    return property(attrgetter(f"base.{name}"), put)


class RequestLog(ChunkLog):
    """The chunks of one request. Those of its columns that come after it are not its own."""

    __slots__ = ("base",)

    base: ChunkLog
    """Its columns."""

    first_image = _of_columns("first_image")
    tool_references = _of_columns("tool_references")
    odd = _of_columns("odd")
    leading = _of_columns("leading")
    hashing = _of_columns("hashing")

    def __init__(
        self, columns: ChunkLog, message: int, begin: int, text: bytes, source: TextSource | None
    ) -> None:
        """`text` is that from a message on, which begins at the offset `begin`; `source` has what
        is before it. None: the text is not kept."""
        self.base = columns
        self._text = message, begin, text
        self._source = source
        self.keys = columns.keys
        self.ends = columns.ends
        self.splices = columns.splices
        self.kinds = columns.kinds
        self.message_ends = columns.message_ends
        self.ids = columns.ids
        self.opens = columns.opens
        self.roles = columns.roles
        self.notices = columns.notices
        self.labels = columns.labels
        self.policies = columns.policies
        self.contextual = columns.contextual

    @property
    def has_text(self) -> bool:
        return self._source is not None

    def without_text(self) -> ChunkLog:
        if self._source is None:
            return self
        known: ref[ChunkLog] | None = self.base.bare
        bare = None if known is None else known()
        if bare is None or bare.keys is not self.keys:
            bare = RequestLog(self.base, 0, 0, b"", None)
            bare.keys = self.keys
            self.base.bare = ref(bare)
        return bare

    def append(self, addition: LogAppend) -> ChunkLog:
        forked = ChunkLog()
        forked.buffer += self.view(0, self.start(addition.first_chunk))
        self._copy_columns(forked, addition.first_chunk, addition.first_message)
        return forked.append(addition)

    def position_of(self, message_id: str) -> int | None:
        return self.base.position_of(message_id)

    def slice(self, start: int, end: int) -> bytes:
        return bytes(self.view(start, end))

    def view(self, start: int, end: int) -> memoryview:
        _, begin, text = self._text
        if start >= end:
            return memoryview(b"")
        if self._source is None:
            raise TextNotKept("the text of this prompt is not kept")
        if start < begin:
            begin, text = self._read_from(start, self._source)
        if end > begin + len(text):
            raise TextNotKept("this text is not in the prompt")
        return memoryview(text)[start - begin : end - begin]

    def begins_with(self, data: memoryview) -> bool:
        return self.slice(0, len(data)) == bytes(data)

    def _read_from(self, start: int, source: TextSource) -> tuple[int, bytes]:
        """The text from the message at that offset on, which is kept for the next time."""
        message, begin, text = self._text
        first = self.message_of(bisect_right(self.ends, start))
        earlier = source(self, first, message)
        from_there = self.start(self.message_ends[first - 1]) if first else 0
        if len(earlier) != begin - from_there:
            raise TextNotKept("the body is not that of this prompt")
        text = earlier + text
        self._text = first, from_there, text
        return from_there, text


#: Tools and system blocks of remembered calls, by a digest of their bytes.
_SECTIONS: WeakValueDictionary[bytes, ChunkRun] = WeakValueDictionary()


def droppable(rendered: Rendered) -> Rendered:
    """The prompt with logs of its own, whose text can be dropped, and without the values that it
    was rendered from. Calls with the same tools or system blocks share their logs."""
    envelope = replace(rendered.envelope, source=None)
    return replace(rendered, runs=tuple(map(_droppable_run, rendered.runs)), envelope=envelope)


def _droppable_run(run: ChunkRun) -> ChunkRun:
    log = run.log
    if log.base is not log:
        return run
    if run.section == "messages":
        messages = range(len(run.source))
        return replace(run, log=_request_log(log, run.count, len(messages)), source=messages)
    text = log.slice(0, log.start(len(log)))
    key = blake3(run.lead + b"\0" + bytes(log.ends) + text + run.close).digest(16)
    known = _SECTIONS.get(key)
    if known is None or known.paths != run.paths or known.deferred != run.deferred:
        own = RequestLog(LogColumns.of_log(log, len(log), 0), 0, 0, text, _all_read)
        known = _SECTIONS[key] = replace(run, log=own, source=log.labels)
    return known


def _request_log(log: ChunkLog, chunks: int, messages: int) -> RequestLog:
    text = log.slice(0, log.start(chunks))
    columns: LogColumns | None = log.columns
    if columns is None:
        columns = log.columns = LogColumns.of_log(log, chunks, messages)
    else:
        columns.follow(log, chunks, messages)
    return RequestLog(columns, 0, 0, text, _all_read)


def _all_read(log: ChunkLog, first: int, end: int) -> bytes:  # noqa: ARG001
    """The source of a text that is whole."""
    return b""
