"""Anthropic's Messages API."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from blake3 import blake3

from anaphora.cache import verdict
from anaphora.cache.verdict.json_blocks import block_of
from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.emulator.exchange import EmulatorResponse, ResponseChunk, nested, whole_number
from anaphora.emulator.journal import INPUT_LIMIT, OUTPUT_LIMIT, REQUEST_LIMIT, Billing, UsageWindow
from anaphora.emulator.replies.text import IdGenerator, SeededRandom
from anaphora.emulator.strict import rejected
from anaphora.emulator.strict.anthropic import CHECKS
from anaphora.prompt import Reasoning
from anaphora.rendered import Chunk, Kind, Rendered
from anaphora.values import Part, Reply, Thinking
from anaphora.wire import sse

from .anthropic_files import AnthropicFiles
from .host import (
    MODELS_CREATED,
    Host,
    Operation,
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

    def __init__(self, billing: Billing, ids: IdGenerator) -> None:
        super().__init__(billing, ids)
        self._files = AnthropicFiles(ids)

    def operation(self, method: str, path: str) -> tuple[Operation, str] | None:
        return super().operation(method, path) or self._files.operation(method, path)

    def handle(self, request: RoutedRequest) -> bytes | EmulatorResponse:
        return self._files.handle(request)

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

    def bind_thinking(
        self, parts: tuple[Part, ...], profile: Profile, prompt: Rendered
    ) -> tuple[Part, ...]:
        signed = any(isinstance(part, Thinking) and part.signature for part in parts)
        if not signed or not profile.refuses("unbound_thinking"):
            return parts
        binding = _binding(prompt)
        return tuple(
            msgspec.structs.replace(part, signature=part.signature + binding)
            if isinstance(part, Thinking) and part.signature
            else part
            for part in parts
        )

    def unbound_thinking(
        self, request: RoutedRequest, profile: Profile, prompt: Rendered
    ) -> tuple[bytes, tuple[str, ...]] | None:
        if _BOUND not in request.body or not profile.refuses("unbound_thinking"):
            return None
        unbound = _unbound(prompt)
        if not unbound:
            return None
        body = msgspec.json.decode(request.body)
        paths = _drop_blocks(body["messages"], unbound)
        behaviour = nested(body, "thinking", "block_binding", "prefix_mismatch_behavior")
        if behaviour == "drop_block":
            return msgspec.json.encode(body), tuple(paths)
        # anomalyco/opencode#48637, with the path and the reason.
        message = (
            f"{paths[0]}: Invalid `signature` in `thinking` block. The block is bound to a "
            "different conversation. Remove the block, or set "
            '`thinking.block_binding.prefix_mismatch_behavior` to "drop_block". That setting '
            f"requires the `{_BINDING_BETA}` value in the `anthropic-beta` header."
        )
        if next(iter(unbound.values())):
            message += " The `system` prompt differs from the one this block was created with."
        raise rejected(message, param=paths[0], code="invalid_request_error")

    def extra_fields(self, context: ReplyContext) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if context.call.ir.cache.diagnose:
            fields["diagnostics"] = _diagnostics(context)
        if _BINDING_BETA in context.request.headers.get("anthropic-beta", ""):
            fields["input_transformations"] = [
                {"path": path, "reason": "prefix_binding_mismatch", "type": "thinking_dropped"}
                for path in context.dropped
            ]
        return fields

    def edit_stream(self, request: RoutedRequest, reply: Reply, response: EmulatorResponse) -> None:
        """Adds the ping, the diagnostics to the event that begins the message, and what was dropped
        to the one that ends it."""
        first, *_, last = response.chunks
        extras = msgspec.json.decode((reply.extras or {}).get(self.wire, "{}"))
        if "input_transformations" in extras:
            begin = b'{"type":"message_delta",'
            field = b'"input_transformations":' + dumps(extras["input_transformations"]) + b","
            for chunk in response.chunks:
                chunk.data = chunk.data.replace(begin, begin + field, 1)
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


# ── Thinking bound to its prompt ─────────────────────────────────────────────────────────────────

#: In a signature, behind its own text: digests of the prompt that the thinking was written for.
_BOUND = b"Bound"
_WHOLE, _SYSTEM = 18, 6
"""Bytes of a digest; three are four characters of base64."""
_CHARACTERS = (_WHOLE + _SYSTEM) // 3 * 4
_BINDING_BETA = "thinking-binding-controls-2026-08-01"


def _digests(prompt: Rendered) -> Iterator[tuple[Chunk, str, str]]:
    """Each chunk with the digests, at its end, of the prompt and of the system blocks. Thinking is
    not part of them: a prefix check that fails names what stands around it."""
    whole, system = blake3(), blake3()
    for chunk in prompt:
        if chunk.kind is not Kind.THINKING:
            block = chunk.section.encode() + _without_glue(chunk.data)
            whole.update(block)
            if chunk.section == "system":
                system.update(block)
        yield chunk, _text(whole.digest(_WHOLE)), _text(system.digest(_SYSTEM))


def _without_glue(data: bytes) -> bytes:
    """A block without what stands between it and the one before, which may have been thinking."""
    if data[:1] == b"{" or data[:2] == b",{":
        return data.lstrip(b",")
    return data[data.index(b"[", data.index(b'"content":') if b'"role":' in data else 0) + 1 :]


def _text(digest: bytes) -> str:
    return base64.b64encode(digest, altchars=b"ab").decode()


def _binding(prompt: Rendered) -> str:
    """What a signature ends with."""
    *_, (_, whole, system) = _digests(prompt)
    return _BOUND.decode() + whole + system


def _unbound(prompt: Rendered) -> dict[str, bool]:
    """The signatures of thinking that no prompt before it in this request belongs to, and whether
    the system prompt is another. Signatures of other origin are taken as they are."""
    found: dict[str, bool] = {}
    seen: set[str] = set()
    for chunk, whole, system in _digests(prompt):
        if chunk.kind is not Kind.THINKING:
            seen.add(whole)
            continue
        block = block_of(chunk).value
        signature = block.get("signature") if isinstance(block, dict) else None
        _, mark, binding = str(signature or "").rpartition(_BOUND.decode())
        if mark and len(binding) == _CHARACTERS and binding[: _WHOLE // 3 * 4] not in seen:
            found[str(signature)] = binding[_WHOLE // 3 * 4 :] != system
    return found


def _drop_blocks(messages: Any, signatures: Collection[str]) -> list[str]:
    """Removes the thinking with these signatures from the messages; where it was."""
    paths: list[str] = []
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            continue
        kept = []
        for place, block in enumerate(content):
            if isinstance(block, dict) and block.get("signature") in signatures:
                paths.append(f"messages.{index}.content.{place}")
            else:
                kept.append(block)
        message["content"] = kept
    return paths


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
