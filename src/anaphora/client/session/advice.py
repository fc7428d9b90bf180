"""What pays between two turns: keep the cached prefix alive or let it go, compact the history or
keep it, write the prefix before branches start together."""

from __future__ import annotations

from decimal import Decimal

from anaphora.cache.plan import Advice, at_compaction, before_fan_out, until_next
from anaphora.client.in_flight import PreparedRequest
from anaphora.errors import InvalidRequest
from anaphora.values import Ttl

from .cached_prefix import cached_prefix, goes_on
from .compaction import PromptSizes
from .provider_state import ProviderState
from .turn_prompt import TurnPrompt


def parallel_of(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequest(
            f"must be the number of branches that start together, not {value!r}", path="parallel"
        )
    return value


def advice_of(
    state: ProviderState, turn: TurnPrompt, prepared: PreparedRequest, parallel: int
) -> tuple[Advice, ...]:
    """The advice for a conversation at one provider, what saves most first. `prepared` is its next
    call."""
    at, rules = prepared.at, state.target.rules
    price = state.target.price(at)
    usd = None if price is None else price.input
    found = [_before_branches(state, prepared, parallel, usd)] if parallel > 1 else []
    prefix = cached_prefix(state, at)
    if prefix is not None:
        gaps = state.planner(at).state.gaps
        found += [
            until_next(
                rules,
                prefix.tokens,
                prefix.ttl,
                gaps,
                at=at,
                expiring=prefix.expiring,
                goes_on=goes_on(state, at),
                price=usd,
            ),
            _at_half(state, turn, prepared, prefix.ttl, usd),
        ]
    known = [each for each in found if each is not None]
    return tuple(sorted(known, key=lambda each: -each.saves))


def _before_branches(
    state: ProviderState, prepared: PreparedRequest, parallel: int, price: Decimal | None
) -> Advice | None:
    """What is not in the cache yet, each of the branches would write."""
    rules, plan = state.target.rules, prepared.plan
    expected = state.predict(prepared).outcome
    written = sum(expected.written.values()) or expected.total - expected.read
    ttl = plan.marks[-1].ttl if plan.marks else plan.automatic
    if ttl is None and rules.default_ttl is not None:
        ttl = rules.default_ttl.value
    return None if ttl is None else before_fan_out(rules, written, parallel, ttl, price)


def _at_half(
    state: ProviderState,
    turn: TurnPrompt,
    prepared: PreparedRequest,
    ttl: Ttl,
    price: Decimal | None,
) -> Advice | None:
    """Whether to compact the history to half of its tokens."""
    sizes = PromptSizes(prepared.rendered)
    history = sum(sizes.messages()[: len(turn.history)])
    if history < 2:
        return None
    kept = sizes.total - history
    return at_compaction(
        state.target.rules,
        before=sizes.total,
        after=kept + history // 2,
        kept=kept,
        calls=state.planner(prepared.at).state.gaps.horizon(),
        ttl=ttl,
        price=price,
    )
