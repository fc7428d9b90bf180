"""OpenAI Chat Completions and Responses, which share their stored objects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar

import msgspec

from anaphora.catalog.api_limits import bounds_of
from anaphora.values import Opaque, Part, Reply, Thinking, Usage
from anaphora.wire.openai_chat.message_reader import reasoning_extras
from anaphora.wire.openai_responses.types import ITEM, WIRE

from .face import (
    Face,
    Kept,
    Operations,
    Route,
    checked_model,
    stored_kind,
)
from .framing import StreamFrame, UsageFilter

_CHAT = "/v1/chat/completions"
#: Azure's paths: with a deployment, and of its model inference.
_AZURE = re.compile("/v1/(?:deployments/([^/]+)|models)/chat/completions")
#: The reasoning field of many Chat hosts.
_REASONING = "reasoning_content"
_IMAGE = "image_generation_call"
#: Maximum number of a response's items that are recorded.
_MOST_ITEMS = 256


class _OpenAIFace(Face):
    stored = (
        stored_kind("response", "/v1/responses", "", "GET DELETE", "GET input_items"),
        stored_kind("file", "/v1/files", "GET POST", "GET DELETE", "GET content"),
    )
    beta_header = "openai-beta"
    keepers = ("openai_responses", "openai_chat")


class OpenAIChatFace(_OpenAIFace):
    wire = "openai_chat"
    operations: ClassVar[Operations] = {
        ("POST", _CHAT): "generate",
        ("POST", "/v1/embeddings"): "embed",
    }
    reply_id_prefix = "chatcmpl-"
    reasoning = Thinking(provider="openai_chat", extras=reasoning_extras(_REASONING))
    reasoning_field = _REASONING
    ends_texts_late = True
    limit_place = ("", "max_completion_tokens")
    limit_names = ("max_completion_tokens", "max_tokens")
    usage_on_request = True
    named_paths = (
        "POST /openai/deployments/{model}/chat/completions", "POST /models/chat/completions",
    )  # fmt: skip

    def named_route(self, method: str, path: str) -> Route | None:
        match = _AZURE.fullmatch(path)
        if match is None or method != "POST":
            return None
        name = checked_model(match[1]) if match[1] else ""
        return Route(wire=self.wire, operation="generate", path=_CHAT, name=name)

    def frame(self, *, asks_usage: bool, passes: bool) -> StreamFrame | None:
        return None if asks_usage or passes else UsageFilter()


class OpenAIResponsesFace(_OpenAIFace):
    wire = "openai_responses"
    operations: ClassVar[Operations] = {
        ("POST", "/v1/responses"): "generate",
        ("POST", "/v1/responses/input_tokens"): "count",
    }
    starts = ("/v1/responses",)
    prompt_field = "input"
    unknown_model_status = 400
    comparison = ("prompt_cache_options", "comparison_response_id")
    reply_id_prefix = "resp_"
    orders_parts = True
    limit_place = ("", "max_output_tokens")

    def model_of(self, route: Route, value: Mapping[str, Any]) -> str | None:
        if value.get("model") is None and value.get("prompt") is not None:
            return None
        return super().model_of(route, value)

    def count_fields(self, tokens: int) -> dict[str, Any]:
        return {"input_tokens": tokens, "object": "response.input_tokens"}

    def kept_objects(
        self, request: Mapping[str, Any], reply: Reply, usage: Usage
    ) -> Iterator[Kept]:
        """The response, and its items."""
        if request.get("store") is False or not reply.id:
            return
        total = _continued_tokens(reply, usage.total)
        yield "response", reply.id, total
        for id, is_output in islice(_items(reply), _MOST_ITEMS):
            yield "item", id, _continued_tokens(reply, usage.output) if is_output else total


# ── Stored responses ─────────────────────────────────────────────────────────────────────────────


class _Item(msgspec.Struct):
    id: str = ""


_decode_item = msgspec.json.Decoder(_Item).decode


def _continued_tokens(reply: Reply, tokens: int | None) -> int | None:
    """The maximum input tokens billed for continuing a reply of `tokens`: its images become input
    only then."""
    images = sum(isinstance(part, Opaque) and part.kind == _IMAGE for part in reply.message.parts)
    if tokens is None or not images:
        return tokens
    return tokens + images * bounds_of("", "").media.image  # the largest of any model


def _items(reply: Reply) -> Iterator[tuple[str, bool]]:
    """The ids of a response's items, and whether each is only output: a server tool's item also has
    what it read."""
    for part in reply.message.parts:
        if id := _decode_item(_item_fields(part)).id:
            yield id, not isinstance(part, Opaque) or part.kind == _IMAGE


def _item_fields(part: Part) -> str:
    """JSON of an item's fields; in a message, its first part has them."""
    if isinstance(part, Opaque):
        return part.json
    extras = part.extras or {}
    return extras.get(ITEM) or extras.get(WIRE) or "{}"
