"""The provider's own word on a miss, and whether it is ours."""

from __future__ import annotations

from typing import Any

import msgspec

from anaphora.values import Reply

from .values import Cause, Change, Diagnosis

#: By the provider's word: the causes that would agree, and the section a changed byte would be in.
_ANTHROPIC: dict[str, tuple[tuple[str, ...], str]] = {
    "model_changed": (("model_changed", "parameter_changed"), ""),
    "system_changed": ((), "system"),
    "tools_changed": ((), "tools"),
    "messages_changed": (("thinking_dropped", "images_changed", "parameter_changed"), "messages"),
}
_OPENAI: dict[str, tuple[tuple[str, ...], str]] = {
    "model": (("model_changed",), ""),
    "prompt_cache_key": (("other_key",), ""),
    "tools": ((), "tools"),
    "text_format": (("parameter_changed",), ""),
    "reasoning_effort": (("parameter_changed",), ""),
    "verbosity": (("parameter_changed",), ""),
    "service_tier": (("parameter_changed",), ""),
    "context_compacted": ((), "messages"),
    "input": ((), "messages system"),
}
_WORDS = {"anthropic": _ANTHROPIC, "openai": _OPENAI}

#: What a byte that differs, or a marker that stands on it, is called.
_LOCAL = ("changed", "marker_on_volatile")

_object = msgspec.json.Decoder(dict[str, Any]).decode


def diagnosis_of(reply: Reply) -> Diagnosis | None:
    """What an answer says of the cache; None where it says nothing, or is not done comparing."""
    for extras in (reply.extras or {}).values():
        try:
            said = _object(extras)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        found = _anthropic(said.get("diagnostics")) or _openai(said.get("prompt_cache_diagnostics"))
        if found is not None:
            return found
    return None


def _anthropic(said: Any) -> Diagnosis | None:
    reason = said.get("cache_miss_reason") if isinstance(said, dict) else None
    if not isinstance(reason, dict) or not isinstance(reason.get("type"), str):
        return None
    word = reason["type"]
    tokens = _count(reason.get("cache_missed_input_tokens"))
    return Diagnosis(provider="anthropic", word=word, tokens=tokens, found=word in _ANTHROPIC)


def _openai(said: Any) -> Diagnosis | None:
    if not isinstance(said, dict) or not isinstance(said.get("type"), str):
        return None
    if said["type"] != "cache_miss":
        found = said["type"] == "cache_hit"
        return Diagnosis(provider="openai", word=said["type"], found=found)
    word = said.get("reason")
    return Diagnosis(
        provider="openai",
        word=word if isinstance(word, str) else "cache_miss",
        tokens=_count(said.get("cache_missed_tokens")),
        found=isinstance(word, str),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def agrees(
    diagnosis: Diagnosis, causes: tuple[Cause, ...], change: Change | None, hit: bool
) -> bool | None:
    """Whether the provider names something that was found here, too; None when it cannot tell."""
    if not diagnosis.found:
        return None
    if diagnosis.word == "cache_hit":
        return hit
    words = _WORDS.get(diagnosis.provider, {})
    # OpenAI's client has these words with `_changed` behind.
    known = words.get(diagnosis.word) or words.get(diagnosis.word.removesuffix("_changed"))
    if known is None:
        return None
    kinds, sections = known
    if any(cause.kind in kinds for cause in causes):
        return True
    local = any(cause.kind in _LOCAL for cause in causes)
    return local and change is not None and change.section in sections.split()
