"""A call that extends the one before it, at a provider that caches token by token: what both read,
by arithmetic. The simulator finds the same, and this takes a tenth of the time."""

from __future__ import annotations

from anaphora.cache.sent_call import SentCall, shared_chunks
from anaphora.catalog import CacheRules
from anaphora.rendered import Plan
from anaphora.tokens import Bills, Counts

from .outcome import Outcome
from .prefixes import lifetime_of, prefix_outcome
from .view import MadeCall, is_from_model


def simulate_extension(
    rules: CacheRules, earlier: SentCall, later: SentCall, made: MadeCall, at: float, bills: Bills
) -> tuple[Outcome, Outcome] | None:
    """The earlier call in an empty cache, and the later one after it, sent at `at`; None where that
    takes a simulation: bytes or parameters have changed, or the earlier prompt cannot be read.
    """
    before, after = earlier.rendered, later.rendered
    chunks = len(before)
    if not chunks or not _is_unmarked(rules, earlier.marks, later.marks):
        return None
    if earlier.route != later.route or before.envelope.cache_params != after.envelope.cache_params:
        return None
    if made.lives_from < max(made.at, at - lifetime_of(rules)) or not made.readable < at:
        return None
    if shared_chunks(after, before) < chunks:
        return None
    wrote = prefix_outcome(rules, Counts(before, bills).total, 0, "new")
    read, count = chunks, len(after)
    if count > chunks and rules.reply_cached(made.reasoning):
        while read < count and is_from_model(*after.locate(read)):
            read += 1
    counts = Counts(after)
    return wrote, prefix_outcome(rules, counts.total, counts.tokens(read), "new")


def _is_unmarked(rules: CacheRules, before: Plan, after: Plan) -> bool:
    """Whether both calls use a cache of granules, without markers and handles."""
    if not rules.caches_tokens or before.key != after.key or before.held or after.held:
        return False
    if rules.mechanism.value == "implicit" or not rules.slots.value:
        return True
    marked = before.marks or after.marks or before.automatic or after.automatic
    return rules.mechanism.value == "both" and not marked
