"""What should have been read: by the rules, from the call before and nothing else."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from anaphora.cache.simulator import Outcome, RenderedPrompt, Simulator, SlotPredictor
from anaphora.catalog import CacheRules
from anaphora.rendered import Rendered
from anaphora.tokens import Bills, Counts
from anaphora.values import Usage

from .comparing import extent
from .rules import explicit
from .values import Sent

#: Between two calls whose times nobody knows: long enough to be visible, too short to expire.
_SOON = 60.0


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    left: int
    """Tokens that the call before left to be read."""
    read: int
    """Tokens that this one reads by the rules."""
    outcome: Outcome
    """What this one is billed, by the rules."""
    exact: bool
    """Markers say to the token what is kept; otherwise it is about that much."""


def predict(
    earlier: Sent, later: Sent, rules: CacheRules, outcome: Outcome | None = None
) -> Prediction:
    """`outcome` is the prediction of a simulator that has seen more than these two calls. The later
    prompt carries the bill of the earlier one (`billed`)."""
    simulator = Simulator(rules)
    start = earlier.at if earlier.at is not None else 0.0
    then = later.at if earlier.at is not None and later.at is not None else start + _SOON
    wrote = simulator.call(
        RenderedPrompt(replace(earlier.rendered, bills=later.rendered.bills), earlier.marks),
        at=start,
        began=earlier.began,
        scope=earlier.route,
    )
    known = outcome is not None
    if outcome is None:
        prompt = RenderedPrompt(later.rendered, later.marks)
        outcome = simulator.predict(prompt, at=max(start, then), scope=later.route)
    following = simulator.slot_predictor()
    if following is not None and earlier.usage is not None:
        following.billed(earlier.rendered, wrote, earlier.usage)
        expected = foresee_followed(following, later.rendered, outcome)
    else:
        expected = foresee(wrote, earlier.usage, outcome, rules)
    return replace(expected, read=outcome.read) if known else expected


def foresee(wrote: Outcome, usage: Usage | None, outcome: Outcome, rules: CacheRules) -> Prediction:
    """The same from what a simulator said of the call before and of this one, which carries the
    bill of that: `usage`."""
    estimated = wrote.kept
    missed = bool(estimated) and usage is not None and usage.read == 0
    if (not estimated or (missed and not rules.slots.value)) and not explicit(rules):
        # Whatever a call reads, all of it is kept where the provider caches by itself.
        total = wrote.total if usage is None or not usage.input else usage.input
        granule = rules.granule_tokens.value
        kept = total // granule * granule
        left = kept if kept >= max(1, rules.minimum_tokens.value) else 0
    elif usage is not None and usage.read is not None:
        left = usage.read + (usage.written_total or 0)
    else:
        left = estimated
    return Prediction(left=left, read=outcome.read, outcome=outcome, exact=estimated > 0)


def foresee_followed(following: SlotPredictor, later: Rendered, outcome: Outcome) -> Prediction:
    """The same on a server of one's own, which keeps the answers, too."""
    before, read = following.before, following.read(later, outcome)
    if before is None:
        return Prediction(left=0, read=read, outcome=outcome, exact=False)
    # What a template writes otherwise than it was said was not left to be read.
    left = min(before.input, read) if following.continues(later, outcome) else before.input
    return Prediction(left=left, read=read, outcome=outcome, exact=False)


def billed(
    sent: Sent, rules: CacheRules, kept: int | None = None, counts: Counts | None = None
) -> Bills:
    """The bills that the next prompt carries, once this one's is known. `kept` is what a simulator
    says that it left in the cache; `counts` are the prompt's, where there are some."""
    usage = sent.usage
    total = None if usage is None else usage.input
    if usage is None or not total:
        return sent.rendered.bills
    counts = Counts(sent.rendered) if counts is None else counts
    if not rules.slots.value:
        return counts.billed(total)
    chunks = extent(sent)
    if kept is not None and counts.tokens(chunks) != kept:
        return counts.billed(total)
    return counts.billed(total, (chunks, total - (usage.uncached or 0)))
