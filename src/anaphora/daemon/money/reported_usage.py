"""Whether the usage that a provider reports can be true.

A bill above the bound is charged as it is, up to as many tokens as the model's context window and
its longest output together: the bound was wrong, and the error is logged. No call can have more
tokens than that: then the bound is charged, and the entry is disputed. Where the context window is
not known, the tokens of the bound take its place: a text has at most as many as it has bytes.
"""

from __future__ import annotations

from anaphora.catalog import Profile

from .bounds import CostBound
from .settling import AttemptCost


def checked_cost(cost: AttemptCost, bound: int, most: CostBound, profile: Profile) -> AttemptCost:
    """The cost of an answered attempt, which held `bound` nano-dollars for at most `most`."""
    usage, believed = cost.usage, most_tokens(most, profile)
    tokens = (usage.input or 0) + (usage.output or 0)
    if cost.nano_usd < bound or believed is None or tokens <= believed:
        return cost
    return AttemptCost(nano_usd=bound, kind="disputed", usage=usage)


def most_tokens(most: CostBound, profile: Profile) -> int | None:
    """Tokens of one call, input and output together: more cannot be true. None: not known."""
    held, window = most.input_tokens + most.output_tokens, profile.context_tokens
    if window is None:
        return None if most.nano_usd is None else held
    output = profile.output_tokens
    longest = max((most.output_tokens, *(() if output is None else output.published)))
    return max(held, max(window.published) + longest)
