"""Conversations of plain items, read in one go: texts, calls and their results, with no ids, no
breakpoints and no lists. Most requests hold nothing else."""

from __future__ import annotations

import msgspec

from anaphora.values import Conversation, Message, Part, Text, ToolCall, ToolResult

from .incoming import UsualItem

UNSET = msgspec.UNSET


def plain_conversation(items: list[UsualItem]) -> Conversation | None:
    """The items as messages; None when one of them is not plain."""
    messages: list[Message] = []
    answer: list[Part] = []
    for item in items:
        if not (item.id is item.status is item.phase is item.namespace is UNSET):
            return None
        kind, content, call_id = item.type, item.content, item.call_id
        if kind == "message":
            if not (call_id is item.name is item.arguments is item.output is UNSET):
                return None
            if not isinstance(content, str):
                return None
            if item.role == "assistant" and not answer:
                answer = [Text(content)]
                continue
            part: Text | ToolResult = Text(content)
            if item.role != "user":
                return None
        elif not (item.role is content is UNSET) or not isinstance(call_id, str):
            return None
        elif kind == "function_call":
            name, arguments = item.name, item.arguments
            if not isinstance(name, str) or not isinstance(arguments, str):
                return None
            if item.output is not UNSET:
                return None
            answer.append(ToolCall(call_id, name, arguments))
            continue
        else:
            if kind != "function_call_output" or not (item.name is item.arguments is UNSET):
                return None
            if not isinstance(item.output, str):
                return None
            part = ToolResult(call_id, item.output)
        if answer:
            said = tuple(answer)
            messages.append(Message(id=f"m{len(messages)}", role="assistant", parts=said))
            answer = []
        role = "user" if kind == "message" else "tool"
        messages.append(Message(id=f"m{len(messages)}", role=role, parts=(part,)))  # type: ignore[arg-type]
    if answer:
        messages.append(Message(id=f"m{len(messages)}", role="assistant", parts=tuple(answer)))
    return Conversation(messages)
