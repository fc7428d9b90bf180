"""What Ollama rejects: little. Its server decodes JSON into Go structs, which ignores unknown
fields and rejects values of another type. An error is a text; `param` is for the journal."""

from __future__ import annotations

from anaphora.emulator.exchange import nested
from anaphora.errors import Upstream

from . import CheckedRequest, WireChecks, objects, rejected, too_long

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
    The window is `num_ctx` where the request has one."""
    if request.body.get("truncate") is False:
        window = nested(request.body, "options", "num_ctx")
        too_long(request, limit=window if isinstance(window, int) and window > 0 else None)


CHECKS = WireChecks(
    messages_field="messages", checks=(_model, _types, _arguments, _images, _overflow)
)
