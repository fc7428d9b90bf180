"""The causes of a miss, and the provider's own diagnosis of one, in its replies."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from anaphora.values import Reply, Section
from anaphora.wording import counted

CauseKind: TypeAlias = Literal[
    "system_changed",
    "tools_changed",
    "history_edited",
    "compaction",
    "resumed",
    "side_call",
    "marker_on_volatile",
    "marker_on_trailing_system",
    "model_changed",
    "parameter_changed",
    "images_changed",
    "other_key",
    "other_route",
    "expired",
    "not_yet_visible",
    "lookback_exceeded",
    "below_minimum",
    "above_maximum",
    "no_marker",
    "thinking_dropped",
    "thinking_changed",
    "skill_loaded",
    "mode_changed",
    "not_persisted",
    "evicted",
    "subagent",
    "provider_side",
    "unknown",
]
"""Why less was read than the previous call had cached. `advice.CAUSES` has the name of each."""


class _Named(NamedTuple):
    """What a code names, and what agrees with it."""

    cause: CauseKind
    text: str
    others: tuple[CauseKind, ...] = ()
    """Other causes that agree with it."""
    sections: tuple[Section, ...] = ()
    """A change in one of them agrees with it."""


_SYSTEM = _Named("system_changed", "the system prompt changed", ("resumed",), ("system",))
_TOOLS = _Named("tools_changed", "the tools changed", ("resumed",), ("tools",))
_MESSAGES = _Named(
    "history_edited",
    "earlier messages changed",
    (
        "thinking_dropped",
        "thinking_changed",
        "images_changed",
        "parameter_changed",
        "compaction",
        "resumed",
    ),
    ("messages",),
)
_EFFORT = _Named("parameter_changed", "the effort changed")
_CODES: dict[str, _Named] = {
    "model": _Named("model_changed", "the model changed", ("parameter_changed",)),
    # A resumed session shows in a changed system prompt, and may have other tools.
    "system": _SYSTEM,
    "tools": _TOOLS,
    "messages": _MESSAGES,
    # OpenAI: the history, or instructions before it.
    "input": _Named(
        "history_edited", "earlier messages changed", ("compaction",), ("messages", "system")
    ),
    "context_compacted": _Named("compaction", "the history was compacted", sections=("messages",)),
    "prompt_cache_key": _Named("other_key", "the cache key changed"),
    "text_format": _Named("parameter_changed", "the output format changed"),
    "reasoning_effort": _EFFORT,
    "verbosity": _Named("parameter_changed", "the verbosity changed"),
    "service_tier": _Named("parameter_changed", "the service tier changed"),
    # Claude Code: `last_miss_cause`.
    "system_prompt": _SYSTEM,
    "defer_loading": _TOOLS,
    "messages_rewritten": _MESSAGES,
    "effort": _EFFORT,
    "fast_mode": _Named("parameter_changed", "fast mode changed"),
    "betas": _Named("parameter_changed", "the beta features changed"),
    "extra_body": _Named("parameter_changed", "additional fields of the request changed"),
    "cache_scope_or_ttl": _Named(
        "parameter_changed", "the scope or lifetime of cache markers changed"
    ),
    "auto_mode": _Named("mode_changed", "auto mode changed"),
    "ttl_expired_5m": _Named("expired", "the cache entry expired (TTL 5m)"),
    "ttl_expired_1h": _Named("expired", "the cache entry expired (TTL 1h)"),
    "likely_server_side": _Named(
        "provider_side",
        "the loss is probably on the provider's side",
        ("evicted", "not_persisted"),
    ),
}
"""By code, without `_changed`, which Anthropic, Claude Code and OpenAI's client append."""


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

    @property
    def names(self) -> _Named | None:
        """The first of its causes that is known."""
        return next(iter(self._named()), None) if self.conclusive else None

    def agrees(self, kinds: Set[str], section: Section | None, *, hit: bool) -> bool | None:
        """Whether it names one of the causes found, or the section of the change; None if it
        cannot tell."""
        if not self.conclusive:
            return None
        if self.code == "cache_hit":
            return hit
        named = self._named()
        if not named:
            return None
        return any(kinds & {one.cause, *one.others} or section in one.sections for one in named)

    def _named(self) -> list[_Named]:
        codes = map(_plain, self.code.split(", "))
        return [_CODES[code] for code in codes if code in _CODES]

    def __str__(self) -> str:
        missed = f" ({counted(self.tokens, 'token')})" if self.tokens is not None else ""
        return f"{self.code}{missed}"


def _plain(code: str) -> str:
    return code.removesuffix("_changed")


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
    return Diagnosis(
        provider="anthropic", code=code, tokens=tokens, conclusive=_plain(code) in _CODES
    )


def claude_code_diagnosis(field: Any) -> Diagnosis | None:
    """`last_miss_cause`, in which Claude Code names what it changed itself."""
    named = field.get("causes") if isinstance(field, dict) else None
    texts = [one for one in named if isinstance(one, str)] if isinstance(named, list) else []
    code = ", ".join(one for one in texts if _plain(one) in _CODES)
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
