"""Messages of pydantic-ai, converted for the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_ai import exceptions, messages
from pydantic_ai.models import download_item

from anaphora.values import (
    Audio,
    Bytes,
    Document,
    FileId,
    Image,
    Message,
    Part,
    ResultPart,
    Source,
    Text,
    ToolCall,
    ToolResult,
    Url,
)

from .framework_client import restored_reply

#: Metadata key of a reply that pydantic-ai's parts cannot represent exactly.
KEPT = "anaphora"


async def add_request(
    message: messages.ModelRequest, system: list[str], content: list[Message]
) -> None:
    for part in message.parts:
        if isinstance(part, messages.SystemPromptPart):
            if content:
                content.append(Message.system(part.content))
            else:
                system.append(part.content)
        elif isinstance(part, messages.UserPromptPart):
            content.append(Message(role="user", parts=await _user_parts(part.content)))
        elif isinstance(part, messages.ToolReturnPart):
            content.append(Message(role="tool", parts=(await _result(part),)))
        elif part.part_kind == "retry-prompt":  # newer versions send another part
            content.append(_retry(part))
        else:
            raise _unsupported(part)


def _retry(part: Any) -> Message:
    text = part.model_response()
    if part.tool_name is None:
        return Message.user(text)
    return Message.tool(part.tool_call_id, text, error=True, name=part.tool_name)


async def _user_parts(content: str | Sequence[Any]) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(
        [
            await _content_part(item)
            for item in content
            if not isinstance(item, messages.CachePoint)  # the planner decides
        ]
    )


async def _content_part(item: Any) -> ResultPart:
    if isinstance(item, str):
        return Text(item)
    if isinstance(item, messages.TextContent):
        return Text(item.content)
    source: Source
    if isinstance(item, messages.BinaryContent):
        source = Bytes(item.data, item.media_type)
    elif isinstance(item, messages.UploadedFile):
        source = FileId(item.provider_name, item.file_id, item.media_type)
    elif isinstance(item, messages.FileUrl) and not isinstance(item, messages.VideoUrl):
        source = Url(item.url, item.media_type)
        if item.force_download:
            loaded = await download_item(item, data_format="bytes")
            source = Bytes(loaded["data"], loaded["data_type"])
    else:
        raise _unsupported(item)
    media_type = source.media_type or ""
    if media_type.startswith("image/"):
        detail = (item.vendor_metadata or {}).get("detail")
        return Image(source, detail)
    if media_type.startswith("video/"):
        raise _unsupported(item)
    return Audio(source) if media_type.startswith("audio/") else Document(source)


async def _result(part: messages.ToolReturnPart) -> ToolResult:
    items = [await _content_part(item) for item in part.content_items(mode="str")]
    texts = [item.text for item in items if isinstance(item, Text)]
    return ToolResult(
        call_id=part.tool_call_id,
        content="".join(texts) if len(texts) == len(items) == 1 else tuple(items),
        error=part.outcome not in ("success", "interrupted"),
        name=part.tool_name,
    )


def assistant_message(message: messages.ModelResponse) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, messages.TextPart):
            if part.content:
                parts.append(Text(part.content))
        elif isinstance(part, messages.ToolCallPart):
            parts.append(ToolCall(part.tool_call_id, part.tool_name, part.args_as_json_str()))
        # Reasoning, and tools that other providers ran, are valid there only.
    kept = (message.provider_details or {}).get(KEPT)
    return restored_reply(kept, Message(role="assistant", parts=tuple(parts)))


def _unsupported(part: object) -> exceptions.UserError:
    return exceptions.UserError(f"AnaphoraModel cannot send a {type(part).__name__}")
