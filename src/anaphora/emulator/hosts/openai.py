"""What OpenAI's two wires have in common."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.emulator.billing import INPUT_LIMIT, REQUEST_LIMIT, UsageWindow
from anaphora.emulator.replies import GeneratedReply

from .host import MODELS_CREATED, Host, RoutedRequest

_CREATED = int(datetime.datetime.fromisoformat(MODELS_CREATED).timestamp())


class OpenAIHost(Host):
    call_id_prefix = "call_"
    # A refusal is a field of the message; the reply ends as usual.
    refusal_stop = "end"
    key_error_code = "invalid_api_key"

    def headers(self, request: RoutedRequest, window: UsageWindow | None) -> dict[str, str]:
        headers = {
            "x-request-id": request.entry.request_id,
            "openai-version": "2020-10-01",
            "openai-processing-ms": "1",
            "openai-organization": "emulator",
        }
        if window is None:
            return headers
        left = max(0, round((window.reset - request.now) * 1000))
        reset = f"{left}ms" if left < 1000 else f"{left / 1000:g}s"
        tokens = window.input + window.output
        return {
            **headers,
            "x-ratelimit-limit-requests": str(REQUEST_LIMIT),
            "x-ratelimit-remaining-requests": str(max(0, REQUEST_LIMIT - window.requests)),
            "x-ratelimit-reset-requests": reset,
            "x-ratelimit-limit-tokens": str(INPUT_LIMIT),
            "x-ratelimit-remaining-tokens": str(max(0, INPUT_LIMIT - tokens)),
            "x-ratelimit-reset-tokens": reset,
        }

    def reported_reasoning(self, reply: GeneratedReply, tokens: int) -> int | None:
        return tokens

    def list_models(self, profiles: Sequence[Profile], query: Mapping[str, str]) -> bytes:
        data = [self.model_fields(profile) for profile in profiles]
        return dumps({"object": "list", "data": data})

    def model_fields(self, profile: Profile) -> dict[str, Any]:
        owner = profile.provider
        return {"id": profile.id, "object": "model", "created": _CREATED, "owned_by": owner}
