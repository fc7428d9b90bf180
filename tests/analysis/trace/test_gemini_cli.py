"""Session files of Gemini CLI: repeated lines, rewinds, replaced histories, invalid counts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tables import each_row

from anaphora.analysis.trace import detect, read
from anaphora.analysis.trace.format import Trace
from anaphora.analysis.trace.log_lines import FoundTrace, Problem, numbered

Json = dict[str, Any]

META: Json = {"sessionId": "g", "projectHash": "h", "startTime": "", "lastUpdated": ""}


def user(id: str, second: int, content: Any = "q") -> Json:
    at = f"2026-11-02T09:00:{second:02}.000Z"
    return {"id": id, "timestamp": at, "type": "user", "content": content}


def reply(id: str, second: int, input: int | None = 9000, cached: int = 0, **more: Any) -> Json:
    tokens = {"input": input, "output": 5, "cached": cached, "thoughts": 2, "tool": 10, "total": 0}
    made = {**user(id, second, f"a {id}"), "type": "gemini", "model": "gemini-2.5-pro", **more}
    return made if input is None else {**made, "tokens": tokens}


def tool(id: str, second: int) -> Json:
    at = f"2026-11-02T09:00:{second:02}.000Z"
    result = [{"functionResponse": {"id": id, "response": {"output": "x"}}}]
    return {"id": id, "name": "ls", "args": {}, "timestamp": at, "result": result}


def entries(*lines: Any) -> list[FoundTrace | Problem]:
    data = [json.dumps(one).encode() for one in lines]
    return list(read("gemini_cli", numbered(data, "s.jsonl")))


def traces(*lines: Any) -> list[Trace]:
    result = entries(*lines)
    assert not [one for one in result if isinstance(one, Problem)]
    return [one.trace for one in result if isinstance(one, FoundTrace)]


def test_format_is_recognised() -> None:
    assert detect(META) == "gemini_cli"
    assert detect({**META, "messages": []}) == "gemini_cli"
    assert detect({"sessionId": "s", "type": "user"}) == "claude_code"


def test_call_sends_what_came_before_it() -> None:
    lines = [user("1", 0), reply("2", 4, toolCalls=[tool("t", 6)]), reply("3", 9, 9300, 8900)]
    (trace,) = traces(META, *lines)
    assert [one.role for one in trace.messages] == ["user", "assistant", "tool", "assistant"]
    assert [call.messages for call in trace.calls] == [1, 3]
    first, second = trace.calls
    assert first.t_end is not None
    assert first.t == first.t_end - 4.0
    # The second call begins with the result of the tool.
    assert (second.t, second.t_end) == (first.t_end + 2.0, first.t_end + 5.0)
    assert (trace.provider, trace.model, trace.id) == ("google", "gemini-2.5-pro", "g#0")
    assert trace.system_tokens_unknown


def test_tool_prompts_are_input_and_thoughts_are_output() -> None:
    (trace,) = traces(META, user("1", 0), reply("2", 4, 9000, 8000))
    usage = trace.calls[0].usage
    assert usage is not None
    assert (usage.input, usage.cache_read, usage.output) == (1010, 8000, 7)


def test_repeated_message_is_an_update() -> None:
    (trace,) = traces(
        META,
        user("1", 0),
        reply("2", 4, None),
        reply("2", 4, 9000),
        reply("2", 4, 9000, toolCalls=[tool("t", 6)]),
    )
    assert len(trace.calls) == 1
    assert [one.role for one in trace.messages] == ["user", "assistant", "tool"]


def test_rewind_begins_another_conversation() -> None:
    first, second = traces(
        META,
        user("1", 0),
        reply("2", 4),
        user("3", 5),
        reply("4", 9, 9100),
        {"$rewindTo": "3"},
        user("5", 20, "another"),
        reply("6", 24, 9200),
    )
    assert [len(one.calls) for one in (first, second)] == [2, 1]
    assert first.group == second.group == "g"
    assert [one.content for one in second.messages][2] == [{"text": "another"}]
    assert second.calls[0].messages == 3


def test_rewind_to_an_unknown_message_removes_all() -> None:
    _, second = traces(
        META, user("1", 0), reply("2", 4), {"$rewindTo": "x"}, user("3", 9), reply("4", 12)
    )
    assert second.calls[0].messages == 1


def test_replaced_history_begins_another_conversation() -> None:
    history = [user("s", 10, [{"text": "a summary"}])]
    first, second = traces(
        META,
        user("1", 0),
        reply("2", 4),
        {"$set": {"messages": history}},
        user("3", 20),
        reply("4", 24),
    )
    assert (len(first.calls), len(second.calls)) == (1, 1)
    assert second.messages[0].content == [{"text": "a summary"}]


def test_history_that_says_the_same_continues_the_conversation() -> None:
    """Parts instead of text, and the tool's result as a message of its own."""
    call = tool("t", 6)
    answered = reply(
        "2", 4, content=[{"text": "a 2"}, {"functionCall": {"name": "ls"}}], toolCalls=[call]
    )
    history = [user("1", 0, [{"text": "q"}]), answered, user("r", 6, call["result"])]
    (trace,) = traces(
        META,
        user("1", 0),
        reply("2", 4, toolCalls=[call]),
        {"$set": {"messages": history}},
        reply("3", 9),
    )
    assert [one.role for one in trace.messages] == ["user", "assistant", "tool", "assistant"]
    assert len(trace.calls) == 2


def test_change_of_model_is_kept() -> None:
    (trace,) = traces(
        META, user("1", 0), reply("2", 4), user("3", 5), reply("4", 9, model="gemini-2.5-flash")
    )
    assert [call.model for call in trace.calls] == [None, "gemini-2.5-flash"]


def test_replies_without_tokens_are_counted() -> None:
    result = entries(META, user("1", 0), reply("2", 4), user("3", 5), reply("4", 9, None))
    assert [one.reason for one in result if isinstance(one, Problem)] == [
        "1 reply without token counts"
    ]
    assert all(one.harmless for one in result if isinstance(one, Problem))


@each_row("whole", [False, True])
@each_row(
    "tokens, reason",
    [
        ({"input": -1}, "usage.input is negative: -1"),
        ({"input": "9"}, "usage.input is not a number of tokens"),
        ({"input": 5, "cached": 6}, "6 cached of 5 input tokens"),
    ],
)
def test_invalid_counts_are_problems(tokens: Json, reason: str, whole: bool) -> None:
    bad = reply("4", 9, None, tokens=tokens)
    messages = [user("1", 0), reply("2", 4), bad]
    result = entries({**META, "messages": messages}) if whole else entries(META, *messages)
    (problem,) = [one for one in result if isinstance(one, Problem)]
    assert problem.reason == (f"messages[2]: {reason}" if whole else reason)
    assert any(isinstance(one, FoundTrace) for one in result)


def test_branches_of_a_session_that_is_rewound_at_every_turn_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("anaphora.analysis.trace.log_lines._BRANCH_MESSAGES", 100)
    monkeypatch.setattr("anaphora.analysis.trace.log_lines._BRANCHES", 2)
    lines: list[Json] = []
    for at in range(40):
        lines += [user(f"u{at}", at), reply(f"x{at}", at), {"$rewindTo": f"x{at}"}]
        lines.append(reply(f"a{at}", at))
    found = [one.trace for one in entries(META, *lines) if isinstance(one, FoundTrace)]
    assert sum(len(trace.messages) for trace in found) <= 100 + 2 * len(lines) + 80
    # The conversation that went on to the end is there.
    assert len(found[-1].messages) == 80
    (problem,) = [one for one in entries(META, *lines) if isinstance(one, Problem)]
    assert problem.kind == "not_compared"
    assert f"{41 - len(found)} branches left out" in problem.reason


def test_rewinds_without_a_call_since_the_last_are_no_conversations() -> None:
    lines = [user("1", 0), reply("2", 1), user("3", 2), {"$rewindTo": "3"}]
    assert len(traces(META, *lines, *lines[2:], *lines[2:])) == 1


def test_a_rewind_is_an_edit_and_a_summary_a_compaction() -> None:
    history = [user("1", 0), reply("2", 4), user("3", 9), reply("4", 12)]
    _, rewound = traces(META, *history, {"$rewindTo": "3"}, user("5", 20), reply("6", 24))
    assert [call.began_by for call in rewound.calls] == ["edit"]
    summary = {"$set": {"messages": [user("s", 20, "so far"), user("5", 21)]}}
    _, compacted = traces(META, *history, summary, reply("6", 24))
    assert [call.began_by for call in compacted.calls] == ["compaction"]


def test_thoughts_are_the_hidden_part_of_the_output() -> None:
    (trace,) = traces(META, user("1", 0), reply("2", 4))
    usage = trace.calls[0].usage
    assert usage is not None
    assert (usage.output, usage.reasoning) == (7, 2)
