"""What a response of OpenAI's repeats of its request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from anaphora.values import Reply

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


def response_fields(body: Mapping[str, msgspec.Raw], reply: Reply, at: float) -> dict[str, Any]:
    cut = reply.stop == "length"
    said: dict[str, Any] = {
        "object": "response",
        "created_at": int(at),
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
    }
    for name, usual in _REPEATED.items():
        asked = msgspec.json.decode(body[name]) if name in body else None
        said[name] = usual if asked is None else asked
    for name in _ASKED:
        if name in body:
            said[name] = msgspec.json.decode(body[name])
    if isinstance(said.get("prompt_cache_options"), dict):
        said["prompt_cache_options"] = {
            "mode": "implicit",
            "ttl": "30m",
            **said["prompt_cache_options"],
        }
    return said
