"""Tokens that a call did not read though they were cached: what explains them, and their cost."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

from msgspec.structs import replace

from anaphora.cache.sent_call import SentCall
from anaphora.cache.simulator.outcome import Prediction
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.catalog.prices import EXACT
from anaphora.tokens import Counts
from anaphora.values import TTL_SECONDS, Usage

from .causes import TOKEN_ERROR, find_causes, remaining
from .changes import find_change
from .prediction import reusable_tokens
from .values import CHANGED, PARAMETERS, Cause, Change, Result

#: Causes with which it is known what could still be read.
_SIMULATED = CHANGED | PARAMETERS | {"marker_on_trailing_system", "other_route"}


class Loss(NamedTuple):
    """What was not read, and why."""

    result: Result
    causes: tuple[Cause, ...] = ()
    change: Change | None = None
    tokens: int = 0


def explain_loss(
    earlier: SentCall,
    later: SentCall,
    rules: CacheRules,
    profile: Profile | None,
    expected: Prediction,
    read: int,
    usage: Usage,
    result: Result,
) -> Loss:
    """Of a call with this bill, where `read` tokens were read and more had been left."""
    change = find_change(earlier, later)
    if result == "hit":
        if change is None:
            return Loss(result)
        result = "partial"  # a prediction of both calls is exact
    causes = find_causes(earlier, later, rules, change, profile, read, expected)
    # Tokens that are no longer sent are not paid again.
    missed = reusable_tokens(earlier, later, rules, expected, causes[0]) - read
    lost = max(0, min(missed, (usage.input or 0) - read))
    causes = _split_causes(earlier, later, rules, causes, profile, read, expected, lost)
    if causes[0].kind == "below_minimum":
        result = "not_cacheable"
    explained = any(cause.kind in CHANGED for cause in causes)
    return Loss(result, causes, change if explained else None, lost)


def _split_causes(
    earlier: SentCall,
    later: SentCall,
    rules: CacheRules,
    causes: tuple[Cause, ...],
    profile: Profile | None,
    read: int,
    expected: Prediction,
    lost: int,
) -> tuple[Cause, ...]:
    """The causes with the lost tokens of each, where what changed explains only a part: what stands
    before a change could still be read, so its loss is not due to the change."""
    if not expected.left or any(cause.kind not in _SIMULATED for cause in causes):
        return causes
    possible = min(expected.read, expected.left)
    if any(cause.kind == "images_changed" for cause in causes):
        leading = sum(run.count for run in later.rendered.runs if run.section != "messages")
        possible = min(possible, Counts(later.rendered).tokens(leading))
    behind = expected.left - possible
    # Both parts add up to a bill, so their estimates err by a share of the smaller part.
    error = TOKEN_ERROR if profile is None else profile.token_error.value
    doubt = error * (possible if earlier.usage is None else min(possible, behind))
    surely = possible - doubt - rules.granule_tokens.value
    if surely < max(read, rules.minimum_tokens.value):
        return causes
    rest = remaining(earlier, later, rules, expected)
    unexplained = min(possible - read, lost)
    if unexplained == lost:
        return (rest,)
    first, *others = causes
    shares = [replace(first, tokens=lost - unexplained), replace(rest, tokens=unexplained)]
    shares.sort(key=lambda cause: cause.tokens or 0, reverse=True)
    return *shares, *others


def lost_usd(usage: Usage | None, lost: int, price: Price | None) -> Decimal | None:
    """The cost of lost tokens, less what reading them costs. They follow the tokens that were read,
    so they were written again as far as anything was, longest TTL first, and else paid as input."""
    if usage is None or price is None:
        return None
    rates = price.at(usage.input or 0)
    paid = [(lost, rates.input)]
    by_ttl = {None if ttl == "unsplit" else ttl: n for ttl, n in (usage.written or {}).items()}
    for ttl in sorted(by_ttl, key=lambda ttl: TTL_SECONDS[ttl] if ttl else 0):
        paid.insert(0, (by_ttl[ttl], rates.writing(ttl)))
    total, left = Decimal(0), lost
    for tokens, rate in paid:
        again = min(left, tokens)
        if again and (rate is None or rates.read is None):
            return None
        if rate is not None and rates.read is not None:
            more = EXACT.subtract(rate, rates.read)
            total = EXACT.add(total, EXACT.multiply(more, again))
        left -= again
    return total.scaleb(-6, EXACT)
