"""Equivalent forms of requests and replies, for each wire.

Rules are applied in order: later ones rely on the forms that earlier ones produce.
"""

from __future__ import annotations

import base64
from typing import Any

from anaphora.catalog import Dialect
from anaphora.wire.gemini.types import camel, decode_base64

from . import (
    DEFAULTS,
    EMPTY_SCHEMA,
    NO_PARAMETERS,
    NULLS,
    UNFINISHED,
    Body,
    Edit,
    RecordedExchange,
    RoundTripResult,
    Rules,
    WireRules,
    check_exchange,
    drop,
    drop_nulls,
    fill,
    has_text,
    keep,
    objects_at,
    remove,
    replace,
    text_as_list,
)
from .bedrock_rules import BEDROCK
from .openai_rules import OPENAI_CHAT, OPENAI_RESPONSES
from .other_exchanges import check_other

# ── Anthropic ────────────────────────────────────────────────────────────────────────────────────

_THINKING = ("thinking", "redacted_thinking")
#: Every block of a request, those inside tool results included.
_BLOCKS = "tools[]|system[]|messages[].content[]|messages[].content[].content[]"
_MARKERS = "|".join(f"{path}.cache_control".lstrip(".") for path in ("", *_BLOCKS.split("|")))


def _result_as_blocks(block: Body) -> None:
    content = block.get("content")
    if block.get("type") == "tool_result" and not isinstance(content, list):
        block["content"] = [{"type": "text", "text": content}] if content else []


def _merge_neighbours(body: Body) -> None:
    merged: list[Body] = []
    for message in body.get("messages") or []:
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += message["content"]
        elif message["content"]:
            merged.append(message)
    body["messages"] = merged


def _drop_unfinished_thinking(body: Body) -> None:
    """Needs merged neighbours, and merges those that become neighbours."""
    for message in body["messages"]:
        content = message["content"]
        if message["role"] != "assistant":
            continue
        thinking = [block for block in content if block.get("type") in _THINKING]
        if thinking and not any(has_text(block) for block in content if block not in thinking):
            content.clear()
        while content and content[-1].get("type") in _THINKING:
            content.pop()
    _merge_neighbours(body)


_UNSIGNED = "reasoning without a signature has an empty one"


def _sign(where: str) -> Edit:
    return fill(where, signature="").when(lambda block: block.get("type") == "thinking")


def _of_dialect(dialect: Dialect) -> Rules:
    if dialect.envelope != "invoke":
        return {}
    version = fill("", anthropic_version="bedrock-2023-05-31")
    return {"a body of InvokeModel has a version": [version]}


_ANTHROPIC = WireRules(
    wire="anthropic",
    for_dialect=_of_dialect,
    request={
        NULLS: [drop_nulls()],
        _UNSIGNED: [_sign("messages[].content[]")],
        "text content is a list with one text block": [
            text_as_list("", "system"),
            text_as_list("messages[]", "content"),
        ],
        "a tool result's text is a list with one text block": [
            Edit("messages[].content[]", _result_as_blocks)
        ],
        "blank text is refused, so it is left out with a notice": [
            keep("", "system", has_text),
            keep("messages[]", "content", has_text),
            drop("", system=[]),
        ],
        "neighbours of one role are one message": [Edit("", _merge_neighbours)],
        UNFINISHED: [Edit("", _drop_unfinished_thinking)],
        "a marker without a TTL lives five minutes": [drop(_MARKERS, ttl="5m")],
        DEFAULTS: [
            drop("", stream=False, tools=[], stop_sequences=[], metadata={}, output_config={}),
            drop(_BLOCKS, is_error=False, description=""),
        ],
    },
    reply={
        NULLS: [drop_nulls()],
        _UNSIGNED: [_sign("content[]")],
        "an id, role and model that are missing are filled in": [
            fill("", id="", role="assistant", model="").when(
                lambda body: body.get("type") == "message"
            )
        ],
    },
)

# ── generateContent ──────────────────────────────────────────────────────────────────────────────

#: Fields with the app's own content, or a schema: names and nulls inside stay unchanged.
_OPAQUE = (
    "args labels parameters parametersJsonSchema partMetadata response responseJsonSchema"
    " responseSchema"
).split()
_FUNCTIONS = "tools[].functionDeclarations[]"
#: Every part of a request or reply, and those inside function responses.
_TOP_PARTS = ("contents[].parts[]", "systemInstruction.parts[]", "candidates[0].content.parts[]")
_PARTS = (*_TOP_PARTS, *(f"{path}.functionResponse.parts[]" for path in _TOP_PARTS))
_CALLS = "|".join(f"{path}.functionCall" for path in _PARTS)
_RESPONSES = "|".join(f"{path}.functionResponse" for path in _PARTS)
_BLOBS = "|".join(f"{path}.inlineData" for path in _PARTS)


def _camel_case(value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _camel_case(item)
    elif isinstance(value, dict):
        for name in list(value):
            item = value[camel(name)] = value.pop(name)
            if camel(name) not in _OPAQUE:
                _camel_case(item)


def _as_list(where: str, *names: str) -> tuple[Edit, ...]:
    def change(value: Any) -> Any:
        return [value] if isinstance(value, dict) else value

    return tuple(replace(where, name, change) for name in names)


def _drop_blank_instruction(body: Body) -> None:
    system = body.get("systemInstruction")
    if isinstance(system, dict):
        parts = system.get("parts") or []
        system["parts"] = [part for part in parts if str(part.get("text", "x")).strip()]
        if not system["parts"]:
            del body["systemInstruction"]


def _one_tool_each(body: Body) -> None:
    """Neighbouring functions share an object; every other tool has its own."""
    separate: list[Body] = []
    for tool in objects_at(body, "tools[]"):
        if functions := tool.get("functionDeclarations"):
            if separate and "functionDeclarations" in separate[-1]:
                separate[-1]["functionDeclarations"] += functions
            else:
                separate.append({"functionDeclarations": list(functions)})
        separate += [{name: tool[name]} for name in tool if name != "functionDeclarations"]
    if "tools" in body:
        body["tools"] = separate


def _standard_base64(value: Any) -> Any:
    data = decode_base64(value) if isinstance(value, str) else None
    return value if data is None else base64.b64encode(data).decode()


def _drop_empty_contents(body: Body) -> None:
    body["contents"] = [
        content for content in objects_at(body, "contents[]") if content.get("parts")
    ]


def _more_than_thoughts(content: Body) -> bool:
    """False for a model's content that contains nothing but thoughts."""
    parts = content.get("parts") or []
    thoughts = [part for part in parts if part.get("thought") is True]
    return content.get("role") != "model" or not parts or len(thoughts) < len(parts)


def _complete_content(candidate: Body) -> None:
    content = candidate.setdefault("content", {})
    content.setdefault("role", "model")
    content.setdefault("parts", [])


_GEMINI_NULLS = drop_nulls(*_OPAQUE)
_EMPTY_ARGUMENTS = (fill(_CALLS, args={}), fill(_RESPONSES, response={"output": ""}))
_BASE64 = replace(_BLOBS, "data", _standard_base64)
_THOUGHT = drop("|".join(_PARTS), thought=False)
_UNCHECKED = drop("|".join(_PARTS), thoughtSignature="skip_thought_signature_validator").when(
    lambda part: "functionCall" in part
)

_GEMINI = WireRules(
    wire="gemini",
    request={
        "snake_case is camelCase": [Edit("", _camel_case)],
        NULLS: [_GEMINI_NULLS],
        "a single element is a list of one": [
            *_as_list("", "contents", "tools"),
            *_as_list("tools[]", "functionDeclarations"),
            *_as_list("systemInstruction|contents[]", "parts"),
            *_as_list(_RESPONSES, "parts"),
        ],
        "the model is in the path": [remove("", "model")],
        "the system instruction has no role": [remove("systemInstruction", "role")],
        "blank texts of the system instruction are left out": [Edit("", _drop_blank_instruction)],
        "a content without a role, or of a function, is the user's": [
            fill("contents[]", role="user"),
            replace("contents[]", "role", lambda role: "user" if role == "function" else role),
        ],
        "neighbouring functions share a tool": [Edit("", _one_tool_each)],
        NO_PARAMETERS: [
            fill(_FUNCTIONS, parametersJsonSchema=EMPTY_SCHEMA).when(
                lambda function: "parameters" not in function
            )
        ],
        "missing arguments and responses are empty ones": [*_EMPTY_ARGUMENTS],
        "a call whose signature need not be checked has none": [_UNCHECKED],
        "bytes are in standard base64": [_BASE64],
        "thinking levels are in capitals": [
            replace(
                "generationConfig.thinkingConfig",
                "thinkingLevel",
                lambda level: level.upper() if isinstance(level, str) else level,
            )
        ],
        DEFAULTS: [
            drop(_FUNCTIONS, description=""),
            drop("generationConfig", stopSequences=[], thinkingConfig={}),
            drop("toolConfig", functionCallingConfig={}),
            _THOUGHT,
            drop(_RESPONSES, parts=[]),
            drop(f"{_CALLS}|{_RESPONSES}", id=""),
            drop("", tools=[], generationConfig={}, toolConfig={}, labels={}),
        ],
        "a content without parts is left out": [Edit("", _drop_empty_contents)],
        UNFINISHED: [keep("", "contents", _more_than_thoughts)],
    },
    reply={
        NULLS: [_GEMINI_NULLS],
        "the first candidate needs no index, and none needs no list": [
            drop("", candidates=[]),
            drop("candidates[0]", index=0),
        ],
        "the model's content is complete": [Edit("candidates[0]", _complete_content)],
        "empty arguments and bytes have one form": [*_EMPTY_ARGUMENTS, _BASE64, _THOUGHT],
    },
)

RULES = {
    rules.wire: rules for rules in (_ANTHROPIC, OPENAI_CHAT, OPENAI_RESPONSES, _GEMINI, BEDROCK)
}


def check(exchange: RecordedExchange) -> RoundTripResult:
    """Reads both halves of an exchange, writes them again, and compares."""
    other = check_other(exchange, RULES)
    return other or check_exchange(exchange, RULES[exchange.wire_name])
