"""Prompts of audited calls for the simulator, from counts, times and digests.

A row of an audit log holds the blocks of a prompt: their tokens, a digest, and whether a marker
ends them. Tools and system blocks have a digest each. The history is one block between two markers,
with the digest of all messages up to there. So a call is known to repeat an earlier one if

- one of its blocks has the digest of an earlier end,
- or both are of one conversation, the later one has more messages, and no change was found,
- or, if no conversation is known, both begin alike and the earlier one is as long as what the
  later one read.

Lengths are those of the bills: a prompt ends at its billed input, and new blocks have their
estimated share of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, TypeAlias

import msgspec

from anaphora.audit.envelope import AuditBlock, AuditEnvelope
from anaphora.cache.simulator import Mark, PlayedBlocks, TokenBlock, TokenRuns
from anaphora.rendered import Kind
from anaphora.values import Section, SegmentRole

Link: TypeAlias = Literal["digest", "conversation", "counts", "none"]
"""How the call that a prompt continues was recognised; `none`: it continues no call."""

#: Runs of messages before the history; a run has one digest.
_BEFORE_HISTORY = (
    SegmentRole.STABLE_PREFIX.value,
    SegmentRole.DYNAMIC_CONTEXT.value,
    SegmentRole.SYSTEM_REMAINDER.value,
)
_TAIL = SegmentRole.VOLATILE_TAIL.value
#: Maximum number of positions of one block: no provider's look-back is longer.
_MOST_POSITIONS = 20
#: Ends that a call is compared with: those of branches, or of conversations with the same
#: beginning.
_MOST_CANDIDATES = 16
#: How far a read may differ from the end of the prompt that was read: a share, and a granule.
_SAME_END, _GRANULE = 0.05, 256
#: What is known of blocks.
_MESSAGE, _REPLY = TokenBlock(), TokenBlock(from_model=True)
_TOOL_CALLS, _TOOL_RESULTS = (
    TokenBlock(Kind.TOOL_CALL, from_model=True),
    TokenBlock(Kind.TOOL_RESULT),
)
_LEADING: dict[Section, TokenBlock] = {
    "tools": TokenBlock(section="tools"),
    "system": TokenBlock(section="system"),
    "messages": _MESSAGE,
}


class PromptPositions:
    """The positions of a growing prompt, shared by the calls of a conversation: each call has a
    prefix of them. Append-only."""

    __slots__ = ("chunks", "played", "tokens")

    def __init__(self) -> None:
        self.played: PlayedBlocks[TokenBlock] = PlayedBlocks()
        self.tokens: list[float] = []
        """Up to the end of each one."""
        self.chunks: list[float] = []
        """Of the history, up to the end of each one."""

    def __len__(self) -> int:
        return len(self.tokens)

    def key(self, count: int) -> int:
        return self.played.keys[count - 1] if count else 0

    def length(self, count: int) -> float:
        return self.tokens[count - 1] if count else 0.0

    def copy(self, count: int) -> PromptPositions:
        """A copy of the first positions."""
        copied = PromptPositions()
        copied.played = self.played.copy(count)
        copied.tokens, copied.chunks = self.tokens[:count], self.chunks[:count]
        return copied

    def add(
        self,
        identity: Hashable,
        tokens: float,
        chunks: float,
        block: TokenBlock = _MESSAGE,
        *,
        history: bool = False,
    ) -> None:
        """Adds a block: one position per chunk, up to the longest look-back."""
        count = int(min(max(chunks, 1), _MOST_POSITIONS))
        start = self.length(len(self))
        before = self.chunks[-1] if self.chunks else 0.0
        for index in range(1, count + 1):
            self.played.add((identity, index), block)
            self.tokens.append(start + tokens * index / count)
            self.chunks.append(before + chunks * index / count if history else before)

    def add_history(
        self, identity: Hashable, tokens: float, chunks: float, after: AuditEnvelope | None
    ) -> None:
        """Adds the new part of a call's history: the reply to the call `after` which it follows,
        and the rest."""
        calls = after is not None and after.stop_reason == "tool_calls"
        usage = None if after is None else after.usage
        reply = 0 if usage is None else (usage.output or 0) - (usage.reasoning or 0)
        if 0 < reply < tokens and chunks > 1:
            of_reply = chunks / 2 if calls else 1
            block = _TOOL_CALLS if calls else _REPLY
            self.add((identity, "reply"), reply, of_reply, block, history=True)
            tokens, chunks = tokens - reply, chunks - of_reply
        self.add(identity, tokens, chunks, _TOOL_RESULTS if calls else _MESSAGE, history=True)


class AuditedCall(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A call of a log with its prompt."""

    row: AuditEnvelope
    prompt: TokenRuns
    tokens: list[float]
    """Up to the end of each position, and"""
    billed: float
    """how many were billed for one of them."""
    marks: tuple[Mark, ...]
    """As they were sent, except those inside a part that an earlier call sent without a marker."""
    shared: int | None
    """The last position before the history, which other conversations may share."""
    before: int | None
    """The last position that the earlier call has as well."""
    tail: int | None
    """The last position that the next call can repeat."""
    link: Link
    conversation: int
    """The same for calls that continue each other."""
    began_before: bool
    """It continues calls that are not among those that were read."""

    def convert(self, ratio: float) -> None:
        """Counts the prompt in other tokens; `ratio` of them are one billed token."""
        self.prompt.tokens_at = _scaled(self.tokens, self.billed * ratio)


def _scaled(tokens: list[float], scale: float) -> Callable[[int], int]:
    return lambda position: round(tokens[position] * scale)


class _HistoryEnd(msgspec.Struct, frozen=True, eq=False):
    """The end of the history of a call, or of a part of it that ends with a marker."""

    positions: PromptPositions
    count: int
    row: AuditEnvelope
    conversation: int
    whole: bool
    """The history of the call ends here."""

    @property
    def chunks(self) -> float:
        return self.positions.chunks[self.count - 1] if self.count else 0.0

    @property
    def tokens(self) -> float:
        return self.positions.length(self.count)


class _SentCall(msgspec.Struct, frozen=True, eq=False):
    """A row while its prompt is read."""

    row: AuditEnvelope
    history: Sequence[AuditBlock]
    unit: float
    """Billed tokens for one that was estimated."""
    beginning: int
    """The key of the part before the history."""
    shared: int
    """The number of its positions."""
    length: float
    """The tokens of that."""

    @property
    def chunks(self) -> int:
        return sum(block.chunks for block in self.history)


class PromptReader:
    """Reads calls in the order they were made. The cost of reading one does not grow with its
    conversation, unless that is edited."""

    def __init__(self) -> None:
        self._by_digest: dict[tuple[int, str], _HistoryEnd] = {}
        self._ends: dict[Hashable, list[_HistoryEnd]] = {}
        """Ends that no call continues yet, by conversation or beginning."""
        self._numbers: dict[str, int] = {}
        self._unnamed = 0

    def read(self, row: AuditEnvelope) -> AuditedCall:
        """Reads the call of a row that has blocks and a billed input."""
        unit = row.usage.input / max(1, sum(block.tokens for block in row.blocks))
        positions, marks = PromptPositions(), []
        for block in row.blocks:
            if _is_lead(block):
                identity = block.digest or (block.label, block.tokens)
                positions.add(
                    identity, block.tokens * unit, block.chunks, _LEADING[_section(block)]
                )
                if block.marker:
                    marks.append(Mark(len(positions) - 1, block.ttl or "5m"))
        history = [block for block in row.blocks if not _is_lead(block) and block.label != _TAIL]
        shared = len(positions)
        leading = sum(block.section != "messages" for block in positions.played.blocks) - 1
        sent = _SentCall(
            row, history, unit, positions.key(shared), shared, positions.length(shared)
        )
        link, found = self._find(sent)
        # An edited prompt shares nothing with calls before the first one.
        edited = row.broke and row.conversation in self._numbers
        if found is not None:
            positions = found.positions
            if found.count < len(positions):
                positions = positions.copy(found.count)
        number = self._conversation(row, found)
        marks += self._add(sent, positions, found, number)
        last = len(positions)
        self._remember(sent, _HistoryEnd(positions, last, row, number, True), found)
        tail = [block for block in row.blocks if block.label == _TAIL]
        if tail:
            positions = positions.copy(last)
            for block in tail:
                positions.add(block.digest, block.tokens * unit, block.chunks)
        billed = row.usage.input / positions.length(len(positions)) if row.usage.input else 0.0
        return AuditedCall(
            row=row,
            prompt=TokenRuns(positions.played, _scaled(positions.tokens, billed), leading=leading),
            tokens=positions.tokens,
            billed=billed,
            marks=tuple(marks),
            shared=shared - 1 if shared else None,
            before=None if found is None else found.count - 1,
            tail=last - 1 if last else None,
            link=link,
            conversation=number,
            began_before=found is None and _is_later(sent) and not edited,
        )

    def _find(self, sent: _SentCall) -> tuple[Link, _HistoryEnd | None]:
        """The deepest end of an earlier call that this one repeats, and how it is known."""
        same = None
        for block in reversed(sent.history):
            same = self._by_digest.get((sent.beginning, block.digest)) if block.digest else None
            if same is not None:
                break
        known = self._continued(sent)
        if same is not None and (known is None or known.chunks <= same.chunks):
            return "digest", same
        if known is None:
            return "none", None
        return "conversation" if sent.row.conversation else "counts", known

    def _continued(self, sent: _SentCall) -> _HistoryEnd | None:
        """The call that this one continues. Candidates are the shorter calls of its conversation
        or, if that is unknown, those with the same beginning: the one whose length is nearest to
        what was read, or the longest if no length fits. Of an edited prompt, as much as was
        read."""
        row, read = sent.row, sent.row.usage.read or 0
        ends = self._ends.get(_group(sent), ())
        shorter = [end for end in reversed(ends) if row.broke or end.chunks < sent.chunks]
        if not row.conversation:
            shorter = [end for end in shorter if end.tokens <= row.usage.input]
            others = 0 < read <= sent.length * (1 + _SAME_END)
            if others or row.verdict in (None, "first"):
                return None  # the first call of another conversation
        if not shorter:
            return None
        nearest = min(shorter, key=lambda end: abs(end.tokens - read))
        if abs(nearest.tokens - read) > _SAME_END * read + _GRANULE:
            nearest = max(shorter, key=lambda end: end.chunks)
        return _cut(nearest, sent.shared, read) if row.broke else nearest

    def _conversation(self, row: AuditEnvelope, found: _HistoryEnd | None) -> int:
        """The number of its conversation."""
        if found is not None:
            return found.conversation
        number = len(self._numbers) + self._unnamed
        if row.conversation:
            return self._numbers.setdefault(row.conversation, number)
        self._unnamed += 1
        return number

    def _add(
        self, sent: _SentCall, positions: PromptPositions, found: _HistoryEnd | None, number: int
    ) -> list[Mark]:
        """Adds the new part of the history to the positions; returns the marks of all of it."""
        row, length, chunks = sent.row, sent.length, 0.0
        known = 0.0 if found is None else found.chunks
        after = found.row if found is not None and found.whole else None
        marks: list[Mark] = []
        for block in sent.history:
            start, chunks = chunks, chunks + block.chunks
            length += block.tokens * sent.unit
            key = sent.beginning, block.digest
            new = chunks - max(start, known)
            if new > 0:
                tokens = max(0.0, length - positions.length(len(positions)))
                positions.add_history(block.digest or row.at, tokens, new, after)
                after = None
                if block.digest and key not in self._by_digest:
                    whole = block is sent.history[-1]
                    end = _HistoryEnd(positions, len(positions), row, number, whole)
                    self._by_digest[key] = end
            ending = self._by_digest.get(key)
            if block.marker and ending is not None and _has(positions, ending):
                marks.append(Mark(ending.count - 1, block.ttl or "5m"))
        return marks

    def _remember(self, sent: _SentCall, end: _HistoryEnd, found: _HistoryEnd | None) -> None:
        """Keeps the end of a call, replacing that of the call which it continues."""
        ends = self._ends.setdefault(_group(sent), [])
        if found is not None:
            ends[:] = [known for known in ends if known.row is not found.row]
        ends.append(end)
        del ends[:-_MOST_CANDIDATES]


def _is_lead(block: AuditBlock) -> bool:
    return block.kind != "messages" or block.label in _BEFORE_HISTORY


def _section(block: AuditBlock) -> Section:
    if block.kind == "messages":
        return "messages"
    return "tools" if block.kind.startswith("tool") else "system"


def _is_later(sent: _SentCall) -> bool:
    """Whether a call is not the first of its conversation, or read more than others share."""
    row, lead = sent.row, sent.length * (1 + _SAME_END)
    if row.turn > 1 or row.verdict not in (None, "first"):
        return True
    return bool(sent.history) and (row.usage.read or 0) > lead


def _has(positions: PromptPositions, end: _HistoryEnd) -> bool:
    count = end.count
    return count <= len(positions) and positions.key(count) == end.positions.key(count)


def _group(sent: _SentCall) -> Hashable:
    row = sent.row
    if row.conversation:
        return sent.beginning, row.conversation, row.wire
    return sent.beginning, row.app, row.node, row.provider, row.model, row.wire


def _cut(known: _HistoryEnd, shared: int, read: int) -> _HistoryEnd | None:
    """The part of an edited prompt that was read, and so is unchanged; None if it has no
    message."""
    tokens = known.positions.tokens
    count = bisect_right(tokens, read + 0.5, hi=known.count)
    return msgspec.structs.replace(known, count=count, whole=False) if count > shared else None
