"""OpenAI's Chat Completions API, which many other hosts support, and its stored completions."""

from __future__ import annotations

import base64
import datetime
import math
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
from blake3 import blake3

from anaphora import catalog
from anaphora.canonical import dumps
from anaphora.catalog import Profile
from anaphora.emulator.exchange import (
    NULL,
    EmulatorResponse,
    decode_value,
    nested,
)
from anaphora.emulator.journal import (
    INPUT_LIMIT,
    REQUEST_LIMIT,
    Billing,
    ModelFacts,
    UsageWindow,
)
from anaphora.emulator.models import model_error
from anaphora.emulator.replies import count_text
from anaphora.emulator.replies.text import IdGenerator, SeededRandom
from anaphora.emulator.strict import objects, rejected
from anaphora.emulator.strict.openai import CHAT_CHECKS
from anaphora.errors import Forbidden, NotFound, Upstream
from anaphora.prompt import Reasoning
from anaphora.values import Reply, Thinking, Usage
from anaphora.wire.openai_chat.reply import write_choice, write_usage

from .files import OpenAIFiles
from .host import (
    MODELS_CREATED,
    EmulatorRoute,
    Host,
    Operation,
    ReplyContext,
    RoutedRequest,
    Thought,
    thinking_text,
)
from .stored import StoredObjects, openai_list

_CREATED = int(datetime.datetime.fromisoformat(MODELS_CREATED).timestamp())
#: Hosts that report usage in every stream, without `include_usage`.
_ALWAYS_COUNTED = ("mistral", "xai", "zai", "moonshot", "google")
#: The tier that hosts name in their replies. LiteLLM does not read a reply of Groq without one.
_SERVICE_TIERS = {"openai": "default", "azure": "default", "groq": "on_demand"}
_PATH = "/chat/completions"
_PROVIDERS = ("openai", "azure")
#: Limits of stored completions over all workspaces; the oldest goes first.
_MAX_COMPLETIONS, _MAX_BYTES = 10_000, 32 * 1024 * 1024
_Fields = dict[str, msgspec.Raw]
EmbeddedInput: TypeAlias = str | list[int]
"""A text, or its tokens."""

#: How many inputs a request takes.
_MAX_INPUTS = 2048
#: The longest vectors of OpenAI's models; those of others have the default length.
_DIMENSIONS = {"text-embedding-3-large": 3072}
_DEFAULT_DIMENSIONS = 1536
#: Models whose vectors can be shortened.
_SHORTENED = "text-embedding-3-"
_MOST_TOKENS = 8192


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
        return request.with_body(msgspec.json.encode({**request.fields, "model": model}))

    def list_models(self, profiles: Sequence[Profile]) -> bytes:
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

    def __init__(self, billing: Billing, ids: IdGenerator) -> None:
        super().__init__(billing, ids)
        self._completions = StoredCompletions()
        self._files = OpenAIFiles(ids)

    def operation(self, method: str, path: str) -> tuple[Operation, str] | None:
        if method == "DELETE" and path.startswith("/models/"):
            return "model_delete", path.removeprefix("/models/")
        if method == "POST" and path == "/embeddings":
            return "embed", ""
        return (
            super().operation(method, path)
            or self._completions.operation(method, path)
            or self._files.operation(method, path)
        )

    def handle(self, request: RoutedRequest) -> bytes | EmulatorResponse:
        if request.route.operation == "model_delete":
            raise self._no_deletion(request.route)
        if request.route.operation == "embed":
            return self._embed(request)
        if request.route.operation.startswith(("file", "batch")):
            return self._files.handle(request)
        return self._completions.handle(request)

    def _embed(self, request: RoutedRequest) -> bytes:
        model = request.value("model") or request.route.name
        if not isinstance(model, str) or not model:
            raise rejected("you must provide a model parameter", param="model")
        request.entry.model = model
        profile = self.billing.facts(request.route.provider, self.wire, model).profile
        return openai_embeddings(request, model, profile)

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

    def detailed_usage(self, request: RoutedRequest, facts: ModelFacts, usage: Usage) -> Usage:
        """No reply matches a prediction, which is billed as output then."""
        if request.route.provider not in _PROVIDERS:
            return usage
        texts = nested(request.value("prediction"), "content")
        parts = objects([{"text": texts}] if isinstance(texts, str) else texts)
        unused = sum(count_text(str(part.get("text", "")), facts.profile) for _, part in parts)
        output, reasoning = (usage.output or 0) + unused, usage.reasoning or 0
        usage = msgspec.structs.replace(usage, output=output, reasoning=reasoning)
        fields = msgspec.json.decode(write_usage(usage), type=dict[str, Any])
        fields["prompt_tokens_details"]["audio_tokens"] = 0
        fields["completion_tokens_details"] |= {
            "accepted_prediction_tokens": 0,
            "audio_tokens": 0,
            "rejected_prediction_tokens": unused,
        }
        return msgspec.structs.replace(usage, raw=dumps(fields).decode())

    def write_choice(self, reply: Reply, index: int) -> bytes:
        return write_choice(reply, index)

    def stream_usage(self, request: RoutedRequest, usage: Usage) -> Usage:
        if request.route.provider in _ALWAYS_COUNTED:
            return usage
        asked = nested(request.value("stream_options"), "include_usage") is True
        return usage if asked else Usage()


class StoredCompletion(msgspec.Struct, eq=False):
    completion: _Fields
    messages: bytes

    @property
    def size(self) -> int:
        return len(self.messages) + sum(map(len, map(bytes, self.completion.values())))


class StoredCompletions:
    """The stored chat completions of one engine."""

    def __init__(self) -> None:
        self._stored: StoredObjects[StoredCompletion] = StoredObjects(
            "Chat completion {} not found", lambda one: one.size, _MAX_COMPLETIONS, _MAX_BYTES
        )

    def operation(self, method: str, path: str) -> tuple[Operation, str] | None:
        if path == _PATH and method == "GET":
            return "stored", ""
        if not path.startswith(f"{_PATH}/"):
            return None
        name, _, rest = path.removeprefix(f"{_PATH}/").partition("/")
        if rest == "messages" and method == "GET":
            return "stored_items", name
        return ("stored", name) if not rest and method in ("GET", "POST", "DELETE") else None

    def keep(self, request: RoutedRequest, reply: Reply) -> None:
        if request.value("store") is not True or request.route.provider not in _PROVIDERS:
            return
        body = request.route.codec.write_reply(reply)
        fields = msgspec.json.decode(body, type=_Fields)
        fields["metadata"] = request.fields.get("metadata", msgspec.Raw(b"{}"))
        stored = StoredCompletion(fields, bytes(request.fields["messages"]))
        self._stored.add(request.workspace, reply.id, stored)

    def handle(self, request: RoutedRequest) -> bytes:
        name = request.route.name
        if request.route.provider not in _PROVIDERS:
            raise NotFound("nothing is stored here", status=404, code="not_found_error")
        if not name:
            return self._list(request)
        stored = self._stored.get(request.workspace, name)
        if request.route.operation == "stored_items":
            messages = enumerate(decode_value(stored.messages, "messages"))
            listed = [{"id": f"{name}-{at}", **message} for at, message in messages]
            return openai_list(request.query, listed)
        if request.method == "DELETE":
            self._stored.delete(request.workspace, name)
            return dumps({"object": "chat.completion.deleted", "id": name, "deleted": True})
        if request.method == "POST":
            stored.completion["metadata"] = request.fields.get("metadata", NULL)
            self._stored.measure(request.workspace, name)
        return msgspec.json.encode(stored.completion)

    def _list(self, request: RoutedRequest) -> bytes:
        """Completions of a workspace, the oldest first, filtered by model and labels of the
        query."""
        query, model = request.query, request.query.get("model")
        labels = {
            name[len("metadata[") : -1]: value
            for name, value in query.items()
            if name.startswith("metadata[")
        }
        found = []
        for stored in reversed(self._stored.list(request.workspace)):
            fields = {name: decode_value(raw, name) for name, raw in stored.completion.items()}
            own = fields["metadata"] or {}
            labelled = all(own.get(name) == value for name, value in labels.items())
            if labelled and model in (None, fields["model"]):
                found.append(fields)
        return openai_list(query, found)


# ── Embeddings: vectors of length 1 that depend only on the texts ─────────────────────────────────


def unit_vector(value: EmbeddedInput, size: int) -> list[float]:
    data = value.encode() if isinstance(value, str) else dumps(value)
    digest = blake3(data).digest(size)
    values = [byte - 127.5 for byte in digest]
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values]


def openai_embeddings(request: RoutedRequest, model: str, profile: Profile) -> bytes:
    """The answer of `/v1/embeddings`. `profile` is that of the model."""
    if profile.known:
        reason = f"You are not allowed to generate embeddings from this model: {model}"
        raise Forbidden(reason, status=403)
    inputs = _inputs(request.value("input"))
    size = _size(request.value("dimensions"), model)
    encoding = request.value("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        reason = f"Invalid value: {encoding!r}. Supported values are: 'float' and 'base64'."
        raise rejected(reason, param="encoding_format")
    counts = [count_text(one, profile) if isinstance(one, str) else len(one) for one in inputs]
    if max(counts) > _MOST_TOKENS:
        reason = f"This model's maximum context length is {_MOST_TOKENS} tokens per input"
        raise rejected(reason, param="input")
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(one, size, encoding)}
        for index, one in enumerate(inputs)
    ]
    usage = {"prompt_tokens": sum(counts), "total_tokens": sum(counts)}
    return dumps({"object": "list", "data": data, "model": model, "usage": usage})


def _encoded(value: EmbeddedInput, size: int, encoding: str) -> list[float] | str:
    vector = unit_vector(value, size)
    if encoding == "float":
        return vector
    return base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()


def _inputs(given: Any) -> list[EmbeddedInput]:
    """A text, a list of texts, the tokens of a text, or a list of such."""
    listed = given if isinstance(given, list) and given and not _are_tokens(given) else [given]
    if not all((isinstance(one, str) and one) or _are_tokens(one) for one in listed):
        raise rejected("'$.input' is invalid.", param="input")
    if len(listed) > _MAX_INPUTS:
        reason = f"'$.input' is too long: it has at most {_MAX_INPUTS:,} elements."
        raise rejected(reason, param="input")
    return listed


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def _size(asked: Any, model: str) -> int:
    most = _DIMENSIONS.get(model, _DEFAULT_DIMENSIONS)
    if asked is None:
        return most
    if not model.startswith(_SHORTENED):
        raise rejected("This model does not support specifying dimensions.", param="dimensions")
    if type(asked) is not int or not 0 < asked <= most:
        raise rejected(f"dimensions must be between 1 and {most}.", param="dimensions")
    return asked
