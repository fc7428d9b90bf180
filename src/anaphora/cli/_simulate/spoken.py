"""A request that was sent, as the messages of a trace: one for each block, so that markers and
look-back count what the provider counts."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from anaphora.analysis.trace import TraceMessage
from anaphora.rendered import Kind, Rendered
from anaphora.tokens import Counts, Size
from anaphora.values import Ttl


class Spoken(msgspec.Struct, frozen=True):
    tools: list[Any] | None
    tools_size: Size | None
    messages: list[TraceMessage]
    breakpoints: tuple[tuple[Literal["tools"] | int, Any], ...]


def blocks_of(rendered: Rendered) -> Spoken:
    tools: list[Any] = []
    messages: list[TraceMessage] = []
    places: dict[int, Literal["tools"] | int] = {}
    """Where each chunk went."""
    sizes = Counts(rendered).sizes()
    text_bytes = other = 0
    for chunk, size in zip(rendered, sizes, strict=True):
        text = chunk.data.decode(errors="replace")
        if chunk.section == "tools":
            tools.append(text)
            text_bytes, other = text_bytes + size.text, other + size.other
            places[chunk.index] = "tools"
            continue
        places[chunk.index] = len(messages)
        message = _message(rendered, chunk.index, chunk.kind, text)
        messages.append(replace(message, size=size))
    marks: dict[Literal["tools"] | int, Ttl] = {
        places[mark.chunk]: mark.ttl for mark in rendered.marks
    }
    if rendered.automatic is not None and messages:
        marks.setdefault(len(messages) - 1, rendered.automatic)
    tools_size = Size(text_bytes, other) if tools else None
    return Spoken(tools or None, tools_size, messages, tuple(marks.items()))


def _message(rendered: Rendered, index: int, kind: Kind, text: str) -> TraceMessage:
    run, at = rendered.locate(index)
    if run.section == "system":
        return TraceMessage(role="system", content=text)
    role = run.log.roles[run.log.wire_message_of(at)]
    if kind is Kind.TOOL_RESULT:
        return TraceMessage(role="tool", content=text)
    if kind is Kind.TOOL_CALL:
        return TraceMessage(role="assistant", tool_calls=[text])
    if kind is Kind.THINKING:
        return TraceMessage(role="assistant", content=[{"type": "thinking", "thinking": text}])
    if role in ("system", "developer"):
        return TraceMessage(role="system", content=text)
    return TraceMessage(
        role="assistant" if role in ("assistant", "model") else "user", content=text
    )
