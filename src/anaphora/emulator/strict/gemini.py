"""What Google rejects on generateContent. Names are accepted in camelCase and snake_case, as in
JSON of protocol buffers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from anaphora.errors import Upstream
from anaphora.wire.gemini.fields import GENERATION_CONFIG, PART, TABLE
from anaphora.wire.gemini.types import camel

from . import (
    CheckedRequest,
    FieldRow,
    Object,
    WireChecks,
    check_fields,
    check_media,
    gemini_media,
    objects,
    rejected,
    too_long,
)

TOP = TABLE.names(beta=False)
CONTENT = TABLE.message.members or frozenset()
_INVALID = "INVALID_ARGUMENT"
#: The other spelling of the names that are looked up.
_SNAKE = {
    "generationConfig": "generation_config",
    "cachedContent": "cached_content",
    "systemInstruction": "system_instruction",
    "tools": "tools",
    "toolConfig": "tool_config",
    "functionCall": "function_call",
    "functionResponse": "function_response",
    "thoughtSignature": "thought_signature",
}


def _get(found: Object, name: str) -> Any:
    return found[name] if name in found else found.get(_SNAKE[name])


def _rejected(message: str, param: str | None = None) -> Upstream:
    return rejected(message, param=param, code=_INVALID)


def _unknown_name(path: str, name: str) -> Upstream:
    """google-gemini/gemini-cli#13972, Alishahryar1/free-claude-code#542."""
    where = f" at '{path}'" if path else ""
    reason = f'Unknown name "{name}"{where}: Cannot find field.'
    return _rejected(f"Invalid JSON payload received. {reason}", path or None)


def _unknown_names(request: CheckedRequest) -> None:
    config = _get(request.body, "generationConfig")
    rows: list[FieldRow] = [
        (request.body, TOP, ""),
        (config, GENERATION_CONFIG, "generation_config"),
    ]
    check_fields(rows, _unknown_name, camel)


def _content_names(request: CheckedRequest) -> None:
    check_fields(_known_fields(request), _unknown_name, camel)


def _known_fields(request: CheckedRequest) -> Iterator[FieldRow]:
    for index, content in request.messages:
        if not content.keys() <= CONTENT:
            yield content, CONTENT, f"contents[{index}]"
        for part in request.blocks.get(index, ()):
            yield part.raw, PART, part.path


def _contents(request: CheckedRequest) -> None:
    body, path = request.body, request.http.path
    if not body.get("contents"):
        raise _rejected("* GenerateContentRequest.contents: contents is not specified\n")
    # A content without a role is the user's on the Gemini API; Vertex demands one.
    vertex = "/publishers/" in path or "/projects/" in path
    roles = ("user", "model", "function") if vertex else (None, "user", "model", "function")
    if [content for _, content in request.messages if content.get("role") not in roles]:
        raise _rejected("Please use a valid role: user, model.")
    # Cached content may not be sent again (PROVIDERS.md, section 9).
    again = ("systemInstruction", "tools", "toolConfig")
    if _get(body, "cachedContent") and any(_get(body, name) for name in again):
        raise _rejected(
            "CachedContent can not be used with GenerateContent request setting "
            "system_instruction, tools or tool_config.\n\nProposed fix: move those values to "
            "CachedContent from GenerateContent request."
        )


def _function_turns(request: CheckedRequest) -> None:
    """Calls follow the user or a response, responses follow calls, and there are as many. Contents
    of one role in a row are one turn, as in recorded traffic. google-gemini/gemini-cli#11814,
    #5443; langchain-ai/langchain#27799, BerriAI/litellm#26755."""
    if not request.blocks:  # only texts
        return
    turns = _turns(request)
    cached = bool(_get(request.body, "cachedContent"))  # may hold the turns before
    for index, turn in enumerate(turns):
        before = turns[index - 1] if index else None
        calls, responses = turn["functionCall"], turn["functionResponse"]
        if calls and before is None and not cached:
            raise _rejected(
                "Please ensure that function call turn comes immediately after a user turn or "
                "after a function response turn."
            )
        uncalled = not cached if before is None else not before["functionCall"]
        if responses and uncalled:
            raise _rejected(
                "Please ensure that function response turn comes immediately after a function "
                "call turn."
            )
        after = turns[index + 1] if index + 1 < len(turns) else None
        if calls and after is not None and after["functionResponse"] != calls:
            raise _rejected(
                "Please ensure that the number of function response parts is equal to the number "
                "of function call parts of the function call turn."
            )


def _turns(request: CheckedRequest) -> list[Counter[str]]:
    turns: list[Counter[str]] = []
    role: Any = ...
    for _, content in request.messages:
        if content.get("role") != role:
            turns.append(Counter())
        role = content.get("role")
        for _, part in objects(content.get("parts")):
            for kind in ("functionCall", "functionResponse"):
                turns[-1][kind] += _get(part, kind) is not None
    return turns


def _signatures(request: CheckedRequest) -> None:
    """In the current turn, which begins at the user's last content that is no function response,
    the first call of each step has its signature. Any signature is accepted: clients send a dummy
    for calls of other models. nanbingxyz/5ire#405, BigPizzaV3/CodexPlusPlus#332."""
    if not request.blocks or not request.profile.refuses("unsigned_calls"):
        return
    steps: list[tuple[int, Object]] = []
    for index, content in reversed(request.messages):
        parts = [part for _, part in objects(content.get("parts"))]
        if content.get("role") == "model":
            calls = [part for part in parts if _get(part, "functionCall") is not None]
            # Contents of the model in a row are one step.
            if calls and steps and steps[-1][0] == index + 1:
                steps.pop()
            if calls:
                steps.append((index, calls[0]))
        elif any(_get(part, "functionResponse") is None for part in parts):
            break
    for index, part in reversed(steps):
        if not _get(part, "thoughtSignature"):
            call = _get(part, "functionCall")
            name = call.get("name") if isinstance(call, dict) else None
            raise _rejected(
                "Function call is missing a thought_signature in functionCall parts. This is "
                "required for tools to work correctly, and missing thought_signature may lead to "
                "degraded model performance. Additional data, function call "
                f"`default_api:{name}` , position {index + 1}. Please refer to "
                "https://ai.google.dev/gemini-api/docs/thought-signatures for more details.",
                f"contents[{index}].parts",
            )


def _temperature(request: CheckedRequest) -> None:
    config, highest = _get(request.body, "generationConfig"), request.profile.max_temperature
    given = config.get("temperature") if isinstance(config, dict) else None
    if highest is None or not isinstance(given, int | float) or given <= highest.value:
        return
    bound = f"temperature must be in the range [0.0, {highest.value:.1f}], got {given}"
    path = "generation_config.temperature"
    raise _rejected(f"* GenerateContentRequest.{path}: {bound}\n", path)


CHECKS = WireChecks(
    messages_field="contents",
    checks=(
        _unknown_names,
        _content_names,
        _contents,
        check_media(gemini_media),
        _temperature,
        _function_turns,
        _signatures,
        too_long,
    ),
    unreadable="Invalid JSON payload received.",
    unreadable_code=_INVALID,
)
