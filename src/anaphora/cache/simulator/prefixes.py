"""Caches without markers: every prompt is kept, and the next one that begins alike reads it."""

from __future__ import annotations

import math

import msgspec

from anaphora.cache.sent_call import MadeCall, oldest_use, ttl_seconds
from anaphora.catalog import CacheRules
from anaphora.rendered import Kind

from .outcome import Outcome, Reason, Span, spans_of
from .prefix_tree import MOST_BLOCKS, Chain, PrefixMatch, PrefixTree, Reach
from .view import MOST_SAVED, KeyOf, PromptView, SavedCache


class PrefixLookup(msgspec.Struct, frozen=True):
    """The agreement with an earlier prompt, how much of it can be read, and why not more."""

    match: PrefixMatch
    position: int
    """The deepest position that can be read; -1 if none can."""
    reason: Reason
    detail: str = ""
    inside: int = 0
    """Bytes of the next block that can be read as well."""


class PrefixCache:
    """Prefixes in granules (`granules`), or whole units that were persisted before (`units`)."""

    def __init__(self, rules: CacheRules, most: int | None = None) -> None:
        self._rules = rules
        self._units = rules.automatic_breakpoint.value == "units"
        self.lifetime = ttl_seconds(rules)
        """Seconds after its last use in which a prompt can be read: by the rules, unless bills have
        shown another."""
        self._tree = PrefixTree(
            MOST_BLOCKS if most is None else most, keeps_texts=rules.caches_tokens
        )

    def __len__(self) -> int:
        return len(self._tree)

    def predict(self, prompt: PromptView, key_of: KeyOf, at: float) -> tuple[Outcome, PrefixLookup]:
        lookup = self._look_up(prompt, key_of, at)
        return self._outcome(prompt, lookup), lookup

    @staticmethod
    def sent_once(prompt: PromptView, lookup: PrefixLookup) -> bool:
        """Whether the prompt that is found was sent by one call, the first of its conversation,
        which may begin with the system prompt and tools of others."""
        chain = lookup.match.chain
        if chain is None or len(chain.reaches) != 1:
            return False
        return chain.parent is None or chain.begin <= prompt.leading + 1 < chain.end

    def lose(self, prompt: PromptView, lookup: PrefixLookup) -> tuple[Outcome, PrefixLookup]:
        """The outcome and lookup if the provider lost the prefix."""
        lost = PrefixLookup(lookup.match, -1, "lost")
        return self._outcome(prompt, lost), lost

    def commit(
        self, prompt: PromptView, key_of: KeyOf, lookup: PrefixLookup, made: MadeCall
    ) -> list[Reach]:
        match, end = lookup.match, len(prompt) - 1
        chain = self._tree.add(prompt, key_of, match, made.lives_from)
        written = self._write(chain, end, made.at, made.readable)
        if chain is not None:
            chain.replied = end
            chain.reply_cached = self._rules.reply_cached(made.reasoning)
        if chain is not None and self._units:
            chain.persist(end)
            if 0 <= match.position < end:
                # A beginning that two prompts share is noticed, and kept from then on.
                chain.persist(match.position)
        self._tree.purge(made.at, 2 * self.lifetime)
        return written

    def refresh(self, prompt: PromptView, key_of: KeyOf, _: PrefixLookup, at: float) -> None:
        """Restarts the lifetime of a prompt that was called."""
        end = len(prompt) - 1
        if end >= 0:
            self._tree.use(self._tree.chain_of(key_of(end)), end, at)

    @staticmethod
    def _write(chain: Chain | None, position: int, at: float, readable: float) -> list[Reach]:
        """Make a prompt that ends there readable; blocks that it shares with an unanswered call
        become readable with the first of the two."""
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
        replied = None if chain is None else chain.reply_cached and chain.replied == end
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
        chain.replied = end
        chain.reply_cached = self._rules.reply_cached(None) if cached is None else cached
        for position, readable in saved.times:
            if chain.begin <= position <= end:
                chain.add_reach(position, readable)
        for unit in saved.units:
            if unit <= end:
                chain.persist(unit)

    def _look_up(self, prompt: PromptView, key_of: KeyOf, at: float) -> PrefixLookup:
        match = self._tree.match(prompt, key_of)
        chain, position = match.chain, match.position
        since = oldest_use(self.lifetime, at)
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
        """The part of a readable prefix that the provider kept, with the reply if it is cached."""
        if chain.reply_cached and position == chain.end - 1 == chain.replied:
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
        return prefix_outcome(self._rules, total, shared, lookup.reason, lookup.detail)


def prefix_outcome(
    rules: CacheRules, total: int, shared: int, reason: Reason, detail: str = ""
) -> Outcome:
    """The outcome if the first `shared` of `total` tokens can be read, in whole granules. `reason`
    is why no more can be read."""
    # A self-hosted server always computes the last token: the output follows it.
    uncached_tail = 1 if rules.isolation.value == "server" else 0
    read = rules.whole_granules(min(shared, max(0, total - uncached_tail)))
    short: Reason = "not_whole_granule" if read else "below_minimum"
    return Outcome(
        spans_of(
            Span(0, read, "read", "found"),
            Span(read, shared, "uncached", short),
            Span(shared, total, "uncached", reason, None, detail),
        )
    )
