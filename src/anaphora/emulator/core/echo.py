"""What a response of OpenAI's repeats of its request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from anaphora.canonical import dumps
from anaphora.values import StopReason

#: Repeated as they came, or as they are when nobody says them.
_REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
#: Repeated where they came.
_ASKED = ("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier")


_USUAL = {name: msgspec.Raw(dumps(usual)) for name, usual in _REPEATED.items()}
_NULL = msgspec.Raw(b"null")


def response_fields(body: Mapping[str, msgspec.Raw], stop: StopReason, at: float) -> dict[str, Any]:
    """Each field as it came, its JSON untouched."""
    cut = stop == "length"
    said: dict[str, Any] = {
        "object": "response",
        "created_at": int(at),
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
    }
    said |= _USUAL
    for name, raw in body.items():
        if name in _USUAL and raw != _NULL:
            said[name] = raw
    said |= {name: body[name] for name in _ASKED if name in body}
    options = msgspec.json.decode(body.get("prompt_cache_options", _NULL))
    if isinstance(options, dict):
        said["prompt_cache_options"] = {"mode": "implicit", "ttl": "30m", **options}
    return said
