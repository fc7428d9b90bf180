"""Before a call is sent: whether its prefix is unchanged, what it would read, write and cost."""

from __future__ import annotations

from typing import Literal

import msgspec

from anaphora.cache.cold import cold_call, cold_prefix
from anaphora.cache.prefix_index import EarlierCall
from anaphora.cache.sent_call import cached_chunks
from anaphora.cache.simulator.chances import (
    SimulatedCall,
    expected_usage,
)
from anaphora.cache.verdict import Change, Prediction, SentCall, find_change, preflight
from anaphora.cache.verdict.judgement import ComparedCall, comparable
from anaphora.client.in_flight import PreparedRequest, TurnRequest, service_tier
from anaphora.client.options import OnPrefixBreak
from anaphora.client.pending import warn
from anaphora.client.preview import Preview
from anaphora.client.prices import cost_unknown
from anaphora.client.target import Target
from anaphora.errors import PrefixBroken
from anaphora.rendered import Rendered
from anaphora.tokens import Counts
from anaphora.values import Image, Notice, SegmentRole, Usage

from .provider_state import ProviderState

#: Changes of parameters.
_PARAMETERS = ("parameter_changed", "thinking_changed")
#: Codes of `preflight` for a lost prefix; its other notices are about requests that may be refused.
_LOSSES = frozenset(("prefix_breaks", "model_changed", "images_changed", *_PARAMETERS))


class PrefixWarning(UserWarning):
    """The beginning of a prompt changed, and is billed again."""


def preview_of(state: ProviderState, prepared: PreparedRequest) -> Preview:
    target, rendered, plan = state.target, prepared.rendered, prepared.plan
    expected = state.predict(prepared)
    usage = _predicted_usage(expected)
    bounds = Counts(rendered).bounds(target.profile.token_error.value)
    tier = service_tier(prepared)
    price = target.price(prepared.at, tier)
    cost_usd = None if price is None else price.of(usage)
    unknown = () if cost_usd is not None else (cost_unknown(target, tier, usage, price),)
    uncached = msgspec.structs.replace(usage, uncached=usage.input, read=0, written={})
    assembled = state.endpoint.wire.assemble(rendered, msgspec.structs.replace(plan, preludes=()))
    broken = check_prefix(state, prepared, "notice")
    chances = tuple(
        chance.priced(0, lambda usage: None if price is None else price.of(usage))
        for chance in state.chances(prepared)
    )
    return Preview(
        provider=state.endpoint.id,
        model=target.model,
        size=len(assembled.body),
        usage=usage,
        bounds=bounds,
        cost_usd=cost_usd,
        uncached_cost_usd=None if price is None else price.of(uncached),
        chances=chances,
        expected_usage=expected_usage([SimulatedCall(usage.read or 0, cost_usd, chances)]),
        markers=tuple(f"{rendered.chunk(mark.chunk).path} {mark.ttl}" for mark in plan.marks),
        cold=cold_prefix(
            usage,
            state.sent,
            left=expected.left,
            rules=target.rules,
            price=price,
            at=prepared.at,
            bounds=bounds,
        ),
        wait=target.gate.wait(state.tokens(prepared)),
        notices=(*prepared.notices, *rendered.notices, *plan.notices, *broken, *unknown),
    )


def preview_single(
    target: Target,
    prepared: PreparedRequest,
    earlier: EarlierCall[ComparedCall] | None,
    known: int = 0,
) -> Preview:
    """The preview of a call outside any session; `earlier` is the call before it, if one is
    known. The first `known` tokens are written by other calls before it is sent."""
    preview, rendered = preview_of(ProviderState(target), prepared), prepared.rendered
    if preview.cold is None or (earlier is None and not known):
        return preview
    cold = cold_call(
        comparable(earlier, rendered, target.rules, at=prepared.at),
        SentCall(rendered=rendered, plan=prepared.plan, at=prepared.at),
        target.rules,
        continues=earlier is not None and earlier.continues,
        price=target.price(prepared.at, service_tier(prepared)),
        profile=target.profile,
        known=known,
    )
    return msgspec.structs.replace(preview, cold=cold)


def _predicted_usage(expected: Prediction) -> Usage:
    outcome = expected.outcome
    read = min(expected.read, outcome.total)
    written = outcome.written
    uncached = max(0, outcome.total - read - sum(written.values()))
    return Usage(uncached=uncached, read=read, written=written, output=0)


def check_prefix(
    state: ProviderState,
    prepared: PreparedRequest,
    mode: OnPrefixBreak | Literal["notice"],
    request: TurnRequest | None = None,
) -> tuple[Notice, ...]:
    """Notices for a prefix that will be lost; raises or warns unless `mode` is "notice". There is
    no warning for less than a cent, nor for what `request` itself asked for."""
    if mode == "off" or state.extends_last(prepared):
        return ()
    last, later = state.sent, prepared.rendered
    assert last is not None
    notices = preflight(last.rendered, later, state.target.rules, plans=(last.plan, prepared.plan))
    broken = next((notice for notice in notices if notice.code in _LOSSES), None)
    if broken is None or mode == "notice" or not _was_cached(state):
        return notices
    change = find_change(last, SentCall(rendered=later, plan=prepared.plan))
    moved = change if broken.code == "prefix_breaks" else None
    if moved is not None and _is_dynamic(moved, last.rendered, later):
        return notices
    if mode == "raise":
        raise PrefixBroken(
            f"the prompt no longer begins with what was sent before: {broken.message}",
            offset=change.offset if change is not None else 0,
            label=change.label if change is not None else broken.code,
            path=change.path if change is not None else broken.path,
        )
    if not _is_asked(broken, request) and _is_dear(broken, state, prepared):
        warn(f"the prefix breaks: {broken.message}", PrefixWarning)
    return notices


def _is_asked(broken: Notice, request: TurnRequest | None) -> bool:
    """Whether the loss follows from options or an image of this very call."""
    if request is None:
        return False
    if broken.code == "images_changed":
        parts = (part for message in request.messages for part in message.parts)
        return any(isinstance(part, Image) for part in parts)
    options = bool(request.params) or request.output is not None
    return broken.code in _PARAMETERS and options


def _is_dear(broken: Notice, state: ProviderState, prepared: PreparedRequest) -> bool:
    """Whether the loss is a cent or more, or unknown."""
    price, sent = state.target.price(prepared.at, service_tier(prepared)), state.sent
    if price is None or price.input is None or sent is None:
        return True
    cached = Counts(sent.rendered).tokens(cached_chunks(sent))
    lost = cached if broken.tokens is None else broken.tokens
    rates = price.at(cached)
    saved = (rates.input or price.input) - (rates.read or 0)
    return lost * saved >= 10_000  # a cent, in dollars per million tokens


def _is_dynamic(change: Change, *prompts: Rendered) -> bool:
    offset = change.offset
    return any(
        prompt.locate(prompt.at_offset(offset))[0].role is SegmentRole.DYNAMIC_CONTEXT
        for prompt in prompts
        if offset < prompt.size
    )


def _was_cached(state: ProviderState) -> bool:
    sent, outcome = state.sent, state.outcome
    assert sent is not None
    assert outcome is not None
    billed = sent.usage.input if sent.usage is not None else None
    return (billed or outcome.total) >= state.target.rules.minimum_tokens.value
