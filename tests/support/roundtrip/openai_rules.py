"""Equivalent forms of OpenAI's requests and replies: Chat Completions, Responses."""

from __future__ import annotations

from typing import Any

from anaphora.catalog import Dialect
from anaphora.wire.openai_responses.writer import item_id

from . import (
    DEFAULTS,
    EMPTY_SCHEMA,
    NO_PARAMETERS,
    NULLS,
    UNFINISHED,
    Body,
    Edit,
    Rules,
    WireRules,
    drop,
    drop_nulls,
    fill,
    has_field,
    has_text,
    keep,
    objects_at,
    replace,
    text_as_list,
)

_DEVELOPER = "without developer messages, system ones"
_PARALLEL = "with parallel_tool_calls, tool_choice auto is added"


def _rename_developer(where: str) -> Edit:
    edit = replace(where, "role", lambda role: "system" if role == "developer" else role)
    return edit._replace(notice="role_changed")


_AUTO_TOOL_CHOICE = fill("", tool_choice="auto").when(has_field("parallel_tool_calls"))


# ── Chat Completions ──────────────────────────────────────────────────────────────────────────────

#: Parameters whose field is named differently in a call.
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
        messages[0]["content"] = list(filter(has_text, messages[0].get("content") or []))
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
    """Parameters that a client sends in OpenAI's form, and the host expects in its own."""

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


OPENAI_CHAT = WireRules(
    wire="openai_chat",
    request={
        NULLS: [drop_nulls()],
        "text content is a list with one text part": [text_as_list("messages[]", "content")],
        "a refusal beside the content is a part of it": [Edit("messages[]", _refusal_in_content)],
        UNFINISHED: [keep("", "messages", _more_than_reasoning)],
        _DEVELOPER: [_rename_developer("messages[]")],
        "blank texts of the system prompt are left out": [Edit("", _drop_blank_system)],
        "the token limit has the name that the model's profile gives it": [
            Edit("", lambda body: body.update(max_completion_tokens=body.pop("max_tokens"))).when(
                has_field("max_tokens")
            )
        ],
        "a stop text is a list with one": [
            replace("", "stop", lambda stop: [stop] if isinstance(stop, str) else stop)
        ],
        "tool choice any is required": [
            replace("", "tool_choice", lambda choice: "required" if choice == "any" else choice)
        ],
        "functions have a type": [
            fill("tools[]|messages[].tool_calls[]", type="function").when(has_field("function"))
        ],
        NO_PARAMETERS: [fill("tools[].function", parameters=EMPTY_SCHEMA)],
        _PARALLEL: [_AUTO_TOOL_CHOICE],
        "streams always report usage": [Edit("", _report_usage)],
        "a breakpoint without a TTL lives thirty minutes": [
            drop("messages[].content[].prompt_cache_breakpoint", ttl="30m")
        ],
        DEFAULTS: [
            drop("", stream=False, tools=[], stop=[], prompt_cache_options={}),
            drop("messages[]", content=[], tool_calls=[], reasoning_content=""),
            drop("tools[].function", description=""),
        ],
    },
    reply={
        NULLS: [drop_nulls()],
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


# ── Responses ─────────────────────────────────────────────────────────────────────────────────────

_ITEM_PARTS = "input[].content[]|input[].output[]"


def _drop_own_nulls(holder: Body) -> None:
    for name in [name for name, value in holder.items() if value is None]:
        del holder[name]


def _item_type(item: Body) -> None:
    if item.get("type") is None:
        item["type"] = "message" if "role" in item or "id" not in item else "item_reference"


def _text_as_part(item: Body) -> None:
    name = "output" if item["type"] == "function_call_output" else "content"
    if isinstance(item.get(name), str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        item[name] = [{"type": kind, "text": item[name]}]


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
    """A call without other fields gets an id and a status when it is written."""
    for index, item in enumerate(body.get("output") or []):
        bare = {*item} == {"type", "call_id", "name", "arguments"}
        if item.get("type") == "function_call" and bare:
            item |= {"id": item_id("fc", body.get("id", ""), index), "status": "completed"}


OPENAI_RESPONSES = WireRules(
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
        UNFINISHED: [Edit("", _drop_unfinished_reasoning)],
        _PARALLEL: [_AUTO_TOOL_CHOICE],
        "a breakpoint without a TTL gets the request's": [Edit("", _default_ttl)],
        DEFAULTS: [
            drop("", stream=False),
            drop("prompt_cache_options", prewarm=False),
            drop(_ITEM_PARTS, detail="auto").when(lambda part: part.get("type") == "input_image"),
            drop("", prompt_cache_options={}, reasoning={}, text={}),
            drop("tools[]", description=""),
        ],
    },
    reply={NULLS: [drop_nulls()], "a call without an id gets one": [Edit("", _identify_calls)]},
)
