"""Whether a call is cold: the beginning of its prompt was cached and has expired, or was never
cached, so that it is paid for in full.

    cold = cold_prefix(usage, before, left=left, rules=rules, price=price, at=at, bounds=bounds)
    if cold is not None and cold.costs_more_than(limit): ...

A guard compares the lower end of the additional cost. Client, proxy and daemon use this judge.
Times are arguments.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from decimal import Decimal
from typing import Literal

import msgspec

from anaphora.bounded import BoundedMap
from anaphora.cache.sent_call import (
    SentCall,
    cached_chunks,
    expiry,
    is_alive,
    last_ttl,
    ttl_seconds,
    used_at,
    used_at_latest,
)
from anaphora.cache.simulator import RenderedPrompt
from anaphora.cache.verdict import Prediction, predict_after, predict_usage, predicted_usage
from anaphora.cache.verdict.prediction import unmarked
from anaphora.catalog import CacheRules, Price, Profile
from anaphora.rendered import Plan, Rendered
from anaphora.tokens import Counts
from anaphora.values import Ttl, Usage
from anaphora.wording import counted, format_duration, format_usd

COLD_ABOVE_USD = Decimal("0.50")
"""The additional cost above which a guard stops a call, unless it has its own limit."""
PASS_SECONDS = 600.0
"""How long a refused call passes if it is sent again."""
COLD_HEADER, ALLOWED = "anaphora-cold", "allow"
"""The header that lets a cold call pass."""
ALTERNATIVES = "compact the conversation, start a new one, or use a smaller model"

#: A prefix is cold if less than this share of it would be read.
_WARM = 0.5
#: An entry that lives "at least" its TTL is surely gone after so many TTLs, and after an hour.
_TTLS, _HOUR = 2, 3600.0
#: Refused calls that are remembered, and the share of a prompt by which one is known.
_MOST_PASSES, _KNOWN_BY = 4096, 0.9


class ColdPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a prompt that was cached by the last call, or could have been, and is to be
    paid for in full."""

    reason: Literal["expired", "not_cached"]
    """It has expired by the provider's rules, or no earlier call is known that sent it."""
    tokens: int
    idle: float | None = None
    """Whole seconds since the last call."""
    extra_usd: Decimal | None = None
    """The additional cost, compared with reading it from the cache; None if a price is unknown."""
    range_usd: tuple[Decimal, Decimal] | None = None
    """The likely range of the additional cost. It begins at 0 while the provider may still have the
    entry, since it promises a shortest lifetime only."""

    def costs_more_than(self, usd: Decimal) -> bool:
        """Whether the lower end of the additional cost exceeds a limit. False if no price is
        known."""
        return self.range_usd is not None and self.range_usd[0] > usd

    @property
    def cost_text(self) -> str:
        """The additional cost with its range: `$1.04 ($0.95 to $1.13)`."""
        if self.extra_usd is None or self.range_usd is None:
            return "an unknown amount"
        low, high = map(format_usd, self.range_usd)
        extra = format_usd(self.extra_usd)
        return extra if low == high else f"{extra} ({low} to {high})"

    def __str__(self) -> str:
        tokens = counted(self.tokens, "token")
        if self.reason == "not_cached":
            known = "no earlier call is known that sent them"
            return f"the {tokens} of the prompt are not cached, since {known}"
        idle = "" if self.idle is None else f": the last call was {format_duration(self.idle)} ago"
        return f"the cached beginning of {tokens} has expired{idle}"


def cold_prefix(
    usage: Usage,
    before: SentCall | None,
    *,
    left: int,
    rules: CacheRules,
    price: Price | None,
    at: float,
    bounds: tuple[int, int],
    known: int = 0,
) -> ColdPrefix | None:
    """The part of a prompt that is to be paid for again; None if the call is not cold.

    `usage` is the predicted bill of the input, `before` the call that sent its beginning (None: no
    call is known), `left` what that one left in the cache, `bounds` the range of all input tokens.
    Other calls have used the first `known` tokens since.
    """
    read, total = usage.read or 0, usage.input or 0
    could = min(total, rules.whole_granules(total) if before is None else left)
    if max(read, known) >= _WARM * could or rules.read_price.value >= 1:
        return None
    surely = True
    if before is not None:
        if not _has_expired(before, rules, at):
            return None
        surely = _is_surely_gone(before, rules, at)
    extra, limits = None, None
    if price is not None:
        extra = _extra_usd(usage, could, price, 1.0)
        ends = [_extra_usd(usage, could, price, bound / total) for bound in bounds]
        if extra is not None and ends[0] is not None and ends[1] is not None:
            limits = (min(extra, ends[0]) if surely else Decimal(0), max(extra, ends[1]))
    return ColdPrefix(
        reason="not_cached" if before is None else "expired",
        tokens=could - read,
        idle=None if before is None or before.at is None else float(round(at - before.at)),
        extra_usd=extra,
        range_usd=limits,
    )


def cold_call(
    before: SentCall | None,
    sent: SentCall,
    rules: CacheRules,
    *,
    continues: bool,
    price: Price | None,
    profile: Profile,
    expected: Prediction | None = None,
    known: int = 0,
) -> ColdPrefix | None:
    """The same for a call that is about to be sent, by the call before it. `continues`: that is one
    of its conversation, and not one that shares a short beginning. `expected` is the prediction, if
    it was already made."""
    left = 0
    if before is None:
        usage = predict_usage(None, sent, rules)
    else:
        if expected is None:
            sent, expected = predict_after(before, sent, rules)
        usage, left = predicted_usage(expected), expected.left
        continues |= left >= _WARM * rules.whole_granules(usage.input or 0)
    return cold_prefix(
        usage,
        before if continues else None,
        left=left,
        rules=rules,
        price=price,
        at=sent.at or 0.0,
        bounds=Counts(sent.rendered).bounds(profile.token_error.value),
        known=known,
    )


def still_used(latest: SentCall, chunks: int, sent: SentCall, rules: CacheRules) -> int:
    """The tokens of a prompt that a later call may have kept alive: the last one that sent its
    first `chunks`."""
    if latest.at is None or _is_surely_gone(latest, rules, sent.at or 0.0):
        return 0
    return Counts(sent.rendered).tokens(min(chunks, cached_chunks(latest)))


def _extra_usd(usage: Usage, could: int, price: Price, scale: float) -> Decimal | None:
    """The cost of the input less its cost if all that could be cached was read, for a prompt that
    is `scale` times as long."""
    total, read = int((usage.input or 0) * scale), int((usage.read or 0) * scale)
    written = {ttl: int(tokens * scale) for ttl, tokens in (usage.written or {}).items()}
    uncached = max(0, total - read - sum(written.values()))
    warm_read = min(total, int(could * scale))
    cold = price.of(Usage(uncached=uncached, read=read, written=written, output=0))
    warm = price.of(Usage(uncached=total - warm_read, read=warm_read, written={}, output=0))
    return None if cold is None or warm is None else max(Decimal(0), cold - warm)


def _ttl(sent: SentCall, rules: CacheRules) -> Ttl | None:
    """That of a call's longest entry; marks that the provider ignores have none."""
    return last_ttl(sent.marks if rules.slots.value else unmarked(sent).marks, rules)


def _has_expired(sent: SentCall, rules: CacheRules, at: float) -> bool:
    """Whether the entries of a call have expired by the clock alone."""
    ttl = _ttl(sent, rules)
    if ttl is None or sent.at is None:
        return False
    used = used_at(rules, sent.at, began=sent.began)
    return not is_alive(expiry(used, ttl_seconds(rules, ttl)), at)


def _is_surely_gone(sent: SentCall, rules: CacheRules, at: float) -> bool:
    """The same with the longest lifetime that an entry may have."""
    assert sent.at is not None
    seconds = ttl_seconds(rules, _ttl(sent, rules))
    if rules.lifetime is not None and rules.lifetime.value == "at_least":
        seconds = max(_TTLS * seconds, _HOUR)
    used = used_at_latest(rules, sent.at, began=sent.began, ended=sent.ended)
    return not is_alive(expiry(used, seconds), at)


def refusal(cold: ColdPrefix) -> str:
    """The text of a refusal: the cost, and what to do."""
    return (
        f"cold cache: {cold}. This call would cost {cold.cost_text} more than from the cache, and"
        f" was not sent. Send it again within {PASS_SECONDS / 60:.0f} minutes to let it pass; or"
        f" {ALTERNATIVES}."
    )


class ColdPasses:
    """Refused calls, which pass if they are sent again. Bounded. Not for several threads at once.

    A call is known by the first nine tenths of its prompt, in tokens: it is the same call if a
    person adds "go on".
    """

    def __init__(self) -> None:
        self._until = BoundedMap[Hashable, tuple[float, float]](_MOST_PASSES)
        """From when and until when."""

    def key(self, scope: Hashable, rendered: Rendered) -> Hashable:
        """The key of a refused call."""
        prompt = RenderedPrompt(rendered, Plan())
        positions, enough = range(len(rendered)), _KNOWN_BY * prompt.total
        return scope, prompt.key(bisect_left(positions, enough, key=prompt.tokens))

    def add(self, key: Hashable, at: float, since: float = 0.0) -> None:
        """Calls that began before `since` do not pass: they do not answer the refusal, but were
        sent beside the refused one."""
        known = self._until.get(key)
        if known is not None and is_alive(known[1], at):
            since = min(since, known[0])
        self._until[key] = since, expiry(at, PASS_SECONDS)

    def allows(self, scope: Hashable, rendered: Rendered, at: float) -> bool:
        """Whether the call was refused a short time ago."""
        prompt = RenderedPrompt(rendered, Plan())
        for position in range(len(rendered) - 1, -1, -1):
            known = self._until.get((scope, prompt.key(position)))
            if known is not None:
                return known[0] <= at and is_alive(known[1], at)
        return False
