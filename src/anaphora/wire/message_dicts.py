"""Converts messages in the dictionary form of the OpenAI and Anthropic SDKs to `Message`s.

    {"role": "user", "content": "Hello"}
    {"role": "user", "content": [{"type": "text", …}, {"type": "image_url", …}]}
    {"role": "assistant", "content": None, "tool_calls": […]}
    {"role": "tool", "tool_call_id": "…", "content": "…"}
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "…", …}]}    Anthropic's

The wires' own parsers read them. In requests these keep unknown fields; here an unknown field is an
error, since it is most likely a typo. Parts (`Image`, `Document`, …) are allowed in a list of
content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

import msgspec

from anaphora import canonical
from anaphora.errors import InvalidRequest
from anaphora.redaction import shown_value
from anaphora.values import AnyTool, Message, Opaque, Part, Text, ToolResult
from anaphora.yaml_values import nearest

from . import get

_PARTS = get_args(Part)

#: The fields of a message by its role. The assistant's include those of replies.
_FIELDS = {
    "system": ("content", "name"),
    "developer": ("content", "name"),
    "user": ("content", "name"),
    "assistant": tuple(
        "content tool_calls refusal name reasoning_content reasoning audio annotations"
        " function_call".split()
    ),
    "tool": ("content", "tool_call_id", "name"),
}
#: Names of fields in other libraries, and their names here.
_ELSEWHERE = {"text": "content", "parts": "content", "body": "content", "call_id": "tool_call_id"}

#: Types of content parts of Chat Completions, and those of Anthropic.
_CHAT_TYPES = ("text", "image_url", "input_audio", "file", "refusal", "thinking")
_ANTHROPIC_TYPES = tuple(
    "image document tool_use tool_result redacted_thinking search_result server_tool_use"
    " web_search_tool_result".split()
)
#: Types of the Responses API, and those of Chat Completions that they stand for.
_RESPONSES_TYPES = {
    "input_text": "text",
    "output_text": "text",
    "input_image": "image_url",
    "input_file": "file",
}


def read_message(value: object, path: str) -> Message:
    """The message of a dictionary, or of an SDK's message object; a `Message` is returned
    unchanged. An error names the field below `path`."""
    if isinstance(value, Message):
        return value
    value = _dumped(value)
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"must be a Message or a dict, not {type(value).__name__}", path=path)
    if value.get("type") == "message" and "usage" in value:  # a whole reply of the Anthropic SDK
        value = {name: value[name] for name in ("role", "content") if name in value}
    fields = {name: each for name, each in value.items() if each is not None}
    role = _role(fields, path)
    _check_fields(fields, role, path)
    placed: dict[str, Part] = {}
    content = fields.get("content")
    if content is not None and not isinstance(content, str):
        fields["content"] = _content(content, f"{path}.content", placed)
    message = _parse(fields, _is_anthropic(fields, path), path)
    if role == "system":
        message = _without_original_role(message)
    return _replaced(message, placed) if placed else message


def _dumped(value: object) -> object:
    """The dictionary of an SDK's object; other values unchanged."""
    dump = getattr(value, "model_dump", None)
    return dump(exclude_none=True) if callable(dump) else value


def read_part(value: Mapping[str, Any], path: str) -> Part:
    """The part of a dictionary in a list of content."""
    placed: dict[str, Part] = {}
    (part,) = _content([value], path, placed, numbered=False)
    fields = {"role": "user", "content": [part]}
    try:
        message = _parse(fields, _is_anthropic(fields, path), path)
    except InvalidRequest as error:
        raise InvalidRequest(error.reason, path=error.path.replace(".content[0]", "", 1)) from None
    return message.parts[0]


def _role(fields: dict[str, Any], path: str) -> str:
    role = fields.get("role")
    if role is None:
        raise InvalidRequest(f"is missing; it is one of {', '.join(_FIELDS)}", path=f"{path}.role")
    if not isinstance(role, str) or role not in _FIELDS:
        raise InvalidRequest(
            f"must be one of {', '.join(_FIELDS)}, not {shown_value(role)}", path=f"{path}.role"
        )
    return role


def _check_fields(fields: dict[str, Any], role: str, path: str) -> None:
    known = _FIELDS[role]
    for name in [name for name in fields if name != "role" and name not in known]:
        if fields[name] in ([], {}):
            del fields[name]  # an SDK wrote it out
            continue
        near = _ELSEWHERE.get(name, "") or nearest(str(name), known)
        advice = f"did you mean {near}?" if near in known else f"known: {', '.join(known)}"
        raise InvalidRequest(
            f"unknown field of a message with the role {role}; {advice}", path=f"{path}.{name}"
        )
    if role == "tool" and not isinstance(fields.get("tool_call_id"), str):
        raise InvalidRequest(
            "is missing; it is the id of the tool call that this answers",
            path=f"{path}.tool_call_id",
        )
    if role == "assistant":
        calls = fields.get("tool_calls", ())
        if not isinstance(calls, list | tuple):
            raise _wrong_type("a list", calls, f"{path}.tool_calls")
        for index, call in enumerate(calls):
            _check_call(call, f"{path}.tool_calls[{index}]")
        for name in ("annotations", "function_call"):
            if not fields.get(name):
                fields.pop(name, None)
    elif "content" not in fields:
        raise InvalidRequest("is missing", path=f"{path}.content")


def _check_call(call: object, path: str) -> None:
    if not isinstance(call, Mapping):
        raise _wrong_type("a dict", call, path)
    function = call.get("function", {})
    for value, place in ((call.get("id"), "id"), (_field(function, "name"), "function.name")):
        if not isinstance(value, str):
            raise InvalidRequest("is missing", path=f"{path}.{place}")


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else None


def _content(
    content: object, path: str, placed: dict[str, Part], *, numbered: bool = True
) -> list[Any]:
    """The list of content in the form of a wire. Values that are already parts are put into
    `placed`, and each is replaced by a text with its name."""
    if isinstance(content, bytes | Mapping) or not isinstance(content, Iterable):
        raise _wrong_type("a text or a list of parts", content, path)
    parts: list[Any] = []
    for index, part in enumerate(content):
        place = f"{path}[{index}]" if numbered else path
        if isinstance(part, _PARTS):
            name = f"\0part {index}"
            placed[name] = part
            parts.append({"type": "text", "text": name})
        elif isinstance(part, str):
            parts.append({"type": "text", "text": part})
        elif isinstance(block := _dumped(part), Mapping):
            parts.append(_part(block, place))
        else:
            raise _wrong_type("a text, a part or a dict", part, place)
    return parts


def _part(part: Mapping[str, Any], path: str) -> dict[str, Any]:
    fields = {name: value for name, value in part.items() if value is not None}
    kind = fields.get("type")
    if isinstance(kind, str) and kind in _RESPONSES_TYPES:
        fields = _from_responses(fields, path)
        kind = fields["type"]
    if kind not in (*_CHAT_TYPES, *_ANTHROPIC_TYPES):
        known = (*_CHAT_TYPES, *_ANTHROPIC_TYPES, *_RESPONSES_TYPES)
        reason = "is missing" if kind is None else f"unknown type {shown_value(kind)}"
        near = nearest(str(kind), known)
        advice = f"did you mean {near}?" if near else f"known: {', '.join(known)}"
        raise InvalidRequest(f"{reason}; {advice}", path=f"{path}.type")
    if isinstance(fields.get("image_url"), str):
        fields["image_url"] = {"url": fields["image_url"]}
    for name in ("cache_control", "prompt_cache_breakpoint"):
        if name in fields:
            raise InvalidRequest(
                "is not allowed here: the client places the markers; request one with"
                " cache=PromptCachePlan(marks=…) or the cache policy of a PromptBlock",
                path=f"{path}.{name}",
            )
    return fields


def _from_responses(fields: dict[str, Any], path: str) -> dict[str, Any]:
    kind = _RESPONSES_TYPES[fields["type"]]
    if kind == "text":
        return {"type": kind, "text": fields.get("text")}
    if kind == "file":
        names = ("file_data", "file_id", "filename")
        return {"type": kind, kind: {name: fields[name] for name in names if name in fields}}
    if "image_url" not in fields:
        raise InvalidRequest("is missing", path=f"{path}.image_url")
    detail = {"detail": fields["detail"]} if "detail" in fields else {}
    return {"type": kind, kind: {"url": fields["image_url"], **detail}}


def _is_anthropic(fields: dict[str, Any], path: str) -> bool:
    content = fields.get("content")
    if not isinstance(content, list):
        return False
    types = [part["type"] for part in content]
    theirs = [kind for kind in types if kind in _ANTHROPIC_TYPES]
    # Both have a type `thinking`; a signature is Anthropic's.
    theirs += [part["type"] for part in content if "signature" in part]
    ours = [kind for kind in types if kind in _CHAT_TYPES and kind not in ("text", "thinking")]
    if theirs and (ours or "tool_calls" in fields):
        other = ours[0] if ours else "tool_calls"
        raise InvalidRequest(
            f"{theirs[0]} is Anthropic's and {other} is OpenAI's; use one of the forms",
            path=f"{path}.content",
        )
    return bool(theirs)


def _parse(fields: dict[str, Any], is_anthropic: bool, path: str) -> Message:
    body: dict[str, Any] = {"model": "", "messages": [fields]}
    wire = "openai_chat"
    if is_anthropic:
        wire = "anthropic"
        body["max_tokens"] = 1
    elif fields["role"] in ("system", "developer"):
        # After another message, so that the parser does not make it the system prompt.
        body["messages"] = [{"role": "user", "content": "."}, fields]
    prefix = f"$.messages[{len(body['messages']) - 1}]"
    try:
        call = get(wire).parse(canonical.dumps(body))
    except InvalidRequest as error:
        raise InvalidRequest(error.reason, path=error.path.replace(prefix, path, 1)) from None
    message = call.ir.body_chat()[-1]
    _check_read(message, fields, path)
    from .openai_chat.types import FORM  # loaded with the wire

    return Message(role=message.role, parts=_without(message, FORM).parts)


def _check_read(message: Message, fields: dict[str, Any], path: str) -> None:
    """Raise for a part that a parser kept whole because it could not read it."""
    content = fields.get("content")
    if not isinstance(content, list):
        return
    unread = {part.kind for part in _all_parts(message) if isinstance(part, Opaque)}
    for index, part in enumerate(content):
        kind = part["type"]
        if kind in unread and kind in (*_CHAT_TYPES, "image", "document"):
            raise InvalidRequest(
                f"cannot be read; {_EXAMPLES.get(kind, 'see the documentation of the provider')}",
                path=f"{path}.content[{index}].{kind if kind in part else 'source'}",
            )


_EXAMPLES = {
    "image_url": 'write {"url": "https://…"}, or a data URL: {"url": "data:image/png;base64,…"}',
    "input_audio": 'write {"data": "<base64>", "format": "wav"}',
    "file": 'write {"filename": "…", "file_data": "data:application/pdf;base64,…"}',
    "image": 'write {"type": "base64", "media_type": "image/png", "data": "…"}',
    "document": 'write {"type": "base64", "media_type": "application/pdf", "data": "…"}',
}


def _all_parts(message: Message) -> Iterable[Part]:
    for part in message.parts:
        yield part
        if isinstance(part, ToolResult) and not isinstance(part.content, str):
            yield from part.content


def _without_original_role(message: Message) -> Message:
    """A system message as made by `Message.system`: only requests keep the original role."""
    from .openai import SYSTEM_KEY  # loaded with the wire

    return _without(message, SYSTEM_KEY)


def _without(message: Message, key: str) -> Message:
    """The message without these extras, which record a form of a request."""
    parts: list[Part] = []
    for part in message.parts:
        if not isinstance(part, Opaque) and part.extras is not None:
            extras = {name: json for name, json in part.extras.items() if name != key}
            part = msgspec.structs.replace(part, extras=extras or None)
        parts.append(part)
    return msgspec.structs.replace(message, parts=tuple(parts))


def _replaced(message: Message, placed: dict[str, Part]) -> Message:
    def value(part: Any) -> Any:
        if isinstance(part, Text):
            return placed.get(part.text, part)
        if isinstance(part, ToolResult) and not isinstance(part.content, str):
            content = tuple(value(each) for each in part.content)
            return msgspec.structs.replace(part, content=content)
        return part

    return msgspec.structs.replace(message, parts=tuple(value(part) for part in message.parts))


def _wrong_type(wanted: str, value: object, path: str) -> InvalidRequest:
    return InvalidRequest(f"must be {wanted}, not {type(value).__name__}", path=path)


# ── Tools ────────────────────────────────────────────────────────────────────────────────────────


def read_tool(value: Mapping[str, Any], path: str) -> AnyTool:
    """The tool of a dictionary, in the form of OpenAI's APIs or of Anthropic's."""
    fields = {name: each for name, each in value.items() if each is not None}
    if "input_schema" in fields:
        wire = "anthropic"
    elif fields.get("type") == "function" and ("function" in fields or "name" in fields):
        wire = "openai_chat"
        if "function" not in fields:  # the Responses API
            rest = {name: each for name, each in fields.items() if name != "type"}
            fields = {"type": "function", "function": rest}
    else:
        raise InvalidRequest(
            'must be a function, a Tool or a ToolRegistry, or a dict: {"type": "function",'
            ' "function": {"name": …, "parameters": …}} or {"name": …, "input_schema": …}',
            path=path,
        )
    body = {
        "model": "",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "."}],
        "tools": [fields],
    }
    try:
        return get(wire).parse(canonical.dumps(body)).tools[0]
    except InvalidRequest as error:
        where = error.path.replace("$.tools[0]", path, 1)
        raise InvalidRequest(error.reason, path=where) from None
