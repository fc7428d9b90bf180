"""Amazon Bedrock: Converse, and InvokeModel with the bodies of Claude.

Paths name the model, `/model/ID/converse`; an ARN has slashes, so the operation is the last step.
Streams are frames of AWS's event stream, errors have their type in a header.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec

from anaphora import wire
from anaphora.catalog.names import base_model
from anaphora.daemon.access.handles import INVOKE, not_lent
from anaphora.errors import NotFound, RequestRejected, Unauthenticated, Upstream
from anaphora.values import Event, Thinking
from anaphora.wire.bedrock.params import path_of
from anaphora.wire.dialect.invoke import InvokeWriter
from anaphora.wire.eventstream import CONTENT_TYPE
from anaphora.wire.reading import DECODE_ERRORS, Members

from .anthropic import MESSAGES, AnthropicFace, BlockNumbers
from .face import Face, Operation, Operations, Route, checked_model, wrong_method
from .framing import EventFrames, StreamFrame, WholeEvents, WholeFrames

_PATH = re.compile(r"/model/(.+)/([a-z-]+)")
_INVOKE: dict[str, Operation] = {"invoke": "generate", "invoke-with-response-stream": "stream"}
#: Makers of models at Bedrock whose bodies of InvokeModel are not Anthropic's.
_OTHER_MAKERS = frozenset(
    "ai21 amazon cohere deepseek google luma meta minimax mistral moonshot moonshotai nvidia openai"
    " qwen stability twelvelabs writer xai zai".split()
)
_CONVERSE: dict[str, Operation] = {
    "converse": "generate",
    "converse-stream": "stream",
    "count-tokens": "count",
}


def _route(operations: Mapping[str, Operation], method: str, path: str) -> tuple[Any, str] | None:
    """The operation at a path and its model."""
    match = _PATH.fullmatch(path)
    operation = None if match is None else operations.get(match[2])
    if match is None or operation is None:
        return None
    if method != "POST":
        raise wrong_method(method, path)
    return operation, checked_model(match[1])


def _aws_error(error: Upstream) -> Upstream:
    """An error with the status by which AWS's SDKs recognize it."""
    if isinstance(error, Unauthenticated):
        error.status = 403
    elif isinstance(error, NotFound) and error.param == "model":
        return RequestRejected(str(error), status=400, code="ValidationException")
    return error


class _Counted(msgspec.Struct, frozen=True):
    converse: msgspec.Raw = msgspec.Raw(b"")


class _CountRequest(msgspec.Struct):
    input: _Counted = _Counted()


_decode_count = msgspec.json.Decoder(_CountRequest).decode


class ConverseFace(Face):
    wire = "bedrock"
    models_at_root = False
    named_paths = tuple(f"POST /model/{{model}}/{operation}" for operation in _CONVERSE)
    own_paths = re.compile("/model/")
    request_id_header = "x-amzn-requestid"
    stream_type = CONTENT_TYPE
    reasoning = Thinking(provider="bedrock")
    model_in_path = True
    model_field = "modelId"
    limit_place = ("inferenceConfig", "maxTokens")

    def full_path(self, path: str) -> str | None:
        return path if path.startswith("/model/") else None

    def named_route(self, method: str, path: str) -> Route | None:
        found = _route(_CONVERSE, method, path)
        if found is None:
            return None
        operation, model = found
        path = path_of(model, stream=operation == "stream")
        return Route(wire=self.wire, operation=operation, path=path, name=model)

    def model_of(self, route: Route, value: Mapping[str, Any]) -> str | None:
        if value.get("modelId") not in (None, route.name):
            reason = "modelId: is not the model that the path names"
            raise RequestRejected(reason, status=400, param="modelId")
        return route.name

    def own_error(self, error: Upstream) -> Upstream:
        return _aws_error(error)

    def whole_events(self) -> WholeEvents | WholeFrames:
        return WholeFrames()

    def frame(self, *, asks_usage: bool, passes: bool) -> StreamFrame | None:
        return EventFrames()

    def counted_body(self, body: bytes) -> bytes:
        try:
            request = bytes(_decode_count(body).input.converse)
        except DECODE_ERRORS:
            request = b""
        if not request:
            reason = "input.converse: the tokens of Converse requests are counted here"
            raise RequestRejected(reason, status=400, param="input")
        return request

    def count_fields(self, tokens: int) -> dict[str, Any]:
        return {"inputTokens": tokens}

    def path_to(self, model: str, *, stream: bool) -> str:
        return path_of(model, stream=stream)


class InvokeFace(AnthropicFace):
    form = "bedrock/anthropic/invoke"
    operations: ClassVar[Operations] = {}
    stored = ()
    models_at_root = False
    named_paths = tuple(f"POST /model/{{model}}/{operation}" for operation in _INVOKE)
    own_paths = re.compile(r"/model/.+/invoke(?:-with-response-stream)?\Z")
    own_headers = frozenset()
    request_id_header = "x-amzn-requestid"
    stream_type = CONTENT_TYPE

    def named_route(self, method: str, path: str) -> Route | None:
        found = _route(_INVOKE, method, path)
        if found is None:
            return None
        operation, model = found
        return Route(wire=self.wire, form=self.form, operation=operation, path=MESSAGES, name=model)

    def own_error(self, error: Upstream) -> Upstream:
        return _aws_error(super().own_error(error))

    def stream_error_code(self, error: Upstream) -> str | None:
        return None

    def event_writer(self, write: Callable[[Event], bytes]) -> Callable[[Event], bytes]:
        numbered = BlockNumbers(wire.get(self.wire).writer().write)
        return InvokeWriter(numbered).write

    def frame(self, *, asks_usage: bool, passes: bool) -> StreamFrame | None:
        return EventFrames()

    def plain_request(self, route: Route, members: Members) -> tuple[Members, Mapping[str, str]]:
        maker, dot, _ = base_model("bedrock", route.name).partition(".")
        if dot and maker in _OTHER_MAKERS:
            raise not_lent(INVOKE)
        if "anthropic_version" not in members:
            reason = (
                "anthropic_version: is missing; only requests of Claude are read here, others on"
                " /converse"
            )
            raise RequestRejected(reason, status=400, param="anthropic_version")
        return super().plain_request(route, members)
