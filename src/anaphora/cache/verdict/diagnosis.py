"""The provider's own diagnosis of a cache miss, and whether it agrees with ours."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from anaphora.values import Reply

from .values import Cause, CauseKind, Change, Diagnosis

_Codes: TypeAlias = dict[str, tuple[tuple[CauseKind, ...], tuple[str, ...]]]
"""By the provider's code: the causes that agree, and the sections in which a changed byte does."""

_CODES: dict[str, _Codes] = {
    "anthropic": {
        "model_changed": (("model_changed", "parameter_changed"), ()),
        "system_changed": ((), ("system",)),
        "tools_changed": ((), ("tools",)),
        "messages_changed": (
            ("thinking_dropped", "images_changed", "parameter_changed"),
            ("messages",),
        ),
    },
    "openai": {
        "model": (("model_changed",), ()),
        "prompt_cache_key": (("other_key",), ()),
        "tools": ((), ("tools",)),
        "text_format": (("parameter_changed",), ()),
        "reasoning_effort": (("parameter_changed",), ()),
        "verbosity": (("parameter_changed",), ()),
        "service_tier": (("parameter_changed",), ()),
        "context_compacted": ((), ("messages",)),
        "input": ((), ("messages", "system")),
    },
}

_decode = msgspec.json.Decoder(dict[str, Any]).decode


#: In the names of both fields that hold a diagnosis.
_NAME = "diagnostics"


def diagnosis_of(reply: Reply) -> Diagnosis | None:
    """The diagnosis in a reply; None where there is none, or the comparison is not finished."""
    for extras in (reply.extras or {}).values():
        if _NAME not in extras:
            continue  # nearly always
        try:
            fields = _decode(extras)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        found = _anthropic(fields.get("diagnostics"))
        found = found or _openai(fields.get("prompt_cache_diagnostics"))
        if found is not None:
            return found
    return None


def _anthropic(field: Any) -> Diagnosis | None:
    reason = field.get("cache_miss_reason") if isinstance(field, dict) else None
    if not isinstance(reason, dict) or not isinstance(reason.get("type"), str):
        return None
    code, known = reason["type"], _CODES["anthropic"]
    tokens = _count(reason.get("cache_missed_input_tokens"))
    return Diagnosis(provider="anthropic", code=code, tokens=tokens, conclusive=code in known)


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


def agrees(
    diagnosis: Diagnosis | None, causes: tuple[Cause, ...], change: Change | None, hit: bool
) -> bool | None:
    """Whether the provider names a cause that was found here too; None when it cannot tell."""
    if diagnosis is None or not diagnosis.conclusive:
        return None
    if diagnosis.code == "cache_hit":
        return hit
    codes = _CODES.get(diagnosis.provider, {})
    # OpenAI's client has these codes with `_changed` appended.
    known = codes.get(diagnosis.code) or codes.get(diagnosis.code.removesuffix("_changed"))
    if known is None:
        return None
    kinds, sections = known
    if any(cause.kind in kinds for cause in causes):
        return True
    bytes_changed = any(cause.kind in ("changed", "marker_on_volatile") for cause in causes)
    return bytes_changed and change is not None and change.section in sections
