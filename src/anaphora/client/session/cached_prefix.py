"""What the last call of a conversation left in the cache, and whether a refresh keeps it alive."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from anaphora.cache.plan import refreshes
from anaphora.cache.sent_call import expiry, is_alive, ttl_seconds, used_at
from anaphora.cache.verdict import SentCall, Verdict, judge
from anaphora.catalog import Price
from anaphora.client.in_flight import PreparedRequest
from anaphora.values import TTL_SECONDS, Reply, Ttl, Usage

from .provider_state import ProviderState

#: A refresh that would read less than this share of the prefix is not sent; none follows one that
#: did.
NEARLY = 0.9


class CachedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """What the last call of a conversation left in the cache, where reading it keeps it alive."""

    tokens: int
    expiring: int
    """Those of them that expire first; the others were written for longer."""
    ttl: Ttl
    expires: float


def cached_prefix(state: ProviderState, at: float) -> CachedPrefix | None:
    """What the last call left in the cache; None where it is gone, or reading it would not keep
    it alive."""
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
    """How likely the conversation has another call."""
    assert state.sent is not None
    return state.planner(at).goes_on(state.sent.rendered)


def refresh_pays(
    state: ProviderState, prefix: CachedPrefix, at: float, *, done: int, most: int
) -> bool:
    """Whether to keep the prefix alive now, by the pauses so far. `done` refreshes of this
    pause were sent, and `most` may be."""
    planner = state.planner(at)
    pauses, last = planner.pauses, planner.state.gaps.last
    if not is_alive(prefix.expires, at) or last is None or not pauses.lengths or done >= most:
        return False
    count, _ = refreshes(
        state.target.rules,
        prefix.ttl,
        pauses,
        idle=at - last,
        share=prefix.expiring / prefix.tokens,
        goes_on=goes_on(state, at),
        done=done,
    )
    return count > 0


def refresh_usd(state: ProviderState, prefix: CachedPrefix, at: float) -> Decimal | None:
    """What a refresh should cost; None where no price is known."""
    price = state.target.price(at)
    return None if price is None else price.of(Usage(uncached=0, read=prefix.tokens, output=0))


def refreshed(
    state: ProviderState,
    prepared: PreparedRequest,
    reply: Reply,
    *,
    at: float,
    first: float,
    price: Price | None,
) -> tuple[Verdict, int]:
    """The verdict on a call that kept the prefix of the last one alive, which it then did."""
    before = cached_prefix(state, at)
    planner, rules = state.planner(at), state.target.rules
    outcome = planner.refreshed(prepared.rendered, prepared.plan, at=at, began=first)
    expected = state.prediction(prepared.rendered, outcome)
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
    if before is not None and (usage.read or 0) >= NEARLY * before.tokens:
        assert state.sent is not None
        state.sent = msgspec.structs.replace(state.sent, at=at, began=first)
    return verdict, expected.read
