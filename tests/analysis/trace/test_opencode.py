"""Sessions of opencode: the database that version 1.18.18 wrote against the emulator, and objects as
its `export` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.tables import each_row

from anaphora.analysis.trace import read
from anaphora.analysis.trace.answers import AnswerIndex
from anaphora.analysis.trace.format import Trace, TraceUsage
from anaphora.analysis.trace.log_lines import FoundTrace, Problem, TraceEntry, numbered
from anaphora.usage.log_files import records_of

DATABASE = Path(__file__).parent / "sessions" / "opencode.db.gz"
Json = dict[str, Any]


def user(id: str, created: int, text: str = "q") -> Json:
    info = {"id": id, "role": "user", "time": {"created": created}}
    return {"info": info, "parts": [{"type": "text", "text": text}]}


def tokens(input: int, read: int = 0, write: int = 0, output: int = 5, **more: int) -> Json:
    return {"input": input, "output": output, "cache": {"read": read, "write": write}, **more}


def reply(id: str, created: int, *parts: Json, billed: Json | None = None, **more: Any) -> Json:
    info = {
        "id": id,
        "role": "assistant",
        "providerID": "anthropic",
        "modelID": "claude-sonnet-4-5",
        "time": {"created": created, "completed": created + 4000},
        "tokens": billed or tokens(0, write=9000),
        **more,
    }
    return {"info": info, "parts": [*parts] or [{"type": "text", "text": f"a {id}"}]}


def session(*messages: Json, id: str = "ses_1") -> Json:
    return {"info": {"id": id, "time": {"created": 1_790_000_000_000}}, "messages": [*messages]}


def entries(*sessions: Json) -> list[TraceEntry]:
    lines = [json.dumps(one).encode() for one in sessions]
    return list(read("opencode", numbered(lines, "o.json")))


def traces(*sessions: Json) -> list[Trace]:
    found = entries(*sessions)
    assert not [one for one in found if isinstance(one, Problem)]
    return [one.trace for one in found if isinstance(one, FoundTrace)]


def billed(trace: Trace) -> list[tuple[int, int, int, int | None]]:
    usages = [call.usage or TraceUsage() for call in trace.calls]
    return [(one.input, one.cache_read, one.written, one.output) for one in usages]


def test_the_database_of_the_program() -> None:
    problems: list[Problem] = []
    found = list(read("opencode", iter(records_of(DATABASE, problems))))
    assert problems == []
    once = [one.trace for one in AnswerIndex().once("f", found) if isinstance(one, FoundTrace)]
    whole, fork, asked, after = once
    assert billed(whole) == [(6638, 0, 0, 21), (211, 6528, 0, 5)]
    # A fork repeats both answers under other ids.
    assert billed(fork) == [(7106, 0, 0, 3)]
    assert [call.began_by for call in fork.calls] == ["resume"]
    assert len(fork.messages) == 6
    # The last call of the third is the one that made the summary.
    assert billed(asked) == [(0, 0, 9927, 29), (0, 9927, 137, 6), (732, 0, 0, 4)]
    assert billed(after) == [(0, 9903, 68, 4)]
    assert [call.began_by for call in after.calls] == ["compaction"]
    assert {(one.provider, one.model) for one in once} == {
        ("openai", "gpt-5.1"),
        ("anthropic", "claude-sonnet-4-5"),
    }
    assert {(one.source, one.system_tokens_unknown) for one in once} == {("opencode", True)}
    # Reasoning is a block of the reply; OpenAI's is counted, Anthropic's is part of the output.
    assert [message.block_types for message in whole.messages[1:2]] == [["reasoning"]]
    assert asked.messages[1].has_thinking
    reasoning = [call.usage.reasoning for one in once for call in one.calls if call.usage]
    assert reasoning == [6, 0, 0, None, 0, 0, 0]


def test_the_results_of_tools_are_sent_by_the_next_call() -> None:
    state = {"status": "completed", "input": {"c": 1}, "output": "ok", "time": {"start": 3000}}
    tool = {"type": "tool", "tool": "bash", "callID": "t1", "state": state}
    (trace,) = traces(session(user("1", 0), reply("2", 1000, tool), reply("3", 9000)))
    assert [message.role for message in trace.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    first, second = trace.calls
    assert (first.messages, second.messages) == (1, 3)
    # A reply ends when its tools start, not when they have ended.
    assert (first.t, first.t_end) == (1000.0, 3000.0)


def test_each_step_of_an_older_reply_is_a_call() -> None:
    steps: list[Json] = []
    for number, usage in enumerate((tokens(0, write=9000), tokens(3, 9000, 200)), 1):
        steps += [
            {"type": "step-start"},
            {"type": "text", "text": f"step {number}"},
            {"type": "step-finish", "tokens": usage},
        ]
    (trace,) = traces(session(user("1", 0), reply("2", 1000, *steps)))
    assert billed(trace) == [(0, 0, 9000, 5), (3, 9000, 200, 5)]
    assert [call.messages for call in trace.calls] == [1, 2]


@each_row(
    "usage, output, reasoning",
    [
        (tokens(10, output=5, reasoning=3, total=18), 8, 3),  # the total has both
        (tokens(10, output=8, reasoning=3, total=18), 8, 3),
        (tokens(10, output=8, reasoning=3), 8, 3),  # older versions have no total
        (tokens(10, output=8), 8, None),
    ],
)
def test_reasoning_is_part_of_the_output(usage: Json, output: int, reasoning: int | None) -> None:
    (trace,) = traces(session(user("1", 0), reply("2", 1000, billed=usage)))
    assert trace.calls[0].usage is not None
    assert (trace.calls[0].usage.output, trace.calls[0].usage.reasoning) == (output, reasoning)


def test_another_provider_begins_another_trace_with_the_same_messages() -> None:
    other = reply("4", 20_000, providerID="openai", modelID="gpt-5.1", billed=tokens(9000))
    one, two = traces(session(user("1", 0), reply("2", 1000), user("3", 15_000), other))
    assert (one.provider, two.provider) == ("anthropic", "openai")
    assert [call.messages for call in two.calls] == [3]


def test_messages_are_read_in_the_order_of_their_times() -> None:
    messages = [user("1", 0), reply("2", 1000), user("3", 9000), reply("4", 10_000)]
    assert traces(session(*messages[::-1])) == traces(session(*messages))


@pytest.mark.parametrize("bad", [None, {"info": 1}, reply("2", 1, billed=tokens(-1))])
def test_an_invalid_message_is_reported_and_the_rest_read(bad: Any) -> None:
    problem, found = entries(session(user("1", 0), reply("3", 1000), bad))
    assert isinstance(problem, Problem)
    assert "messages[" in problem.reason
    assert isinstance(found, FoundTrace)
    assert len(found.trace.calls) == 1
