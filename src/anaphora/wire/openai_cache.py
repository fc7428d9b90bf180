"""What OpenAI's two wires share of its cache options."""

from __future__ import annotations

from anaphora.prompt import Call
from anaphora.wire.fields import Fields, bad_request

#: Says that nothing is written but what is marked.
ONLY_MARKS = b',"prompt_cache_options":{"mode":"explicit"}'


def options_free(call: Call, wires: tuple[str, ...] = ("openai_chat", "openai_responses")) -> bool:
    """Whether the caller left the options to the planner."""
    cache = call.ir.cache
    asked = (cache.mode, cache.automatic, cache.compare_with)
    if cache.prewarm or any(option is not None for option in asked):
        return False
    for wire in wires:
        text = (call.extras or {}).get(wire)
        if text is not None and "prompt_cache_options" in Fields(text, "extras", bad_request):
            return False
    return True
