"""Checks before sending whether a call still begins with what was sent before."""

from __future__ import annotations

import warnings
from typing import Literal, TypeAlias

from anaphora.cache.verdict import Change, SentCall, find_change, preflight
from anaphora.client.in_flight import PreparedRequest
from anaphora.errors import PrefixBroken
from anaphora.rendered import Rendered
from anaphora.values import Notice, SegmentRole

from .provider_state import ProviderState

OnPrefixBreak: TypeAlias = Literal["warn", "raise", "off"]
"""What happens before sending when the prefix would break: a warning and a notice, an error
instead of the call, or nothing."""

#: Codes of `preflight` for a lost prefix; its other notices are about requests that may be refused.
_LOSSES = frozenset(("prefix_breaks", "parameter_changed", "model_changed", "images_changed"))


class PrefixWarning(UserWarning):
    """The beginning of a prompt changed, and will be paid for again."""


def check_prefix(
    state: ProviderState, prepared: PreparedRequest, mode: OnPrefixBreak | Literal["notice"]
) -> tuple[Notice, ...]:
    """Notices for a prefix that will be lost; raises or warns unless `mode` is "notice"."""
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
    warnings.warn(f"the prefix breaks: {broken}", PrefixWarning, stacklevel=2)
    return notices


def _is_dynamic(change: Change, *prompts: Rendered) -> bool:
    """Whether the change is in dynamic context, which may change."""
    offset = change.offset
    return any(
        prompt.locate(prompt.at_offset(offset))[0].role is SegmentRole.DYNAMIC_CONTEXT
        for prompt in prompts
        if offset < prompt.size
    )


def _was_cached(state: ProviderState) -> bool:
    """Whether the last call was long enough to be cached."""
    sent, outcome = state.sent, state.outcome
    assert sent is not None
    assert outcome is not None
    billed = sent.usage.input if sent.usage is not None else None
    return (billed or outcome.total) >= state.target.rules.minimum_tokens.value
