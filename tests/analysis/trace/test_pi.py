"""Session files of pi: those that version 0.74.2 wrote against the emulator, compactions, branches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anaphora.analysis.trace import read
from anaphora.analysis.trace.answers import AnswerIndex
from anaphora.analysis.trace.format import Trace, TraceUsage
from anaphora.analysis.trace.log_lines import FoundTrace, Problem, TraceEntry, numbered

FILES = sorted((Path(__file__).parent / "sessions" / "pi").glob("*.jsonl"))
Json = dict[str, Any]
HEADER = {"type": "session", "version": 3, "id": "s", "timestamp": 1e9, "cwd": "/"}


def entry(id: str, parent: str | None, second: int, type: str = "message", **more: Any) -> Json:
    return {"type": type, "id": id, "parentId": parent, "timestamp": 1e9 + second, **more}


def user(id: str, parent: str | None, second: int, text: str = "q") -> Json:
    return entry(id, parent, second, message={"role": "user", "content": text})


def reply(id: str, parent: str, second: int, read: int = 0, **more: Any) -> Json:
    usage = {"input": 4, "output": 9, "cacheRead": read, "cacheWrite": 100, **more}
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": f"a {id}"}],
        "provider": "anthropic",
        "model": "claude-sonnet-4-5",
        "usage": usage,
        "timestamp": (1e9 + second - 2) * 1000,
    }
    return entry(id, parent, second, message=message)


def entries(*lines: Json) -> list[TraceEntry]:
    data = [json.dumps(one).encode() for one in (HEADER, *lines)]
    return list(read("pi", numbered(data, "s.jsonl")))


def traces(*lines: Json) -> list[Trace]:
    found = entries(*lines)
    assert not [one for one in found if isinstance(one, Problem)]
    return [one.trace for one in found if isinstance(one, FoundTrace)]


def billed(trace: Trace) -> list[tuple[int, int, int, int | None]]:
    usages = [call.usage or TraceUsage() for call in trace.calls]
    return [(one.input, one.cache_read, one.cache_write_5m, one.output) for one in usages]


def test_the_files_of_the_program() -> None:
    index = AnswerIndex()
    found = {
        file.name: list(read("pi", numbered(file.read_bytes().splitlines(), file.name)))
        for file in FILES
    }
    for name, read_entries in found.items():
        index.add_all(name, read_entries)
    first, fork = (
        [one.trace for one in index.once(name, some) if isinstance(one, FoundTrace)]
        for name, some in found.items()
    )
    assert [billed(trace) for trace in first] == [
        [(0, 0, 2126, 29), (0, 2126, 142, 6), (0, 2268, 44, 4)]
    ]
    assert [billed(trace) for trace in fork] == [[(0, 2312, 42, 4), (0, 2354, 41, 4)]]
    assert [call.began_by for call in fork[0].calls] == ["resume", None]
    assert [call.messages for call in fork[0].calls] == [7, 9]
    assert first[0].messages[1].has_thinking
    assert first[0].messages[1].tool_calls
    assert [message.role for message in first[0].messages[:4]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert (first[0].source, first[0].provider) == ("pi", "anthropic")


def test_a_call_begins_with_the_request_and_ends_with_the_entry() -> None:
    (trace,) = traces(user("1", None, 0), reply("2", "1", 5, reasoning=7, cacheWrite1h=30))
    (call,) = trace.calls
    assert (call.t, call.t_end) == (1e9 + 3, 1e9 + 5)
    assert call.usage is not None
    assert (call.usage.cache_write_5m, call.usage.cache_write_1h) == (70, 30)
    assert call.usage.reasoning == 7


def test_branches_are_conversations_and_a_call_belongs_to_one() -> None:
    one, two = traces(
        user("1", None, 0),
        reply("2", "1", 5),
        user("3", "2", 9),
        reply("4", "3", 12, 100),
        user("5", "2", 20, "another way"),
        reply("6", "5", 25, 100),
    )
    assert [len(one.calls), len(two.calls)] == [2, 1]
    assert [call.began_by for call in two.calls] == ["edit"]
    assert two.messages[2].content == "another way"


def test_a_compaction_keeps_the_last_messages_behind_a_summary() -> None:
    usage = {"input": 500, "output": 50}
    compaction = {"summary": "so far", "firstKeptEntryId": "3", "usage": usage}
    found = traces(
        user("1", None, 0),
        reply("2", "1", 5),
        user("3", "2", 9),
        reply("4", "3", 12, 100),
        entry("5", "4", 20, "compaction", **compaction),
        user("6", "5", 30),
        reply("7", "6", 35),
    )
    side, before, after = sorted(found, key=lambda one: len(one.messages))
    assert billed(side) == [(500, 0, 0, 50)]
    assert len(before.calls) == 2
    assert [message.content for message in after.messages[:2]] == ["so far", "q"]
    assert [(call.messages, call.began_by) for call in after.calls] == [(4, "compaction")]


def test_an_edited_context_begins_another_conversation() -> None:
    edit = {"targetId": "1", "replacement": {"content": "shorter"}}
    before, after = traces(
        user("1", None, 0, "long"),
        reply("2", "1", 5),
        entry("3", "2", 6, "context_edit", **edit),
        user("4", "3", 9),
        reply("5", "4", 12),
    )
    assert [one.messages[0].content for one in (before, after)] == ["long", "shorter"]
    assert [call.began_by for call in after.calls] == ["edit"]


def test_usage_without_messages_counts() -> None:
    usage = {"input": 10, "output": 1, "cacheRead": 5000}
    warmed = {"kind": "cache_warm", "provider": "anthropic", "model": "claude-sonnet-4-5"}
    found = traces(
        user("1", None, 0), reply("2", "1", 5), entry("3", "2", 9, "usage", usage=usage, **warmed)
    )
    assert sorted(map(billed, found)) == [[(4, 0, 100, 9)], [(10, 5000, 0, 1)]]


def test_entries_of_version_1_follow_each_other() -> None:
    lines = [user("1", None, 0), reply("2", "1", 5), user("3", "2", 9), reply("4", "3", 12)]
    bare = [{k: v for k, v in one.items() if k not in ("id", "parentId")} for one in lines]
    (trace,) = traces(*bare)
    assert [call.messages for call in trace.calls] == [1, 3]


def test_impossible_counts_are_reported() -> None:
    problem, found = entries(user("1", None, 0), reply("2", "1", 5, input=-1), reply("3", "1", 9))
    assert str(problem) == "s.jsonl:3: usage.input is negative: -1"
    assert isinstance(found, FoundTrace)
