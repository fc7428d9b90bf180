"""LangChain's messages and tools, converted for the client."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.utils.function_calling import convert_to_openai_tool

from anaphora import canonical
from anaphora.errors import InvalidRequest
from anaphora.prompt import ToolChoice
from anaphora.values import (
    Audio,
    Bytes,
    Document,
    FileId,
    Image,
    Message,
    Part,
    Refusal,
    Source,
    Text,
    ToolCall,
    ToolResult,
    Url,
)
from anaphora.wire.message_dicts import read_part

#: Metadata key of a reply that LangChain's fields cannot represent exactly.
KEPT = "anaphora_message"
_MEDIA: dict[str, type[Image | Audio | Document]] = {
    "image": Image, "audio": Audio, "file": Document, "text-plain": Document,
}  # fmt: skip
#: Blocks of content that repeat `tool_calls`.
_CALL_BLOCKS = ("tool_call", "tool_call_chunk", "tool_use", "function_call", "input_json_delta")

_decode = msgspec.json.Decoder(Message).decode


def content_of(messages: list[BaseMessage]) -> list[Any]:
    """The messages; leading system messages as dictionaries, which become the system prompt."""
    content: list[Any] = []
    leading = True
    for index, each in enumerate(messages):
        message = _message(each, f"messages[{index}]")
        leading = leading and message.role == "system"
        texts = [part.text for part in message.parts if isinstance(part, Text)]
        if leading and len(texts) == len(message.parts):
            blocks = [{"type": "text", "text": text} for text in texts]
            content.append({"role": "system", "content": blocks})
        else:
            content.append(message)
    return content


def _message(message: BaseMessage, path: str) -> Message:
    if isinstance(message, AIMessage):
        return assistant_message(message, path)
    if isinstance(message, ToolMessage):
        result = ToolResult(
            call_id=message.tool_call_id,
            content=_result_content(message, path),
            error=message.status == "error",
            name=message.name,
        )
        return Message(role="tool", parts=(result,))
    parts = _parts(message, path)
    if isinstance(message, SystemMessage):
        return Message(role="system", parts=parts)
    if isinstance(message, HumanMessage):
        results = tuple(part for part in parts if isinstance(part, ToolResult))
        if results and len(results) == len(parts):
            return Message(role="tool", parts=results)
        return Message(role="user", parts=parts)
    if isinstance(message, ChatMessage):
        roles = {"user": "user", "human": "user", "assistant": "assistant", "ai": "assistant"}
        roles |= {"system": "system", "developer": "system"}
        if (role := roles.get(message.role)) is not None:
            return Message(role=cast(Any, role), parts=parts)
        raise InvalidRequest(f"unknown role {message.role!r}", path=f"{path}.role")
    raise InvalidRequest(f"cannot be sent: {type(message).__name__}", path=path)


def assistant_message(message: AIMessage, path: str) -> Message:
    """The received reply, unless the app has changed it since."""
    kept = message.additional_kwargs.get(KEPT)
    if isinstance(kept, str):
        try:
            exact = _decode(kept)
        except msgspec.MsgspecError:
            raise InvalidRequest("is not a message", path=f"{path}.{KEPT}") from None
        if _fields(exact) == _own_fields(message):
            return exact
    parts: list[Part] = [part for part in _parts(message, path) if not isinstance(part, ToolCall)]
    for call in message.tool_calls:
        arguments = canonical.dumps(call["args"], path=f"{path}.tool_calls").decode()
        parts.append(ToolCall(call["id"] or "", call["name"], arguments))
    parts += [
        ToolCall(invalid["id"] or "", invalid["name"] or "", invalid["args"] or "{}")
        for invalid in message.invalid_tool_calls
    ]
    return Message(role="assistant", parts=tuple(parts))


def _own_fields(message: AIMessage) -> tuple[Any, ...]:
    """Text and tool calls, to tell a changed message from a received one."""
    calls = [(call["id"], call["name"], call["args"]) for call in message.tool_calls]
    calls += [(call["id"], call["name"], call["args"]) for call in message.invalid_tool_calls]
    return str(message.text), calls


def _fields(message: Message) -> tuple[Any, ...]:
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    valid = [
        (call.id, call.name, args) for call in calls if (args := arguments_of(call)) is not None
    ]
    invalid = [(call.id, call.name, call.arguments) for call in calls if arguments_of(call) is None]
    return shown_text(message), [*valid, *invalid]


def arguments_of(call: ToolCall) -> dict[str, Any] | None:
    try:
        arguments = msgspec.json.decode(call.arguments)
    except msgspec.DecodeError:
        return None
    return arguments if isinstance(arguments, dict) else None


def shown_text(message: Message) -> str:
    return "".join([part.text for part in message.parts if isinstance(part, Text | Refusal)])


def _result_content(message: ToolMessage, path: str) -> Any:
    if isinstance(message.content, str):
        return message.content
    return _parts(message, path)


def _parts(message: BaseMessage, path: str) -> tuple[Part, ...]:
    """The content in any of LangChain's formats."""
    if isinstance(message.content, str):
        return (Text(message.content),) if message.content else ()
    blocks: Any = message.content
    if not isinstance(message, AIMessage):
        blocks = message.content_blocks
    parts = (
        _part(block, f"{path}.content[{index}]", message) for index, block in enumerate(blocks)
    )
    return tuple([part for part in parts if part is not None])


def _part(block: Any, path: str, message: BaseMessage) -> Part | None:
    if isinstance(block, str):
        return Text(block)
    if block.get("type") == "non_standard":
        block = block["value"]
    kind = block.get("type")
    if kind in _MEDIA and "source" not in block and not isinstance(block.get("file"), Mapping):
        return _media(block, path)
    if isinstance(message, AIMessage):
        if kind == "reasoning" or (kind == "text" and not block.get("text")):
            return None  # a provider takes none without its signature
        if kind in _CALL_BLOCKS:
            return None  # from tool_calls
    if kind == "text":
        return Text(block["text"])
    # Markers are placed by the client.
    return read_part({name: each for name, each in block.items() if name != "cache_control"}, path)


def _media(block: Mapping[str, Any], path: str) -> Part:
    kind = _MEDIA[block["type"]]
    media_type = block.get("mime_type")
    extras = block.get("extras") or {}
    source: Source
    if block.get("base64") is not None:
        if media_type is None:
            raise InvalidRequest("is missing", path=f"{path}.mime_type")
        try:
            source = Bytes(base64.b64decode(block["base64"], validate=True), media_type)
        except ValueError:
            raise InvalidRequest("is not base64", path=f"{path}.base64") from None
    elif block.get("text") is not None:
        source = Bytes(block["text"].encode(), "text/plain")
    elif block.get("url") is not None:
        source = Url(block["url"], media_type)
    elif block.get("file_id") is not None:
        if "provider" not in extras:
            raise InvalidRequest(
                'a file id is valid at one provider; name it: "extras": {"provider": …}', path=path
            )
        source = FileId(extras["provider"], block["file_id"], media_type)
    else:
        raise InvalidRequest("has no base64, url, text or file_id", path=path)
    if kind is Document:
        title = block.get("title") or extras.get("filename") or extras.get("title")
        return Document(source, title)
    return kind(source)


def tool_of(tool: Any, strict: bool | None) -> Any:
    if isinstance(tool, Mapping) and tool.get("type") not in (None, "function", "custom"):
        return dict(tool)  # a provider's own
    if isinstance(tool, Mapping) and "cache_control" in tool:
        tool = {name: each for name, each in tool.items() if name != "cache_control"}
    return convert_to_openai_tool(tool, strict=strict)


def tool_choice_of(choice: Any, tools: Sequence[Any], parallel: bool | None) -> ToolChoice:
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
        choice = name if name is not None else choice.get("type", "auto")
    if choice is True:
        if len(tools) != 1:
            raise InvalidRequest(
                f"True stands for the only tool, but there are {len(tools)}; name one",
                path="tool_choice",
            )
        choice = tools[0]["function"]["name"]
    if choice in (None, False, "auto"):
        return ToolChoice("auto", parallel=parallel)
    if choice in ("any", "required"):
        return ToolChoice("required", parallel=parallel)
    if choice == "none":
        return ToolChoice("none")
    return ToolChoice("tool", str(choice), parallel=parallel)
