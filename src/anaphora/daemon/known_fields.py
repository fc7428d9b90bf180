"""The fields of requests that the daemon knows: what they cost and reach is read in `facts`, or
they change nothing but the answer. Every other field is refused unless a grant lists it."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec

from anaphora import wire as wires

_SAMPLING = frozenset({"temperature", "top_p", "top_k"})
_OPENAI_TEXT = frozenset(
    """logprobs top_logprobs metadata model parallel_tool_calls prompt_cache_key
    prompt_cache_options prompt_cache_retention safety_identifier service_tier store stream
    stream_options temperature tool_choice tools top_p user""".split()
)
_CACHE_OPTIONS = frozenset({"mode", "ttl"})
_STREAM_OPTIONS = frozenset({"include_usage", "include_obfuscation"})

_TOP: dict[str, frozenset[str]] = {
    "anthropic": _SAMPLING
    | frozenset(
        """cache_control container context_management diagnostics fallbacks inference_geo
        max_tokens mcp_servers messages metadata model output_config service_tier speed
        stop_sequences stream system thinking thread tool_choice tools""".split()
    ),
    "openai_chat": _OPENAI_TEXT
    | frozenset(
        """frequency_penalty function_call functions logit_bias max_completion_tokens max_tokens
        messages modalities n prediction presence_penalty reasoning_effort response_format seed
        stop verbosity web_search_options""".split()
    ),
    "openai_responses": _OPENAI_TEXT
    | frozenset(
        """background conversation include input instructions max_output_tokens max_tool_calls
        previous_response_id reasoning text truncation""".split()
    ),
    "gemini": frozenset(
        """cachedContent contents generationConfig labels model safetySettings serviceTier store
        systemInstruction toolConfig tools""".split()
    ),
    "ollama": frozenset(
        """format keep_alive logprobs messages model options stream think tools
        top_logprobs""".split()
    ),
}

#: The members of objects in a request, by the object's path.
_NESTED: dict[str, dict[str, frozenset[str]]] = {
    "anthropic": {
        "thinking": frozenset({"type", "budget_tokens", "display"}),
        "output_config": frozenset({"effort", "format", "task_budget"}),
        "metadata": frozenset({"user_id"}),
        "cache_control": frozenset({"type", "ttl"}),
        "diagnostics": frozenset({"previous_message_id"}),
        "context_management": frozenset({"edits"}),
        "thread": frozenset({"type", "previous_message_id"}),
    },
    "openai_chat": {
        "stream_options": _STREAM_OPTIONS,
        "prompt_cache_options": _CACHE_OPTIONS,
        "prediction": frozenset({"type", "content"}),
    },
    "openai_responses": {
        "stream_options": _STREAM_OPTIONS,
        "prompt_cache_options": _CACHE_OPTIONS | {"prewarm", "comparison_response_id"},
        "reasoning": frozenset({"effort", "summary", "generate_summary", "context", "mode"}),
        "text": frozenset({"format", "verbosity"}),
    },
    "gemini": {
        "generationConfig": frozenset(
            """candidateCount frequencyPenalty logprobs maxOutputTokens mediaResolution
            presencePenalty responseJsonSchema responseLogprobs responseMimeType
            responseModalities responseSchema seed stopSequences temperature thinkingConfig topK
            topP""".split()
        ),
        "generationConfig.thinkingConfig": frozenset(
            {"thinkingLevel", "thinkingBudget", "includeThoughts"}
        ),
        "toolConfig": frozenset({"functionCallingConfig", "includeServerSideToolInvocations"}),
    },
    "ollama": {
        "options": _SAMPLING
        | frozenset(
            """frequency_penalty min_p num_ctx num_keep num_predict presence_penalty
            repeat_last_n repeat_penalty seed stop typical_p""".split()
        ),
    },
}


class KnownFields(msgspec.Struct, frozen=True):
    """The known fields of a wire, or of a provider's dialect of it."""

    wire: str
    """The wire itself: a name of `wire.WIRES`."""
    top: frozenset[str]
    nested: Mapping[str, frozenset[str]]


@functools.cache
def known_fields(name: str) -> KnownFields:
    """The fields of a wire. A dialect's name adds those in which its provider takes parameters."""
    if name in wires.WIRES:
        return KnownFields(name, _TOP[name], _NESTED[name])
    dialect = wires.dialect_of(name)
    top = set(_TOP[dialect.wire])
    nested = dict(_NESTED[dialect.wire])
    for param in dialect.fields:
        place = dialect.place(param)
        if place is None or not place.at:
            continue
        first, *rest = place.at.split(".")
        if rest and (first not in top or first in nested):
            nested[first] = nested.get(first, frozenset()) | {rest[0]}
        top.add(first)
    return KnownFields(dialect.wire, frozenset(top), nested)
