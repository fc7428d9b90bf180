"""Caches without markers: every prompt is kept, and the next one with the same beginning reads it.

Prompts form a tree of chains. A prompt that begins like an earlier one and then differs branches
off. The deepest block that a prompt shares with any earlier one is found by galloping back from its
end, extending a chain costs what is new, and one use is recorded for all blocks of a chain.

Most of these caches work on tokens: a block that differs from every earlier one still shares the
tokens before the difference. So the bytes of recently used blocks are kept, and chains that branch
off at one place are sorted by their first block: the neighbours of a block in that order are those
that agree with it farthest.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Hashable

import msgspec

from anaphora.cache.prefix import common_bytes
from anaphora.catalog import CacheRules
from anaphora.rendered import Kind
from anaphora.values import TTL_SECONDS

from .outcome import Outcome, Reason, Span, spans_of
from .prompt import salt_of
from .saved import MOST_SAVED, SavedCache
from .view import KeyOf, MadeCall, PromptView

#: Blocks that are remembered; the least recently used chains are dropped first.
_MOST_BLOCKS = 500_000
#: Bytes of blocks that are kept for each of them, on average, and what an object takes.
_BYTES_A_BLOCK, _BYTES_OVERHEAD = 512, 40
#: Neighbours on either side that are tried, where the nearest are expired or not readable yet.
_MOST_NEIGHBOURS = 32


class Reach(msgspec.Struct):
    """The last position of a call, and from when it can be read."""

    position: int
    readable: float


class Chain:
    """Consecutive blocks, from where they branched off another chain."""

    __slots__ = ("begin", "keys", "parent", "reaches", "replied", "texts", "units", "uses")

    def __init__(self, parent: Chain | None, begin: int) -> None:
        self.parent = parent
        self.begin = begin
        """Position of the first block; earlier ones are the parent's."""
        self.keys: list[Hashable] = []
        self.texts: list[bytes] = []
        """The blocks themselves; empty where they are not kept."""
        self.reaches: list[Reach] = []
        """In the order of their positions, each once."""
        self.uses: list[tuple[int, float]] = []
        """Last positions and times of uses: the later, the less deep."""
        self.units: list[int] = []
        """Positions where the provider persisted a whole unit, in order."""
        self.replied = -1
        """The end of the last prompt whose reply is cached with it; -1 where none is."""

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
        where there is none."""
        index = bisect_left(self.uses, since, key=lambda use: use[1])
        return min(position, self.uses[index][0]) if index < len(self.uses) else self.begin - 1

    def finds(self, position: int, at: float, since: float) -> bool:
        """Whether a block was used since then and can be read by now."""
        return self.readable(self.used_since(position, since), at) == position

    def readable(self, position: int, at: float) -> int:
        """The deepest position up to this one that can be read by now; before the chain's begin
        where there is none."""
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

    def persist(self, position: int) -> None:
        """Records that the provider keeps a unit that ends here."""
        chain = self
        while chain.parent is not None and position < chain.begin:
            chain = chain.parent
        index = bisect_left(chain.units, position)
        if index == len(chain.units) or chain.units[index] != position:
            chain.units.insert(index, position)

    def unit_before(self, position: int) -> int:
        """The deepest unit that ends at or before a position; -1 where there is none."""
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
    def __init__(self, most: int = _MOST_BLOCKS, *, keeps_texts: bool = False) -> None:
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
        high = len(prompt)  # the first block known to be new
        step = 1
        low = high - step
        while low >= 0 and key_of(low) not in chains:
            high, step = low, step * 2
            low = high - step
        if low < 0:
            if high == 0 or key_of(0) not in chains:
                return PrefixMatch(-1, None)
            low = 0
        known = range(low + 1, high)
        low += bisect_left(known, True, key=lambda position: key_of(position) not in chains)
        return PrefixMatch(low, chains[key_of(low)])

    def add(self, prompt: PromptView, key_of: KeyOf, match: PrefixMatch, at: float) -> Chain | None:
        """Adds a prompt that agrees with the tree up to the match."""
        if not len(prompt):
            return None
        chain, position = match.chain, match.position
        if chain is None or position + 1 < chain.end:
            if position + 1 == len(prompt):  # the beginning of a longer prompt
                assert chain is not None
                self.use(chain, position, at)
                return chain
            chain = Chain(chain, position + 1)
        first = chain.end
        for new in range(first, len(prompt)):
            key = key_of(new)
            chain.keys.append(key)
            self._chains[key] = chain
        if self._keeps_texts:
            self._keep_texts(chain, prompt, first)
        self.use(chain, len(prompt) - 1, at)
        while len(self._chains) > self._most and len(self._recent) > 1:
            self._forget(next(iter(self._recent)))
        while self._bytes > self._most * _BYTES_A_BLOCK and len(self._texts) > 1:
            self._drop_texts(next(iter(self._texts)))
        return chain

    def common_bytes(
        self, prompt: PromptView, key_of: KeyOf, match: PrefixMatch, at: float, since: float
    ) -> int:
        """How many bytes of the block after the match an earlier prompt has there too: one that was
        used since then and can be read by now."""
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
                    most = max(most, common_bytes(data, other.texts[index]))
                    break
        return most

    def chain_of(self, key: Hashable) -> Chain | None:
        return self._chains.get(key)

    def purge(self, at: float, lifetime: float) -> None:
        """Forgets chains that were not used for that long."""
        while self._recent:
            oldest = next(iter(self._recent))
            if oldest.uses and oldest.uses[-1][1] + lifetime >= at:
                return
            self._forget(oldest)

    def use(self, chain: Chain | None, position: int, at: float) -> None:
        """Records a use of a chain and its parents. Parents move behind it in the queue, so that a
        chain is forgotten before its parent."""
        while chain is not None:
            if chain.last_used(position) < at:  # not so where a call of another process is restored
                chain.use(position, at)
            self._recent[chain] = None
            self._recent.move_to_end(chain)
            if chain in self._texts:
                self._texts.move_to_end(chain)
            position, chain = chain.begin - 1, chain.parent

    def _keep_texts(self, chain: Chain, prompt: PromptView, first: int) -> None:
        """Keeps the blocks from `first` on; earlier ones of the chain may have been dropped."""
        new = [prompt.data(position) for position in range(first, len(prompt))]
        chain.texts += new
        if not any(new):
            return
        size = sum(map(len, new)) + _BYTES_OVERHEAD * len(new)
        self._texts[chain] = self._texts.get(chain, 0) + size
        self._bytes += size
        if first == chain.begin and new[0]:
            key = chain.parent, first, salt_of(chain.keys[0])
            insort(self._branches.setdefault(key, []), chain, key=_first_text)

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


class PrefixLookup(msgspec.Struct, frozen=True):
    """How far an earlier prompt agrees, how much of that can be read, and why not more."""

    match: PrefixMatch
    position: int
    """The deepest position that can be read; -1 where none can."""
    reason: Reason
    detail: str = ""
    inside: int = 0
    """Bytes of the next block that can be read as well."""


class PrefixCache:
    """Prefixes in granules (`granules`), or whole units that were persisted before (`units`)."""

    def __init__(self, rules: CacheRules, most: int | None = None) -> None:
        self._rules = rules
        self._units = rules.automatic_breakpoint.value == "units"
        # A self-hosted server always computes the last token: the output follows it.
        self._uncached_tail = 1 if rules.isolation.value == "server" else 0
        ttl, ttls = rules.default_ttl, rules.ttls.value
        self._lifetime = TTL_SECONDS[ttl.value if ttl is not None else ttls[0]] if ttls else 0
        self._tree = PrefixTree(
            _MOST_BLOCKS if most is None else most, keeps_texts=rules.caches_tokens
        )

    def __len__(self) -> int:
        return len(self._tree)

    def predict(self, prompt: PromptView, key_of: KeyOf, at: float) -> tuple[Outcome, PrefixLookup]:
        lookup = self._look_up(prompt, key_of, at)
        return self._outcome(prompt, lookup), lookup

    def lose(self, prompt: PromptView, lookup: PrefixLookup) -> tuple[Outcome, PrefixLookup]:
        """The same when the provider lost the prefix."""
        lost = PrefixLookup(lookup.match, -1, "lost")
        return self._outcome(prompt, lost), lost

    def commit(
        self, prompt: PromptView, key_of: KeyOf, lookup: PrefixLookup, made: MadeCall
    ) -> list[Reach]:
        match = lookup.match
        chain = self._tree.add(prompt, key_of, match, made.lives_from)
        written = self._write(chain, len(prompt) - 1, made.at, made.readable)
        if chain is not None:
            chain.replied = len(prompt) - 1 if self._rules.reply_cached(made.reasoning) else -1
        if chain is not None and self._units:
            chain.persist(len(prompt) - 1)
            if 0 <= match.position < len(prompt) - 1:
                # A beginning that two prompts share is noticed, and kept from then on.
                chain.persist(match.position)
        self._tree.purge(made.at, 2 * self._lifetime)
        return written

    def refresh(self, prompt: PromptView, key_of: KeyOf, _: PrefixLookup, at: float) -> None:
        """Restarts the lifetime of a prompt that was called."""
        if len(prompt):
            self._tree.use(self._tree.chain_of(key_of(len(prompt) - 1)), len(prompt) - 1, at)

    @staticmethod
    def _write(chain: Chain | None, position: int, at: float, readable: float) -> list[Reach]:
        """Makes a prompt readable that ends there; what it shares with a call that has not been
        answered becomes readable with the first of the two."""
        written = []
        while chain is not None:
            if chain.readable(position, at) < position:
                written.append(chain.add_reach(position, readable))
            position, chain = chain.begin - 1, chain.parent
        return written

    def save(self, prompt: PromptView, key_of: KeyOf, saved: SavedCache) -> SavedCache:
        """When this prompt was used and can be read, and the units that the provider persisted."""
        end = len(prompt) - 1
        chain = self._tree.chain_of(key_of(end)) if end >= 0 else None
        used = 0.0 if chain is None else chain.last_used(end)
        replied = None if chain is None else chain.replied == end
        times: list[tuple[int, float]] = []
        units: list[int] = []
        while chain is not None and len(times) + len(units) < MOST_SAVED:
            times += [
                (min(reach.position, end), reach.readable)
                for reach in reversed(chain.reaches)
                if reach.readable < math.inf
            ]
            units += [unit for unit in reversed(chain.units) if unit <= end]
            end, chain = min(end, chain.begin - 1), chain.parent
        return msgspec.structs.replace(
            saved,
            used=used,
            times=tuple(reversed(times[:MOST_SAVED])),
            units=tuple(reversed(units[:MOST_SAVED])),
            reply_cached=replied,
        )

    def restore(self, prompt: PromptView, key_of: KeyOf, saved: SavedCache) -> None:
        end = len(prompt) - 1
        if end < 0 or not saved.times or self._tree.chain_of(key_of(end)) is not None:
            return
        match = self._tree.match(prompt, key_of)
        chain = self._tree.add(prompt, key_of, match, saved.used)
        assert chain is not None
        cached = saved.reply_cached
        if self._rules.reply_cached(None) if cached is None else cached:
            chain.replied = end
        for position, readable in saved.times:
            if chain.begin <= position <= end:
                chain.add_reach(position, readable)
        for unit in saved.units:
            if unit <= end:
                chain.persist(unit)

    def _look_up(self, prompt: PromptView, key_of: KeyOf, at: float) -> PrefixLookup:
        match = self._tree.match(prompt, key_of)
        chain, position = match.chain, match.position
        since = at - self._lifetime
        reason: Reason = "new"
        detail = ""
        while chain is not None:
            alive = chain.used_since(position, since)
            if alive < position:
                age = since - chain.last_used(position)
                reason, detail = "expired", f"{age:.0f} s ago"
            readable = chain.readable(alive, at)
            if readable < alive:
                reason, detail = "not_readable_yet", ""
            position = readable
            if readable >= chain.begin:
                break
            chain = chain.parent
        if chain is None and reason == "expired":
            match = PrefixMatch(-1, None)
        if chain is not None:
            kept = self._kept(prompt, chain, position)
            if kept != position:
                return PrefixLookup(match, kept, "not_persisted" if kept < position else "new")
        found = PrefixMatch(position, chain)
        inside = self._tree.common_bytes(prompt, key_of, found, at, since)
        return PrefixLookup(match, position, reason, detail, inside)

    def _kept(self, prompt: PromptView, chain: Chain, position: int) -> int:
        """What the provider kept of a readable prefix, with the reply where it is cached."""
        if position == chain.end - 1 == chain.replied:
            replied = position
            while replied + 1 < len(prompt) and prompt.from_model(replied + 1):
                replied += 1
            # Only inside a tool loop is a reply sent back with its reasoning, so that the next
            # prompt continues where the reply's unit ended.
            loop = prompt.kind(position) is Kind.TOOL_RESULT or (
                replied + 1 < len(prompt) and prompt.kind(replied + 1) is Kind.TOOL_RESULT
            )
            if replied > position and (loop or not self._units):
                return replied
        return chain.unit_before(position) if self._units else position

    def _outcome(self, prompt: PromptView, lookup: PrefixLookup) -> Outcome:
        total = prompt.total if len(prompt) else 0
        shared = prompt.tokens(lookup.position)
        if lookup.inside:
            shared = prompt.tokens_within(lookup.position + 1, lookup.inside)
        read = self._rules.whole_granules(min(shared, max(0, total - self._uncached_tail)))
        short: Reason = "not_whole_granule" if read else "below_minimum"
        return Outcome(
            spans_of(
                Span(0, read, "read", "found"),
                Span(read, shared, "uncached", short),
                Span(shared, total, "uncached", lookup.reason, None, lookup.detail),
            )
        )
