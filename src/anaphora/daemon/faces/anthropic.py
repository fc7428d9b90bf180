"""Anthropic Messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from anaphora import wire
from anaphora.canonical import dumps
from anaphora.daemon.values import GrantedModel
from anaphora.errors import ContextOverflow, RequestRejected, Upstream
from anaphora.values import Event, PartDelta, PartEnd, PartStart, Reply, Thinking, Usage
from anaphora.wire.reading import Members

from .face import (
    MODELS_CREATED,
    Face,
    Kept,
    Operation,
    Operations,
    Route,
    StoredKind,
    checked_model,
    model_in,
    model_limits,
    stored_kind,
    wrong_method,
)

MESSAGES = "/v1/messages"
_COUNT = f"{MESSAGES}/count_tokens"
#: Claude at Vertex AI, by model and method.
_VERTEX = re.compile(
    "/v1/projects/[^/]+/locations/[^/]+/publishers/anthropic/models/([^/]+):(rawPredict|streamRawPredict)"
)
_VERTEX_SHOWN = "/v1/projects/{project}/locations/{location}/publishers/anthropic/models/{model}"
_VERTEX_COUNT = "count-tokens"
#: Fields of requests at clouds that Anthropic has as headers, or that the path names.
_OF_CLOUDS = ("anthropic_version", "anthropic_beta", "model", "stream")
_TOO_LONG = "prompt is too long"
_BLOCK_BEGINS = b'"type":"content_block_start"'


class AnthropicFace(Face):
    wire = "anthropic"
    operations: ClassVar[Operations] = {
        ("POST", MESSAGES): "generate",
        ("POST", _COUNT): "count",
    }
    stored: ClassVar[tuple[StoredKind, ...]] = (
        stored_kind("file", "/v1/files", "GET POST", "GET DELETE", "GET content"),
    )
    named_paths: ClassVar[tuple[str, ...]] = (
        f"POST {_VERTEX_SHOWN}:rawPredict",
        f"POST {_VERTEX_SHOWN}:streamRawPredict",
    )
    own_paths = re.compile(f"{MESSAGES}|{_VERTEX.pattern}")
    own_headers = frozenset({"anthropic-version"})
    request_id_header = "request-id"
    version_header = "anthropic-version"
    default_version = "2023-06-01"
    beta_header = "anthropic-beta"
    comparison = ("diagnostics", "previous_message_id")
    reply_id_prefix = "msg_"
    # Blocks have a signature, empty for other providers' reasoning.
    reasoning = Thinking(signature="", provider="anthropic")
    orders_parts = True
    keepers = ("anthropic",)
    limit_place = ("", "max_tokens")
    always_thinks = True

    def named_route(self, method: str, path: str) -> Route | None:
        match = _VERTEX.fullmatch(path)
        if match is None:
            return None
        if method != "POST":
            raise wrong_method(method, path)
        if match[1] == _VERTEX_COUNT:
            return Route(wire=self.wire, operation="count", path=_COUNT, rest=match[2])
        operation: Operation = "stream" if match[2] == "streamRawPredict" else "generate"
        name = checked_model(match[1])
        return Route(wire=self.wire, operation=operation, path=MESSAGES, name=name)

    def plain_request(self, route: Route, members: Members) -> tuple[Members, Mapping[str, str]]:
        """At clouds the path names the model, and versions and betas are fields."""
        model = route.name or model_in(_value_of(members, "model"))
        for name, expected in (("model", model), ("stream", route.operation == "stream")):
            if _value_of(members, name) not in (None, expected):
                reason = f"{name}: is not what the path names"
                raise RequestRejected(reason, status=400, param=name)
        passed = {name: raw for name, raw in members.items() if name not in _OF_CLOUDS}
        plain = {"model": _json_of(model), **passed}
        if route.operation == "stream":
            plain["stream"] = _json_of(True)
        betas = _value_of(members, "anthropic_beta")
        if betas is None:
            return plain, {}
        if not isinstance(betas, list) or not all(isinstance(each, str) for each in betas):
            reason = "anthropic_beta: must be a list of names"
            raise RequestRejected(reason, status=400, param="anthropic_beta")
        return plain, {self.beta_header: ",".join(betas)}

    def own_error(self, error: Upstream) -> Upstream:
        """Clients recognize by these words that they have to shorten a conversation."""
        text = str(error)
        if not isinstance(error, ContextOverflow) or _TOO_LONG in text:
            return error
        return error.restated(f"{_TOO_LONG}: {text}")

    def stream_error_code(self, error: Upstream) -> str | None:
        return str(json.loads(wire.get(self.wire).write_error(error)[2])["error"]["type"])

    def event_writer(self, write: Callable[[Event], bytes]) -> Callable[[Event], bytes]:
        return BlockNumbers(write).write

    def model_row(self, one: GrantedModel) -> dict[str, Any]:
        row = {"type": "model", "id": one.model, "display_name": one.model}
        row["created_at"] = MODELS_CREATED
        return row | model_limits(one, "max_input_tokens", "max_tokens")

    def models_body(self, rows: list[dict[str, Any]]) -> bytes:
        first, last = (rows[0]["id"], rows[-1]["id"]) if rows else (None, None)
        return dumps({"data": rows, "has_more": False, "first_id": first, "last_id": last})

    def kept_objects(
        self, request: Mapping[str, Any], reply: Reply, usage: Usage
    ) -> Iterator[Kept]:
        """Later requests with these fields name the preceding message."""
        if reply.id and ("diagnostics" in request or "thread" in request):
            yield "response", reply.id, usage.total

    def stored_list(self, ids: list[str], objects: list[msgspec.Raw], after: str) -> dict[str, Any]:
        listed = super().stored_list(ids, objects, after)
        del listed["object"]
        return listed


class BlockNumbers:
    """Writes events for clients that expect block numbers without gaps: a part of another wire
    without a block, such as reasoning without text, gets no number."""

    def __init__(self, write: Callable[[Event], bytes]) -> None:
        self._write = write
        self._numbers: dict[int, int] = {}
        self._starts: dict[int, PartStart] = {}
        """Events of parts that have no number yet."""

    def write(self, event: Event) -> bytes:
        if not isinstance(event, PartStart | PartDelta | PartEnd):
            return self._write(event)
        number = self._numbers.get(event.index)
        if number is not None:
            return self._write(replace(event, index=number))
        number, data = len(self._numbers), b""
        if isinstance(event, PartStart):
            self._starts[event.index] = event
        elif event.index in self._starts:
            # The memoized event may have a number that another part has by now.
            data = self._write(replace(self._starts[event.index], index=number))
        data += self._write(replace(event, index=number))
        if _BLOCK_BEGINS in data:
            self._numbers[event.index] = number
        return data


def _json_of(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _value_of(members: Members, name: str) -> object:
    raw = members.get(name)
    return None if raw is None else msgspec.json.decode(raw)
