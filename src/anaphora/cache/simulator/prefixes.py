"""All prompts that a provider has seen, as a tree of prefixes.

A conversation is a chain of blocks; another one that begins alike branches off where it differs. So
the deepest block that a prompt shares with any earlier one is found in a few steps, continuing a
chain costs what is new, and using a chain is noted once for all its blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Hashable

import msgspec

from .prompt import Prompt

#: Blocks that are remembered; the longest unused chains go first.
MOST = 500_000


class Chain:
    """Blocks that were said one after the other, from where it left another chain."""

    __slots__ = ("begin", "children", "keys", "marks", "parent", "times", "uses")

    def __init__(self, parent: Chain | None, begin: int) -> None:
        self.parent = parent
        self.begin = begin
        """Position of its first block; what stands before is the parent's."""
        self.keys: list[Hashable] = []
        self.children = 0
        self.times: list[tuple[int, float]] = []
        """The position that each call reached, and when what it left can be read."""
        self.uses: list[tuple[int, float]] = []
        """Positions that were used and when: the later, the less deep."""
        self.marks: list[int] = []
        """Positions where the provider keeps a whole unit, in order."""

    @property
    def end(self) -> int:
        return self.begin + len(self.keys)

    def use(self, position: int, at: float) -> None:
        """Everything up to a position was used."""
        while self.uses and self.uses[-1][0] <= position:
            self.uses.pop()
        self.uses.append((position, at))

    def used(self, position: int) -> float:
        """When a block was last used, as part of whatever went through it."""
        # Deep ones come first and are older: the last that is deep enough is the latest.
        low, high = 0, len(self.uses)
        while low < high:
            middle = (low + high) // 2
            if self.uses[middle][0] >= position:
                low = middle + 1
            else:
                high = middle
        return self.uses[low - 1][1] if low else float("-inf")

    def readable(self, position: int, at: float) -> int:
        """The deepest position up to this one that can be read by now; -1 where there is none."""
        best = -1
        for reached, when in reversed(self.times):
            if when < at:
                best = reached
                break
        if best < 0:
            return self.begin - 1
        return min(position, best)


class Match(msgspec.Struct, frozen=True):
    """How far a prompt agrees with what was seen before; position -1: not at all."""

    position: int
    chain: Chain | None


class Prefixes:
    def __init__(self, most: int = MOST) -> None:
        self._where: dict[Hashable, Chain] = {}
        self._recent: OrderedDict[Chain, None] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._where)

    def match(self, prompt: Prompt, salted: Callable[[int], Hashable]) -> Match:
        """The deepest block that was seen before. What is seen goes all the way to the beginning,
        so galloping back from the end finds it."""
        where = self._where
        high = len(prompt)  # not seen
        step = 1
        low = high - step
        while low >= 0 and salted(low) not in where:
            high, step = low, step * 2
            low = high - step
        if low < 0:
            if high == 0 or salted(0) not in where:
                return Match(-1, None)
            low = 0
        while high - low > 1:
            middle = (low + high) // 2
            if salted(middle) in where:
                low = middle
            else:
                high = middle
        return Match(low, where[salted(low)])

    def add(
        self,
        prompt: Prompt,
        salted: Callable[[int], Hashable],
        match: Match,
        at: float,
        readable: float,
    ) -> Chain | None:
        """Remembers a prompt that agrees with what is there up to the match."""
        if not len(prompt):
            return None
        chain, position = match.chain, match.position
        if chain is None or position + 1 < chain.end:
            if position + 1 == len(prompt):
                # Nothing new: a beginning of something longer.
                assert chain is not None
                self._use(chain, position, at)
                return chain
            child = Chain(chain, position + 1)
            if chain is not None:
                chain.children += 1
            chain = child
        for new in range(chain.end, len(prompt)):
            key = salted(new)
            chain.keys.append(key)
            self._where[key] = chain
        if not chain.times or chain.times[-1][0] < len(prompt) - 1:
            chain.times.append((len(prompt) - 1, readable))
            if len(chain.times) > 64:
                chain.times[:32] = [chain.times[31]]  # what is that old can be read
        self._use(chain, len(prompt) - 1, at)
        self._bound()
        return chain

    def purge(self, at: float, lifetime: float) -> None:
        """Forgets chains that nobody used for that long."""
        while self._recent:
            oldest = next(iter(self._recent))
            if oldest.uses and oldest.uses[-1][1] + lifetime >= at:
                return
            self._forget(oldest)

    def _use(self, chain: Chain | None, position: int, at: float) -> None:
        """Notes a use on the chain and on those it came from; they come behind it in the queue, so
        that a chain is forgotten before what it stands on."""
        while chain is not None:
            chain.use(position, at)
            self._recent[chain] = None
            self._recent.move_to_end(chain)
            position, chain = chain.begin - 1, chain.parent

    def _bound(self) -> None:
        while len(self._where) > self._most and len(self._recent) > 1:
            self._forget(next(iter(self._recent)))

    def _forget(self, chain: Chain) -> None:
        del self._recent[chain]
        for key in chain.keys:
            if self._where.get(key) is chain:
                del self._where[key]
        if chain.parent is not None:
            chain.parent.children -= 1


def mark(chain: Chain, position: int) -> None:
    """Notes that the provider keeps a unit that ends here."""
    while chain.parent is not None and position < chain.begin:
        chain = chain.parent
    at = bisect_left(chain.marks, position)
    if at == len(chain.marks) or chain.marks[at] != position:
        chain.marks.insert(at, position)


def unit_before(chain: Chain | None, position: int) -> int:
    """The deepest unit that ends at or before a position; -1 where there is none."""
    while chain is not None:
        at = bisect_left(chain.marks, position + 1)
        if at:
            return chain.marks[at - 1]
        position, chain = min(position, chain.begin - 1), chain.parent
    return -1
