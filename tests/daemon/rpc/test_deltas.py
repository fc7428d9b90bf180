"""`llm.delta` notifications: events of a stream in, lines out (D8)."""

from __future__ import annotations

import json
from typing import Any

from support.tables import each_row

from anaphora.daemon.rpc.completion import DeltaWriter
from anaphora.values import (
    Event,
    PartEnd,
    PartStart,
    Refusal,
    RefusalDelta,
    ReplyStart,
    Text,
    TextDelta,
    Thinking,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCall,
    Usage,
    UsageUpdate,
)

FIND = ToolCall("t1", "find", '{"q":1}')


def tool_call(arguments: str = "", **fields: Any) -> dict[str, Any]:
    given = {"arguments": arguments} if arguments else {}
    return {"tool_call": {"index": 1, **fields, **given}}


@each_row("events, deltas", [
    ([ReplyStart("r", "m"), PartStart(0, "text"), UsageUpdate(Usage())], []),
    ([TextDelta(0, "a"), TextDelta(0, ""), TextDelta(0, "b"), PartEnd(0, Text("ab"))], ["a", "b"]),
    ([PartEnd(0, Text("whole"))], ["whole"]),
    ([TextDelta(0, "be"), PartEnd(0, Text("begun"))], ["be", "gun"]),
    ([ThinkingDelta(0, "hm"), PartEnd(0, Thinking("hm")), TextDelta(1, "a")], [{"thinking": "hm"}, "a"]),
    ([PartEnd(0, Thinking("hm"))], [{"thinking": "hm"}]),
    ([RefusalDelta(0, "n"), PartEnd(0, Refusal("no"))], [{"refusal": "n"}, {"refusal": "o"}]),
    ([ToolArgumentsDelta(1, '{"q"', "t1", "find"), ToolArgumentsDelta(1, ":1}", "t1", "find"), PartEnd(1, FIND)],
     [tool_call('{"q"', id="t1", name="find"), tool_call(":1}")]),
    ([PartEnd(1, FIND)], [tool_call('{"q":1}', id="t1", name="find")]),
    ([PartEnd(1, ToolCall("t1", "now", ""))], [tool_call(id="t1", name="now")]),
])  # fmt: skip
def test_deltas_of_events(events: list[Event], deltas: list[Any]) -> None:
    """Text is a string, everything else an object; parts may arrive whole."""
    lines = DeltaWriter(b'"a"').lines(events)
    assert [json.loads(line) for line in lines.splitlines()] == [
        {"jsonrpc": "2.0", "method": "llm.delta", "params": {"id": "a", "seq": seq, "delta": delta}}
        for seq, delta in enumerate(deltas)
    ]


def test_numbers_go_on_from_piece_to_piece() -> None:
    writer = DeltaWriter(b"1")
    lines = writer.lines([TextDelta(0, "a")]) + writer.lines([TextDelta(0, "b")])
    assert [json.loads(line)["params"]["seq"] for line in lines.splitlines()] == [0, 1]
