"""Caches without markers: every prompt is kept, and the next one with the same beginning reads it.

Prompts form a tree of chains. A prompt that begins like an earlier one and then differs branches
off. The deepest block that a prompt shares with any earlier one is found by galloping back from its
end, extending a chain costs what is new, and one use is recorded for all blocks of a chain.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable

import msgspec

from anaphora.catalog import CacheRules
from anaphora.rendered import Kind
from anaphora.values import TTL_SECONDS

from .outcome import Outcome, Reason, Span, spans_of
from .saved import MOST_SAVED, SavedCache
from .view import KeyOf, MadeCall, PromptView

#: Blocks that are remembered; the least recently used chains are dropped first.
_MOST_BLOCKS = 500_000


class Reach(msgspec.Struct):
    """The last position of a call, and from when it can be read."""

    position: int
    readable: float


class Chain:
    """Consecutive blocks, from where they branched off another chain."""

    __slots__ = ("begin", "keys", "parent", "reaches", "replied", "units", "uses")

    def __init__(self, parent: Chain | None, begin: int) -> None:
        self.parent = parent
        self.begin = begin
        """Position of the first block; earlier ones are the parent's."""
        self.keys: list[Hashable] = []
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
    def __init__(self, most: int = _MOST_BLOCKS) -> None:
        self._chains: dict[Hashable, Chain] = {}
        self._recent: OrderedDict[Chain, None] = OrderedDict()
        self._most = most

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
        for new in range(chain.end, len(prompt)):
            key = key_of(new)
            chain.keys.append(key)
            self._chains[key] = chain
        self.use(chain, len(prompt) - 1, at)
        while len(self._chains) > self._most and len(self._recent) > 1:
            self._forget(next(iter(self._recent)))
        return chain

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
            position, chain = chain.begin - 1, chain.parent

    def _forget(self, chain: Chain) -> None:
        del self._recent[chain]
        for key in chain.keys:
            if self._chains.get(key) is chain:
                del self._chains[key]


class PrefixLookup(msgspec.Struct, frozen=True):
    """How far an earlier prompt agrees, how much of that can be read, and why not more."""

    match: PrefixMatch
    position: int
    """The deepest position that can be read; -1 where none can."""
    reason: Reason
    detail: str = ""


class PrefixCache:
    """Prefixes in granules (`granules`), or whole units that were persisted before (`units`)."""

    def __init__(self, rules: CacheRules, most: int | None = None) -> None:
        self._rules = rules
        self._units = rules.automatic_breakpoint.value == "units"
        # A self-hosted server always computes the last token: the output follows it.
        self._uncached_tail = 1 if rules.isolation.value == "server" else 0
        ttl, ttls = rules.default_ttl, rules.ttls.value
        self._lifetime = TTL_SECONDS[ttl.value if ttl is not None else ttls[0]] if ttls else 0
        self._tree = PrefixTree(_MOST_BLOCKS if most is None else most)

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
        reason: Reason = "new"
        detail = ""
        while chain is not None and position >= 0:
            age = at - chain.last_used(position)
            if age > self._lifetime:
                reason, detail = "expired", f"{age - self._lifetime:.0f} s ago"
            else:
                readable = chain.readable(position, at)
                if readable >= chain.begin:
                    kept = self._kept(prompt, chain, readable)
                    return PrefixLookup(match, kept, "not_persisted" if kept < readable else "new")
                reason = "not_readable_yet"
            position, chain = chain.begin - 1, chain.parent
        if reason == "expired":
            match = PrefixMatch(-1, None)
        return PrefixLookup(match, -1, reason, detail)

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
        granule = self._rules.granule_tokens.value
        read = min(shared, max(0, total - self._uncached_tail)) // granule * granule
        if read < max(1, self._rules.minimum_tokens.value):
            read = 0
        short: Reason = "not_whole_granule" if read else "below_minimum"
        return Outcome(
            spans_of(
                Span(0, read, "read", "found"),
                Span(read, shared, "uncached", short),
                Span(shared, total, "uncached", lookup.reason, None, lookup.detail),
            )
        )
