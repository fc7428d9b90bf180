"""The provider's own diagnosis of a cache miss, in its replies."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from anaphora.values import Reply
from anaphora.wording import counted

_Codes: TypeAlias = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
"""By the provider's code: the causes that agree with it, and the sections whose changes do."""

_OF_MESSAGES = "thinking_dropped thinking_changed images_changed parameter_changed".split()
_ANTHROPIC: _Codes = {
    "model_changed": (("model_changed", "parameter_changed"), ()),
    # A resumed session shows in a changed system prompt, and may have other tools.
    "system_changed": (("resumed",), ("system",)),
    "tools_changed": (("resumed",), ("tools",)),
    "messages_changed": ((*_OF_MESSAGES, "compaction", "resumed"), ("messages",)),
}
_OPENAI: _Codes = {
    "model": (("model_changed",), ()),
    "prompt_cache_key": (("other_key",), ()),
    "tools": ((), ("tools",)),
    "text_format": (("parameter_changed",), ()),
    "reasoning_effort": (("parameter_changed",), ()),
    "verbosity": (("parameter_changed",), ()),
    "service_tier": (("parameter_changed",), ()),
    "context_compacted": (("compaction",), ("messages",)),
    "input": (("compaction",), ("messages", "system")),
}
#: Causes of the program itself: `last_miss_cause` of Claude Code.
_CLAUDE_CODE: _Codes = {
    "system_prompt_changed": _ANTHROPIC["system_changed"],
    "tools_changed": _ANTHROPIC["tools_changed"],
    "defer_loading_changed": _ANTHROPIC["tools_changed"],
    "model_changed": (("model_changed",), ()),
    "messages_rewritten": _ANTHROPIC["messages_changed"],
    "auto_mode_changed": (("mode_changed",), ()),
    "ttl_expired_5m": (("expired",), ()),
    "ttl_expired_1h": (("expired",), ()),
    "likely_server_side": (("provider_side", "evicted", "not_persisted"), ()),
    "effort_changed": (("parameter_changed",), ()),
    "fast_mode_changed": (("parameter_changed",), ()),
    "betas_changed": (("parameter_changed",), ()),
    "extra_body_changed": (("parameter_changed",), ()),
    "cache_scope_or_ttl_changed": (("parameter_changed",), ()),
}
CODES = {"anthropic": _ANTHROPIC, "openai": _OPENAI, "claude_code": _CLAUDE_CODE}
"""By who makes the diagnosis."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The diagnosis of a cache miss by the provider, or by the program that sent the call."""

    provider: str
    code: str
    """Its code: `tools_changed`, `prompt_cache_key`; several with commas."""
    tokens: int | None = None
    """How many tokens it says were missed."""
    conclusive: bool = True
    """False: the provider could not compare."""

    @property
    def reporter(self) -> str:
        return "Claude Code" if self.provider == "claude_code" else "the provider"

    def __str__(self) -> str:
        missed = f" ({counted(self.tokens, 'token')})" if self.tokens is not None else ""
        return f"{self.code}{missed}"


_decode = msgspec.json.Decoder(dict[str, Any]).decode


def diagnosis_of(reply: Reply) -> Diagnosis | None:
    """The diagnosis in a reply; None if there is none, or the comparison is not finished."""
    for extras in (reply.extras or {}).values():
        if "diagnostics" not in extras:  # nearly always
            continue
        try:
            fields = _decode(extras)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        found = anthropic_diagnosis(fields.get("diagnostics"))
        found = found or _openai(fields.get("prompt_cache_diagnostics"))
        if found is not None:
            return found
    return None


def anthropic_diagnosis(field: Any) -> Diagnosis | None:
    reason = field.get("cache_miss_reason") if isinstance(field, dict) else None
    if not isinstance(reason, dict) or not isinstance(reason.get("type"), str):
        return None
    code = reason["type"]
    tokens = _count(reason.get("cache_missed_input_tokens"))
    return Diagnosis(provider="anthropic", code=code, tokens=tokens, conclusive=code in _ANTHROPIC)


def claude_code_diagnosis(field: Any) -> Diagnosis | None:
    """`last_miss_cause`, in which Claude Code names what it changed itself."""
    named = field.get("causes") if isinstance(field, dict) else None
    texts = [one for one in named if isinstance(one, str)] if isinstance(named, list) else []
    code = ", ".join(one for one in texts if one in _CLAUDE_CODE)
    return Diagnosis(provider="claude_code", code=code) if code else None


def _openai(field: Any) -> Diagnosis | None:
    if not isinstance(field, dict) or not isinstance(field.get("type"), str):
        return None
    kind, reason = field["type"], field.get("reason")
    if kind != "cache_miss":
        return Diagnosis(provider="openai", code=kind, conclusive=kind == "cache_hit")
    return Diagnosis(
        provider="openai",
        code=reason if isinstance(reason, str) else kind,
        tokens=_count(field.get("cache_missed_tokens")),
        conclusive=isinstance(reason, str),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
