"""What Ollama refuses: little. Its server reads JSON into Go structs, which ignores what it does
not know and objects to what is of another form. An error is a text; `param` is for the journal."""

from __future__ import annotations

import msgspec

from anaphora.errors import Upstream

from .case import Case, inside, objects, rejected, too_long
from .reading import Talk

_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")


class _Plain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str
    content: str


TALK = Talk("messages", msgspec.json.Decoder(_Plain).decode)


def model_named(case: Case) -> Upstream | None:
    """The SDK's own field wants a model of at least one character; so does the server."""
    return None if case.body.get("model") else rejected("model is required", param="model")


def texts(case: Case) -> Upstream | None:
    """danny-avila/LibreChat#2494."""
    for at, message in case.unusual:
        content = message.get("content")
        if isinstance(content, list | dict | int | float):
            found = "array" if isinstance(content, list) else _go_kind(content)
            told = f"json: cannot unmarshal {found} into Go struct field"
            param = f"messages[{at}].content"
            return rejected(f"{told} ChatRequest.messages.content of type string", param=param)
    return None


def _go_kind(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    return "object" if isinstance(value, dict) else "number"


def arguments(case: Case) -> Upstream | None:
    """Arguments are an object: the SDK's types, and what Go's decoder says of a text."""
    for at, message in case.unusual:
        for place, call in objects(message.get("tool_calls")):
            if isinstance(inside(call, "function", "arguments"), str):
                told = "json: cannot unmarshal string into Go struct field"
                field = "ChatRequest.messages.tool_calls.function.arguments"
                param = f"messages[{at}].tool_calls[{place}].function.arguments"
                return rejected(
                    f"{told} {field} of type api.ToolCallFunctionArguments", param=param
                )
    return None


def images(case: Case) -> Upstream | None:
    """Base64 and nothing before it: BerriAI/litellm#18338, ollama/ollama-js#68."""
    for at, message in case.unusual:
        images = message.get("images")
        for place, image in enumerate(images if isinstance(images, list) else ()):
            illegal = _illegal_byte(image) if isinstance(image, str) else 0
            if illegal is not None:
                told = f"illegal base64 data at input byte {illegal}"
                return rejected(told, param=f"messages[{at}].images[{place}]")
    return None


def _illegal_byte(text: str) -> int | None:
    """Where Go's decoder stops; None for what it takes. Line ends are passed over."""
    quantum = start = 0
    padded = 0
    for at, letter in enumerate(text):
        if letter in "\r\n":
            continue
        if quantum == 0:
            start = at
        if letter == "=" and quantum >= 2 and padded < 2:
            padded += 1
        elif letter not in _ALPHABET or padded:
            return at
        quantum = (quantum + 1) % 4
    return start if quantum else None


def overflow(case: Case) -> Upstream | None:
    """Only with `truncate: false`; otherwise the server shortens the prompt: ollama/ollama#17944.
    The window is `num_ctx` where the request has one."""
    if case.body.get("truncate") is not False:
        return None
    asked = inside(case.body, "options", "num_ctx")
    limit = asked if isinstance(asked, int) and asked > 0 else None
    return too_long(case, "ollama", "ollama", limit=limit)


CHECKS = (model_named, texts, arguments, images, overflow)
