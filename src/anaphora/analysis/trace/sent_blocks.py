"""The blocks that the calls of a conversation send, their keys, and their tokens by the bills.

A call repeats the blocks of the call before, and adds some. So the blocks are kept from call to
call, token counts are computed on demand, and the work of a call depends on its new blocks only.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from anaphora.cache.simulator import Mark, PlayedBlocks, TokenRuns
from anaphora.values import Ttl

from .account import BilledLengths, TextBytes
from .blocks import TraceBlock, TraceBlocks
from .format import TraceCall


class SentBlocks:
    """The blocks of one call after the other. Positions count blocks from 0."""

    def __init__(self, conversation: TraceBlocks, *, strips: bool) -> None:
        """`strips`: without thinking before the last user turn."""
        self._conversation = conversation
        self._strips = strips
        self._begins: tuple[Hashable, ...] | None = None
        """Key of the blocks before the messages."""
        self._stripped = 0
        """The messages before this one are without thinking."""
        self._head: list[TraceBlock] = []
        self.tools: list[int] = []
        """The positions of the tools."""
        self._played: PlayedBlocks[TraceBlock] = PlayedBlocks()
        self._blocks, self._keys = self._played.blocks, self._played.keys
        self._positions: dict[Hashable, int] = {}
        self._sizes: list[tuple[TextBytes, int]] = []
        """Up to each block: bytes of text, and other tokens without those of the unrecorded
        beginning, which change with the bills."""
        self._count = 0
        self._per_token: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
        self._points = _KnownPoints()

    def __len__(self) -> int:
        """The blocks of the current call."""
        return self._count

    def __getitem__(self, position: int) -> TraceBlock:
        return self._blocks[position]

    @property
    def leading(self) -> int:
        """The last block before the messages."""
        return len(self._head) - 1

    def key(self, position: int) -> Hashable:
        """Identifies the prefix that ends with this block."""
        return self._keys[position]

    def prompt(
        self,
        *,
        markers: tuple[Mark, ...] = (),
        automatic: Ttl | None = None,
        cache_params: Mapping[str, bytes] = {},
    ) -> TokenRuns:
        """The call for a simulator. Valid until the next `send`."""
        return TokenRuns(
            self._played,
            functools.cache(self.tokens),
            leading=self.leading,
            markers=markers,
            automatic=automatic,
            cache_params=cache_params,
            count=self._count,
        )

    def send(self, call: TraceCall) -> None:
        """Moves on to another call."""
        conversation = self._conversation
        begins = conversation.begins(call)
        stripped = conversation.last_turn(call) if self._strips else 0
        same = len(self._blocks)
        if begins != self._begins:
            self._begins, self._head, same = begins, conversation.head(call), 0
            self.tools = [at for at, block in enumerate(self._head) if block.section == "tools"]
        elif stripped != self._stripped:
            same = min(same, conversation.position(min(stripped, self._stripped)))
        self._stripped = stripped
        self._drop(same)
        self._count = len(self._head) + max(0, call.messages - conversation.leading)
        for position in range(len(self._blocks), self._count):
            self._add(self._block(position))
        for block in self._blocks[len(self._sizes) :]:
            text, other = self._sizes[-1] if self._sizes else (TextBytes(), 0)
            if not conversation.is_unrecorded(block):
                text = text.plus(block.kind, block.size.text)
                other += block.size.other
            self._sizes.append((text, other))

    def resize(self, message: int) -> None:
        """The sizes of the blocks from a message on have changed."""
        del self._sizes[self._conversation.position(message) :]

    def count(self, lengths: BilledLengths, per_token: tuple[float, ...]) -> None:
        """Counts tokens by the bills so far, and by bytes in between."""
        self._per_token = per_token
        self._points.update(lengths, self._keys, self._positions, self._count)

    def tokens(self, position: int) -> int:
        """The tokens up to the end of a block, so that every prefix with a known count has that
        count."""
        points, end = self._points, self._estimate(position)
        above = bisect_left(points.positions, end, hi=points.used, key=self._estimate)
        return self._between(above)(position)

    def all_tokens(self) -> Iterator[tuple[Hashable, int]]:
        """The key and the tokens of each prefix."""
        points, used, estimate = self._points.positions, self._points.used, self._estimate
        above, tokens, most = 0, self._between(0), estimate(points[0]) if used else 0
        for position in range(self._count):
            while above < used and estimate(position) > most:
                above += 1
                tokens = self._between(above)
                most = estimate(points[above]) if above < used else 0
            yield self._keys[position], tokens(position)

    def _between(self, above: int) -> Callable[[int], int]:
        """A function that counts tokens at positions after the known point before `above`, up to
        `above`."""
        points, counts, used = self._points.positions, self._points.counts, self._points.used
        estimate = self._estimate
        below, billed = (estimate(points[above - 1]), counts[above - 1]) if above else (0, 0)
        if above == used:
            return lambda position: billed + estimate(position) - below
        most = estimate(points[above])
        while above + 1 < used and estimate(points[above + 1]) == most:
            above += 1  # longer prefixes have newer bills
        known, span, grown = counts[above], most - below, counts[above] - billed
        if not span:
            return lambda _: known
        return lambda position: billed + (estimate(position) - below) * grown // span

    def nearest(self, tokens: int) -> int:
        """The first position whose count is nearest."""
        positions = range(self._count)
        at = bisect_left(positions, tokens, key=self.tokens)
        if at == self._count or (at and tokens - self.tokens(at - 1) <= self.tokens(at) - tokens):
            at = bisect_left(positions, self.tokens(at - 1), key=self.tokens)
        return at

    @property
    def recorded(self) -> tuple[TextBytes, int]:
        """The bytes of text in the blocks that are recorded, and their other tokens."""
        return self._sizes[self._count - 1] if self._count else (TextBytes(), 0)

    @property
    def recorded_tokens(self) -> int:
        """Their estimated tokens."""
        text, other = self.recorded
        return self._text_tokens(text) + other

    def _estimate(self, position: int) -> int:
        text, other = self._sizes[position]
        return self._text_tokens(text) + other + self._conversation.unrecorded_tokens(position)

    def _text_tokens(self, text: TextBytes) -> int:
        prose, json, results, thinking = self._per_token
        return math.ceil(
            text.prose / prose
            + text.json / json
            + text.results / results
            + text.thinking / thinking
        )

    def _block(self, position: int) -> TraceBlock:
        if position < len(self._head):
            return self._head[position]
        message = position - len(self._head) + self._conversation.leading
        block = self._conversation.messages[message]
        return block.stripped or block if message < self._stripped else block

    def _add(self, block: TraceBlock) -> None:
        position = len(self._keys)
        self._positions[self._played.add(block.identity, block)] = position

    def _drop(self, begin: int) -> None:
        """Forgets the blocks from a position on."""
        for key in self._keys[begin:]:
            del self._positions[key]
        del self._blocks[begin:], self._keys[begin:], self._sizes[begin:]
        self._points.drop(begin)


class _KnownPoints:
    """The prefixes of a prompt with known token counts. Longer prefixes have newer bills: if a
    shorter one has a higher count, the prompt has changed since, and that count is left out."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.counts: list[int] = []
        self.used = 0
        """How many of them are in the current prompt, which may be shorter than one before."""
        self._left_out: list[list[tuple[int, int]] | None] = []
        """By position: the points that its count made invalid; None if it has none."""
        self._invalidating: list[int] = []
        """The positions whose count made others invalid."""
        self._seen = 0
        """How many changes of the lengths were taken into account."""

    def update(
        self,
        lengths: BilledLengths,
        keys: Sequence[Hashable],
        positions: Mapping[Hashable, int],
        count: int,
    ) -> None:
        """Finds the known counts of the first `count` keys."""
        changes, first = lengths.changes, len(self._left_out)
        if len(changes) - self._seen > first:
            first = 0
        else:
            changed = (positions.get(key) for key in changes[self._seen :])
            first = min((at for at in changed if at is not None), default=first)
        self._seen = len(changes)
        self.drop(first)
        if self._invalidating and self._invalidating[-1] >= count:
            self.drop(count)
        for position in range(len(self._left_out), count):
            self._add(position, lengths.known(keys[position]))
        self.used = bisect_left(self.positions, count)

    def drop(self, begin: int) -> None:
        """Forgets the points from a position on."""
        while len(self._left_out) > begin:
            left_out = self._left_out.pop()
            if left_out is not None:
                self.positions.pop()
                self.counts.pop()
                for position, known in reversed(left_out):
                    self.positions.append(position)
                    self.counts.append(known)
        while self._invalidating and self._invalidating[-1] >= begin:
            self._invalidating.pop()

    def _add(self, position: int, known: int | None) -> None:
        if known is None:
            self._left_out.append(None)
            return
        left_out: list[tuple[int, int]] = []
        while self.counts and self.counts[-1] > known:
            left_out.append((self.positions.pop(), self.counts.pop()))
        self._left_out.append(left_out)
        if left_out:
            self._invalidating.append(position)
        self.positions.append(position)
        self.counts.append(known)
