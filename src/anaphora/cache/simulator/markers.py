"""Caches with markers: entries are written at markers, and found near a later request's markers."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Iterator
from itertools import chain

import msgspec

from anaphora.cache.sent_call import MadeCall, expiry, is_alive, writing_marks
from anaphora.catalog import CacheRules
from anaphora.catalog.cache_rules import LookbackUnit
from anaphora.rendered import Mark
from anaphora.values import TTL_SECONDS, Ttl
from anaphora.wording import counted

from .outcome import Outcome, Reason, marked_outcome
from .view import (
    MOST_SAVED,
    KeyOf,
    PromptView,
    SavedCache,
    SavedEntry,
    automatic_position,
    request_boundaries,
    tool_run_positions,
)

#: Blocks before a marker that are searched for an entry, to report that it was out of reach.
_FAR = 400
#: The maximum number of remembered entries, for simulations without an end.
_MOST_ENTRIES = 200_000


class CacheEntry(msgspec.Struct):
    ttl: Ttl
    expires: float
    readable: float
    since: float = -math.inf
    """When the response that wrote it began; the request, if that is not known."""

    def can_be_read(self, at: float) -> bool:
        return self.readable < at and is_alive(self.expires, at)


class EntryTable:
    """The cached prefixes of one account. No operation depends on how many there are."""

    def __init__(self, most: int = _MOST_ENTRIES) -> None:
        self._entries: dict[Hashable, CacheEntry] = {}
        self._queue: list[tuple[float, int, Hashable]] = []
        self._count = 0
        self._most = most

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> CacheEntry | None:
        """The entry of a key; expired entries are remembered for one more lifetime."""
        return self._entries.get(key)

    def write(self, key: Hashable, ttl: Ttl, at: float, readable: float) -> CacheEntry:
        """Adds an entry that lives for its TTL. One that lives longer stays, and can be read as
        soon as either call's could."""
        old = self._entries.get(key)
        expires = expiry(at, TTL_SECONDS[ttl])
        if old is not None and old.expires > at:
            if expires > old.expires:
                old.expires, old.ttl = expires, ttl
            old.readable = min(old.readable, readable)
            return old
        entry = self._entries[key] = CacheEntry(ttl, expires, readable)
        if old is None:
            self._enqueue(key, entry)
        return entry

    @staticmethod
    def refresh(entry: CacheEntry | None, at: float) -> None:
        """A read restarts an entry's lifetime."""
        if entry is not None and (expires := expiry(at, TTL_SECONDS[entry.ttl])) > entry.expires:
            entry.expires = expires

    def purge(self, at: float) -> None:
        """Forgets entries that expired a lifetime ago, and the oldest above the limit."""
        queue, entries = self._queue, self._entries
        while queue and (queue[0][0] < at or len(entries) > self._most):
            due, _, key = heapq.heappop(queue)
            entry = entries[key]
            if expiry(entry.expires, TTL_SECONDS[entry.ttl]) > due:
                self._enqueue(key, entry)  # used since then
            else:
                del entries[key]

    def restore(self, saved: SavedEntry) -> None:
        """Adds an entry that another process saved, unless it is known here."""
        known = self._entries.get(saved.key)
        if known is None:
            entry = CacheEntry(saved.ttl, saved.expires, saved.readable)
            self._entries[saved.key] = entry
            self._enqueue(saved.key, entry)
        elif known.expires < saved.expires:
            known.ttl, known.expires = saved.ttl, saved.expires

    def _enqueue(self, key: Hashable, entry: CacheEntry) -> None:
        self._count += 1
        due = expiry(entry.expires, TTL_SECONDS[entry.ttl])
        heapq.heappush(self._queue, (due, self._count, key))


class MarkerLookup(msgspec.Struct, frozen=True):
    """What a request reads and writes."""

    position: int
    """The deepest position that is read; -1 if nothing is."""
    writes: tuple[Mark, ...]
    reason: Reason
    """Why nothing deeper is read."""
    detail: str = ""
    marks: tuple[Mark, ...] = ()
    """All markers, the provider's own included."""
    entry: CacheEntry | None = None


class MarkerCache:
    """Anthropic, and OpenAI since 5.6: prefixes are cached at markers and nowhere else."""

    def __init__(
        self, rules: CacheRules, lookback_unit: LookbackUnit | None = None, most: int | None = None
    ) -> None:
        self._rules = rules
        unit, reach = rules.lookback_unit, rules.lookback_positions
        self._unit = lookback_unit or (unit.value if unit is not None else None)
        self._reach = 1 if reach is None else reach.value
        reused = rules.trailing_system_reused
        self._tail_found = reused is None or reused.value
        """Whether an entry at a trailing system message is found again."""
        self._entries = EntryTable(_MOST_ENTRIES if most is None else most)

    def __len__(self) -> int:
        return len(self._entries)

    def predict(self, prompt: PromptView, key_of: KeyOf, at: float) -> tuple[Outcome, MarkerLookup]:
        lookup = self._look_up(prompt, key_of, at)
        return self._outcome(prompt, lookup), lookup

    def lose(self, prompt: PromptView, lookup: MarkerLookup) -> tuple[Outcome, MarkerLookup]:
        """The outcome and lookup if the provider lost the entry: everything is written again."""
        writes = self._writing(prompt, lookup.marks)
        lost = MarkerLookup(-1, writes, "lost", marks=lookup.marks)
        return self._outcome(prompt, lost), lost

    def older(self, prompt: PromptView, key_of: KeyOf, lookup: MarkerLookup, at: float) -> Outcome:
        """The outcome without the entry that is read: an older one is read, if any."""
        marks, found = lookup.marks, -1
        for position in self._positions(prompt, marks):
            entry = self._entries.get(key_of(position)) if position < lookup.position else None
            if entry is not None and entry.can_be_read(at):
                found = position
                break
        writes = tuple(mark for mark in self._writing(prompt, marks) if mark.chunk > found)
        return self._outcome(prompt, MarkerLookup(found, writes, "not_readable_yet", marks=marks))

    def commit(
        self, prompt: PromptView, key_of: KeyOf, lookup: MarkerLookup, made: MadeCall
    ) -> list[CacheEntry]:
        """Write the missing entries."""
        written = [
            self._entries.write(key_of(marker.chunk), marker.ttl, made.lives_from, made.readable)
            for marker in lookup.writes
            if self._tail_found or not prompt.is_trailing_system(marker.chunk)
        ]
        for entry in written:
            entry.since = max(entry.since, made.since)
        self.refresh(prompt, key_of, lookup, made.lives_from)
        self._entries.purge(made.at)
        return written

    def refresh(
        self, _: PromptView, key_of: KeyOf, lookup: MarkerLookup, lives_from: float
    ) -> None:
        """Restart the lifetime of a call's written entries and, if reads refresh, of those it
        read."""
        entries, position = self._entries, lookup.position
        if lookup.entry is not None and self._rules.reads_refresh.value:
            entries.refresh(lookup.entry, lives_from)
            for marker in lookup.marks:
                if marker.chunk >= position:
                    break
                entries.refresh(entries.get(key_of(marker.chunk)), lives_from)
        for marker in lookup.writes:
            entries.refresh(entries.get(key_of(marker.chunk)), lives_from)

    def save(self, prompt: PromptView, key_of: KeyOf, saved: SavedCache) -> SavedCache:
        """The entries of `saved`, and those at this prompt's marks."""
        keys = dict.fromkeys(each.key for each in saved.entries)
        keys |= dict.fromkeys(
            key for mark in self._marks(prompt) if isinstance(key := key_of(mark.chunk), bytes)
        )
        found = ((key, self._entries.get(key)) for key in keys)
        entries = [
            SavedEntry(key, entry.ttl, entry.expires, entry.readable)
            for key, entry in found
            if entry is not None
        ]
        return msgspec.structs.replace(saved, entries=tuple(entries[-MOST_SAVED:]))

    def restore(self, _: PromptView, _key_of: KeyOf, saved: SavedCache) -> None:
        for each in saved.entries:
            self._entries.restore(each)

    def _look_up(self, prompt: PromptView, key_of: KeyOf, at: float) -> MarkerLookup:
        marks = self._marks(prompt)
        writes = self._writing(prompt, marks)
        reason: Reason = "new" if marks else "no_marker"
        detail = ""
        found, alive, get = -1, None, self._entries.get
        # Nothing can be found in an empty cache.
        for position in self._positions(prompt, marks) if len(self._entries) else ():
            entry = get(key_of(position))
            if entry is None:
                continue
            if entry.can_be_read(at):
                found, alive = position, entry
                break
            if reason != "new":
                continue
            if not is_alive(entry.expires, at):
                reason, detail = "expired", f"{at - entry.expires:.0f} s ago"
            else:
                wait = entry.readable - at
                detail = f"for another {wait:.1f} s" if wait < math.inf else ""
                reason = "not_readable_yet"
        if found < 0 and reason == "new":
            reason, detail = self._out_of_reach(key_of, marks[-1].chunk, at)
        while writes and writes[0].chunk <= found:
            writes = writes[1:]
        return MarkerLookup(found, writes, reason, detail, marks, alive)

    def _positions(self, prompt: PromptView, marks: tuple[Mark, ...]) -> Iterable[int]:
        """The positions that are looked up, deepest first."""
        if self._unit == "breakpoints":
            return request_boundaries(self._rules, prompt, marks)
        return self._lookback(prompt, marks)

    def _lookback(self, prompt: PromptView, marks: tuple[Mark, ...]) -> Iterable[int]:
        """The positions that each marker reaches, each once."""
        if self._unit == "tool_runs":
            return self._tool_runs(prompt, marks)
        reach, seen, ranges = self._reach, len(prompt), list[range]()
        for marker in reversed(marks):
            first = max(-1, marker.chunk - reach)
            ranges.append(range(min(marker.chunk, seen - 1), first, -1))
            seen = min(seen, first + 1)
        return chain.from_iterable(ranges)

    def _tool_runs(self, prompt: PromptView, marks: tuple[Mark, ...]) -> Iterator[int]:
        seen = len(prompt)
        for marker in reversed(marks):
            for position in tool_run_positions(prompt, marker.chunk, self._reach):
                if position < seen:
                    yield position
                    seen = position

    def _out_of_reach(self, key_of: KeyOf, last: int, at: float) -> tuple[Reason, str]:
        for position in range(last, max(-1, last - _FAR), -1) if len(self._entries) else ():
            entry = self._entries.get(key_of(position))
            if entry is not None and entry.can_be_read(at):
                blocks = counted(last - position, "block")
                return "beyond_lookback", f"{blocks} before the last marker"
        return "new", ""

    def _marks(self, prompt: PromptView) -> tuple[Mark, ...]:
        """The request's markers and the one that the provider places itself, in order."""
        if prompt.automatic is None:
            return prompt.markers
        position = automatic_position(self._rules, prompt)
        if position is None or any(marker.chunk == position for marker in prompt.markers):
            return prompt.markers
        marks = (*prompt.markers, Mark(position, prompt.automatic))
        return tuple(sorted(marks, key=lambda marker: marker.chunk))

    def _writing(self, prompt: PromptView, marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
        return writing_marks(self._rules, marks, prompt.tokens)

    def _outcome(self, prompt: PromptView, lookup: MarkerLookup) -> Outcome:
        return marked_outcome(
            lookup.writes,
            prompt.tokens,
            total=prompt.total if len(prompt) else 0,
            found=lookup.position,
            marked=bool(lookup.marks),
            too_long=bool(lookup.marks)
            and self._rules.maximum_tokens is not None
            and prompt.tokens(lookup.marks[-1].chunk) > self._rules.longest_prefix,
            reason=lookup.reason,
            detail=lookup.detail,
        )
