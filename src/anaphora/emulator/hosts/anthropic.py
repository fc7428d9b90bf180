"""Anthropic's Messages API, with its files and message batches."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from blake3 import blake3

from anaphora.cache import verdict
from anaphora.cache.verdict.json_blocks import block_of
from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.emulator.exchange import (
    NULL,
    EmulatorResponse,
    ResponseChunk,
    json_response,
    nested,
)
from anaphora.emulator.journal import INPUT_LIMIT, OUTPUT_LIMIT, REQUEST_LIMIT, Billing, UsageWindow
from anaphora.emulator.replies.text import IdGenerator, SeededRandom, cited_text
from anaphora.emulator.strict import rejected
from anaphora.emulator.strict.anthropic import CHECKS
from anaphora.prompt import Call, Reasoning
from anaphora.rendered import Chunk, Kind, Rendered
from anaphora.values import Part, Reply, Text, Thinking
from anaphora.wire import sse
from anaphora.wire.reading import DECODE_ERRORS

from .host import (
    MODELS_CREATED,
    CompleteBody,
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
from .stored import (
    BATCH_OPERATIONS,
    Batch,
    BatchedRequest,
    FilesAndBatches,
    Operations,
    StoredFile,
    whole_list,
)
from .threads import MessageThreads


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

    def __init__(self, billing: Billing, ids: IdGenerator) -> None:
        super().__init__(billing, ids)
        self._files = AnthropicFiles(ids)
        self._threads = MessageThreads()

    def operation(self, method: str, path: str) -> tuple[Operation, str] | None:
        return super().operation(method, path) or self._files.operation(method, path)

    def handle(self, request: RoutedRequest) -> bytes | EmulatorResponse:
        return self._files.handle(request)

    def headers(self, request: RoutedRequest, window: UsageWindow | None) -> dict[str, str]:
        headers = {"request-id": request.entry.request_id}
        if window is None:
            return headers
        at = datetime.datetime.fromtimestamp(int(window.reset), datetime.UTC)
        reset = f"{at:%Y-%m-%dT%H:%M:%SZ}"
        for name, limit, used in (
            ("requests", REQUEST_LIMIT, window.requests),
            ("input-tokens", INPUT_LIMIT, window.input),
            ("output-tokens", OUTPUT_LIMIT, window.output),
            ("tokens", INPUT_LIMIT + OUTPUT_LIMIT, window.input + window.output),
        ):
            headers[f"anthropic-ratelimit-{name}-limit"] = str(limit)
            headers[f"anthropic-ratelimit-{name}-remaining"] = str(max(0, limit - used))
            headers[f"anthropic-ratelimit-{name}-reset"] = reset
        return headers

    def complete_body(self, request: RoutedRequest) -> CompleteBody:
        return self._threads.complete(request)

    def keep(self, request: RoutedRequest, items: tuple[bytes, ...], reply: Reply) -> None:
        self._threads.keep(request, items, reply)

    def thinking(self, wanted: Reasoning | None, profile: Profile, random: SeededRandom) -> Thought:
        if wanted is None or wanted.mode is None:
            return None, 0
        shown = "" if wanted.display == "omitted" else thinking_text(random)
        return Thinking(shown, signature=opaque(random), provider=self.wire), 0

    def script_thinking(self, text: str, profile: Profile, random: SeededRandom) -> Thought:
        return Thinking(text, signature=random.id(64), provider=self.wire), 0

    def text_part(self, call: Call, text: str) -> Text:
        return cited_text(call, text, self.wire)

    def bind_thinking(
        self, parts: tuple[Part, ...], profile: Profile, prompt: Rendered
    ) -> tuple[Part, ...]:
        signed = any(isinstance(part, Thinking) and part.signature for part in parts)
        if not signed or not profile.refuses("unbound_thinking"):
            return parts
        *_, (_, whole, system) = _digests(prompt)
        binding = _BOUND.decode() + whole + system
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
        """Adds the ping, the diagnostics to the event that begins the message, and the dropped
        blocks to the one that ends it."""
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

    def list_models(self, profiles: Sequence[Profile]) -> bytes:
        return dumps(whole_list([self.model_fields(profile) for profile in profiles]))

    def model_fields(self, profile: Profile) -> dict[str, Any]:
        return {
            "type": "model",
            "id": profile.id,
            "display_name": profile.id,
            "created_at": MODELS_CREATED,
            "lifecycle": "active",
            **model_limits(profile, "max_input_tokens", "max_tokens"),
        }


# ── Files and message batches ────────────────────────────────────────────────────────────────────


class AnthropicFiles(FilesAndBatches):
    batches_path = "/messages/batches"
    batch_operations: ClassVar[Operations] = {
        **BATCH_OPERATIONS,
        ("DELETE", True, ""): "batch",
        ("GET", True, "results"): "batch_results",
    }
    file_prefix = "file_01"
    deleted_file: ClassVar = {"type": "file_deleted"}

    def file_fields(self, file: StoredFile) -> dict[str, Any]:
        return {
            "type": "file",
            "id": file.id,
            "filename": file.name,
            "mime_type": file.media_type,
            "size_bytes": len(file.data),
            "created_at": _date(file.created),
            "downloadable": False,
        }

    def list_files(self, files: list[StoredFile], query: Mapping[str, str]) -> dict[str, Any]:
        return {**whole_list([self.file_fields(file) for file in files]), "next_page": None}

    def file_content(self, file: StoredFile) -> EmulatorResponse:
        reason = "only files that a tool generated can be downloaded"
        raise rejected(reason, code="file_not_downloadable")

    def new_batch(self, request: RoutedRequest) -> Batch:
        requests = _batched(request)
        return Batch(id=self.ids.next("msgbatch_01"), requests=requests, created=request.now)

    def batch_fields(self, batch: Batch, request: RoutedRequest) -> dict[str, Any]:
        ended, failed, done = batch.ended is not None, batch.failed, len(batch.results)
        left = len(batch.requests) - done
        status = "ended" if ended else "in_progress" if batch.canceled is None else "canceling"
        root = request.path.partition("/batches")[0]
        host = request.headers.get("host", "127.0.0.1")
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": status,
            "request_counts": {
                "processing": 0 if ended else left,
                "succeeded": done - failed,
                "errored": failed,
                "canceled": left if ended else 0,
                "expired": 0,
            },
            "created_at": _date(batch.created),
            "expires_at": _date(batch.created + 86_400),
            "ended_at": None if batch.ended is None else _date(batch.ended),
            "cancel_initiated_at": None if batch.canceled is None else _date(batch.canceled),
            "archived_at": None,
            "results_url": f"http://{host}{root}/batches/{batch.id}/results" if ended else None,
        }

    def batch_results(self, batch: Batch) -> EmulatorResponse:
        """One line for each request, whether it ran or not."""
        if batch.ended is None:
            raise rejected("the batch has not ended: it has no results yet")
        lines = []
        for result in batch.results:
            body: dict[str, Any] = msgspec.json.decode(result.body)
            if result.status < 400:
                body["usage"]["service_tier"] = "batch"
                outcome = {"type": "succeeded", "message": body}
            else:
                outcome = {"type": "errored", "error": body}
            lines.append(dumps({"custom_id": result.custom_id, "result": outcome}))
        lines += [
            dumps({"custom_id": one.custom_id, "result": {"type": "canceled"}})
            for one in batch.requests[len(batch.results) :]
        ]
        data = b"".join(line + b"\n" for line in lines)
        return json_response(data, headers={"content-type": "application/x-jsonl"})


class _BatchItem(msgspec.Struct):
    custom_id: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    params: msgspec.Raw


def _batched(request: RoutedRequest) -> tuple[BatchedRequest, ...]:
    """The requests of a new batch."""
    try:
        listed = msgspec.json.decode(request.fields.get("requests", NULL), type=list[_BatchItem])
    except DECODE_ERRORS as problem:
        raise rejected(f"requests: {problem}") from None
    if not listed or len({item.custom_id for item in listed}) < len(listed):
        raise rejected("requests: must not be empty, and every custom_id must be unique")
    path = request.path.partition("/batches")[0]
    return tuple(BatchedRequest(item.custom_id, path, bytes(item.params)) for item in listed)


def _date(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(int(seconds), datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


# ── Thinking bound to its prompt ─────────────────────────────────────────────────────────────────

#: In a signature, after its own text: digests of the prompt that the thinking was generated for.
_BOUND = b"Bound"
_WHOLE, _SYSTEM = 18, 6
"""Bytes of a digest; three are four characters of base64."""
_CHARACTERS = (_WHOLE + _SYSTEM) // 3 * 4
_BINDING_BETA = "thinking-binding-controls-2026-08-01"


def _digests(prompt: Rendered) -> Iterator[tuple[Chunk, str, str]]:
    """Each chunk with the digests, at its end, of the prompt and of the system blocks. Thinking is
    not part of them: the provider's check compares the blocks around it."""
    whole, system = blake3(), blake3()
    for chunk in prompt:
        if chunk.kind is not Kind.THINKING:
            block = chunk.section.encode() + _without_glue(chunk.data)
            whole.update(block)
            if chunk.section == "system":
                system.update(block)
        yield chunk, _text(whole.digest(_WHOLE)), _text(system.digest(_SYSTEM))


def _without_glue(data: bytes) -> bytes:
    """A block without the bytes between it and the one before, which may have been thinking."""
    if data[:1] == b"{" or data[:2] == b",{":
        return data.lstrip(b",")
    return data[data.index(b"[", data.index(b'"content":') if b'"role":' in data else 0) + 1 :]


def _text(digest: bytes) -> str:
    return base64.b64encode(digest, altchars=b"ab").decode()


def _unbound(prompt: Rendered) -> dict[str, bool]:
    """Signatures of thinking that was generated for another prompt than the blocks before it, and
    whether the system prompt differs. Signatures that the emulator did not make are accepted."""
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
    """Removes the thinking with these signatures from the messages, and returns its paths."""
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
