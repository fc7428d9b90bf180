"""What should have been read: by the rules, from the call before and nothing else."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from anaphora.cache.simulator import Following, Outcome, RenderedPrompt, Simulator
from anaphora.catalog import CacheRules
from anaphora.rendered import Rendered
from anaphora.values import Usage

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
    scale: float
    """Billed tokens for each that was estimated."""


def predict(
    earlier: Sent, later: Sent, rules: CacheRules, outcome: Outcome | None = None
) -> Prediction:
    """`outcome` is the prediction of a simulator that has seen more than these two calls."""
    simulator = Simulator(rules)
    start = earlier.at if earlier.at is not None else 0.0
    then = later.at if earlier.at is not None and later.at is not None else start + _SOON
    wrote = simulator.call(
        RenderedPrompt(earlier.rendered, earlier.marks),
        at=start,
        began=earlier.began,
        scope=earlier.route,
    )
    known = outcome is not None
    if outcome is None:
        prompt = RenderedPrompt(later.rendered, later.marks)
        outcome = simulator.predict(prompt, at=max(start, then), scope=later.route)
    following = simulator.following()
    if following is not None and earlier.usage is not None:
        following.billed(earlier.rendered, wrote, earlier.usage)
        expected = foresee_followed(following, later.rendered, outcome)
    else:
        expected = foresee(wrote, earlier.usage, outcome, rules)
    return replace(expected, read=outcome.read) if known else expected


def foresee(wrote: Outcome, usage: Usage | None, outcome: Outcome, rules: CacheRules) -> Prediction:
    """The same from what a simulator said of the call before and of this one, in the provider's
    tokens: `usage` is what the call before was billed."""
    estimated = wrote.kept
    total = wrote.total
    billed = usage.input if usage is not None else None
    scale = billed / total if billed and total else 1.0
    missed = bool(estimated) and usage is not None and usage.read == 0
    if (not estimated or (missed and not rules.slots.value)) and not explicit(rules):
        # Whatever a call reads, all of it is kept where the provider caches by itself.
        granule = rules.granule_tokens.value
        kept = round(total * scale) // granule * granule
        left = kept if kept >= max(1, rules.minimum_tokens.value) else 0
    elif usage is not None and usage.read is not None:
        left = usage.read + (usage.written_total or 0)
    else:
        left = estimated
    read = _scaled(outcome.read, estimated, left, scale)
    return Prediction(left=left, read=read, outcome=outcome, exact=estimated > 0, scale=scale)


def foresee_followed(following: Following, later: Rendered, outcome: Outcome) -> Prediction:
    """The same on a server of one's own, which keeps the answers, too."""
    before, read = following.before, following.read(later, outcome)
    if before is None:
        return Prediction(left=0, read=read, outcome=outcome, exact=False, scale=1.0)
    # What a template writes otherwise than it was said was not left to be read.
    left = min(before.input, read) if following.goes_on(outcome) else before.input
    scale = before.input / max(1, before.total)
    return Prediction(left=left, read=read, outcome=outcome, exact=False, scale=scale)


def _scaled(read: int, estimated: int, left: int, scale: float) -> int:
    """In the provider's tokens; what is all of it by the estimate is all of it."""
    return left if estimated and read == estimated else round(read * scale)


def tokens_before(rendered: Rendered, offset: int, scale: float) -> int:
    return round(rendered.tokens_in(offset) * scale)
