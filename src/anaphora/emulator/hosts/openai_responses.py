"""OpenAI's Responses API, which stores its replies and echoes fields of their requests."""

from __future__ import annotations

from typing import Any

import msgspec

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
from anaphora.emulator.journal import Billing
from anaphora.emulator.replies.text import IdGenerator, SeededRandom
from anaphora.emulator.strict import rejected
from anaphora.emulator.strict.responses import RESPONSES_CHECKS
from anaphora.errors import ContextOverflow, NotFound, RequestRejected, Upstream
from anaphora.prompt import Reasoning
from anaphora.values import Reply, ReplyStart, StopReason, Thinking
from anaphora.wire import Wire
from anaphora.wire.openai_responses.parse import input_items
from anaphora.wire.sse import encode_event

from .host import (
    CompleteBody,
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
from .openai import OpenAIHost
from .stored import StoredObjects, openai_list

#: Counts a prompt that names no model.
_ANY_MODEL = msgspec.Raw(b'"gpt-5.6"')
#: Limits of stored responses over all workspaces; the oldest goes first.
_MAX_RESPONSES, _MAX_BYTES = 10_000, 64 * 1024 * 1024
#: Request fields that a response echoes, with their defaults.
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
#: Fields that are echoed only if the request has them.
_OPTIONAL = (
    "background prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier"
).split()
#: The reason that OpenAI gives for each changed parameter, in the order it checks them.
_PARAM_REASONS = (
    ("model", "model_changed"),
    ("cache_key", "prompt_cache_key_changed"),
    ("output_format", "text_format_changed"),
    ("effort", "reasoning_effort_changed"),
    ("verbosity", "verbosity_changed"),
    ("service_tier", "service_tier_changed"),
)
#: Approximate bytes of a response without its input and its echoed request fields.
_RESPONSE_BYTES = 2_000


class OpenAIResponsesHost(OpenAIHost):
    wire = "openai_responses"
    checks = RESPONSES_CHECKS
    generate_path = "/responses"
    count_path = "/responses/input_tokens"
    reply_id_prefix = "resp_"

    def __init__(self, billing: Billing, ids: IdGenerator) -> None:
        super().__init__(billing, ids)
        self._stored: StoredObjects[StoredResponse] = StoredObjects(
            "no response {}", lambda stored: stored.size, _MAX_RESPONSES, _MAX_BYTES
        )

    def operation(self, method: str, path: str) -> tuple[Operation, str] | None:
        operation = super().operation(method, path)
        if method == "GET" and path in (self.generate_path, "/realtime"):
            return "websocket", ""
        if operation is not None or not path.startswith("/responses/"):
            return operation
        name, _, rest = path.removeprefix("/responses/").partition("/")
        if rest == "input_items" and method == "GET":
            return "stored_items", name
        return ("stored", name) if not rest and method in ("GET", "DELETE") else None

    def handle(self, request: RoutedRequest) -> bytes | EmulatorResponse:
        if request.route.operation == "websocket":
            raise _no_websocket(request)
        workspace, name = request.workspace, request.route.name
        stored = self._stored.get(workspace, name)
        if request.route.operation == "stored_items":
            return openai_list(request.query, stored.listed_items(), "desc")
        if request.method == "DELETE":
            self._stored.delete(workspace, name)
            return dumps({"id": name, "object": "response", "deleted": True})
        if request.query.get("stream") == "true":
            raise rejected("the emulator streams a response once, at its creation", param="stream")
        return stored.response

    def complete_body(self, request: RoutedRequest) -> CompleteBody:
        """The input of the whole chain that `previous_response_id` continues."""
        fields = request.fields
        if request.value("background") is True:
            reason = "the emulator has no background responses: leave out `background`"
            raise rejected(reason, param="background")
        given = input_items(fields.get("input", NULL))
        items = tuple(self._referred(request.workspace, item) for item in given)
        previous = request.value("previous_response_id")
        if previous is None and "model" in fields and items == given:
            return CompleteBody(request.body, items)
        if previous is not None:
            stored = self._stored.find(request.workspace, str(previous))
            if stored is None:
                reason, field = f"no response {previous} to continue", "previous_response_id"
                raise NotFound(reason, status=400, code="previous_response_not_found", param=field)
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
        if request.value("store") is not False:
            stored = StoredResponse(items, reply, request.route.codec)
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
        data, extras = opaque(random), self._item_id(random)
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

    def edit_stream(self, request: RoutedRequest, reply: Reply, response: EmulatorResponse) -> None:
        """Adds the fields of the request to the events that begin the response, and its encrypted
        form to reasoning that begins."""
        fields = decode_object((reply.extras or {}).get(self.wire, "{}").encode())
        for name in ("status", "incomplete_details", "prompt_cache_diagnostics"):
            fields.pop(name, None)
        for chunk in response.chunks[:2]:
            chunk.data = _with_fields(chunk.data, fields)
        sealed = [part.data for part in reply.message.parts if isinstance(part, Thinking)]
        begun = b'"type":"reasoning","id":'
        for chunk in response.chunks if sealed else ():
            if b"response.output_item.added" in chunk.data and begun in chunk.data:
                field = b'"encrypted_content":%b,' % dumps(sealed[0])
                chunk.data = chunk.data.replace(begun, field + begun, 1)

    def overflow_stream(
        self, request: RoutedRequest, head: ReplyStart, problem: ContextOverflow
    ) -> EmulatorResponse | None:
        """OpenAI's, after two events: openai/codex#4116, dyad-sh/dyad#1672 and the test
        `context_window_error_is_fatal` of openai/codex."""
        if request.route.provider != "openai":
            return None
        fields = _response_fields(request, "end") | {"status": "in_progress"}
        begun = self.split_stream(request.route.codec.writer().write(head))
        written = [_with_fields(data, fields) for data in begun]
        told = {"code": problem.code, "message": str(problem)}
        error = {"type": "invalid_request_error", **told, "param": problem.param}
        event = {"type": "error", "sequence_number": 2, "error": error}
        written.append(encode_event("error", dumps(event)))
        last = begun[0].replace(b"response.created", b"response.failed", 2)
        last = last.replace(b'"sequence_number":0', b'"sequence_number":3', 1)
        written.append(_with_fields(last, fields | {"status": "failed", "error": told}))
        headers = {"content-type": self.stream_type, "cache-control": "no-cache"}
        chunks = [ResponseChunk(0.0, data) for data in written]
        return EmulatorResponse(headers=headers, chunks=chunks, stream=True)

    def count_body(self, tokens: int) -> bytes:
        return dumps({"object": "response.input_tokens", "input_tokens": tokens})


def _no_websocket(request: EmulatorRequest) -> Upstream:
    """Clients that try a WebSocket first use HTTP after a 426, and try again after other errors."""
    if request.headers.get("upgrade", "").lower() == "websocket":
        reason = "WebSocket is not supported here: POST the request to this path"
        return RequestRejected(reason, status=426)
    reason = f"Not found: GET {request.path}; no response is named in the path"
    return NotFound(reason, status=404, code="not_found_error")


def _with_fields(data: bytes, fields: dict[str, Any]) -> bytes:
    """An event that holds the response, with more of its fields."""
    head, _, data = data.partition(b"data: ")
    event = decode_object(data)
    whole = decode_object(event["response"]) | fields
    event["response"] = msgspec.Raw(msgspec.json.encode(whole))
    return head + b"data: " + msgspec.json.encode(event) + b"\n\n"


def _response_fields(request: EmulatorRequest, stop: StopReason) -> dict[str, Any]:
    """Request fields echoed in the response, byte for byte."""
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


class StoredResponse(msgspec.Struct):
    """A response with the input of its chain. Its JSON is written on fetch, which is rare."""

    items: tuple[bytes, ...]
    reply: Reply
    codec: Wire

    @property
    def response(self) -> bytes:
        return self.codec.write_reply(self.reply)

    @property
    def output(self) -> list[bytes]:
        raw = msgspec.json.decode(self.response, type=dict[str, msgspec.Raw])["output"]
        return list(map(bytes, msgspec.json.decode(raw, type=list[msgspec.Raw])))

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        extras = self.reply.extras or {}
        return _RESPONSE_BYTES + sum(map(len, self.items)) + sum(map(len, extras.values()))

    def listed_items(self) -> list[dict[str, Any]]:
        return [_listed(at, decode_value(item, "input")) for at, item in enumerate(self.items)]


def _listed(index: int, item: dict[str, Any]) -> dict[str, Any]:
    """An item of a list; a message has its type there, and a list of parts."""
    if "role" in item:
        item = {"type": "message", **item}
        if isinstance(item.get("content"), str):
            kind = "output_text" if item["role"] == "assistant" else "input_text"
            item["content"] = [{"type": kind, "text": item["content"]}]
    return item if item.get("id") else {**item, "id": f"item_{index}"}
