"""Responses as LangChain's messages, and the events of a stream as its chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from anaphora.client.response import Response
from anaphora.integrations.framework_client import StreamItem
from anaphora.values import (
    Message,
    PartEnd,
    PartStart,
    Refusal,
    Text,
    TextPieces,
    Thinking,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCall,
    Usage,
)

from .prompts import KEPT, arguments_of, assistant_message, shown_text

_encode = msgspec.json.Encoder().encode


def chat_result(response: Response[Any]) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=reply_message(response))])


def reply_message(response: Response[Any]) -> AIMessage:
    reply = response.reply.message
    calls = [part for part in reply.parts if isinstance(part, ToolCall)]
    thoughts = [part for part in reply.parts if isinstance(part, Thinking) and part.text]
    content: Any = shown_text(reply)
    if thoughts:
        texts = [part for part in reply.parts if isinstance(part, Text | Refusal)]
        content = [{"type": "reasoning", "reasoning": part.text} for part in thoughts]
        content += [{"type": "text", "text": part.text} for part in texts]
    message = AIMessage(
        content=content,
        tool_calls=[
            tool_call(name=call.name, args=args, id=call.id)
            for call in calls
            if (args := arguments_of(call)) is not None
        ],
        invalid_tool_calls=[
            invalid_tool_call(name=call.name, args=call.arguments, id=call.id, error=None)
            for call in calls
            if arguments_of(call) is None
        ],
        usage_metadata=cast(Any, _usage(response.usage)),
        response_metadata=_metadata(response),
        id=response.reply.id or None,
    )
    message.additional_kwargs |= _kept(reply, message)
    return message


def _kept(reply: Message, message: AIMessage) -> dict[str, str]:
    """The reply itself, if the message alone would be sent differently."""
    if assistant_message(message, "message").parts == reply.parts:
        return {}
    return {KEPT: _encode(reply).decode()}


def _usage(usage: Usage) -> dict[str, Any] | None:
    if usage.input is None or usage.output is None:
        return None
    details: dict[str, int] = {}
    if usage.read is not None:
        details["cache_read"] = usage.read
    if usage.written_total is not None:
        details["cache_creation"] = usage.written_total
    counts: dict[str, Any] = {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
    }
    if details:
        counts["input_token_details"] = details
    if usage.reasoning is not None:
        counts["output_token_details"] = {"reasoning": usage.reasoning}
    return counts


def _metadata(response: Response[Any]) -> dict[str, Any]:
    record, verdict = response.record, response.verdict
    metadata: dict[str, Any] = {
        "model_name": response.model,
        "model_provider": "anaphora",
        "provider": record.provider,
        "finish_reason": response.stop_reason,
    }
    if response.cost_usd is not None:
        metadata["cost_usd"] = float(response.cost_usd)
    if verdict is not None:
        metadata["verdict"] = {
            "result": verdict.result,
            "text": str(verdict),
            "lost_tokens": verdict.lost,
            "saved_usd": None if verdict.saved is None else float(verdict.saved),
        }
    if response.notices:
        metadata["notices"] = [str(notice) for notice in response.notices]
    return metadata


# ── Streams ──────────────────────────────────────────────────────────────────────────────────────


class StreamChunks:
    """The chunks of a stream, from its events."""

    def __init__(self) -> None:
        self._pieces = TextPieces(refusals=True)
        self._id: str | None = None
        self._calls: dict[int, int] = {}
        """The positions of tool calls, by the index of the part."""
        self._deltas: set[int] = set()
        self._thinks = False

    def feed(self, event: StreamItem) -> Iterator[ChatGenerationChunk]:
        if isinstance(event, Response):
            yield self._last(event)
        elif isinstance(event, PartStart) and event.kind == "tool_call":
            position = self._calls[event.index] = len(self._calls)
            yield self._call_chunk(position, "", id=event.id, name=event.name)
        elif isinstance(event, ToolArgumentsDelta):
            self._deltas.add(event.index)
            yield self._call_chunk(self._calls[event.index], event.delta)
        elif isinstance(event, PartEnd) and isinstance(event.part, ToolCall):
            if event.index not in self._deltas:  # it came whole
                yield self._call_chunk(self._calls[event.index], event.part.arguments)
        elif isinstance(event, ThinkingDelta):
            self._thinks = True
            block = {"type": "reasoning", "reasoning": event.delta, "index": event.index}
            yield _chunk(content=[block])
        elif piece := self._pieces.feed(event):
            index = getattr(event, "index", 0)
            block = {"type": "text", "text": piece, "index": index}
            yield _chunk(content=[block] if self._thinks else piece)

    def _call_chunk(
        self, position: int, arguments: str, *, id: str | None = None, name: str | None = None
    ) -> ChatGenerationChunk:
        piece = tool_call_chunk(name=name, args=arguments, id=id, index=position)
        return _chunk(content="", tool_call_chunks=[piece])

    def _last(self, response: Response[Any]) -> ChatGenerationChunk:
        whole = reply_message(response)
        return _chunk(
            content="",
            usage_metadata=whole.usage_metadata,
            response_metadata=whole.response_metadata,
            additional_kwargs=whole.additional_kwargs,
            id=whole.id,
            chunk_position="last",
        )


def _chunk(**fields: Any) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(**fields))
