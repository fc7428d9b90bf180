"""Whether a call still begins with what was sent before: asked before it is sent."""

from __future__ import annotations

import warnings
from typing import Literal, TypeAlias

from anaphora.cache.prefix import begins_with
from anaphora.cache.verdict import Change, SentCall, find_change, preflight
from anaphora.catalog import CacheRules
from anaphora.client.writing import Written
from anaphora.errors import PrefixBroken
from anaphora.rendered import Rendered
from anaphora.values import Notice, SegmentRole

from .place import Past, Place

OnPrefixBreak: TypeAlias = Literal["warn", "raise", "off"]
"""What happens before sending when the prefix would break: a warning and a notice, an error
instead of the call, or nothing."""

#: What preflight calls a loss; the rest it says is about requests that may be refused.
_LOSSES = frozenset(("prefix_breaks", "parameter_changed", "model_changed", "images_changed"))


class PrefixWarning(UserWarning):
    """The beginning of a prompt changed, and will be paid for again."""


def certify(
    place: Place, written: Written, how: OnPrefixBreak | Literal["tell"]
) -> tuple[Notice, ...]:
    """Notices for what will be lost; raises or warns, as was asked for, or only tells."""
    past = place.past
    if past is None or how == "off":
        return ()
    earlier, later = past.sent.rendered, written.rendered
    if begins_with(later, earlier) and later.envelope.cache_params == earlier.envelope.cache_params:
        return ()  # the usual case, and the only one that has to be cheap
    plans = (past.sent.plan, written.plan)
    notices = preflight(earlier, later, place.model.rules, plans=plans)
    broken = next((notice for notice in notices if notice.code in _LOSSES), None)
    if broken is None or how == "tell" or not _kept(past, place.model.rules):
        return notices
    change = find_change(past.sent, SentCall(rendered=later, plan=written.plan))
    if broken.code == "prefix_breaks" and change is not None and _dynamic(change, earlier, later):
        return notices
    if how == "raise":
        raise PrefixBroken(
            f"the prompt no longer begins with what was sent before: {broken.message}",
            offset=change.offset if change is not None else 0,
            label=change.label if change is not None else broken.code,
            path=change.path if change is not None else broken.path,
        )
    warnings.warn(f"the prefix breaks: {broken}", PrefixWarning, stacklevel=2)
    return notices


def _dynamic(change: Change, *prompts: Rendered) -> bool:
    """Whether the change is one of dynamic context, which is there to change."""
    offset = change.offset
    return any(
        prompt.locate(prompt.at_offset(offset))[0].role is SegmentRole.DYNAMIC_CONTEXT
        for prompt in prompts
        if offset < prompt.size
    )


def _kept(past: Past, rules: CacheRules) -> bool:
    """Whether the call before was long enough to leave anything that could be lost."""
    usage = past.sent.usage
    billed = usage.input if usage is not None else None
    return (billed or past.outcome.total) >= rules.minimum_tokens.value
