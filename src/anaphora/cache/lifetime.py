"""How long a cache entry lives. Simulator, verdicts, planner, client and daemon ask here.

    expires = expiry(used_at(rules, at, began=began), ttl_seconds(rules, ttl))
    is_alive(expires, at)

An entry lives for its TTL, or for the implicit lifetime of its provider, from its last use: the
call that wrote it or, where reads refresh, the last one that read it. The rules say whether a use
counts from the start of the request, from the start of the response, or from its end.
"""

from __future__ import annotations

from anaphora.catalog import CacheRules, Moment
from anaphora.rendered import Plan
from anaphora.values import TTL_SECONDS, Ttl


def is_alive(expires: float, at: float) -> bool:
    """Whether an entry can still be read at that moment."""
    return at <= expires


def expiry(used: float, seconds: float) -> float:
    """The last moment at which an entry is alive that was last used then."""
    return used + seconds


def oldest_use(seconds: float, at: float) -> float:
    """The earliest last use of an entry that is alive at that moment."""
    return at - seconds


def ttl_seconds(rules: CacheRules, ttl: Ttl | None = None) -> float:
    """How long an entry lives after its last use: its TTL, or the implicit lifetime of prompts
    without markers, which is 0 where the provider caches none."""
    if ttl is None:
        ttls = rules.ttls.value
        if not ttls:
            return 0.0
        ttl = ttls[0] if rules.default_ttl is None else rules.default_ttl.value
    return float(TTL_SECONDS[ttl])


def last_ttl(plan: Plan, rules: CacheRules) -> Ttl | None:
    """The TTL of the entry that holds all a call has cached, that of its last marker; None where
    it leaves none that expires."""
    if plan.automatic is not None:
        return plan.automatic
    if plan.marks:
        return max(plan.marks, key=lambda mark: mark.chunk).ttl
    if rules.mechanism.value == "explicit" or rules.default_ttl is None:
        return None
    return rules.default_ttl.value


def used_at(
    rules: CacheRules, at: float, *, began: float | None = None, ended: float | None = None
) -> float:
    """From when the lifetime of what a call read and wrote counts. `at` is when it was sent; when
    it ended, where nothing else is recorded."""
    assumed = rules.response_seconds
    if began is None and ended is not None and assumed is not None:
        return min(ended, at + assumed.value)
    return moments(at, began=began, ended=ended)[rules.ttl_from.value]


def used_at_latest(
    rules: CacheRules, at: float, *, began: float | None = None, ended: float | None = None
) -> float:
    """The same if the response began as late as it can have, where that is not recorded."""
    if began is None and ended is not None and rules.ttl_from.value != "request_start":
        return max(at, ended)
    return used_at(rules, at, began=began, ended=ended)


def moments(
    at: float, *, began: float | None = None, ended: float | None = None
) -> dict[Moment, float]:
    """The moments of a call that rules count from. One that is not known is the one before it."""
    start = at if began is None else began
    return {
        "request_start": at,
        "response_start": start,
        "response_end": start if ended is None else ended,
    }
