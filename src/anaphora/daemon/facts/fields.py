"""The fields of requests that the daemon knows: what they cost and reach is read in `facts`, or
they change nothing but the answer. Every other field is refused unless a grant lists it."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec

from anaphora import wire as wires

#: Read although the wire may not have them: whatever fields a grant lists, these are checked.
ALWAYS_READ = frozenset({"models", "fallbacks", "context_management", "tools", "functions", "n"})
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
        """background client_metadata conversation include input instructions max_output_tokens
        max_tool_calls previous_response_id prompt reasoning text truncation""".split()
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

_NESTED: dict[str, dict[str, frozenset[str]]] = {
    "anthropic": {
        "thinking": frozenset({"type", "budget_tokens", "display"}),
        "output_config": frozenset({"effort", "format", "task_budget"}),
        "metadata": frozenset({"user_id"}),
        "cache_control": frozenset({"type", "ttl"}),
        "container": frozenset({"id"}),
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


class KnownFields(msgspec.Struct, frozen=True, kw_only=True):
    """The known fields of a wire, or of a provider's dialect of it, and how they are read."""

    wire: str
    """The wire itself: a name of `wire.WIRES`."""
    max_tokens_field: str
    top: frozenset[str]
    nested: Mapping[str, frozenset[str]] = {}
    """The members of objects, by the object's path."""
    snake_case: bool = False
    """Fields are taken in snake_case as well."""
    named_in_path: bool = False
    """The path names the model."""
    streams_by_default: bool = False
    smallest_limit: int = 1
    """Of the output: some hosts take 0 for no limit."""
    unlimited_below: bool = False
    """A smaller limit of the output is none."""
    limits_thinking: bool = False
    """The limit of the output includes thinking that has a budget of its own."""
    folded: Mapping[str, str] = {}
    """All known names by their letters, whatever their case: some servers ignore it."""


def _folded(top: frozenset[str], nested: Mapping[str, frozenset[str]]) -> dict[str, str]:
    names = sorted(top.union(*nested.values(), ALWAYS_READ))
    return {name.casefold(): name for name in names}


_WIRES = {
    fields.wire: msgspec.structs.replace(fields, folded=_folded(fields.top, fields.nested))
    for fields in (
        KnownFields(
            wire="anthropic",
            max_tokens_field="max_tokens",
            top=_TOP["anthropic"],
            nested=_NESTED["anthropic"],
            smallest_limit=0,  # writes the cache and answers nothing
            limits_thinking=True,
        ),
        KnownFields(
            wire="openai_chat",
            max_tokens_field="max_completion_tokens",
            top=_TOP["openai_chat"],
            nested=_NESTED["openai_chat"],
        ),
        KnownFields(
            wire="openai_responses",
            max_tokens_field="max_output_tokens",
            top=_TOP["openai_responses"],
            nested=_NESTED["openai_responses"],
        ),
        KnownFields(
            wire="gemini",
            max_tokens_field="generationConfig.maxOutputTokens",
            top=_TOP["gemini"],
            nested=_NESTED["gemini"],
            snake_case=True,
            named_in_path=True,
        ),
        KnownFields(
            wire="ollama",
            max_tokens_field="options.num_predict",
            top=_TOP["ollama"],
            nested=_NESTED["ollama"],
            streams_by_default=True,
            unlimited_below=True,
        ),
    )
}


@functools.cache
def known_fields(name: str) -> KnownFields:
    """The fields of a wire. A dialect's name adds those in which its provider takes parameters."""
    if name in _WIRES:
        return _WIRES[name]
    dialect = wires.dialect_of(name)
    known = _WIRES[dialect.wire]
    top, nested = set(known.top), dict(known.nested)
    for param in dialect.fields:
        place = dialect.place(param)
        if place is None or not place.at:
            continue
        first, *rest = place.at.split(".")
        if rest and (first not in top or first in nested):
            nested[first] = nested.get(first, frozenset()) | {rest[0]}
        top.add(first)
    known_names = frozenset(top)
    return msgspec.structs.replace(
        known, top=known_names, nested=nested, folded=_folded(known_names, nested)
    )
