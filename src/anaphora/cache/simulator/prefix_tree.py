"""The prompts of a cache without markers, as a tree of chains.

A prompt that begins like an earlier one and then differs branches off. The deepest block that a
prompt shares with any earlier one is found by galloping back from its end, extending a chain takes
time only for new blocks, and one use is recorded for all blocks of a chain.

If the cache works on tokens, a block that differs from every earlier one still shares the tokens
before the difference. So the bytes of recently used blocks are kept, and chains that branch off at
one place are sorted by their first block: the neighbours of a block in that order have the longest
common beginning with it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Hashable

import msgspec

from anaphora.cache.prefix_difference import common_length
from anaphora.cache.sent_call import expiry, is_alive

from .prompt import deepest_known
from .view import KeyOf, PromptView, salt_of

#: Blocks that are remembered; the least recently used chains are dropped first.
MOST_BLOCKS = 500_000
#: Bytes of blocks that are kept for each of them, on average, and the size of an object.
_BYTES_A_BLOCK, _BYTES_OVERHEAD = 512, 40
#: Neighbours on either side that are tried, if the nearest are expired or not readable yet.
_MOST_NEIGHBOURS = 32


class Reach(msgspec.Struct):
    """The last position of a call, and from when it can be read."""

    position: int
    readable: float


class Chain:
    """Consecutive blocks, from their fork off another chain on."""

    __slots__ = (
        "begin",
        "branched",
        "keys",
        "parent",
        "reaches",
        "replied",
        "reply_cached",
        "texts",
        "units",
        "uses",
    )

    def __init__(self, parent: Chain | None, begin: int) -> None:
        self.parent = parent
        self.begin = begin
        """Position of the first block; earlier ones are the parent's."""
        self.branched = begin
        """The deepest position at which another chain branched off."""
        self.keys: list[Hashable] = []
        self.texts: list[bytes] = []
        """The blocks themselves; empty if they are not kept."""
        self.reaches: list[Reach] = []
        """In the order of their positions, each once."""
        self.uses: list[tuple[int, float]] = []
        """Last positions and times of uses: the later, the less deep."""
        self.units: list[int] = []
        """Positions at which the provider persisted a whole unit, in order."""
        self.replied = -1
        """The end of the last prompt that was answered; -1 if none was."""
        self.reply_cached = False
        """Whether the reply to that prompt is cached with it, by the rules."""

    @property
    def end(self) -> int:
        return self.begin + len(self.keys)

    def use(self, position: int, at: float) -> None:
        while self.uses and self.uses[-1][0] <= position:
            self.uses.pop()
        self.uses.append((position, at))

    def last_used(self, position: int) -> float:
        """When a block was last used. Deep uses come first and are older."""
        index = bisect_right(self.uses, -position, key=lambda use: -use[0])
        return self.uses[index - 1][1] if index else float("-inf")

    def used_since(self, position: int, since: float) -> int:
        """The deepest position up to this one that was used since then; before the chain's begin
        if there is none."""
        index = bisect_left(self.uses, since, key=lambda use: use[1])
        return min(position, self.uses[index][0]) if index < len(self.uses) else self.begin - 1

    def finds(self, position: int, at: float, since: float) -> bool:
        """Whether a block was used since then and can be read by now."""
        return self.readable(self.used_since(position, since), at) == position

    def readable(self, position: int, at: float) -> int:
        """The deepest position up to this one that can be read by now; before the chain's begin
        if there is none."""
        for reach in reversed(self.reaches):
            if reach.readable < at:
                return min(position, reach.position)
        return self.begin - 1

    def add_reach(self, position: int, readable: float) -> Reach:
        """Records that a call up to this position can be read from then on."""
        index = bisect_left(self.reaches, position, key=lambda reach: reach.position)
        if index < len(self.reaches) and self.reaches[index].position == position:
            reach = self.reaches[index]
            reach.readable = min(reach.readable, readable)
            return reach
        reach = Reach(position, readable)
        self.reaches.insert(index, reach)
        if len(self.reaches) > 64:
            self.reaches[:32] = [self.reaches[31]]  # readable for long
        return reach

    def cut(self, end: int) -> Chain:
        """Move the blocks from `end` on to a new chain, which branches off there. Its calls have
        also used and written the blocks that stay."""
        rest, kept = Chain(self, end), end - self.begin
        rest.keys, rest.texts = self.keys[kept:], self.texts[kept:]
        del self.keys[kept:], self.texts[kept:]
        first = bisect_left(self.units, end)
        rest.units = self.units[first:]
        del self.units[first:]
        rest.uses = [use for use in self.uses if use[0] >= end]
        del self.uses[: len(rest.uses)]
        first = bisect_left(self.reaches, end, key=lambda reach: reach.position)
        rest.reaches = self.reaches[first:]
        del self.reaches[first:]
        if not self.uses or self.uses[0][0] < end - 1:
            self.uses.insert(0, (end - 1, rest.uses[-1][1]))
        if rest.reaches:
            self.add_reach(end - 1, min(reach.readable for reach in rest.reaches))
        if self.replied >= end:
            rest.replied, self.replied = self.replied, -1
            rest.reply_cached = self.reply_cached
        return rest

    def persist(self, position: int) -> None:
        """Records that the provider keeps a unit that ends here."""
        chain = self
        while chain.parent is not None and position < chain.begin:
            chain = chain.parent
        index = bisect_left(chain.units, position)
        if index == len(chain.units) or chain.units[index] != position:
            chain.units.insert(index, position)

    def unit_before(self, position: int) -> int:
        """The deepest unit that ends at or before a position; -1 if there is none."""
        chain: Chain | None = self
        while chain is not None:
            index = bisect_left(chain.units, position + 1)
            if index:
                return chain.units[index - 1]
            position, chain = min(position, chain.begin - 1), chain.parent
        return -1


class PrefixMatch(msgspec.Struct, frozen=True):
    """How far a prompt agrees with earlier ones; position -1: not at all."""

    position: int
    chain: Chain | None


class PrefixTree:
    def __init__(self, most: int = MOST_BLOCKS, *, keeps_texts: bool = False) -> None:
        """`keeps_texts`: to find out how far two different blocks agree (`common_bytes`)."""
        self._chains: dict[Hashable, Chain] = {}
        self._recent: OrderedDict[Chain, None] = OrderedDict()
        self._most = most
        self._keeps_texts = keeps_texts
        self._texts: OrderedDict[Chain, int] = OrderedDict()
        """The chains whose blocks are kept, and their bytes; least recently used first."""
        self._bytes = 0
        self._branches: dict[tuple[Chain | None, int, Hashable], list[Chain]] = {}
        """The chains that begin at one place under the same parameters, sorted by their first
        block: the parent, the position, and the salt of the key."""

    def __len__(self) -> int:
        return len(self._chains)

    def match(self, prompt: PromptView, key_of: KeyOf) -> PrefixMatch:
        """The deepest block that an earlier prompt had."""
        chains = self._chains
        position = deepest_known(len(prompt), lambda position: key_of(position) in chains)
        return PrefixMatch(position, None if position < 0 else chains[key_of(position)])

    def add(self, prompt: PromptView, key_of: KeyOf, match: PrefixMatch, at: float) -> Chain | None:
        """Adds a prompt that agrees with the tree up to the match."""
        count = len(prompt)
        if not count:
            return None
        chain, position = match.chain, match.position
        if chain is None or position + 1 < chain.end:
            if position + 1 == count:  # the beginning of a longer prompt
                assert chain is not None
                self.use(chain, position, at)
                return chain
            chain = self._branch(chain, position + 1, count)
        first = chain.end
        if first < count:
            keys = [key_of(new) for new in range(first, count)]
            chain.keys += keys
            self._chains.update(dict.fromkeys(keys, chain))
            if self._keeps_texts:
                self._keep_texts(chain, prompt, first)
        self.use(chain, count - 1, at)
        while len(self._chains) > self._most and len(self._recent) > 1:
            self._forget(next(iter(self._recent)))
        while self._bytes > self._most * _BYTES_A_BLOCK and len(self._texts) > 1:
            self._drop_texts(next(iter(self._texts)))
        return chain

    def common_bytes(
        self, prompt: PromptView, key_of: KeyOf, match: PrefixMatch, at: float, since: float
    ) -> int:
        """How many bytes of the block after the match agree with an earlier prompt that was used
        since then and can be read by now."""
        chain, position = match.chain, match.position + 1
        if not self._keeps_texts or position >= len(prompt):
            return 0
        salt = salt_of(key_of(position))
        branches = self._branches.get((chain, position, salt), [])
        continued = chain if chain is not None and position < chain.end else None
        if continued is None and not branches:
            return 0
        data = prompt.data(position)
        place = bisect_left(branches, data, key=_first_text)
        before = reversed(branches[max(0, place - _MOST_NEIGHBOURS) : place])
        behind = branches[place : place + _MOST_NEIGHBOURS]
        most = 0
        for others in ([] if continued is None else [continued], before, behind):
            # The farther away in this order, the less is the same.
            for other in others:
                index = position - other.begin
                if salt_of(other.keys[index]) == salt and other.finds(position, at, since):
                    most = max(most, common_length(data, other.texts[index]))
                    break
        return most

    def chain_of(self, key: Hashable) -> Chain | None:
        return self._chains.get(key)

    def purge(self, at: float, lifetime: float) -> None:
        """Forgets chains that were not used for that long."""
        while self._recent:
            oldest = next(iter(self._recent))
            if oldest.uses and is_alive(expiry(oldest.uses[-1][1], lifetime), at):
                return
            self._forget(oldest)

    def use(self, chain: Chain | None, position: int, at: float) -> None:
        """Records a use of a chain and its parents. Parents move behind it in the queue, so that a
        chain is forgotten before its parent."""
        while chain is not None:
            if chain.last_used(position) < at:  # not so if a call of another process is restored
                chain.use(position, at)
            self._recent[chain] = None
            self._recent.move_to_end(chain)
            if chain in self._texts:
                self._texts.move_to_end(chain)
            position, chain = chain.begin - 1, chain.parent

    def _branch(self, parent: Chain | None, begin: int, end: int) -> Chain:
        """The chain that blocks from `begin` up to `end` are added to. It is the parent itself
        if fewer blocks are left behind than added: so a conversation whose last block is
        replaced at every turn stays one chain, with a branch for each block that was replaced."""
        if parent is None:
            return Chain(parent, begin)
        shorter = parent.end - begin < end - begin and parent.branched <= begin
        parent.branched = max(parent.branched, begin)
        if not shorter or any(reach.readable == math.inf for reach in parent.reaches):
            return Chain(parent, begin)
        rest = parent.cut(begin)
        self._chains.update(dict.fromkeys(rest.keys, rest))
        self._recent[rest] = None
        if parent in self._texts and any(rest.texts):
            size = _size(rest.texts)
            self._texts[parent] -= size
            self._texts[rest] = size
            self._sort_in(rest)
        return parent

    def _sort_in(self, chain: Chain) -> None:
        """Adds a chain to those that branch off at the same place."""
        if chain.texts[0]:
            key = chain.parent, chain.begin, salt_of(chain.keys[0])
            insort(self._branches.setdefault(key, []), chain, key=_first_text)

    def _keep_texts(self, chain: Chain, prompt: PromptView, first: int) -> None:
        """Keeps the blocks from `first` on; earlier ones of the chain may have been dropped."""
        new = prompt.texts(first)
        chain.texts += new
        if not any(new):
            return
        size = _size(new)
        self._texts[chain] = self._texts.get(chain, 0) + size
        self._bytes += size
        if first == chain.begin:
            self._sort_in(chain)

    def _drop_texts(self, chain: Chain) -> None:
        self._bytes -= self._texts.pop(chain)
        key = chain.parent, chain.begin, salt_of(chain.keys[0])
        branches = self._branches.get(key, [])
        for place in range(bisect_left(branches, chain.texts[0], key=_first_text), len(branches)):
            if branches[place] is chain:
                del branches[place]
                break
            if branches[place].texts[0] != chain.texts[0]:
                break
        if not branches:
            self._branches.pop(key, None)
        chain.texts = [b""] * len(chain.keys)

    def _forget(self, chain: Chain) -> None:
        if chain in self._texts:
            self._drop_texts(chain)
        del self._recent[chain]
        for key in chain.keys:
            if self._chains.get(key) is chain:
                del self._chains[key]


def _first_text(chain: Chain) -> bytes:
    return chain.texts[0]


def _size(texts: list[bytes]) -> int:
    """The size of blocks; 0 if they are not kept."""
    kept = list(filter(None, texts))
    return sum(map(len, kept)) + _BYTES_OVERHEAD * len(kept)
