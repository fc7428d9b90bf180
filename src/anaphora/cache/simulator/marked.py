"""Caches with markers: what a request marks is written, and read where an earlier one marked it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import msgspec

from anaphora.catalog import CacheRules, LookbackUnit
from anaphora.rendered import Kind, Mark

from .account import Salted
from .entries import MOST, Entries, Entry
from .outcome import Outcome, Reason, Span
from .prompt import Prompt

#: How far before a marker an entry is still looked for, to say that it was out of reach.
_FAR = 400

_RUNS = (Kind.TOOL_CALL, Kind.TOOL_RESULT)


class Looked(msgspec.Struct, frozen=True):
    """What a request finds, and what it will write."""

    found: int
    """The deepest position that is read; -1 where nothing is."""
    writes: tuple[Mark, ...]
    """The markers that write, in order."""
    reason: Reason
    """Why nothing deeper is read."""
    detail: str = ""
    marks: tuple[Mark, ...] = ()
    """All markers, the provider's own too."""
    entry: Entry | None = None
    """What is read."""


class MarkedCache:
    """Anthropic's way, and OpenAI's since 5.6: entries stand at markers and nowhere else."""

    def __init__(
        self,
        rules: CacheRules,
        lookback_unit: LookbackUnit | None = None,
        most: int | None = None,
    ) -> None:
        self._rules = rules
        unit = rules.lookback_unit
        self._unit = lookback_unit or (unit.value if unit is not None else None)
        self._entries = Entries(MOST if most is None else most)

    def __len__(self) -> int:
        return len(self._entries)

    def predict(self, prompt: Prompt, salted: Salted, at: float) -> tuple[Outcome, Looked]:
        looked = self._look(prompt, salted, at)
        return self._spans(prompt, looked), looked

    def lose(self, prompt: Prompt, looked: Looked) -> tuple[Outcome, Looked]:
        """The same when what was there is not found: it is written again."""
        lost = Looked(-1, self._writing(prompt, looked.marks), "lost", marks=looked.marks)
        return self._spans(prompt, lost), lost

    def commit(
        self,
        prompt: Prompt,  # noqa: ARG002
        salted: Salted,
        looked: Looked,
        at: float,
        readable: float,
    ) -> None:
        entries, found = self._entries, looked.found
        if looked.entry is not None and self._rules.reads_refresh.value:
            entries.refresh(looked.entry, at)
            for marker in looked.marks:
                if marker.chunk >= found:
                    break
                entries.refresh(entries.get(salted(marker.chunk)), at)
        for marker in looked.writes:
            entries.write(salted(marker.chunk), marker.ttl, at, readable)
        entries.purge(at)

    # ── Reading ──────────────────────────────────────────────────────────────────────────────────

    def _look(self, prompt: Prompt, salted: Salted, at: float) -> Looked:
        marks = self._marks(prompt)
        writes = self._writing(prompt, marks)
        reason: Reason = "new" if marks else "no_marker"
        detail = ""
        places: Iterable[int]
        if self._unit == "breakpoints":
            places = self._boundaries(prompt, marks)
        else:
            places = self._lookback(prompt, marks)
        found, alive, get = -1, None, self._entries.get
        for position in places:
            entry = get(salted(position))
            if entry is None:
                continue
            if entry.readable < at <= entry.expires:
                found, alive = position, entry
                break
            if reason == "new":
                reason, detail = self._dead(entry, at)
        if found < 0 and reason == "new":
            reason, detail = self._out_of_reach(salted, marks, at)
        while writes and writes[0].chunk <= found:
            writes = writes[1:]
        return Looked(found, writes, reason, detail, marks, alive)

    @staticmethod
    def _dead(entry: Entry, at: float) -> tuple[Reason, str]:
        """Why an entry cannot be read."""
        if entry.expires < at:
            return "expired", f"{at - entry.expires:.0f} s ago"
        return "not_readable_yet", f"for another {entry.readable - at:.1f} s"

    def _lookback(self, prompt: Prompt, marks: tuple[Mark, ...]) -> Iterator[int]:
        """The positions that each marker looks at, the deepest marker's first, each once."""
        figure = self._rules.lookback_positions
        reach, seen = 1 if figure is None else figure.value, len(prompt)
        for marker in reversed(marks):
            # Block by block, which is the usual way to count, or runs of tools as one.
            last = marker.chunk
            if self._unit != "tool_runs":
                positions: Iterable[int] = range(last, max(-1, last - reach), -1)
            else:
                positions = _back(prompt, last, reach)
            for position in positions:
                if position < seen:
                    yield position
                    seen = position

    def _boundaries(self, prompt: Prompt, marks: tuple[Mark, ...]) -> list[int]:
        """Where the request itself has a boundary, the deepest first: its first and latest markers;
        and where the provider places breakpoints by itself, the ends of earlier turns and of what
        stands before them all."""
        rules = self._rules
        explicit = [marker.chunk for marker in prompt.markers]
        first = rules.lookback_first.value if rules.lookback_first is not None else 0
        latest = rules.lookback_positions.value if rules.lookback_positions is not None else 0
        places = set(explicit[:first]) | set(explicit[-latest:] if latest else ())
        if prompt.automatic is not None:
            places |= {marker.chunk for marker in marks}
            earlier = rules.automatic_lookback.value if rules.automatic_lookback is not None else 0
            # The latest of them is where the provider's own breakpoint stands.
            places |= set(itertools.islice(prompt.turn_ends(), earlier + 1)) | {prompt.leading}
        return sorted(places - {-1}, reverse=True)

    def _out_of_reach(
        self, salted: Salted, marks: tuple[Mark, ...], at: float
    ) -> tuple[Reason, str]:
        if not marks:
            return "no_marker", ""
        last = marks[-1].chunk
        for position in range(last, max(-1, last - _FAR), -1):
            entry = self._entries.get(salted(position))
            if entry is not None and entry.readable < at <= entry.expires:
                return "beyond_lookback", f"{last - position} blocks before the last marker"
        return "new", ""

    # ── Writing ──────────────────────────────────────────────────────────────────────────────────

    def _marks(self, prompt: Prompt) -> tuple[Mark, ...]:
        """The request's markers and the one that the provider places by itself, in order."""
        if prompt.automatic is None:
            return prompt.markers
        position = self._automatic(prompt)
        if position is None or any(marker.chunk == position for marker in prompt.markers):
            return prompt.markers
        marks = (*prompt.markers, Mark(position, prompt.automatic))
        return tuple(sorted(marks, key=lambda marker: marker.chunk))

    def _automatic(self, prompt: Prompt) -> int | None:
        where = self._rules.automatic_breakpoint.value
        if where == "last_message":
            end = next(prompt.turn_ends(), prompt.leading)
            return end if end >= 0 else None
        if where != "last_block":
            return None
        position = len(prompt) - 1
        while position >= 0 and not prompt.may_mark(position):
            position -= 1
        return position if position >= 0 else None

    def _writing(self, prompt: Prompt, marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
        """The markers that write: those with enough before them, and no more than there are
        slots. The latest write where more are allowed than write."""
        enough, slots, first = self._rules.minimum_tokens.value, self._rules.slots.value, 0
        while first < len(marks) and prompt.tokens(marks[first].chunk) < enough:
            first += 1  # what stands behind one that is long enough is longer
        return marks[first:][-slots:] if slots else ()

    def _spans(self, prompt: Prompt, looked: Looked) -> Outcome:
        total = prompt.total if len(prompt) else 0
        read = prompt.tokens(looked.found)
        spans = [Span(0, read, "read", "found")] if read else []
        start = read
        for marker in looked.writes:
            end = prompt.tokens(marker.chunk)
            if end > start:
                spans.append(Span(start, end, "written", looked.reason, marker.ttl, looked.detail))
                start = end
        if total > start:
            spans.append(Span(start, total, "uncached", _unwritten(looked)))
        return Outcome(tuple(spans))


def _unwritten(looked: Looked) -> Reason:
    """Why what is neither read nor written is not."""
    if looked.writes or looked.found >= 0:
        return "behind_last_marker"
    return "below_minimum" if looked.marks else "no_marker"


def _back(prompt: Prompt, position: int, reach: int) -> Iterator[int]:
    """The positions from a marker backwards, its own counted, as far as the look-back goes, with
    a run of calls or of results for one."""
    steps = 0
    last: Kind | None = None
    while position >= 0:
        kind = prompt.kind(position)
        if kind not in _RUNS or kind is not last:
            steps += 1
            if steps > reach:
                return
        last = kind
        yield position
        position -= 1
