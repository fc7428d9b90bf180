"""What a wire remembers between calls: one bounded object per wire, which `clear` empties.

One rule for keys: bytes and tuples of bytes and names, compared by value; or the identity of an
immutable source that the remembered log holds itself. Nothing mutable is a key or a shared value:
results with extras, which are dictionaries, are copied for each caller.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias, TypeVar, cast
from weakref import WeakValueDictionary

import msgspec
from blake3 import blake3
from msgspec.structs import astuple

from anaphora.prompt import Call, PromptBlock
from anaphora.rendered import ChunkLog, ChunkRun, Envelope, LogAppend, Mark
from anaphora.values import Conversation, Message, Tool

#: How many section logs and envelopes are kept that nothing else holds.
_LOGS, _ENVELOPES = 16, 8
#: How many results of each remembered reader are kept; system prompts may be long.
TOOL_LISTS, SYSTEM_PROMPTS, PARAM_SETS = 64, 16, 64

T = TypeVar("T")

#: A run cut from a request, and the marks in it, counted from its first chunk.
SplitSection: TypeAlias = tuple[ChunkRun, tuple[Mark, ...]]

#: What a log of request messages was cut from: the digest of each message, and the marks with the
#: index of their message.
_Source: TypeAlias = tuple[list[bytes], list[tuple[int, Mark]]]

_encode = msgspec.json.Encoder().encode
_SCALARS = frozenset({type(None), bool, int, float, str})


class Memo:
    """Everything one wire remembers."""

    def __init__(self) -> None:
        # A log holds its source, so an id in here cannot come to mean another object.
        self._section_logs: WeakValueDictionary[tuple[int, Hashable], ChunkLog]
        self._section_logs = WeakValueDictionary()
        self._recent: deque[ChunkLog] = deque(maxlen=_LOGS)
        self._envelopes: tuple[tuple[tuple[type, ...], Envelope], ...] = ()
        self._sections: WeakValueDictionary[tuple[str, bytes], ChunkLog] = WeakValueDictionary()
        self._requests: WeakValueDictionary[Hashable, ChunkLog] = WeakValueDictionary()
        self._readers: list[Callable[[], None]] = []
        self._placeholders = Conversation()

    def clear(self) -> None:
        """Forgets everything."""
        for kept in (self._section_logs, self._recent, self._sections, self._requests):
            kept.clear()
        self._envelopes = ()
        self._placeholders = Conversation()
        for forget in self._readers:
            forget()

    def on_clear(self, forget: Callable[[], None]) -> None:
        """Has `clear` call this as well."""
        self._readers.append(forget)

    # ── Rendering ────────────────────────────────────────────────────────────────────────────────

    def section_log(
        self,
        source: T,
        last: ChunkRun | None,
        render: Callable[[T], ChunkLog],
        variant: Hashable = None,
    ) -> ChunkLog:
        """The log of tools or system blocks: the last turn's where its source is equal, another
        conversation's where it is the same object, or a new one. `variant` is whatever else the
        bytes depend on."""
        if isinstance(source, list):
            source = cast(T, tuple(source))  # the caller may change the list
        if last is not None and last.log.source == source:
            return last.log
        log = self._section_logs.get((id(source), variant))
        if log is not None and log.source is source:
            return log
        log = render(source)
        log.source = source
        if not has_mutable_extras(source):
            self._section_logs[id(source), variant] = log
            self._recent.append(log)
        return log

    def envelope(
        self,
        call: Call,
        context: tuple[object, ...],
        last: Envelope | None,
        make: Callable[[object], Envelope],
    ) -> Envelope:
        """The last turn's envelope, or another one that was made from the same, or a new one that
        `make` makes from its `source`. `context` is what an envelope depends on besides the call's
        model, parameters, extras and cache options."""
        source = (*context, call.model, _params_key(call))
        if last is not None and last.source == source:
            return last
        kinds = _scalar_types(call)
        if kinds is not None:
            for known, envelope in self._envelopes:
                if known == kinds and envelope.source == source:
                    return envelope
        envelope = make(source)
        if kinds is not None:
            self._envelopes = (kinds, envelope), *self._envelopes[: _ENVELOPES - 1]
        return envelope

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────

    def remember(self, limit: int) -> Callable[[Callable[[bytes], T]], Callable[[bytes], T]]:
        """Decorates a reader: the same bytes, such as a list of tools, are read once."""

        def decorate(read: Callable[[bytes], T]) -> Callable[[bytes], T]:
            @functools.lru_cache(maxsize=limit)
            def known(raw: bytes) -> tuple[T, bool]:
                value = read(raw)
                return value, has_mutable_extras(value)

            @functools.wraps(read)
            def reading(raw: bytes) -> T:
                value, mutable = known(raw)
                return _copied(value) if mutable else value

            self._readers.append(known.cache_clear)
            return reading

        return decorate

    def split_section(
        self, name: str, raw: bytes, split: Callable[[bytes], SplitSection | None]
    ) -> SplitSection | None:
        """What `split` makes of these bytes of a request, for as long as its log is in use."""
        log = self._sections.get((name, raw))
        if log is not None:
            bare, marks = cast(SplitSection, log.source)
            return msgspec.structs.replace(bare, log=log), marks
        section = split(raw)
        if section is not None:
            run, marks = section
            # The log may not hold itself: it would never be released.
            run.log.source = msgspec.structs.replace(run, log=cast(Any, None)), marks
            self._sections[name, raw] = run.log
        return section

    def request_log(self, messages: Sequence[msgspec.Raw], context: Hashable = None) -> RequestLog:
        """The log of a request's messages, continued from the request before it. `context` is
        whatever else decides how these messages are cut."""
        digests = [blake3(raw).digest(16) for raw in messages]
        log = self._requests.get((context, digests[0])) if digests else None
        known = 0 if log is None else _common_count(cast(_Source, log.source)[0], digests)
        if log is None or not known:
            log = ChunkLog()
            log.source = [], []
        return RequestLog(self._requests, context, log, digests, known)

    def placeholder_messages(self, count: int) -> Conversation:
        """Stands for messages that were cut into chunks but not read."""
        missing = count - len(self._placeholders)
        if missing > 0:
            blank = Message(role="user", parts=())
            self._placeholders = self._placeholders.append(*[blank] * missing)
        return self._placeholders.prefix(count)


class RequestLog:
    """The messages of one request. The first `known` of them are in the log already; the others are
    added to `append`, in order, each ended with `end_message`."""

    __slots__ = ("_digests", "_ended", "_log", "_logs", "_marks", "append", "context", "known")

    def __init__(
        self,
        logs: WeakValueDictionary[Hashable, ChunkLog],
        context: Hashable,
        log: ChunkLog,
        digests: list[bytes],
        known: int,
    ) -> None:
        self._logs = logs
        self.context = context
        self._log = log
        self._digests = digests
        marks = cast(_Source, log.source)[1]
        self._marks = [placed for placed in marks if placed[0] < known] if marks else []
        self.known = self._ended = known
        self.append = LogAppend(log.message_ends[known - 1] if known else 0, known)

    @property
    def count(self) -> int:
        """How many chunks there are so far."""
        return self.append.first_chunk + len(self.append.pieces)

    @property
    def last_role(self) -> str | None:
        """The wire role of the last known message; None where no chunk is known."""
        first = self.append.first_chunk
        return self._log.roles[self._log.wire_message_of(first - 1)] if first else None

    def end_message(self, marks: Sequence[Mark] = ()) -> None:
        """A message is complete. Its marks count chunks from the first of the request."""
        index, self._ended = self._ended, self._ended + 1
        self._marks += [(index, mark) for mark in marks]
        self.append.end_message(f"m{index}")

    def finish(self) -> ChunkLog:
        """The log with all messages, which the next request continues."""
        if self._ended == self.known:
            return self._log
        log = self._log.append(self.append)
        log.source = self._digests, self._marks
        self._logs[self.context, self._digests[0]] = log
        return log

    def marks(self, first: int) -> list[Mark]:
        """All marks, in a prompt whose messages begin with chunk `first`."""
        return [Mark(first + mark.chunk, mark.ttl, mark.splice) for _, mark in self._marks]


def has_mutable_extras(value: object) -> bool:
    """Whether a tool or block among these has extras: dictionaries that a caller may change."""
    if isinstance(value, tuple):
        return any(map(has_mutable_extras, value))
    return getattr(value, "extras", None) is not None


def _copied(value: T) -> T:
    if isinstance(value, tuple):
        return cast(T, tuple(map(_copied, value)))
    if not has_mutable_extras(value):
        return value
    item = cast(PromptBlock | Tool, value)
    return cast(T, msgspec.structs.replace(item, extras=dict(item.extras or {})))


def _params_key(call: Call) -> object:
    """Parameters, extras and cache options as bytes: unlike `==` on the values, this tells 1 from
    1.0 and one order of metadata from another."""
    try:
        return _encode((call.params, call.extras, call.ir.cache, call.ir.continuation))
    except UnicodeEncodeError:
        return object()  # a lone surrogate: equal to nothing


def _scalar_types(call: Call) -> tuple[type, ...] | None:
    """The types of all that an envelope is made of, where all of it is scalars; else None. Other
    values may encode to the same bytes as these although one of them is rejected."""
    if call.extras is not None or call.ir.continuation is not None:
        return None
    values = (*astuple(call.params), *astuple(call.ir.cache))
    kinds = tuple(map(type, values))
    for kind, value in zip(kinds, values, strict=True):
        if kind not in _SCALARS and value != ():
            return None
    return kinds


def _common_count(known: list[bytes], digests: list[bytes]) -> int:
    """How many leading messages are the same."""
    shorter = min(len(known), len(digests))
    if known[:shorter] == digests[:shorter]:
        return shorter
    return next(index for index in range(shorter) if known[index] != digests[index])
