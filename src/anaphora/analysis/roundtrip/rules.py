"""The forms of a request or reply that mean the same, for each wire.

Rules are applied in order: later ones rely on the forms that earlier ones make.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from anaphora.catalog import Dialect
from anaphora.wire.gemini.types import camel, decode_base64
from anaphora.wire.openai_responses.writer import item_id

from . import (
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
    keep,
    objects_at,
    remove,
    replace,
)

_NULLS = "null means the same as a missing field"
_DEFAULTS = "a field with its default value is left out"
_UNFINISHED = "reasoning that nothing follows is refused, so it is left out with a notice"
_DEVELOPER = "without developer messages, system ones"
_PARALLEL = "with parallel_tool_calls, tool_choice auto is added"
_NO_PARAMETERS = "a function without parameters has an empty object of them"
_EMPTY_SCHEMA: Body = {"properties": {}, "type": "object"}


def _has_text(block: Body) -> bool:
    """False for a text block that is blank."""
    return block.get("type") != "text" or bool(block["text"].strip())


def _text_as_list(where: str, name: str) -> Edit:
    """Makes a text a list with one text block."""
    return replace(
        where,
        name,
        lambda text: [{"type": "text", "text": text}] if isinstance(text, str) else text,
    )


def _has(name: str) -> Callable[[Body], bool]:
    return lambda holder: name in holder


def _rename_developer(where: str) -> Edit:
    edit = replace(where, "role", lambda role: "system" if role == "developer" else role)
    return edit._replace(notice="role_changed")


_AUTO_TOOL_CHOICE = fill("", tool_choice="auto").when(_has("parallel_tool_calls"))

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
        if thinking and not any(_has_text(block) for block in content if block not in thinking):
            content.clear()
        while content and content[-1].get("type") in _THINKING:
            content.pop()
    _merge_neighbours(body)


_UNSIGNED = "reasoning without a signature has an empty one"


def _sign(where: str) -> Edit:
    return fill(where, signature="").when(lambda block: block.get("type") == "thinking")


_ANTHROPIC = WireRules(
    wire="anthropic",
    request={
        _NULLS: [drop_nulls()],
        _UNSIGNED: [_sign("messages[].content[]")],
        "text content is a list with one text block": [
            _text_as_list("", "system"),
            _text_as_list("messages[]", "content"),
        ],
        "a tool result's text is a list with one text block": [
            Edit("messages[].content[]", _result_as_blocks)
        ],
        "blank text is refused, so it is left out with a notice": [
            keep("", "system", _has_text),
            keep("messages[]", "content", _has_text),
            drop("", system=[]),
        ],
        "neighbours of one role are one message": [Edit("", _merge_neighbours)],
        _UNFINISHED: [Edit("", _drop_unfinished_thinking)],
        "a marker without a TTL lives five minutes": [drop(_MARKERS, ttl="5m")],
        _DEFAULTS: [
            drop("", stream=False, tools=[], stop_sequences=[], metadata={}, output_config={}),
            drop(_BLOCKS, is_error=False, description=""),
        ],
    },
    reply={
        _NULLS: [drop_nulls()],
        _UNSIGNED: [_sign("content[]")],
        "an id, role and model that are missing are filled in": [
            fill("", id="", role="assistant", model="").when(
                lambda body: body.get("type") == "message"
            )
        ],
    },
)

# ── Chat Completions ─────────────────────────────────────────────────────────────────────────────

#: Parameters whose field has another name than they have in a call.
_FIELDS = {"reasoning.effort": "reasoning_effort"}
_REASONING = {"reasoning_content", "reasoning", "reasoning_details"}
_MESSAGE = "choices[].message"


def _refusal_in_content(message: Body) -> None:
    if isinstance(message.get("refusal"), str) and (text := message.pop("refusal")):
        part = {"type": "refusal", "refusal": text}
        message["content"] = [*(message.get("content") or []), part]


def _more_than_reasoning(message: Body) -> bool:
    """False for an assistant message that contains nothing but reasoning."""
    parts = message.get("content") or []
    fields = {name for name, value in message.items() if value != []}
    if message.get("role") != "assistant" or not fields <= {"role", "content", *_REASONING}:
        return True
    reasons = bool(fields & _REASONING or parts)
    return not (reasons and all(part.get("type") == "thinking" for part in parts))


def _drop_blank_system(body: Body) -> None:
    """Blank texts of the leading system message, which is refused when it is empty."""
    messages = body.get("messages") or []
    if messages and messages[0].get("role") in ("system", "developer"):
        messages[0]["content"] = list(filter(_has_text, messages[0].get("content") or []))
        if not messages[0]["content"]:
            del messages[0]


def _report_usage(body: Body) -> None:
    if body.get("stream"):
        body["stream_options"] = {"include_usage": True, **(body.get("stream_options") or {})}


def _joined_texts(content: Any) -> Any:
    if isinstance(content, list) and all({*part} == {"type", "text"} for part in content):
        return "".join(part["text"] for part in content)
    return content


def _host_fields(row: Dialect) -> Rules:
    """Parameters that a client sends in OpenAI's form, and the host takes in its own."""

    def move(body: Body) -> None:
        for param in row.fields:
            place, name = row.place(param), _FIELDS.get(param, param)
            if place is None or not place.at or name == place.at or body.get(name) is None:
                continue
            *outer, last = place.at.split(".")
            inside = body
            for level in outer:
                inside = inside.setdefault(level, {})
            if last not in inside:
                value = body.pop(name)
                inside[last] = place.values.get(value, value) if isinstance(value, str) else value

    return {"a parameter in OpenAI's form is in the host's": [Edit("", move)]}


_OPENAI_CHAT = WireRules(
    wire="openai_chat",
    request={
        _NULLS: [drop_nulls()],
        "text content is a list with one text part": [_text_as_list("messages[]", "content")],
        "a refusal beside the content is a part of it": [Edit("messages[]", _refusal_in_content)],
        _UNFINISHED: [keep("", "messages", _more_than_reasoning)],
        _DEVELOPER: [_rename_developer("messages[]")],
        "blank texts of the system prompt are left out": [Edit("", _drop_blank_system)],
        "the token limit has the name that the model's profile gives it": [
            Edit("", lambda body: body.update(max_completion_tokens=body.pop("max_tokens"))).when(
                _has("max_tokens")
            )
        ],
        "a stop text is a list with one": [
            replace("", "stop", lambda stop: [stop] if isinstance(stop, str) else stop)
        ],
        "tool choice any is required": [
            replace("", "tool_choice", lambda choice: "required" if choice == "any" else choice)
        ],
        "functions have a type": [
            fill("tools[]|messages[].tool_calls[]", type="function").when(_has("function"))
        ],
        _NO_PARAMETERS: [fill("tools[].function", parameters=_EMPTY_SCHEMA)],
        _PARALLEL: [_AUTO_TOOL_CHOICE],
        "streams always report usage": [Edit("", _report_usage)],
        "a breakpoint without a TTL lives thirty minutes": [
            drop("messages[].content[].prompt_cache_breakpoint", ttl="30m")
        ],
        _DEFAULTS: [
            drop("", stream=False, tools=[], stop=[], prompt_cache_options={}),
            drop("messages[]", content=[], tool_calls=[], reasoning_content=""),
            drop("tools[].function", description=""),
        ],
    },
    reply={
        _NULLS: [drop_nulls()],
        "a list of texts is one text": [replace(_MESSAGE, "content", _joined_texts)],
        "an empty text or list is left out": [
            drop(
                _MESSAGE,
                content="",
                refusal="",
                reasoning="",
                reasoning_content="",
                annotations=[],
                tool_calls=[],
            )
        ],
        "calls have a type and arguments": [
            fill(f"{_MESSAGE}.tool_calls[]", type="function"),
            fill(f"{_MESSAGE}.tool_calls[].function", arguments=""),
        ],
        "the object is a chat completion": [
            Edit("", lambda body: body.update(object="chat.completion"))
        ],
        # Some hosts leave out envelope fields that clients do not read.
        "the envelope of a reply is complete": [
            fill("", id="", model="", created=0),
            fill("choices[0]", index=0),
            fill("choices[0].message", role="assistant"),
        ],
    },
    for_dialect=_host_fields,
)

# ── Responses ────────────────────────────────────────────────────────────────────────────────────

_ITEM_PARTS = "input[].content[]|input[].output[]"


def _drop_own_nulls(holder: Body) -> None:
    for name in [name for name, value in holder.items() if value is None]:
        del holder[name]


def _item_type(item: Body) -> None:
    if item.get("type") is None:
        item["type"] = "message" if "role" in item or "id" not in item else "item_reference"


def _text_as_part(item: Body) -> None:
    name = "output" if item["type"] == "function_call_output" else "content"
    if isinstance(item.get(name), str) and item.get("role") != "assistant":
        item[name] = [{"type": "input_text", "text": item[name]}]


def _drop_blank_instructions(body: Body) -> None:
    if isinstance(body.get("instructions"), str) and not body["instructions"].strip():
        del body["instructions"]


def _drop_unfinished_reasoning(body: Body) -> None:
    if not isinstance(body.get("input"), list):
        return
    kept: list[Body] = []
    followed = False
    for item in reversed(body["input"]):
        if item["type"] != "reasoning":
            from_model = item["type"] != "message" or item.get("role") == "assistant"
            followed = from_model and not item["type"].endswith("_output")
        if item["type"] != "reasoning" or followed:
            kept.append(item)
    body["input"] = kept[::-1]


def _default_ttl(body: Body) -> None:
    default = (body.get("prompt_cache_options") or {}).get("ttl", "30m")
    for part in objects_at(body, _ITEM_PARTS):
        for marker in objects_at(part, "prompt_cache_breakpoint"):
            marker.setdefault("ttl", default)


def _identify_calls(body: Body) -> None:
    """A call with nothing but itself gets an id and a status when it is written."""
    for index, item in enumerate(body.get("output") or []):
        bare = {*item} == {"type", "call_id", "name", "arguments"}
        if item.get("type") == "function_call" and bare:
            item |= {"id": item_id("fc", body.get("id", ""), index), "status": "completed"}


_OPENAI_RESPONSES = WireRules(
    wire="openai_responses",
    request={
        # Inside an item a null may be required.
        "null means the same as a missing option": [
            Edit("|reasoning|text|tools[]", _drop_own_nulls)
        ],
        "text input is a list with one message": [
            replace(
                "",
                "input",
                lambda text: [{"role": "user", "content": text}] if isinstance(text, str) else text,
            )
        ],
        "an item without a type is a message or a reference": [Edit("input[]", _item_type)],
        "text content is a list with one part": [Edit("input[]", _text_as_part)],
        "blank instructions are left out": [Edit("", _drop_blank_instructions)],
        _DEVELOPER: [_rename_developer("input[]")],
        _UNFINISHED: [Edit("", _drop_unfinished_reasoning)],
        _PARALLEL: [_AUTO_TOOL_CHOICE],
        "a breakpoint without a TTL gets the request's": [Edit("", _default_ttl)],
        _DEFAULTS: [
            drop("", stream=False),
            drop("prompt_cache_options", prewarm=False),
            drop(_ITEM_PARTS, detail="auto").when(lambda part: part.get("type") == "input_image"),
            drop("", prompt_cache_options={}, reasoning={}, text={}),
            drop("tools[]", description=""),
        ],
    },
    reply={_NULLS: [drop_nulls()], "a call without an id gets one": [Edit("", _identify_calls)]},
)

# ── generateContent ──────────────────────────────────────────────────────────────────────────────

#: Fields whose content is the app's own, or a schema: names and nulls inside are left alone.
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
        _NULLS: [_GEMINI_NULLS],
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
        _NO_PARAMETERS: [
            fill(_FUNCTIONS, parametersJsonSchema=_EMPTY_SCHEMA).when(
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
        _DEFAULTS: [
            drop(_FUNCTIONS, description=""),
            drop("generationConfig", stopSequences=[], thinkingConfig={}),
            drop("toolConfig", functionCallingConfig={}),
            _THOUGHT,
            drop(_RESPONSES, parts=[]),
            drop(f"{_CALLS}|{_RESPONSES}", id=""),
            drop("", tools=[], generationConfig={}, toolConfig={}, labels={}),
        ],
        "a content without parts is left out": [Edit("", _drop_empty_contents)],
        _UNFINISHED: [keep("", "contents", _more_than_thoughts)],
    },
    reply={
        _NULLS: [_GEMINI_NULLS],
        "the first candidate needs no index, and none needs no list": [
            drop("", candidates=[]),
            drop("candidates[0]", index=0),
        ],
        "the model's content is complete": [Edit("candidates[0]", _complete_content)],
        "empty arguments and bytes have one form": [*_EMPTY_ARGUMENTS, _BASE64, _THOUGHT],
    },
)

# ── Ollama ───────────────────────────────────────────────────────────────────────────────────────


def _more_than_thinking(message: Body) -> bool:
    """False for an assistant message that contains nothing but thinking."""
    content = any(message.get(name) for name in ("content", "images", "tool_calls"))
    return message["role"] != "assistant" or not message.get("thinking") or content


def _message_rules(messages: str) -> Rules:
    """The rules for messages at a path: those of a request, or the one of a reply."""
    calls = f"{messages}.tool_calls[]"
    return {
        "a message without content has an empty text": [fill(messages, content="")],
        "an empty text or list beside the content is left out": [
            drop(messages, images=[], tool_calls=[], thinking="", tool_name="", tool_call_id=""),
            drop(calls, id=""),
        ],
        "a call has no type": [drop(calls, type="function")],
        "a call without arguments has an empty object of them": [
            fill(f"{calls}.function", arguments={})
        ],
    }


_OLLAMA = WireRules(
    wire="ollama",
    request={
        _NULLS: [drop_nulls()],
        "a reply is streamed by default": [fill("", stream=True)],
        "a request without messages has none": [fill("", messages=[])],
        "roles are lower case": [replace("messages[]", "role", str.lower)],
        **_message_rules("messages[]"),
        _UNFINISHED: [keep("", "messages", _more_than_thinking)],
        "a tool has a type and parameters": [
            fill("tools[]", type="function").when(_has("function")),
            fill("tools[].function", parameters=_EMPTY_SCHEMA),
        ],
        _DEFAULTS: [
            drop("", tools=[]),
            drop("options", stop=[]),
            drop("", options={}),
            drop("tools[].function", description=""),
        ],
    },
    reply={
        _NULLS: [drop_nulls()],
        "a reply is the assistant's": [fill("message", role="assistant")],
        **_message_rules("message"),
        "a reply is done, and stopped, by default": [
            fill("", done=True),
            drop("", done_reason="stop"),
        ],
        "a reply without a date was made at the epoch": [
            fill("", created_at="1970-01-01T00:00:00Z")
        ],
    },
)

RULES = {
    rules.wire: rules for rules in (_ANTHROPIC, _OPENAI_CHAT, _OPENAI_RESPONSES, _GEMINI, _OLLAMA)
}


def check(exchange: RecordedExchange) -> RoundTripResult:
    """Reads both halves of an exchange, writes them again, and compares."""
    return check_exchange(exchange, RULES[exchange.wire])
