"""A line of a trace file: read, or refused with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tables import each_row

from anaphora.analysis.trace.format import read_line
from anaphora.errors import InvalidRequest

LINE: dict[str, Any] = {
    "id": "one", "provider": "anthropic", "model": "claude-sonnet-4-5", "license": "MIT",
    "messages": [{"role": "user", "content": "hi"}],
    "calls": [
        {
            "t": 10.0, "t_end": 12.0, "messages": 1, "breakpoints": [["tools", "1h"], [0, "5m"]],
            "usage": {"input": 3, "cache_read": 5, "cache_write_5m": 7, "output": None},
        },
        {"t_end": 20.0, "dur": 5.0, "messages": 1, "usage": None},
        {"messages": 1},
    ],
}  # fmt: skip


def line(**changed: Any) -> bytes:
    return json.dumps({**LINE, **changed}).encode()


def with_usage(**usage: Any) -> bytes:
    return line(calls=[{"messages": 1, "usage": usage}])


def test_a_line_is_a_conversation() -> None:
    trace = read_line(line(), "f:1")
    first, second, third = trace.calls
    assert first.usage is not None
    assert (first.usage.cached, first.usage.total, first.usage.written) == (12, 15, 7)
    assert first.breakpoints == (("tools", "1h"), (0, "5m"))
    assert (first.at, second.at, third.at) == (10.0, 15.0, None)
    assert (second.breakpoints, second.usage) == (None, None)


def test_a_bill_is_a_partition_by_ttl() -> None:
    result = with_usage(
        input=1, cache_read=2, cache_write_5m=3, cache_write_1h=4, cache_write_12h=5
    )
    usage = read_line(result, "f:1").calls[0].usage
    assert usage is not None
    assert usage.usage().written == {"12h": 5, "1h": 4, "5m": 3}
    assert usage.usage().input == usage.total == 15


@each_row(
    "data, reason",
    [
        (b'{"id": "one", ', "truncated"),
        (b"[]", "Expected `object`"),
        (b'{"id": "one"}', "missing required field `provider`"),
        (b'{"id": "\xff"}', "not UTF-8"),
        (line()[:-1] + b', "tools": ' + b"[" * 100_000, "nested too deep"),
        (with_usage(cache_read=-1), r">= 0.*usage\.cache_read"),
        (with_usage(input=1.5), r"usage\.input"),
        (line(calls=[{"messages": 2}]), r"calls\[0\].messages is 2, but there are only 1"),
        (line(calls=[{"messages": -1}]), r"calls\[0\].messages|calls\[...\].messages"),
        (line(calls=[{"messages": 1, "t": "today"}]), r"\.t"),
    ],
)
def test_errors_name_file_and_line(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as refused:
        read_line(data, "file.jsonl:7")
    assert refused.value.path == "file.jsonl:7"
