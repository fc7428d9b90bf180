"""What a generateContent request may say in two ways: every difference that
`render(parse(request))` may show, one by one."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from anaphora.analysis.roundtrip.meaning import Body, Normalisation, drop_when, keep
from anaphora.wire.gemini.types import camel, decode_base64

#: What is inside of these is the app's own, or a schema: names and nulls in it are left alone.
_FREE = frozenset(
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


def _camel_case(value: Any) -> int:
    changed = 0
    if isinstance(value, dict):
        for name in list(value):
            item = value.pop(name)
            changed += camel(name) != name
            value[camel(name)] = item
            if camel(name) not in _FREE:
                changed += _camel_case(item)
    elif isinstance(value, list):
        changed = sum(map(_camel_case, value))
    return changed


def _nulls(value: Any) -> int:
    dropped = 0
    if isinstance(value, dict):
        for name in [name for name, item in value.items() if item is None]:
            del value[name]
            dropped += 1
        dropped += sum(_nulls(item) for name, item in value.items() if name not in _FREE)
    elif isinstance(value, list):
        dropped = sum(map(_nulls, value))
    return dropped


def _list_of_one(holder: Any, *names: str) -> int:
    changed = 0
    for name in names:
        if isinstance(holder, dict) and isinstance(holder.get(name), dict):
            holder[name] = [holder[name]]
            changed += 1
    return changed


def _contents(body: Body) -> list[Body]:
    found = body.get("contents") or []
    return [content for content in found if isinstance(content, dict)]


def _parts(body: Body) -> Iterator[Body]:
    for content in [*_contents(body), body.get("systemInstruction") or {}]:
        for part in content.get("parts") or []:
            yield part
            yield from (part.get("functionResponse") or {}).get("parts") or []


def _lists(body: Body) -> int:
    changed = _list_of_one(body, "contents", "tools")
    changed += sum(_list_of_one(tool, "functionDeclarations") for tool in body.get("tools") or [])
    changed += _list_of_one(body.get("systemInstruction"), "parts")
    changed += sum(_list_of_one(content, "parts") for content in _contents(body))
    return changed + sum(_list_of_one(p.get("functionResponse"), "parts") for p in _parts(body))


def _model_in_path(body: Body) -> int:
    return int(body.pop("model", None) is not None)


def _system_without_role(body: Body) -> int:
    system = body.get("systemInstruction")
    if not isinstance(system, dict):
        return 0
    return int(system.pop("role", None) is not None)


def _blank_system(body: Body) -> int:
    system = body.get("systemInstruction")
    if not isinstance(system, dict):
        return 0
    parts = system.get("parts") or []
    said = [part for part in parts if str(part.get("text", "x")).strip()]
    if len(said) == len(parts) and parts:
        return 0
    system["parts"] = said
    if not said:
        del body["systemInstruction"]
    return max(1, len(parts) - len(said))


def _roles(body: Body) -> int:
    changed = 0
    for content in _contents(body):
        if content.get("role", "function") == "function":
            content["role"] = "user"
            changed += 1
    return changed


def _one_tool_each(body: Body) -> int:
    """Functions that stand together share an object; everything else has its own."""
    tools = body.get("tools")
    if not isinstance(tools, list):
        return 0
    apart: list[Body] = []
    for tool in tools:
        if functions := tool.get("functionDeclarations"):
            if apart and "functionDeclarations" in apart[-1]:
                apart[-1]["functionDeclarations"] += functions
            else:
                apart.append({"functionDeclarations": list(functions)})
        apart += [{name: said} for name, said in tool.items() if name != "functionDeclarations"]
    changed = int(apart != tools)
    body["tools"] = apart
    return changed


def _functions(body: Body) -> list[Body]:
    return [f for tool in body.get("tools") or [] for f in tool.get("functionDeclarations") or []]


def _empty_parameters(body: Body) -> int:
    changed = 0
    for function in _functions(body):
        if "parameters" not in function and "parametersJsonSchema" not in function:
            function["parametersJsonSchema"] = {"properties": {}, "type": "object"}
            changed += 1
    return changed


def _empty_arguments(body: Body) -> int:
    changed = 0
    for part in _parts(body):
        for field, name, empty in (
            ("functionCall", "args", {}),
            ("functionResponse", "response", {"output": ""}),
        ):
            if isinstance(part.get(field), dict) and part[field].get(name) is None:
                part[field][name] = empty
                changed += 1
    return changed


def _usual_base64(body: Body) -> int:
    changed = 0
    for part in _parts(body):
        blob = part.get("inlineData")
        if isinstance(blob, dict) and isinstance(blob.get("data"), str):
            found = decode_base64(blob["data"])
            usual = blob["data"] if found is None else base64.b64encode(found).decode()
            changed += usual != blob["data"]
            blob["data"] = usual
    return changed


def _capital_levels(body: Body) -> int:
    config = (body.get("generationConfig") or {}).get("thinkingConfig") or {}
    level = config.get("thinkingLevel")
    if not isinstance(level, str) or level == level.upper():
        return 0
    config["thinkingLevel"] = level.upper()
    return 1


def _defaults(body: Body) -> int:
    dropped = sum(drop_when(f, "description", "") for f in _functions(body))
    config = body.get("generationConfig")
    if isinstance(config, dict):
        dropped += drop_when(config, "stopSequences", []) + drop_when(config, "thinkingConfig", {})
    if isinstance(body.get("toolConfig"), dict):
        dropped += drop_when(body["toolConfig"], "functionCallingConfig", {})
    for part in _parts(body):
        dropped += drop_when(part, "thought", False)
        dropped += drop_when(part.get("functionResponse") or {}, "parts", [])
        for field in ("functionCall", "functionResponse"):
            dropped += drop_when(part.get(field) or {}, "id", "")
    for name, empty in (
        ("tools", []),
        ("generationConfig", {}),
        ("toolConfig", {}),
        ("labels", {}),
    ):
        dropped += drop_when(body, name, empty)
    return dropped


def _silent_contents(body: Body) -> int:
    contents = _contents(body)
    said = [content for content in contents if content.get("parts")]
    body["contents"] = said
    return len(contents) - len(said)


def _finished(body: Body) -> int:
    contents = body.get("contents") or []

    def unfinished(content: Body) -> bool:
        parts = content.get("parts") or []
        thoughts = [part for part in parts if part.get("thought") is True]
        return content.get("role") == "model" and bool(parts) and len(thoughts) == len(parts)

    return keep(contents, lambda at: not unfinished(contents[at]))


REQUEST = (
    Normalisation("snake_case is camelCase", _camel_case),
    Normalisation("null means the same as a missing field", _nulls),
    Normalisation("a single element is a list of one", _lists),
    Normalisation("the model is in the path", _model_in_path),
    Normalisation("the system instruction has no role", _system_without_role),
    Normalisation("blank texts of the system instruction are left out", _blank_system),
    Normalisation("a content without a role, or of a function's, is the user's", _roles),
    Normalisation("functions that stand together share a tool", _one_tool_each),
    Normalisation("no parameters are an empty object of them", _empty_parameters),
    Normalisation("no arguments, and no response, are empty ones", _empty_arguments),
    Normalisation("bytes are said in the usual base64", _usual_base64),
    Normalisation("levels of thinking are said in capitals", _capital_levels),
    Normalisation("a field that says its default is left out", _defaults),
    Normalisation("a content without parts says nothing", _silent_contents),
    Normalisation(
        "reasoning that nothing follows is refused, so it is left out with a notice", _finished
    ),
)


def _candidates(body: Body) -> list[Body]:
    found = body.get("candidates") or []
    return [candidate for candidate in found if isinstance(candidate, dict)]


def _first(body: Body) -> int:
    return drop_when(body, "candidates", []) + sum(
        drop_when(candidate, "index", 0) for candidate in _candidates(body)[:1]
    )


def _model_speaks(body: Body) -> int:
    """The content of an answer: always the model's, and a list of parts even when it is empty."""
    changed = 0
    for candidate in _candidates(body)[:1]:
        content = candidate.setdefault("content", {})
        if content.get("role") != "model" or "parts" not in content:
            content.setdefault("role", "model")
            content.setdefault("parts", [])
            changed += 1
    return changed


def _answers(body: Body) -> int:
    changed = 0
    for candidate in _candidates(body)[:1]:
        parts = candidate.get("content", {}).get("parts") or []
        changed += _empty_arguments({"contents": [{"parts": parts}]})
        changed += _usual_base64({"contents": [{"parts": parts}]})
        changed += sum(drop_when(part, "thought", False) for part in parts)
    return changed


REPLY = (
    Normalisation("null means the same as a missing field", _nulls),
    Normalisation("the first candidate needs no index, and none needs no list", _first),
    Normalisation("the model speaks, even where nothing is said", _model_speaks),
    Normalisation("empty arguments and bytes have one form", _answers),
)
