"""The provider's own word on a miss: Anthropic's `diagnostics`, OpenAI's
`prompt_cache_diagnostics`. Both compare with an earlier answer that the request names."""

from __future__ import annotations

from typing import Any

from anaphora.cache import verdict
from anaphora.cache.verdict import SentCall
from anaphora.prompt import Call
from anaphora.values import Usage

#: OpenAI's word for each parameter that parts a prompt from the one before, in its own order.
_OPENAI = (
    ("model", "model_changed"),
    ("cache_key", "prompt_cache_key_changed"),
    ("output_format", "text_format_changed"),
    ("effort", "reasoning_effort_changed"),
    ("verbosity", "verbosity_changed"),
    ("service_tier", "service_tier_changed"),
)


def anthropic(call: Call, earlier: SentCall | None, later: SentCall) -> dict[str, Any] | None:
    """The `diagnostics` of an answer; null when the prefix was reused, or on a first turn."""
    if call.ir.cache.compare_with is None:
        return None
    if earlier is None:
        return {"cache_miss_reason": {"type": "previous_message_not_found"}}
    reason = None
    if _differs(earlier, later, "model") or _differs(earlier, later, "speed"):
        reason = "model_changed"
    elif (change := verdict.find_change(earlier, later)) is not None:
        reason = f"{change.section}_changed"
    if reason is None:
        return None
    missed = max(0, _left(earlier.usage) - _read(later.usage))
    return {"cache_miss_reason": {"type": reason, "cache_missed_input_tokens": missed}}


def openai(earlier: SentCall | None, later: SentCall) -> dict[str, Any]:
    """The `prompt_cache_diagnostics` of an answer that was asked for them."""
    if earlier is None:
        return {"type": "comparison_response_not_found"}
    left, read = _left(earlier.usage), _read(later.usage)
    if left and read >= left:
        return {"type": "cache_hit"}
    reason = next((word for param, word in _OPENAI if _differs(earlier, later, param)), None)
    if reason is None and (change := verdict.find_change(earlier, later)) is not None:
        reason = "tools_changed" if change.section == "tools" else "input_changed"
    if reason is None:
        # Too short, too old, or never marked: the enumeration has no word for these.
        return {"type": "unavailable"}
    return {
        "type": "cache_miss",
        "reason": reason,
        "cache_missed_tokens": max(0, left - read),
        "comparison_reusable_tokens": left,
    }


def _differs(earlier: SentCall, later: SentCall, param: str) -> bool:
    before, after = (
        dict(earlier.rendered.envelope.cache_params),
        dict(later.rendered.envelope.cache_params),
    )
    return before.get(param) != after.get(param)


def _left(usage: Usage | None) -> int:
    """What a call left in the cache, by its bill."""
    return 0 if usage is None else (usage.read or 0) + (usage.written_total or 0)


def _read(usage: Usage | None) -> int:
    return 0 if usage is None else usage.read or 0
