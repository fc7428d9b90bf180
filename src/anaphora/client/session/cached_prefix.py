"""The cached prefix of a conversation's last call, and when a refresh keeps it alive: the decisions
of `keep_warm`, for apps of a daemon. Times are arguments."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from anaphora.cache.plan import Gaps
from anaphora.cache.plan.memory import PRIOR_WEIGHT, prior
from anaphora.cache.sent_call import expiry, is_alive, ttl_seconds, used_at
from anaphora.cache.verdict import SentCall, Verdict, judge
from anaphora.catalog import CacheRules, Price
from anaphora.client.failures import described
from anaphora.client.in_flight import PreparedRequest
from anaphora.values import TTL_SECONDS, Notice, Reply, Ttl, Usage
from anaphora.wording import counted, format_usd

from .provider_state import ProviderState

#: A refresh that would read less than this share of the prefix is not sent; after one that read
#: less, none follows.
_NEARLY = 0.9
#: Refreshes of one pause at most.
_MOST_REFRESHES = 64


class CachedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """The cached prefix of a conversation's last call, if reading it keeps it alive."""

    tokens: int
    expiring: int
    """The tokens that expire first; the others were written for longer."""
    ttl: Ttl
    expires: float

    def is_read(self, tokens: int | None) -> bool:
        """Whether a call that reads this many tokens keeps it alive."""
        return (tokens or 0) >= _NEARLY * self.tokens


def cached_prefix(state: ProviderState, at: float) -> CachedPrefix | None:
    """The cached prefix of the last call; None if it is gone, or reading it would not keep it
    alive."""
    rules, sent = state.target.rules, state.sent
    if sent is None or sent.at is None or not rules.reads_refresh.value:
        return None
    usage, plan = sent.usage, sent.marks
    if usage is None or plan.held is not None:
        return None
    ttl = plan.marks[-1].ttl if plan.marks else plan.automatic
    if ttl is None and rules.default_ttl is not None:
        ttl = rules.default_ttl.value
    tokens = (usage.read or 0) + (usage.written_total or 0)
    if rules.mechanism.value != "explicit" and not plan.marks:
        tokens = max(tokens, rules.whole_granules(usage.input or 0))
    if ttl is None or tokens < max(1, rules.minimum_tokens.value):
        return None
    expires = expiry(used_at(rules, sent.at, began=sent.began), ttl_seconds(rules, ttl))
    if not is_alive(expires, at):
        return None
    longer = [mark for mark in plan.marks if TTL_SECONDS[mark.ttl] > TTL_SECONDS[ttl]]
    kept = 0
    if longer:
        kept = state.planner(at).counts(sent.rendered).tokens(longer[-1].chunk + 1)
    expiring = max(0, tokens - kept)
    return CachedPrefix(tokens=tokens, expiring=expiring, ttl=ttl, expires=expires)


def goes_on(state: ProviderState, at: float) -> float:
    """The probability that the conversation has another call."""
    assert state.sent is not None
    return state.planner(at).goes_on(state.sent.rendered)


def refresh_at(state: ProviderState, at: float) -> float | None:
    """When to refresh the prefix next; None if there is none to keep alive."""
    prefix = cached_prefix(state, at)
    return None if prefix is None else prefix.expires - refresh_margin(prefix.ttl)


def refresh_usd(state: ProviderState, prefix: CachedPrefix, at: float) -> Decimal | None:
    """The expected cost of a refresh; None if no price is known."""
    price = state.target.price(at)
    return None if price is None else price.of(Usage(uncached=0, read=prefix.tokens, output=0))


class PauseRefreshes:
    """The refreshes of one conversation in the pause since its last call."""

    def __init__(self) -> None:
        self.count, self.usd = 0, Decimal(0)
        """The number of refreshes sent, and their cost."""
        self.problem: Notice | None = None

    def due(self, state: ProviderState, at: float, *, most: int) -> CachedPrefix | None:
        """The prefix, if it pays to refresh it now, by the pauses so far. `most` may be sent in
        one pause."""
        prefix, planner = cached_prefix(state, at), state.planner(at)
        pauses, last = planner.pauses, planner.gaps.last
        if prefix is None or last is None or not pauses.lengths or self.count >= most:
            return None
        best, _ = refreshes(
            state.target.rules,
            prefix.ttl,
            pauses,
            idle=at - last,
            share=prefix.expiring / prefix.tokens,
            goes_on=goes_on(state, at),
            done=self.count,
        )
        return prefix if best > 0 else None

    def sent(self, prefix: CachedPrefix, usage: Usage, usd: Decimal | None) -> bool:
        """A refresh was answered. Returns whether another may follow."""
        self.count += 1
        self.usd += usd or Decimal(0)
        return prefix.is_read(usage.read)

    def let_go(self, why: str) -> None:
        self._note("keep_warm_bound", f"the cached prefix was let go: {why}")

    def cannot(self) -> None:
        text = "the cached prefix cannot be refreshed by a call that asks for no answer"
        self._note("keep_warm_impossible", text)

    def failed(self, problem: Exception) -> None:
        text = f"keeping the cached prefix alive failed: {described(problem)}"
        self._note("keep_warm_failed", text)

    def _note(self, code: str, text: str) -> None:
        self.problem = Notice(code, text, "keep_warm")

    def cost(self) -> tuple[Decimal | None, tuple[Notice, ...]]:
        """Their cost, if there were any, and notices for the call that ends the pause."""
        notices = () if self.problem is None else (self.problem,)
        if not self.count:
            return None, notices
        text = (
            f"{counted(self.count, 'call')} kept the cached prefix alive during the pause, for"
            f" {format_usd(self.usd)}"
        )
        return self.usd, (Notice("kept_warm", text, "keep_warm"), *notices)


def judge_refresh(
    state: ProviderState,
    prepared: PreparedRequest,
    reply: Reply,
    *,
    at: float,
    first: float,
    price: Price | None,
) -> tuple[Verdict, int]:
    """The verdict on a refresh, and the expected tokens read. If it read the prefix, the prefix
    lives on from `at`."""
    before = cached_prefix(state, at)
    planner, rules = state.planner(at), state.target.rules
    outcome = planner.refreshed(prepared.rendered, prepared.plan, at=at, began=first)
    expected = state.prediction(outcome)
    usage = reply.usage
    refresh = SentCall(
        rendered=prepared.rendered, plan=prepared.plan, at=at, began=first, usage=usage
    )
    verdict = judge(
        state.sent,
        refresh,
        rules,
        expected=expected,
        price=price,
        profile=state.target.profile,
    )
    if before is not None and before.is_read(usage.read):
        assert state.sent is not None
        state.sent = msgspec.structs.replace(state.sent, at=at, began=first)
    return verdict, expected.read


def refreshes(
    rules: CacheRules,
    ttl: Ttl,
    gaps: Gaps,
    *,
    idle: float,
    share: float = 1.0,
    goes_on: float = 1.0,
    done: int = 0,
) -> tuple[int, float]:
    """How many refreshes in a row are best, the first of them `idle` seconds after the last call
    and each further one when a lifetime ends; and what they are expected to save for each token of
    the prefix, in multiples of the input price. `share` of the prefix expires, the rest lives
    longer. All refreshes of one pause, including those that are `done`, never cost more than
    writing the expired part again."""
    write, read = rules.writing(ttl), rules.read_price.value
    lost = share * (write - read)
    spacing = TTL_SECONDS[ttl] - refresh_margin(ttl)
    most = _MOST_REFRESHES if not read else min(_MOST_REFRESHES, int(lost / read))
    best, gain, paid = 0, 0.0, 0.0
    for count in range(1, most - done + 1):
        sent_after = idle + (count - 1) * spacing
        paid += (1 - _next_within(gaps, sent_after, idle=idle, goes_on=goes_on)) * read
        found = _next_within(gaps, sent_after + spacing, idle=idle, goes_on=goes_on)
        if (saved := found * lost - paid) > gain:
            best, gain = count, saved
    return best, gain


def refresh_margin(ttl: Ttl) -> float:
    """Seconds before the end of a lifetime at which a refresh is sent."""
    return max(10.0, 0.05 * TTL_SECONDS[ttl])


def _next_within(gaps: Gaps, seconds: float, *, idle: float, goes_on: float) -> float:
    """P(the next use comes within so many seconds of the last one), if none came within `idle`
    seconds; `goes_on` is how likely one comes at all."""

    def share(pause: float) -> float:
        short = sum(gap <= pause for gap in gaps.lengths)
        return (PRIOR_WEIGHT * prior(pause) + short) / (PRIOR_WEIGHT + len(gaps.lengths))

    before = goes_on * share(idle)
    return max(0.0, goes_on * share(seconds) - before) / (1 - before) if before < 1 else 0.0
