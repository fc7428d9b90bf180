"""What OpenAI's two wires share of its cache options."""

from __future__ import annotations

from anaphora.prompt import Call
from anaphora.wire.fields import Fields, bad_request

#: Says that nothing is written but what is marked.
ONLY_MARKS = b',"prompt_cache_options":{"mode":"explicit"}'


#: What stands before a cache key.
KEY = b',"prompt_cache_key":'


def key_place(call: Call) -> bytes | None:
    """Where the planner's key goes; None when the caller has chosen one."""
    return KEY if call.ir.cache.key is None and _unsaid(call, "prompt_cache_key") else None


def options_free(call: Call) -> bool:
    """Whether the caller left the options to the planner."""
    cache = call.ir.cache
    asked = (cache.mode, cache.automatic, cache.compare_with)
    if cache.prewarm or any(option is not None for option in asked):
        return False
    return _unsaid(call, "prompt_cache_options")


def _unsaid(call: Call, field: str) -> bool:
    """Whether no extras of the caller's say that field."""
    return call.extras is None or not any(
        field in Fields(text, "extras", bad_request)
        for wire, text in call.extras.items()
        if wire in ("openai_chat", "openai_responses")
    )
