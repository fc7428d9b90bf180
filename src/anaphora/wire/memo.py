"""The memory of wires between calls: one bounded object for each, which `clear` empties.

One rule for keys: bytes and tuples of bytes and names, compared by value; or the identity of an
immutable source that the remembered log holds itself. Values are frozen when they are made, so
results are shared by all callers.
"""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec

from anaphora.prompt import Call
from anaphora.rendered import ChunkLog, ChunkRun, Envelope

#: How many results of each remembered reader are kept; system prompts may be long.
TOOL_LISTS, SYSTEM_PROMPTS = 64, 16
#: Longer lists of tools and system prompts are read at each call: what is kept takes more memory.
_LONGEST = 128 * 1024

#: How many section logs and envelopes are kept that nothing else holds.
_LOGS, _ENVELOPES = 16, 8

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class Memo:
    """The memory of one wire: sections and envelopes of rendered calls, and values that were
    decoded from requests, by their bytes."""

    def __init__(self) -> None:
        self._on_clear: list[Callable[[], None]] = []
        # A log holds its source, so an id in here cannot come to mean another object.
        self._section_logs: WeakValueDictionary[tuple[int, Hashable], ChunkLog]
        self._section_logs = WeakValueDictionary()
        self._recent: deque[ChunkLog] = deque(maxlen=_LOGS)
        self._envelopes: tuple[Envelope, ...] = ()

    def clear(self) -> None:
        """Forget everything."""
        for forget in self._on_clear:
            forget()
        self._section_logs.clear()
        self._recent.clear()
        self._envelopes = ()

    def remember(self, limit: int) -> Callable[[Callable[[bytes], T]], Callable[[bytes], T]]:
        """Decorates a reader: the same bytes, such as a list of tools, are read once."""

        def decorate(read: Callable[[bytes], T]) -> Callable[[bytes], T]:
            known = functools.lru_cache(maxsize=limit)(read)
            self._on_clear.append(known.cache_clear)
            return lambda data: (known if len(data) <= _LONGEST else read)(data)

        return decorate

    # ── Calls that were rendered ─────────────────────────────────────────────────────────────────

    def section_log(
        self,
        source: T,
        last: ChunkRun | None,
        render: Callable[[T], ChunkLog],
        variant: Hashable = None,
    ) -> ChunkLog:
        """The log of tools or system blocks: the last turn's if its source is equal, another
        conversation's if its source is the same object, or a new one. `variant` is anything else
        that the bytes depend on."""
        if last is not None and last.log.source == source:
            return last.log
        log = self._section_logs.get((id(source), variant))
        if log is not None and log.source is source:
            return log
        log = render(source)
        log.source = source
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
        """The last turn's envelope, another one made from an equal `source`, or a new one from
        `make`. `context` is anything that an envelope depends on besides the call's model,
        parameters, extras and cache options."""
        source = (*context, call.model, _params_key(call))
        if last is not None and last.source == source:
            return last
        for envelope in self._envelopes:
            if envelope.source == source:
                return envelope
        envelope = make(source)
        self._envelopes = envelope, *self._envelopes[: _ENVELOPES - 1]
        return envelope


#: By wire.
MEMOS: defaultdict[str, Memo] = defaultdict(Memo)


def _params_key(call: Call) -> object:
    """Parameters, extras and cache options as bytes: unlike `==` on the values, this tells 1 from
    1.0 and one order of metadata from another."""
    try:
        return _encode((call.params, call.extras, call.ir.cache, call.ir.continuation))
    except UnicodeEncodeError:
        return object()  # a lone surrogate: never remembered
