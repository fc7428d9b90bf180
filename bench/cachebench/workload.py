"""The calls that every contestant makes: recorded and generated conversations as plain values.

A call holds what is new in its history; the contestant carries the rest in its own message objects.
Each recorded answer is what the emulator replies.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _families as made
import msgspec
from _recorded import QUICK, SLOW, message_of, tool_of

from anaphora.analysis.trace.format import Trace, TraceMessage, read_line
from anaphora.values import Message, Text, Tool, ToolCall, ToolResult
from anaphora.values.stability import SegmentRole

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
#: The first call of every family, by the emulator's clock: prices and models are those of this day.
START = 1_793_523_600.0
#: A recording without its system prompt gets one of this many made-up words, and a tool for each
#: name that it calls.
SYSTEM_WORDS = 3000
LAYOUTS = ("stable", "careless")
Json = dict[str, Any]


class BenchCall(msgspec.Struct, kw_only=True):
    at: float
    conversation: int
    keep: int
    """Messages of the history so far that stay."""
    new: list[Json]
    """Messages after them; `{"reply": true}` stands for the reply to the last call."""
    tail: list[Json]
    """Messages of this call alone, after the history."""
    tools: list[Json]
    system: str
    clock: str = ""
    """What the system prompt begins with and changes at each call, in the careless layout."""
    single: bool
    reply: Json
    """What the emulator answers."""


class Family(msgspec.Struct, kw_only=True):
    name: str
    source: str
    """`recorded` or `generated`."""
    calls: list[BenchCall]


def families(most: int, traces: Path = TRACES) -> Iterator[Family]:
    """All families, each its first `most` calls in the order they are made."""
    for file in sorted(traces.glob("*.jsonl.gz")):
        yield Family(name=file.name.partition(".")[0], source="recorded", calls=_read(file, most))
    seeds, shapes = made.families()
    for name, shape in shapes.items():
        if shape.tool_added_at:
            shape = msgspec.structs.replace(shape, tool_added_at=most // 2)
        sent = made.calls(shape, seeds[0], "any")
        yield Family(name=name, source="generated", calls=_made(sent, most))


def careless(family: Family) -> Family:
    """The same calls with the time in the system prompt, and the tools in another order each."""
    chance = random.Random(family.name)
    calls = []
    for call in family.calls:
        tools = chance.sample(call.tools, len(call.tools))
        clock = f"The time is {START + call.at:.0f}."
        system = f"{clock}\n\n{call.system}"
        calls.append(msgspec.structs.replace(call, system=system, clock=clock, tools=tools))
    return msgspec.structs.replace(family, calls=calls)


# ── Generated ────────────────────────────────────────────────────────────────────────────────────


def _made(sent: list[made.Sent], most: int) -> list[BenchCall]:
    builder = _Builder()
    for each in sent[:most]:
        ir = each.call.ir
        builder.add(
            each.conversation,
            each.at,
            list(ir.run(SegmentRole.CONVERSATION)),
            tail=list(ir.run(SegmentRole.VOLATILE_TAIL)),
            tools=[tool for tool in each.call.tools if isinstance(tool, Tool)],
            system=ir.system_field(),
            single=each.single,
        )
    # The replies to the last calls are in the calls after them.
    for each in sent[most:]:
        builder.settle(each.conversation, list(each.call.ir.run(SegmentRole.CONVERSATION)))
    return builder.calls


class _Builder:
    """Finds what each call adds to the call before it of the same conversation."""

    def __init__(self) -> None:
        self.calls: list[BenchCall] = []
        self._open: dict[int, tuple[BenchCall, list[Message]]] = {}

    def add(
        self,
        conversation: int,
        at: float,
        history: list[Message],
        *,
        tail: list[Message],
        tools: list[Tool],
        system: str,
        single: bool,
    ) -> None:
        before = self._open.get(conversation, (None, []))[1]
        replied = self.settle(conversation, history)
        keep = len(before) if replied else _common(before, history)
        new = [to_json(message) for message in history[keep:]]
        if replied:
            new[0] = {"reply": True}
        call = BenchCall(
            at=at,
            conversation=conversation,
            keep=keep,
            new=new,
            tail=[to_json(message) for message in tail],
            tools=[tool_json(tool) for tool in tools],
            system=system,
            single=single,
            reply={"role": "assistant", "text": "Done.", "calls": []},
        )
        self.calls.append(call)
        self._open[conversation] = call, history

    def settle(self, conversation: int, history: list[Message]) -> bool:
        """Gives the last call of a conversation its reply, if this history continues it."""
        call, before = self._open.pop(conversation, (None, []))
        count = len(before)
        if call is None or len(history) <= count or history[count].role != "assistant":
            return False
        if _common(before, history) != count:
            return False
        call.reply = to_json(history[count])
        return True


def _common(before: list[Message], after: list[Message]) -> int:
    same = 0
    for one, other in zip(before, after, strict=False):
        if one is not other and not one.same_content(other):
            break
        same += 1
    return same


# ── Recorded ─────────────────────────────────────────────────────────────────────────────────────


def _read(file: Path, most: int) -> list[BenchCall]:
    """The first conversations of a file, up to so many calls. They follow each other in an hour."""
    builder, begin = _Builder(), 0.0
    with gzip.open(file) as lines:
        for number, line in enumerate(lines):
            trace = read_line(line, f"{file.name}:{number + 1}")
            at = begin
            for at, history in _histories(trace, begin):
                if len(builder.calls) == most:
                    builder.settle(number, history)
                    return builder.calls
                builder.add(
                    number,
                    at,
                    history,
                    tail=[],
                    tools=_tools(trace),
                    system=_system(trace, file.name),
                    single=False,
                )
            begin = at + 600.0
    return builder.calls


def _histories(trace: Trace, begin: float) -> Iterator[tuple[float, list[Message]]]:
    """When each call was made, and its history; after the last one, that with its reply."""
    leading = _leading(trace)
    entries = trace.messages[leading:]
    messages = _merged([message_of(_plain(entry), at) for at, entry in enumerate(entries)])
    at, first, sent = begin, None, 0
    for call in trace.calls:
        count = call.messages - leading
        if call.t is not None:
            first = call.t if first is None else first
            at = max(at, begin + call.t - first)
        elif sent:
            new = entries[sent:count]
            at += QUICK if any(entry.role == "tool" for entry in new) else SLOW
        sent = count
        history = [message for start, message in messages if start < count]
        # Some recordings begin in the middle, with a reply that no provider takes first.
        if history and history[0].role == "user" and history[-1].role != "assistant":
            yield at, history


def _merged(messages: list[Message]) -> list[tuple[int, Message]]:
    """With the index of each entry: results of one turn stay together, a result without its call is
    a user's text, and a call without its result gets one."""
    merged: list[tuple[int, Message]] = []
    waiting: dict[str, ToolCall] = {}
    for index, message in enumerate(messages):
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        known = [result for result in results if waiting.pop(result.call_id, None) is not None]
        if known:
            merged.append((index, Message(id=message.id, role="tool", parts=tuple(known))))
            continue
        if results:
            continue
        if waiting:
            merged.append((index, _missing(waiting, index)))
            waiting = {}
        waiting = {part.id: part for part in message.parts if isinstance(part, ToolCall)}
        merged.append((index, message))
    return merged


def _missing(waiting: dict[str, ToolCall], index: int) -> Message:
    parts = tuple(ToolResult(name, "No result.") for name in waiting)
    return Message(id=f"none{index}", role="tool", parts=parts)


def _plain(entry: TraceMessage) -> TraceMessage:
    """Without blocks: their texts alone."""
    content = entry.content
    if isinstance(content, list):
        content = "\n".join(str(block["text"]) for block in content if block.get("text"))
    return msgspec.structs.replace(entry, content=content)


def _leading(trace: Trace) -> int:
    return 1 if trace.messages and trace.messages[0].role == "system" else 0


def _system(trace: Trace, name: str) -> str:
    if _leading(trace):
        return str(trace.messages[0].content)
    if not trace.system_tokens_unknown:
        return "You are a helpful assistant."
    return made._words(random.Random(name), SYSTEM_WORDS)


def _tools(trace: Trace) -> list[Tool]:
    tools = [
        tool_of(each)
        for tool in trace.tools or ()
        # Gemini's tools are lists of functions; without a name it is a tool of the provider.
        for each in tool.get("functionDeclarations", [tool])
        if each.get("function", each).get("name")
    ]
    known = {tool.name for tool in tools}
    for entry in trace.messages:
        for call in entry.tool_calls or ():
            name = call.get("function", call)["name"]
            if name not in known:
                known.add(name)
                about = made._words(random.Random(name), 60)
                tools.append(Tool(name, about, '{"type":"object","properties":{}}'))
    return tools


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────


def tool_json(tool: Tool) -> Json:
    schema = json.loads(tool.schema)
    return {"name": tool.name, "about": tool.description, "schema": schema}


def to_json(message: Message) -> Json:
    text = "\n".join(part.text for part in message.parts if isinstance(part, Text))
    if message.role == "tool":
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        return {"role": "tool", "results": [_result_json(result) for result in results]}
    if message.role == "assistant":
        calls = [_call_json(part) for part in message.parts if isinstance(part, ToolCall)]
        return {"role": "assistant", "text": text, "calls": calls}
    return {"role": "user", "text": text}


def _result_json(result: ToolResult) -> Json:
    content = result.content if isinstance(result.content, str) else ""
    return {"id": _id(result.call_id), "text": content or "-"}


def _call_json(call: ToolCall) -> Json:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = {}
    given = arguments if isinstance(arguments, dict) else {"value": arguments}
    return {"id": _id(call.id), "name": call.name, "arguments": given}


def _id(name: str) -> str:
    """Every provider takes these characters in an id."""
    return "".join(char if char.isalnum() or char in "-_" else "_" for char in name)[-40:]
