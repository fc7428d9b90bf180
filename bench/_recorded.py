"""Recorded conversations as calls: real text, and real pauses where they are known."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _families import Sent

from anaphora.analysis.trace.format import Trace, TraceMessage, read_line
from anaphora.prompt import Call, Params, PromptBlock, PromptIR
from anaphora.values import Conversation, Message, Part, Text, Tool, ToolCall, ToolResult

#: Which files, and how many conversations of each: long ones are enough by themselves.
FILES = {"taubench_gpt4o_airline": 20, "pi_claude": 1}
#: Where a recording has no times: the pause of a tool loop, and of a person.
QUICK, SLOW = 5.0, 45.0


def recordings(folder: Path, model: str) -> dict[str, list[Sent]]:
    """All calls of each file, in the order they were made; nothing where there is no such file."""
    found = {}
    for name, count in FILES.items():
        file = folder / f"{name}.jsonl.gz"
        if file.exists():
            with gzip.open(file) as lines:
                traces = [
                    read_line(line, f"{file}:{n + 1}")
                    for n, line in zip(range(count), lines, strict=False)
                ]
            sent = [each for at, trace in enumerate(traces) for each in _calls(trace, at, model)]
            found[name] = sorted(sent, key=lambda each: each.at)
    return found


def _calls(trace: Trace, number: int, model: str) -> Iterator[Sent]:
    tools = tuple(tool_of(tool) for tool in trace.tools or ())
    leading = [m for m in trace.messages[:1] if m.role == "system"]
    system = tuple(PromptBlock("system", str(message.content)) for message in leading)
    messages = [
        message_of(message, at) for at, message in enumerate(trace.messages[len(leading) :])
    ]
    at, conversation, sent = number * 3600.0, Conversation(), 0
    for call in trace.calls:
        new = messages[sent : call.messages - len(leading)]
        for message in new:
            conversation = conversation.append(message)
        sent += len(new)
        if call.at is not None:
            at = call.at
        elif sent:
            at += QUICK if any(message.role == "tool" for message in new) else SLOW
        ir = PromptIR.chat(conversation, system=system)
        params = Params(max_tokens=1000)
        yield Sent(at, number, Call(ir=ir, model=model, tools=tools, params=params))


def tool_of(tool: dict[str, Any]) -> Tool:
    function = tool.get("function", tool)
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return Tool(function["name"], function.get("description") or "", json.dumps(schema))


def message_of(message: TraceMessage, at: int) -> Message:
    text = message.content if isinstance(message.content, str) else json.dumps(message.content)
    name = f"m{at}"
    if message.role == "tool":
        result = ToolResult(message.tool_call_id or "", text or "-")
        return Message(id=name, role="tool", parts=(result,))
    if message.role != "assistant":
        return Message(id=name, role="user", parts=(Text(text or "-"),))
    parts: list[Part] = [Text(text)] if message.content else []
    for call in message.tool_calls or ():
        function = call.get("function", call)
        call_id = call["id"] or f"call_{at}"
        parts.append(ToolCall(call_id, function["name"], function.get("arguments") or "{}"))
    return Message(id=name, role="assistant", parts=tuple(parts) or (Text("-"),))
