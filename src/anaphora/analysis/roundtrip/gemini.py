"""Forms of a generateContent request or reply that mean the same."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import partial
from typing import Any

from anaphora.wire.gemini.types import camel, decode_base64

from .normalise import (
    DEFAULTS,
    EMPTY_SCHEMA,
    NO_PARAMETERS,
    NULLS,
    UNFINISHED,
    Body,
    Normalisation,
    change,
    drop,
    drop_nulls,
    fill,
    keep,
    objects_at,
)

#: Fields whose content is the app's own, or a schema: names and nulls inside are left alone.
_OPAQUE = frozenset(
    {
        "args",
        "labels",
        "parameters",
        "parametersJsonSchema",
        "partMetadata",
        "response",
        "responseJsonSchema",
        "responseSchema",
    }
)
_FUNCTIONS = "tools[].functionDeclarations[]"
#: The lists that may be given as a single element.
_LISTS = (
    ("", "contents"),
    ("", "tools"),
    ("tools[]", "functionDeclarations"),
    ("systemInstruction", "parts"),
    ("contents[]", "parts"),
)


def _camel_case(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_camel_case, value))
    changed = 0
    if isinstance(value, dict):
        for name in list(value):
            item = value.pop(name)
            changed += camel(name) != name
            value[camel(name)] = item
            if camel(name) not in _OPAQUE:
                changed += _camel_case(item)
    return changed


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


def _parts(body: Body) -> Iterator[Body]:
    """Every part, those inside function responses included."""
    for path in ("contents[].parts[]", "systemInstruction.parts[]"):
        for part in objects_at(body, path):
            yield part
            yield from objects_at(part, "functionResponse.parts[]")


def _field(name: str, body: Body) -> list[Body]:
    """The objects in this field of any part."""
    values = [part.get(name) for part in _parts(body)]
    return [value for value in values if isinstance(value, dict)]


_calls = partial(_field, "functionCall")
_responses = partial(_field, "functionResponse")
_blobs = partial(_field, "inlineData")


def _remove(body: Body, path: str, name: str) -> int:
    removed = [holder.pop(name, None) for holder in objects_at(body, path)]
    return sum(value is not None for value in removed)


def _blank_system(body: Body) -> int:
    system = body.get("systemInstruction")
    if not isinstance(system, dict):
        return 0
    parts = system.get("parts") or []
    kept = [part for part in parts if str(part.get("text", "x")).strip()]
    if len(kept) == len(parts) and parts:
        return 0
    system["parts"] = kept
    if not kept:
        del body["systemInstruction"]
    return max(1, len(parts) - len(kept))


def _user_role(body: Body) -> int:
    changed = 0
    for content in objects_at(body, "contents[]"):
        if content.get("role", "function") == "function":
            content["role"] = "user"
            changed += 1
    return changed


def _one_tool_each(body: Body) -> int:
    """Neighbouring functions share an object; every other tool has its own."""
    tools = body.get("tools")
    if not isinstance(tools, list):
        return 0
    separate: list[Body] = []
    for tool in tools:
        if functions := tool.get("functionDeclarations"):
            if separate and "functionDeclarations" in separate[-1]:
                separate[-1]["functionDeclarations"] += functions
            else:
                separate.append({"functionDeclarations": list(functions)})
        separate += [{name: tool[name]} for name in tool if name != "functionDeclarations"]
    changed = int(separate != tools)
    body["tools"] = separate
    return changed


def _empty_parameters(body: Body) -> int:
    empty = [one for one in objects_at(body, _FUNCTIONS) if "parameters" not in one]
    return sum(fill("", "parametersJsonSchema", EMPTY_SCHEMA)(function) for function in empty)


def _standard_base64(value: Any) -> Any:
    data = decode_base64(value) if isinstance(value, str) else None
    return value if data is None else base64.b64encode(data).decode()


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _drop_empty_contents(body: Body) -> int:
    contents = objects_at(body, "contents[]")
    body["contents"] = [content for content in contents if content.get("parts")]
    return len(contents) - len(body["contents"])


def _is_finished(content: Body) -> bool:
    """False for a model's content that contains nothing but thoughts."""
    parts = content.get("parts") or []
    return (
        content.get("role") != "model"
        or not parts
        or not all(part.get("thought") is True for part in parts)
    )


_EMPTY_ARGUMENTS = (fill(_calls, "args", {}), fill(_responses, "response", {"output": ""}))
_BASE64 = change(_blobs, "data", _standard_base64)
_DROP_NULLS = partial(drop_nulls, opaque=_OPAQUE)

REQUEST = (
    Normalisation("snake_case is camelCase", _camel_case),
    Normalisation(NULLS, _DROP_NULLS),
    Normalisation(
        "a single element is a list of one",
        *(change(path, name, _as_list) for path, name in _LISTS),
        change(_responses, "parts", _as_list),
    ),
    Normalisation("the model is in the path", partial(_remove, path="", name="model")),
    Normalisation(
        "the system instruction has no role",
        partial(_remove, path="systemInstruction", name="role"),
    ),
    Normalisation("blank texts of the system instruction are left out", _blank_system),
    Normalisation("a content without a role, or of a function, is the user's", _user_role),
    Normalisation("neighbouring functions share a tool", _one_tool_each),
    Normalisation(NO_PARAMETERS, _empty_parameters),
    Normalisation("missing arguments and responses are empty ones", *_EMPTY_ARGUMENTS),
    Normalisation("bytes are in standard base64", _BASE64),
    Normalisation(
        "thinking levels are in capitals",
        change("generationConfig.thinkingConfig", "thinkingLevel", _upper),
    ),
    Normalisation(
        DEFAULTS,
        drop(_FUNCTIONS, "", "description"),
        drop("generationConfig", [], "stopSequences"),
        drop("generationConfig", {}, "thinkingConfig"),
        drop("toolConfig", {}, "functionCallingConfig"),
        drop(_parts, False, "thought"),
        drop(_responses, [], "parts"),
        drop(_calls, "", "id"),
        drop(_responses, "", "id"),
        drop("", [], "tools"),
        drop("", {}, "generationConfig", "toolConfig", "labels"),
    ),
    Normalisation("a content without parts is left out", _drop_empty_contents),
    Normalisation(UNFINISHED, keep("", "contents", _is_finished)),
)


def _first_candidate(body: Body) -> list[Body]:
    return objects_at(body, "candidates[]")[:1]


def _model_content(body: Body) -> int:
    """The content of a reply: always the model's, and a list of parts even when it is empty."""
    changed = 0
    for candidate in _first_candidate(body):
        content = candidate.setdefault("content", {})
        changed += content.get("role") != "model" or "parts" not in content
        content.setdefault("role", "model")
        content.setdefault("parts", [])
    return changed


def _first_parts(body: Body) -> int:
    contents = [candidate.get("content", {}) for candidate in _first_candidate(body)]
    steps = (*_EMPTY_ARGUMENTS, _BASE64, drop("contents[].parts[]", False, "thought"))
    return sum(step({"contents": contents}) for step in steps)


REPLY = (
    Normalisation(NULLS, _DROP_NULLS),
    Normalisation(
        "the first candidate needs no index, and none needs no list",
        drop("", [], "candidates"),
        drop(_first_candidate, 0, "index"),
    ),
    Normalisation("the model's content is complete", _model_content),
    Normalisation("empty arguments and bytes have one form", _first_parts),
)
