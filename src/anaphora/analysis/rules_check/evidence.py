"""What one call says of one figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from .seen import Seen


class Evidence(NamedTuple):
    holds: bool
    billed: str
    """What was billed, in words."""
    says: str
    """What the rule says to that."""


Ask: TypeAlias = Callable[[Seen, Any], Evidence | None]
"""A call and a value of the figure: whether the call supports the value or contradicts it; None
when it cannot tell."""


def bill(call: Seen) -> str:
    told = call.billed
    wrote = f", {told.written:,} written" if told.written else ""
    return f"{told.cache_read:,} read{wrote}, {told.input:,} uncached"


def after(call: Seen) -> str:
    """The bill, and how long after the call before."""
    gap = call.gap
    if gap is None:
        return bill(call)
    most = "" if gap.most - gap.least < 1 else f" to {gap.most:,.0f}"
    return f"{bill(call)}, {gap.least:,.0f}{most} s after the call before"
