"""Ollama's own API, and its checks of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from blake3 import blake3

from anaphora.bounded import BoundedMap
from anaphora.cache.simulator import Outcome
from anaphora.canonical import dumps
from anaphora.catalog import Capability, Profile
from anaphora.emulator.exchange import NDJSON, EmulatorResponse, nested
from anaphora.emulator.journal import Billing, ModelFacts
from anaphora.emulator.replies import GeneratedReply, count_text
from anaphora.emulator.replies.text import IdGenerator
from anaphora.emulator.strict import CheckedRequest, WireChecks, objects, rejected, too_long
from anaphora.errors import Upstream
from anaphora.values import Message, Reply, Usage
from anaphora.wire.ollama.reply import timestamp

from .embeddings import MAX_INPUTS, unit_vector
from .host import MODELS_CREATED, Host, Operation, ReplyContext, RoutedRequest

_OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/chat"): "generate",
    ("POST", "/generate"): "complete",
    ("POST", "/embed"): "embed",
    ("POST", "/embeddings"): "embed",
    ("GET", "/ps"): "loaded",
    ("GET", "/tags"): "models",
    ("POST", "/show"): "show",
    ("GET", "/version"): "version",
}
_VERSION = dumps({"version": "0.0.0-emulator"})
#: Ollama's names of the catalog's capabilities. A model without listed capabilities has all:
#: the emulator takes tools, images and `think` with every model.
_CAPABILITIES: dict[Capability, str] = {
    "tools": "tools",
    "images": "vision",
    "reasoning": "thinking",
}
#: Fields that completions and chats share.
_SAME_FIELDS = ("model", "stream", "format", "options", "think", "keep_alive", "truncate")
#: Models that are loaded at a time, and how long they stay.
_MAX_LOADED, _KEEP_SECONDS = 64, 300.0
_DIMENSIONS, _MAX_DIMENSIONS = 768, 4096


# ── Checks ───────────────────────────────────────────────────────────────────────────────────────

# Its server decodes JSON into Go structs, which ignores unknown fields and rejects values of
# another type. An error is a text; `param` is for the journal.

_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
_GO_KINDS = {bool: "bool", int: "number", float: "number", list: "array", dict: "object"}


def _model(request: CheckedRequest) -> None:
    """The SDK's own field wants a model of at least one character; so does the server."""
    if not request.body.get("model"):
        raise rejected("model is required", param="model")


def _wrong_type(found: object, field: str, kind: str, param: str) -> Upstream:
    prefix = f"json: cannot unmarshal {_GO_KINDS.get(type(found), 'string')} into Go struct field"
    return rejected(f"{prefix} ChatRequest.messages.{field} of type {kind}", param=param)


def _types(request: CheckedRequest) -> None:
    """Content is a text: danny-avila/LibreChat#2494."""
    for index, message in request.messages:
        content = message.get("content")
        if type(content) in _GO_KINDS:
            raise _wrong_type(content, "content", "string", f"messages[{index}].content")


def _arguments(request: CheckedRequest) -> None:
    """Arguments are an object: the SDK's types, and what Go's decoder says of a text."""
    for index, message in request.messages:
        for place, call in objects(message.get("tool_calls")):
            arguments = nested(call, "function", "arguments")
            if isinstance(arguments, str):
                field = "tool_calls.function.arguments"
                param = f"messages[{index}].tool_calls[{place}].function.arguments"
                raise _wrong_type(arguments, field, "api.ToolCallFunctionArguments", param)


def _images(request: CheckedRequest) -> None:
    """Base64 without a prefix: BerriAI/litellm#18338, ollama/ollama-js#68."""
    for index, message in request.messages:
        images = message.get("images")
        for place, image in enumerate(images if isinstance(images, list) else ()):
            illegal = _illegal_byte(image) if isinstance(image, str) else 0
            if illegal is not None:
                reason = f"illegal base64 data at input byte {illegal}"
                raise rejected(reason, param=f"messages[{index}].images[{place}]")


def _illegal_byte(encoded: str) -> int | None:
    """Where Go's base64 decoder stops; None for valid data. Line ends are skipped."""
    quantum = start = 0
    padded = 0
    for index, letter in enumerate(encoded):
        if letter in "\r\n":
            continue
        if quantum == 0:
            start = index
        if letter == "=" and quantum >= 2 and padded < 2:
            padded += 1
        elif letter not in _BASE64 or padded:
            return index
        quantum = (quantum + 1) % 4
    return start if quantum else None


def _overflow(request: CheckedRequest) -> None:
    """Only with `truncate: false`; otherwise the server shortens the prompt: ollama/ollama#17944.
    The window is `num_ctx` of the request, if given."""
    if request.body.get("truncate") is False:
        window = nested(request.body, "options", "num_ctx")
        too_long(request, limit=window if isinstance(window, int) and window > 0 else None)


CHECKS = WireChecks(
    messages_field="messages", checks=(_model, _types, _arguments, _images, _overflow)
)


# ── The host ─────────────────────────────────────────────────────────────────────────────────────


class OllamaHost(Host):
    wire = "ollama"
    checks = CHECKS
    root = "/api"
    generate_path = "/chat"
    stream_type = NDJSON
    event_end = b"\n"
    unknown_event = (
        "",
        b'{"model":"","created_at":"1970-01-01T00:00:00Z",'
        b'"message":{"role":"assistant","content":""},"done":false,"emulator_unknown":{}}',
    )

    def operation(self, method: str, path: str) -> tuple[Operation, str] | None:
        operation = _OPERATIONS.get((method, path))
        return None if operation is None else (operation, "")

    def __init__(self, billing: Billing, ids: IdGenerator) -> None:
        super().__init__(billing, ids)
        self._loaded = BoundedMap[str, float](_MAX_LOADED)
        """Until when each model stays loaded."""

    def handle(self, request: RoutedRequest) -> bytes:
        if request.route.operation == "version":
            return _VERSION
        if request.route.operation == "loaded":
            return self._list_loaded(request)
        model = request.value("model", request.value("name"))
        if not isinstance(model, str) or not model:
            raise rejected("model is required", param="model")
        profile = self.billing.facts(request.route.provider, self.wire, model).profile
        if request.route.operation == "embed":
            self._load(model, request.now)
            return _embeddings(request, profile)
        family, window = profile.tokenizer.value, profile.context_tokens
        info: dict[str, Any] = {"general.architecture": family}
        if window is not None:
            info[f"{family}.context_length"] = window.value
        fields = {"details": _details(profile), "model_info": info}
        return dumps({**fields, "capabilities": _capabilities(profile)})

    def rewrite(self, request: RoutedRequest) -> RoutedRequest:
        """A completion as a chat: the system text and the prompt are its messages."""
        if request.route.operation != "complete":
            return request
        given = request.fields
        fields = {name: given[name] for name in _SAME_FIELDS if name in given}
        messages = []
        if request.value("system"):
            messages.append({"role": "system", "content": given["system"]})
        if request.value("prompt"):
            message = {"role": "user", "content": given["prompt"]}
            messages.append(message | ({"images": given["images"]} if "images" in given else {}))
        return request.with_body(msgspec.json.encode({**fields, "messages": messages}))

    def finish(
        self, request: RoutedRequest, _: tuple[bytes, ...], response: EmulatorResponse
    ) -> None:
        """The lines of a completion: the text in `response` instead of a message."""
        if request.route.operation != "complete":
            return
        for chunk in response.chunks:
            chunk.data = b"".join(map(_completion, chunk.data.splitlines(keepends=True)))

    def _load(self, model: str, now: float) -> None:
        self._loaded[model] = now + _KEEP_SECONDS

    def _list_loaded(self, request: RoutedRequest) -> bytes:
        models = []
        for model, until in self._loaded.items():
            if until > request.now:
                profile = self.billing.facts(request.route.provider, self.wire, model).profile
                fields = {**self.model_fields(profile), "size_vram": 1}
                del fields["modified_at"]
                models.append({**fields, "expires_at": timestamp(until)})
        return dumps({"models": models})

    def immediate_reply(self, request: RoutedRequest) -> bytes | None:
        """A request without messages only loads the model."""
        self._load(str(request.value("model", "")), request.now)
        messages = request.fields.get("messages")
        if messages is not None and bytes(messages) != b"[]":
            return None
        reply = Reply(
            id="",
            model=str(request.value("model", "")),
            message=Message(role="assistant", parts=()),
            stop_reason="other",
            stop_reason_raw="load",
            usage=Usage(),
            extras={self.wire: dumps({"created_at": timestamp(request.now)}).decode()},
        )
        body = request.route.codec.write_reply(reply)
        return _completion(body) if request.route.operation == "complete" else body

    def usage(
        self, outcome: Outcome, facts: ModelFacts, replies: Sequence[GeneratedReply]
    ) -> Usage:
        counts = [reply.tokens(facts.profile) for reply in replies]
        return Usage(uncached=outcome.total, output=sum(output for output, _ in counts))

    def extra_fields(self, context: ReplyContext) -> dict[str, Any]:
        return {"created_at": timestamp(context.request.now)}

    def model_fields(self, profile: Profile) -> dict[str, Any]:
        return {
            "name": profile.id,
            "model": profile.id,
            "modified_at": MODELS_CREATED,
            "size": 1,
            "digest": blake3(profile.id.encode()).hexdigest(),
            "details": _details(profile),
        }


def _completion(line: bytes) -> bytes:
    """A line of a chat as a line of a completion."""
    if not line.strip():
        return line
    fields = msgspec.json.decode(line)
    message = fields.pop("message", {})
    shown = {"response": message.get("content", "")}
    if message.get("thinking"):
        shown["thinking"] = message["thinking"]
    return dumps({**fields, **shown}) + (b"\n" if line.endswith(b"\n") else b"")


def _embeddings(request: RoutedRequest, profile: Profile) -> bytes:
    """Vectors of length 1 that depend on the texts only. `/api/embeddings` is the older form, with
    one text in `prompt`."""
    older = request.route.path.endswith("/embeddings")
    given = request.value("prompt" if older else "input", "")
    texts = given if isinstance(given, list) else [given]
    if not all(isinstance(text, str) for text in texts) or len(texts) > MAX_INPUTS:
        raise rejected(f"input must be a text, or a list of at most {MAX_INPUTS:,}", param="input")
    size = request.value("dimensions") or _DIMENSIONS
    if not isinstance(size, int) or not 0 < size <= _MAX_DIMENSIONS:
        raise rejected(f"dimensions must be between 1 and {_MAX_DIMENSIONS}", param="dimensions")
    vectors = [unit_vector(text, size) for text in texts]
    if older:
        return dumps({"embedding": vectors[0]})
    tokens = sum(count_text(text, profile) for text in texts)
    fields = {"model": request.value("model"), "embeddings": vectors}
    return dumps({**fields, "total_duration": 1, "load_duration": 1, "prompt_eval_count": tokens})


def _details(profile: Profile) -> dict[str, Any]:
    family = profile.tokenizer.value
    return {"format": "gguf", "family": family, "families": [family]}


def _capabilities(profile: Profile) -> list[str]:
    listed = profile.capabilities
    named = _CAPABILITIES.items()
    return ["completion", *(name for own, name in named if listed is None or own in listed.value)]
