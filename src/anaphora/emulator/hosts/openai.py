"""OpenAI's APIs: Chat Completions, which many other hosts speak, and Responses, which stores its
replies and repeats their requests."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from anaphora import catalog
from anaphora.cache import verdict
from anaphora.cache.verdict import SentCall
from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.emulator.exchange import (
    NULL,
    EmulatorRequest,
    EmulatorResponse,
    ResponseChunk,
    decode_object,
    decode_value,
    nested,
)
from anaphora.emulator.journal import INPUT_LIMIT, REQUEST_LIMIT, Billing, UsageWindow
from anaphora.emulator.models import model_error
from anaphora.emulator.replies import count_text
from anaphora.emulator.replies.text import IdGenerator, SeededRandom
from anaphora.emulator.strict.openai import CHAT_CHECKS
from anaphora.emulator.strict.responses import RESPONSES_CHECKS
from anaphora.errors import Forbidden, NotFound, RequestRejected, Upstream
from anaphora.prompt import Reasoning
from anaphora.values import Reply, StopReason, Thinking
from anaphora.wire.openai_chat.reply import write_choice
from anaphora.wire.openai_responses.parse import input_items

from .host import (
    MODELS_CREATED,
    CompleteBody,
    EmulatorRoute,
    Host,
    Operation,
    ReplyContext,
    RoutedRequest,
    Thought,
    cached_tokens,
    changed_param,
    opaque,
    read_tokens,
    thinking_text,
)
from .openai_stored import OpenAIFiles, StoredCompletions, StoredResponse
from .stored import StoredObjects

_CREATED = int(datetime.datetime.fromisoformat(MODELS_CREATED).timestamp())
#: Hosts that report usage in every stream, without `include_usage`.
_ALWAYS_COUNTED = ("mistral", "xai", "zai", "moonshot", "google")
#: The tier that hosts name in their replies. LiteLLM does not read a reply of Groq without one.
_SERVICE_TIERS = {"openai": "default", "azure": "default", "groq": "on_demand"}
#: Counts a prompt that names no model.
_ANY_MODEL = msgspec.Raw(b'"gpt-5.6"')
#: What is stored over all workspaces; the oldest goes first.
_MAX_RESPONSES, _MAX_BYTES = 10_000, 64 * 1024 * 1024
#: Fields that a response repeats from its request, with their defaults.
_DEFAULTS: dict[str, Any] = {
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
_RAW_DEFAULTS = {name: msgspec.Raw(dumps(value)) for name, value in _DEFAULTS.items()}
#: Fields that are repeated only where the request has them.
_OPTIONAL = (
    "background prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier"
).split()
_USER = msgspec.Raw(b'"user"')
#: The reason that OpenAI gives for each changed parameter, in the order it checks them.
_PARAM_REASONS = (
    ("model", "model_changed"),
    ("cache_key", "prompt_cache_key_changed"),
    ("output_format", "text_format_changed"),
    ("effort", "reasoning_effort_changed"),
    ("verbosity", "verbosity_changed"),
    ("service_tier", "service_tier_changed"),
)


class OpenAIHost(Host):
    call_id_prefix = "call_"
    # A refusal is a field of the message; the reply ends as usual.
    refusal_stop = "end"
    key_error_code = "invalid_api_key"
    reports_reasoning = True

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

    def rewrite(self, request: RoutedRequest) -> RoutedRequest:
        """A request to a deployment of Azure, which names the model in its path."""
        deployment = request.route.name
        if request.route.operation != "generate" or not deployment:
            return request
        model = msgspec.Raw(dumps(deployment))
        body = msgspec.json.encode({**request.fields, "model": model})
        changed = {name: getattr(request, name) for name in request.__struct_fields__}
        return RoutedRequest(**{**changed, "body": body})

    def list_models(self, profiles: Sequence[Profile], query: Mapping[str, str]) -> bytes:
        data = [self.model_fields(profile) for profile in profiles]
        return dumps({"object": "list", "data": data})

    def model_fields(self, profile: Profile) -> dict[str, Any]:
        owner = profile.provider
        return {"id": profile.id, "object": "model", "created": _CREATED, "owned_by": owner}


class OpenAIChatHost(OpenAIHost):
    wire = "openai_chat"
    checks = CHAT_CHECKS
    generate_path = "/chat/completions"
    reply_id_prefix = "chatcmpl-"
    choices_field = "choices"
    unknown_event = (
        "",
        b'{"id":"","object":"emulator.unknown","created":0,"model":"","choices":[]}',
    )

    def __init__(self, billing: Billing, ids: IdGenerator) -> None:
        super().__init__(billing, ids)
        self._completions = StoredCompletions()
        self._files = OpenAIFiles(ids)

    def operation(self, method: str, path: str) -> tuple[Operation, str] | None:
        if method == "DELETE" and path.startswith("/models/"):
            return "model_delete", path.removeprefix("/models/")
        return (
            super().operation(method, path)
            or self._completions.operation(method, path)
            or self._files.operation(method, path)
        )

    def handle(self, request: RoutedRequest) -> bytes | EmulatorResponse:
        if request.route.operation == "model_delete":
            raise self._no_deletion(request.route)
        if request.route.operation.startswith(("file", "batch")):
            return self._files.handle(request)
        return self._completions.handle(request)

    def _no_deletion(self, route: EmulatorRoute) -> Upstream:
        """Only fine-tuned models can be deleted, and no workspace has one."""
        if any(profile.id == route.name for profile in catalog.models(route.provider)):
            reason = f"The model `{route.name}` is not a fine-tuned model of your organization."
            return Forbidden(reason, status=403)
        return model_error(catalog.profile(route.provider, route.name), self.wire)

    def keep(self, request: RoutedRequest, items: tuple[bytes, ...], reply: Reply) -> None:
        self._completions.keep(request, reply)

    def thinking(self, wanted: Reasoning | None, profile: Profile, random: SeededRandom) -> Thought:
        if not profile.can("reasoning"):
            return None, 0
        field = profile.reasoning_field
        if field is None or not field.value:
            return None, random.between(16, 64)
        return self._shown(thinking_text(random), field.value), 0

    def script_thinking(self, text: str, profile: Profile, random: SeededRandom) -> Thought:
        field = profile.reasoning_field
        if field is None or not field.value:
            return None, max(1, count_text(text, profile))
        return self._shown(text, field.value), 0

    def _shown(self, text: str, field: str) -> Thinking:
        extras = {self.wire: dumps({"field": field}).decode()}
        return Thinking(text, provider=self.wire, extras=extras)

    def extra_fields(self, context: ReplyContext) -> dict[str, Any]:
        fields: dict[str, Any] = {"created": int(context.request.now)}
        tier = _SERVICE_TIERS.get(context.request.route.provider)
        return fields if tier is None else {**fields, "service_tier": tier}

    def write_choice(self, reply: Reply, index: int) -> bytes:
        return write_choice(reply, index)

    def reports_stream_usage(self, request: RoutedRequest) -> bool:
        if request.route.provider in _ALWAYS_COUNTED:
            return True
        return nested(request.value("stream_options"), "include_usage") is True


class OpenAIResponsesHost(OpenAIHost):
    wire = "openai_responses"
    checks = RESPONSES_CHECKS
    generate_path = "/responses"
    count_path = "/responses/input_tokens"
    reply_id_prefix = "resp_"
    unknown_event = (
        "response.emulator_unknown",
        b'{"type":"response.emulator_unknown","sequence_number":0}',
    )

    def __init__(self, billing: Billing, ids: IdGenerator) -> None:
        super().__init__(billing, ids)
        self._stored: StoredObjects[StoredResponse] = StoredObjects(
            "no response {}", lambda stored: stored.size, _MAX_RESPONSES, _MAX_BYTES
        )

    def operation(self, method: str, path: str) -> tuple[Operation, str] | None:
        operation = super().operation(method, path)
        if method == "GET" and path == self.generate_path:
            return "websocket", ""
        if operation is not None or not path.startswith("/responses/"):
            return operation
        name, _, rest = path.removeprefix("/responses/").partition("/")
        if rest == "input_items" and method == "GET":
            return "stored_items", name
        if method == "POST" and (name == "compact" or rest == "cancel"):
            return ("stored_cancel", name) if rest else ("compact", "")
        return ("stored", name) if not rest and method in ("GET", "DELETE") else None

    def handle(self, request: RoutedRequest) -> bytes | EmulatorResponse:
        if request.route.operation == "websocket":
            raise _no_websocket(request)
        workspace, name = request.workspace, request.route.name
        stored = self._stored.get(workspace, name)
        if request.route.operation == "stored_items":
            return stored.list_items(request.query)
        if request.method == "DELETE":
            self._stored.delete(workspace, name)
            return dumps({"id": name, "object": "response", "deleted": True})
        if request.route.operation == "stored_cancel":
            stored.cancel(request.now)
        elif request.query.get("stream") == "true":
            return stored.stream(request.now, request.query.get("starting_after"))
        return stored.shown(request.now)

    def first_body(self, request: RoutedRequest, reply: Reply) -> bytes | None:
        if request.value("background") is not True:
            return None
        return self._stored.get(request.workspace, reply.id).shown(request.now)

    def finish(
        self, request: RoutedRequest, items: tuple[bytes, ...], response: EmulatorResponse
    ) -> None:
        """The compaction of a conversation: its user messages, and an item that stands for all
        else. Usage and id are those of a reply to it."""
        if request.route.operation != "compact":
            return
        fields = msgspec.json.decode(response.body, type=dict[str, msgspec.Raw])
        random = SeededRandom(b"".join(items))
        item = {
            "type": "compaction",
            "id": f"cmp_{random.id()}",
            "encrypted_content": opaque(random),
        }
        kept = [
            _output_message(decode_value(one, "input"), f"msg_{random.id()}")
            for one in items
            if decode_object(one).get("role") == _USER
        ]
        body = {
            "id": fields["id"],
            "object": "response.compaction",
            "created_at": int(request.now),
            "output": [*kept, item],
            "usage": fields["usage"],
        }
        delay = response.chunks[0].delay
        response.chunks = [ResponseChunk(delay, msgspec.json.encode(body))]

    def complete_body(self, request: RoutedRequest) -> CompleteBody:
        """The input of the whole chain that `previous_response_id` continues."""
        fields = request.fields
        if request.value("background") is True and request.value("store") is False:
            reason = "background responses are stored: `store` must not be false"
            raise RequestRejected(reason, status=400, param="background")
        given = input_items(fields.get("input", NULL))
        items = tuple(self._referred(request.workspace, item) for item in given)
        previous = request.value("previous_response_id")
        if previous is None and "model" in fields and items == given:
            return CompleteBody(request.body, items)
        if previous is not None:
            stored = self._stored.find(request.workspace, str(previous))
            if stored is None:
                raise NotFound(
                    f"no response {previous} to continue",
                    status=400,
                    code="previous_response_not_found",
                    param="previous_response_id",
                )
            items = (*stored.items, *stored.output, *items)
        complete = {"model": _ANY_MODEL, **fields}
        complete.pop("previous_response_id", None)
        complete["input"] = msgspec.Raw(b"[" + b",".join(items) + b"]")
        return CompleteBody(msgspec.json.encode(complete), items)

    def _referred(self, workspace: str, item: bytes) -> bytes:
        """The stored item that a reference stands for; any other item is itself."""
        if b'"role"' in item or (b'"type"' in item and b'"item_reference"' not in item):
            return item
        fields = decode_value(item, "input")
        if not isinstance(fields, dict) or "role" in fields or not fields.get("id"):
            return item
        if fields.get("type") not in (None, "item_reference"):
            return item
        for stored in self._stored.list(workspace):
            for each in stored.output:
                if decode_value(each, "output").get("id") == fields.get("id"):
                    return each
        reason = f"Item with id '{fields.get('id')}' not found."
        raise NotFound(reason, status=404, code="not_found", param="input")

    def keep(self, request: RoutedRequest, items: tuple[bytes, ...], reply: Reply) -> None:
        if request.value("store") is False or request.route.operation == "compact":
            return
        background = request.value("background") is True
        waits = background and request.value("stream") is not True
        stored = StoredResponse(
            items,
            reply,
            request.route.codec,
            background,
            request.now,
            request.now + (self.background if waits else 0.0),
        )
        self._stored.add(request.workspace, reply.id, stored)

    def without_earlier_thinking(self, complete: CompleteBody, profile: Profile) -> bytes | None:
        strips = profile.strips_thinking
        if b'"reasoning"' not in complete.body or not (strips.value and strips.verified):
            return None
        items = [decode_value(item, "input") for item in complete.items]
        is_user = [isinstance(item, dict) and item.get("role") == "user" for item in items]
        turn = max((index for index, user in enumerate(is_user) if user), default=0)
        earlier = {
            index
            for index, item in enumerate(items[:turn])
            if isinstance(item, dict) and item.get("type") == "reasoning"
        }
        body = msgspec.json.decode(complete.body, type=dict[str, msgspec.Raw])
        wanted = decode_value(body.get("reasoning", NULL), "reasoning")
        if not earlier or nested(wanted, "context") == "all_turns":
            return None
        kept = [item for index, item in enumerate(complete.items) if index not in earlier]
        body["input"] = msgspec.Raw(b"[" + b",".join(kept) + b"]")
        return msgspec.json.encode(body)

    def thinking(self, wanted: Reasoning | None, profile: Profile, random: SeededRandom) -> Thought:
        if not profile.can("reasoning"):
            return None, 0
        summary = thinking_text(random) if wanted is not None and wanted.summary else ""
        data = opaque(random)
        extras = self._item_id(random)
        shown = Thinking(summary, data=data, provider=self.wire, extras=extras)
        return shown, random.between(16, 64)

    def script_thinking(self, text: str, profile: Profile, random: SeededRandom) -> Thought:
        extras = self._item_id(random)
        return Thinking(text, data=random.id(64), provider=self.wire, extras=extras), 0

    def _item_id(self, random: SeededRandom) -> dict[str, str]:
        return {self.wire: dumps({"id": f"rs_{random.id()}"}).decode()}

    def extra_fields(self, context: ReplyContext) -> dict[str, Any]:
        fields = _response_fields(context.request, context.reply.stop_reason)
        if context.call.ir.cache.compare_with is not None:
            fields["prompt_cache_diagnostics"] = _diagnostics(context.earlier, context.sent)
        return fields

    def count_body(self, tokens: int) -> bytes:
        return dumps({"object": "response.input_tokens", "input_tokens": tokens})


def _no_websocket(request: EmulatorRequest) -> Upstream:
    """Clients that try a WebSocket first use HTTP after a 426, and try again after other errors."""
    if request.headers.get("upgrade", "").lower() == "websocket":
        reason = "WebSocket is not supported here: POST the request to this path"
        return RequestRejected(reason, status=426)
    return NotFound("no response is named in the path", status=404, code="not_found_error")


def _output_message(message: dict[str, Any], item_id: str) -> dict[str, Any]:
    """A message of the input as an output item."""
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    fields = {"type": "message", "id": item_id, "status": "completed"}
    return {**fields, "role": "user", "content": content}


def _response_fields(request: EmulatorRequest, stop: StopReason) -> dict[str, Any]:
    """What a response repeats of its request: each field as it came, its JSON unchanged."""
    cut = stop == "length"
    body = request.fields
    fields: dict[str, Any] = {
        "object": "response",
        "created_at": int(request.now),
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        **_RAW_DEFAULTS,
    }
    fields |= {name: raw for name, raw in body.items() if name in _RAW_DEFAULTS and raw != NULL}
    fields |= {name: body[name] for name in _OPTIONAL if name in body}
    options = request.value("prompt_cache_options")
    if isinstance(options, dict):
        fields["prompt_cache_options"] = {"mode": "implicit", "ttl": "30m", **options}
    return fields


def _diagnostics(earlier: SentCall | None, later: SentCall) -> dict[str, Any]:
    if earlier is None:
        return {"type": "comparison_response_not_found"}
    left, read = cached_tokens(earlier.usage), read_tokens(later.usage)
    if left and read >= left:
        return {"type": "cache_hit"}
    reason = changed_param(earlier, later, _PARAM_REASONS)
    if reason is None and (change := verdict.find_change(earlier, later)) is not None:
        reason = "tools_changed" if change.section == "tools" else "input_changed"
    if reason is None:
        # Too short, expired or never marked: the enumeration has no value for these.
        return {"type": "unavailable"}
    return {
        "type": "cache_miss",
        "reason": reason,
        "cache_missed_tokens": max(0, left - read),
        "comparison_reusable_tokens": left,
    }
