"""Anthropic's Messages API."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from anaphora.cache import verdict
from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.emulator.billing import INPUT_LIMIT, OUTPUT_LIMIT, REQUEST_LIMIT, UsageWindow
from anaphora.emulator.exchange import EmulatorResponse, ResponseChunk, whole_number
from anaphora.emulator.replies.text import SeededRandom
from anaphora.emulator.strict.anthropic import CHECKS
from anaphora.prompt.call import Reasoning
from anaphora.values import Reply, Thinking
from anaphora.wire import sse

from .host import (
    MODELS_CREATED,
    Host,
    ReplyContext,
    RoutedRequest,
    Thought,
    cached_tokens,
    changed_param,
    model_limits,
    opaque,
    read_tokens,
    thinking_text,
)


class AnthropicHost(Host):
    wire = "anthropic"
    checks = CHECKS
    generate_path = "/messages"
    count_path = "/messages/count_tokens"
    reply_id_prefix = "msg_01"
    call_id_prefix = script_call_id_prefix = "toolu_"
    prewarm_stop = "length"
    reports_writes = True
    overloaded_code = "overloaded_error"
    spend_cap_code = "enforced_spend_limit_reached"
    unknown_event = ("emulator_unknown", b'{"type":"emulator_unknown","data":{}}')

    def headers(self, request: RoutedRequest, window: UsageWindow | None) -> dict[str, str]:
        headers = {"request-id": request.entry.request_id}
        if window is None:
            return headers
        reset = datetime.datetime.fromtimestamp(int(window.reset), datetime.UTC)
        for name, limit, used in (
            ("requests", REQUEST_LIMIT, window.requests),
            ("input-tokens", INPUT_LIMIT, window.input),
            ("output-tokens", OUTPUT_LIMIT, window.output),
            ("tokens", INPUT_LIMIT + OUTPUT_LIMIT, window.input + window.output),
        ):
            headers[f"anthropic-ratelimit-{name}-limit"] = str(limit)
            headers[f"anthropic-ratelimit-{name}-remaining"] = str(max(0, limit - used))
            headers[f"anthropic-ratelimit-{name}-reset"] = f"{reset:%Y-%m-%dT%H:%M:%SZ}"
        return headers

    def thinking(self, wanted: Reasoning | None, profile: Profile, random: SeededRandom) -> Thought:
        if wanted is None or wanted.mode is None:
            return None, 0
        shown = "" if wanted.display == "omitted" else thinking_text(random)
        return Thinking(shown, signature=opaque(random), provider=self.wire), 0

    def script_thinking(self, text: str, profile: Profile, random: SeededRandom) -> Thought:
        return Thinking(text, signature=random.id(64), provider=self.wire), 0

    def extra_fields(self, context: ReplyContext) -> dict[str, Any]:
        if not context.call.ir.cache.diagnose:
            return {}
        return {"diagnostics": _diagnostics(context)}

    def edit_stream(self, request: RoutedRequest, reply: Reply, response: EmulatorResponse) -> None:
        """Adds the ping, and the diagnostics to the event that begins the message."""
        first, *_, last = response.chunks
        extras = msgspec.json.decode((reply.extras or {}).get(self.wire, "{}"))
        if "diagnostics" in extras:
            field = b'"diagnostics":' + dumps(extras["diagnostics"]) + b',"stop_reason":null'
            first.data = first.data.replace(b'"stop_reason":null', field, 1)
        ping = ResponseChunk(last.delay, sse.encode_event("ping", b'{"type":"ping"}'))
        response.chunks.insert(1, ping)

    def list_models(self, profiles: Sequence[Profile], query: Mapping[str, str]) -> bytes:
        """A page of models, by the ids in the query."""
        ids = [profile.id for profile in profiles]
        start = ids.index(query["after_id"]) + 1 if query.get("after_id") in ids else 0
        page = profiles[start : start + whole_number(query.get("limit", "20"), "limit")]
        return dumps(
            {
                "data": [self.model_fields(profile) for profile in page],
                "has_more": start + len(page) < len(ids),
                "first_id": page[0].id if page else None,
                "last_id": page[-1].id if page else None,
            }
        )

    def model_fields(self, profile: Profile) -> dict[str, Any]:
        return {
            "type": "model",
            "id": profile.id,
            "display_name": profile.id,
            "created_at": MODELS_CREATED,
            "lifecycle": "active",
            **model_limits(profile, "max_input_tokens", "max_tokens"),
        }


def _diagnostics(context: ReplyContext) -> dict[str, Any] | None:
    """Why a prefix was not reused; None when it was, or on a first turn."""
    earlier, later = context.earlier, context.sent
    if context.call.ir.cache.compare_with is None:
        return None
    if earlier is None:
        return {"cache_miss_reason": {"type": "previous_message_not_found"}}
    params = (("model", "model_changed"), ("speed", "model_changed"))
    reason = changed_param(earlier, later, params)
    if reason is None:
        change = verdict.find_change(earlier, later)
        if change is None:
            return None
        reason = f"{change.section}_changed"
    missed = max(0, cached_tokens(earlier.usage) - read_tokens(later.usage))
    return {"cache_miss_reason": {"type": reason, "cache_missed_input_tokens": missed}}
