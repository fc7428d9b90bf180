"""Session files of Claude Code: lines that are a tree become conversations with calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.tables import each_row

from anaphora.analysis.trace import detect, read
from anaphora.analysis.trace.format import Trace
from anaphora.analysis.trace.log_lines import FoundTrace, Problem, numbered

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "session.jsonl"


def line(
    uuid: str, parent: str | None, type: str, second: int, message: Any = None, **more: Any
) -> dict[str, Any]:
    return {
        "type": type,
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": "s",
        "timestamp": f"2026-11-02T09:00:{second:02}.500Z",
        "message": message,
        **more,
    }


def user(uuid: str, parent: str | None, second: int, content: Any = "q") -> dict[str, Any]:
    return line(uuid, parent, "user", second, {"role": "user", "content": content})


def answer(
    uuid: str, parent: str | None, second: int, id: str, *, read: int = 0, **more: Any
) -> dict[str, Any]:
    usage = {
        "input_tokens": 4,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": 100,
        "cache_creation": {"ephemeral_5m_input_tokens": 70, "ephemeral_1h_input_tokens": 30},
        "output_tokens": 9,
    }
    message = {
        "id": id,
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": uuid}],
        "usage": usage,
        **more,
    }
    return line(uuid, parent, "assistant", second, message)


def result(uuid: str, parent: str, second: int, id: str) -> dict[str, Any]:
    return user(uuid, parent, second, [{"type": "tool_result", "tool_use_id": id, "content": "ok"}])


def entries(*lines: dict[str, Any] | bytes) -> list[FoundTrace | Problem]:
    data = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines]
    return list(read("claude_code", numbered(data, "s.jsonl")))


def traces(*lines: dict[str, Any]) -> list[Trace]:
    match = entries(*lines)
    assert not [one for one in match if isinstance(one, Problem)]
    return [one.trace for one in match if isinstance(one, FoundTrace)]


BEGUN = user("1", None, 0), answer("2", "1", 3, "msg_1")


def test_a_reply_in_several_lines_is_one_call_billed_once() -> None:
    (trace,) = traces(
        *BEGUN,
        answer("3", "2", 5, "msg_1"),
        user("4", "3", 9),
        answer("5", "4", 12, "msg_2", read=100),
    )
    first, second = trace.calls
    assert (first.messages, second.messages) == (1, 3)
    assert first.usage is not None
    assert (first.usage.cache_write_5m, first.usage.cache_write_1h) == (70, 30)
    assert len(trace.messages) == 4
    assert [block["text"] for block in trace.messages[1].content] == ["2", "3"]
    # It began when the user had spoken, and ended with its last block.
    assert (first.t_end or 0) - (first.t or 0) == 5.0
    assert trace.system_tokens_unknown


def test_results_of_parallel_tools_are_sent_together() -> None:
    """Each hangs on the line of its call; the next answer on the last of them."""
    (trace,) = traces(
        *BEGUN,
        answer("3", "2", 4, "msg_1"),
        result("4", "2", 5, "a"),
        result("5", "3", 6, "b"),
        answer("6", "5", 9, "msg_2", read=100),
    )
    assert [call.messages for call in trace.calls] == [1, 3]
    assert [block["tool_use_id"] for block in trace.messages[2].content] == ["a", "b"]


def test_branches_are_conversations_and_a_call_belongs_to_one() -> None:
    one, two = traces(
        *BEGUN,
        user("3", "2", 10, "this way"),
        answer("4", "3", 13, "msg_2", read=100),
        user("5", "2", 20, "no, that way"),
        answer("6", "5", 23, "msg_3", read=100),
    )
    assert [len(one.calls), len(two.calls)] == [2, 1]
    said = [message.content for message in two.messages[2:]]
    assert said == ["no, that way", [{"type": "text", "text": "6"}]]
    assert [call.began_by for call in two.calls] == ["edit"]
    assert one.group == two.group == "s"


def hook(name: str) -> dict[str, Any]:
    return line("4", "3", "progress", 4, data={"hookName": name})


def system(id: str, parent: str | None, kind: str) -> dict[str, Any]:
    return line(id, parent, "system", 4, subtype=kind)


SIDE = {"isSidechain": True}
ASKED, SAID = {**user("3", None, 4), **SIDE}, {**answer("4", "3", 5, "msg_2"), **SIDE}
SUMMARY = {**user("3", None, 6, "summary"), "isCompactSummary": True}
THIRD, FAILED = user("3", "2", 9), answer("4", "3", 12, "err", model="<synthetic>")
TITLE = {"type": "summary", "summary": "a title", "leafUuid": "5"}
NEXT = user("5", "4", 9), answer("6", "5", 12, "msg_2", read=100)
FIRST: tuple[object, ...] = (1, None, None)
COMPACTED: tuple[object, ...] = (1, "compaction", None)
#: The lines after the first reply; messages, beginning and model of the calls of each conversation.
SESSIONS = {
    "side chains and compactions begin new conversations": (
        (ASKED, SAID, system("7", None, "compact_boundary"), user("5", "7", 9), NEXT[1]),
        [[FIRST], [FIRST], [COMPACTED]],
    ),
    "a summary begins by compaction without a boundary": (
        (SUMMARY, answer("4", "3", 9, "msg_3"), *NEXT),
        [[FIRST], [COMPACTED, (3, None, None)]],
    ),
    "cleared tool results are an edit": (
        (system("3", "2", "microcompact_boundary"), line("4", "3", "attachment", 5), *NEXT),
        [[FIRST, (3, "edit", None)]],
    ),
    "a hook tells of a resumed session": (
        (line("3", "2", "progress", 3), hook("SessionStart:resume"), *NEXT),
        [[FIRST, (3, "resume", None)]],
    ),
    "lines of other kinds are passed through": (
        (TITLE, system("3", "2", "turn_duration"), hook("Stop"), *NEXT),
        [[FIRST, (3, None, None)]],
    ),
    "synthetic messages are not calls": ((THIRD, FAILED, *NEXT), [[FIRST, (4, None, None)]]),
    "another model is recorded on the call": (
        (THIRD, answer("4", "3", 12, "msg_2", model="claude-opus-4-5")),
        [[FIRST, (3, None, "claude-opus-4-5")]],
    ),
}


@each_row("lines, calls", [*SESSIONS.values()])
def test_calls_of_a_session(
    lines: tuple[dict[str, Any], ...], calls: list[list[tuple[object, ...]]]
) -> None:
    found = [trace.calls for trace in traces(*BEGUN, *lines)]
    assert [[(one.messages, one.began_by, one.model) for one in each] for each in found] == calls


def test_a_message_between_the_results_of_a_reply_belongs_to_them() -> None:
    """A line of the reply may follow what came while its first tool ran."""
    (trace,) = traces(
        *BEGUN,
        result("3", "2", 4, "a"),
        user("4", "3", 5, "by the way"),
        line("5", "4", "attachment", 6),
        answer("6", "5", 7, "msg_1"),
        result("7", "6", 8, "b"),
        answer("8", "7", 12, "msg_2", read=100),
    )
    assert [call.messages for call in trace.calls] == [1, 3]
    sent = trace.messages[2].content
    known = [one if isinstance(one, str) else one["tool_use_id"] for one in sent]
    assert known == ["a", "by the way", "b"]


def test_lines_of_a_reply_behind_many_messages_add_each_message_once() -> None:
    count = 300
    asked = [user(f"u{at}", f"u{at - 1}" if at else "r", 5, f"{at}") for at in range(count)]
    again = [answer(f"r{at}", f"u{at}", 6, "msg_1") for at in range(count)]
    (trace,) = traces(user("1", None, 0), answer("r", "1", 3, "msg_1"), *asked, *again)
    assert len(trace.calls) == 1
    assert len(trace.messages) == 3
    assert trace.messages[2].content == [f"{at}" for at in range(count)]


def test_broken_lines_and_counts_are_reported_and_the_rest_is_read() -> None:
    usage = {"input_tokens": -4, "cache_read_input_tokens": 0}
    broken, negative, source = entries(
        user("1", None, 0),
        b'{"type": "user", ',
        answer("2", "1", 3, "msg_1", usage=usage),
        answer("3", "1", 4, "msg_2"),
    )
    assert str(broken).startswith("s.jsonl:2: ")
    assert str(negative) == "s.jsonl:3: usage.input_tokens is negative: -4"
    assert isinstance(source, FoundTrace)
    assert source.place == "s.jsonl:4"


def test_a_session_without_replies_is_reported() -> None:
    assert [str(one) for one in entries(user("1", None, 0))] == ["s.jsonl: no reply with usage"]


def test_the_example_of_the_documentation() -> None:
    with EXAMPLE.open("rb") as lines:
        first = json.loads(lines.readline())
        assert detect(first) == "claude_code"
        lines.seek(0)
        (source,) = read("claude_code", numbered(lines, "session.jsonl"))
    assert isinstance(source, FoundTrace)
    assert [call.messages for call in source.trace.calls] == [1, 3, 5, 7, 9, 11, 13]


@pytest.mark.parametrize(
    "details, reasoning", [({"thinking_tokens": 5}, 5), ({}, None), (None, None)]
)
def test_thinking_tokens_are_read(details: dict[str, int] | None, reasoning: int | None) -> None:
    reply = answer("b", "a", 5, "1")
    reply["message"]["usage"]["output_tokens_details"] = details
    entry = next(iter(entries(user("a", None, 0), reply)))
    assert isinstance(entry, FoundTrace)
    usage = entry.trace.calls[0].usage
    assert usage is not None
    assert usage.usage().reasoning == reasoning


def test_branches_of_a_session_that_is_rewound_at_every_turn_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("anaphora.analysis.trace.log_lines._BRANCH_MESSAGES", 100)
    monkeypatch.setattr("anaphora.analysis.trace.log_lines._BRANCHES", 2)
    lines, parent = [], None
    for at in range(40):
        lines += [user(f"u{at}", parent, at), answer(f"a{at}", f"u{at}", at, f"m{at}")]
        lines.append(answer(f"x{at}", f"u{at}", at, f"n{at}"))
        parent = f"a{at}"
    found = [one.trace for one in entries(*lines) if isinstance(one, FoundTrace)]
    assert sum(len(trace.messages) for trace in found) <= 100 + 2 * len(lines)
    # The conversation that went on to the end is there.
    assert max(len(trace.messages) for trace in found) == 80
    (problem,) = [one for one in entries(*lines) if isinstance(one, Problem)]
    assert problem.kind == "not_compared"
    assert f"{41 - len(found)} branches left out" in problem.reason
