"""Gemini generateContent, whose paths name the model and the method."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from anaphora.canonical import dumps
from anaphora.daemon.values import GrantedModel
from anaphora.prompt import Call
from anaphora.values import Conversation, Message, Text, Thinking
from anaphora.values.conversation import Segment
from anaphora.wire.gemini.params import path_of
from anaphora.wire.reading import DECODE_ERRORS, Members, encode_members

from .face import (
    Face,
    Operation,
    Operations,
    Route,
    checked_model,
    model_limits,
    path_not_found,
    stored_kind,
    wrong_method,
)
from .framing import LastObject, StreamFrame

_MODEL = re.compile(r"/v1(?:beta|alpha)?/models/([^?]+):(\w+)")
_ROOT = re.compile(r"/v1(?:beta|alpha)(?=/)")
#: Of Vertex AI; with an express key there is no project.
_VERTEX = re.compile(
    r"/v1(?:beta1)?(?:/projects/[^/]+/locations/[^/]+)?/publishers/google(?=/models/)"
)
_COMPATIBLE = "/openai"
_UPLOAD = re.compile(r"/upload/v1(?:beta|alpha)?/files")
_METHODS: dict[str, Operation] = {
    "generateContent": "generate",
    "streamGenerateContent": "stream",
    "countTokens": "count",
}


class _TextOnly(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class _TextTurn(msgspec.Struct, forbid_unknown_fields=True):
    role: str | None = None
    parts: list[_TextOnly] | None = None


class _Counted(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    generate_content_request: Members | None = None


_decode_counted = msgspec.json.Decoder(_Counted).decode
_decode_turns = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_turn = msgspec.json.Decoder(_TextTurn).decode


class GeminiFace(Face):
    wire = "gemini"
    root = "/v1beta"
    operations: ClassVar[Operations] = {("GET", "/v1beta/models"): "models"}
    stored = (stored_kind("file", "/v1beta/files", "GET", "GET DELETE"),)
    named_paths = (
        *(f"POST /v1beta/models/{{model}}:{method}" for method in _METHODS),
        "POST /v1beta1/projects/{project}/locations/{location}/publishers/google/models/{model}"
        ":{method}",
        "POST /upload/v1beta/files",
    )
    own_paths = re.compile(rf"{_ROOT.pattern}|/upload/|{_MODEL.pattern}\Z")
    # Google's clients may also use `/v1`.
    own_headers = frozenset({"x-goog-api-key", "x-goog-api-client"})
    prompt_field = "contents"
    streams_as_list = True
    reply_type = "application/json; charset=UTF-8"
    reasoning = Thinking(provider="gemini")
    # A client that gets an id must send it back, and Google's helper for results does not.
    shows_call_ids = False
    keepers = ("gemini",)
    gone_is_forbidden = True
    model_in_path = True
    limit_place = ("generationConfig", "maxOutputTokens")
    choices_field = "generationConfig.candidateCount"

    def full_path(self, path: str) -> str | None:
        if (vertex := _VERTEX.match(path)) is not None:
            return self.root + path[vertex.end() :]
        match = _ROOT.match(path)
        if match is not None:
            rest = path[match.end() :]
            if rest.startswith(_COMPATIBLE + "/"):
                return "/v1" + rest[len(_COMPATIBLE) :]
            return self.root + rest
        return path if path.startswith("/upload/") else None

    def named_route(self, method: str, path: str) -> Route | None:
        match = _MODEL.fullmatch(path)
        if match is None and _UPLOAD.fullmatch(path) is None:
            return None
        operation = "upload" if match is None else _METHODS.get(match[2])
        if operation is None:
            raise path_not_found(path)
        if method != "POST":
            raise wrong_method(method, path)
        if match is None:
            path = "/upload/v1beta/files"
            return Route(wire=self.wire, operation="upload", path=path, kind="file")
        name = checked_model(match[1])
        return Route(wire=self.wire, operation=operation, path=path, name=name)

    def is_stream(self, route: Route, value: Mapping[str, Any]) -> bool:
        return route.operation == "stream"

    def frame(self, *, asks_usage: bool, passes: bool) -> StreamFrame | None:
        return LastObject((b"\r\n\r\n", b"\n\n"), b'"finishReason"')

    def counted_body(self, body: bytes) -> bytes:
        """It may be in its own field, and repeat the model of the path."""
        try:
            request = _decode_counted(body).generate_content_request
        except DECODE_ERRORS:
            return body
        if request is None:
            return body
        return encode_members({name: raw for name, raw in request.items() if name != "model"})

    def count_fields(self, tokens: int) -> dict[str, Any]:
        return {"totalTokens": tokens}

    def model_row(self, one: GrantedModel) -> dict[str, Any]:
        row: dict[str, Any] = {"name": f"models/{one.model}", "displayName": one.model}
        row |= {"version": "1", "supportedGenerationMethods": list(_METHODS)}
        return row | model_limits(one, "inputTokenLimit", "outputTokenLimit")

    def models_body(self, rows: list[dict[str, Any]]) -> bytes:
        return dumps({"models": rows})

    def stored_list(self, ids: list[str], objects: list[msgspec.Raw], after: str) -> dict[str, Any]:
        return {"files": objects, **({"nextPageToken": after} if after else {})}

    def path_to(self, model: str, *, stream: bool) -> str:
        return path_of(model, stream=stream)

    def repaired(self, call: Call) -> Call:
        """Drops model turns with only empty texts: the SDK keeps the last piece of a stream as one,
        and on other wires it would separate calls from their results."""
        (segment,) = call.ir.segments
        kept = [message for message in segment.messages if not _is_empty(message)]
        if not kept or len(kept) == len(segment.messages):
            return call
        segment = Segment(segment.role, Conversation.of_ids(kept))
        return replace(call, ir=replace(call.ir, segments=(segment,)))


def _is_empty(message: Message) -> bool:
    return message.role == "assistant" and all(
        type(part) is Text and not part.text and part.extras is None for part in message.parts
    )
