"""Lines out of order: where a file tells the order, the conversation is the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora.analysis.trace import Format, read
from anaphora.analysis.trace.format import TraceCall, TraceMessage
from anaphora.analysis.trace.log_lines import FoundTrace, LineOrder, Problem, numbered

Json = dict[str, Any]
Conversation = tuple[tuple[TraceCall, ...], tuple[TraceMessage, ...]]


def claude_code() -> list[Json]:
    """Parallel tools, whose results hang on the lines of their calls."""
    lines: list[Json] = []

    def line(type: str, uuid: str, parent: str | None, message: Json) -> None:
        own = {"type": type, "uuid": uuid, "parentUuid": parent, "sessionId": "s"}
        lines.append({**own, "timestamp": 1e9 + len(lines), "message": message})

    parent = None
    for turn in range(3):
        usage = {"input_tokens": 5, "cache_read_input_tokens": 9000 + turn, "output_tokens": 7}
        answer = {"id": f"m{turn}", "model": "claude-sonnet-4-5", "usage": usage}
        line("user", f"u{turn}", parent, {"content": f"q{turn}"})
        line("assistant", f"a{turn}", f"u{turn}", {**answer, "content": [{"type": "tool_use"}]})
        line("assistant", f"b{turn}", f"a{turn}", {**answer, "content": [{"type": "tool_use"}]})
        for call in (f"a{turn}", f"b{turn}"):
            result = {"type": "tool_result", "tool_use_id": call, "content": "ok"}
            line("user", f"r{call}", call, {"content": [result]})
        parent = f"rb{turn}"
    return lines


def copilot() -> list[Json]:
    events: list[tuple[str, Json]] = [("session.start", {"sessionId": "s"})]
    for turn in range(4):
        usage = {"inputTokens": 9000 + turn, "outputTokens": 5, "apiCallId": f"c{turn}"}
        events.append(("user.message", {"content": f"q{turn}"}))
        events.append(("session.usage_record", {"usage": {"model": "gpt-5.1", **usage}}))
        events.append(("assistant.message", {"content": f"a{turn}", "apiCallId": f"c{turn}"}))
    return [
        {"type": type, "data": data, "id": f"e{n}", "parentId": f"e{n - 1}" if n else None}
        | {"timestamp": 1e9 + n}
        for n, (type, data) in enumerate(events)
    ]


def pi() -> list[Json]:
    lines: list[Json] = []
    for turn in range(4):
        usage = {"input": 5, "cacheRead": 5000 + turn, "output": 9}
        question = {"role": "user", "content": f"q{turn}"}
        answer = {"role": "assistant", "provider": "anthropic", "model": "claude-sonnet-4-5"}
        for message in (question, {**answer, "content": [f"a{turn}"], "usage": usage}):
            own = {"id": f"e{len(lines)}", "parentId": f"e{len(lines) - 1}" if lines else None}
            lines.append({"type": "message", **own, "message": message})
            lines[-1]["timestamp"] = 1e9 + len(lines)
    return lines


def codex() -> list[Json]:
    payloads: list[tuple[str, Json]] = [("session_meta", {"id": "s"})]
    payloads.append(("turn_context", {"model": "gpt-5.5"}))
    for turn in range(4):
        usage = {"input_tokens": 9000 + turn, "output_tokens": 5}
        payloads += (
            ("response_item", {"type": "message", "role": role, "content": turn})
            for role in ("user", "assistant")
        )
        payloads.append(("token_usage_record", {"usage": usage, "response_id": f"r{turn}"}))
    return [
        {"type": type, "payload": payload, "ordinal": n, "timestamp": 1e9 + n}
        for n, (type, payload) in enumerate(payloads)
    ]


SESSIONS: dict[Format, list[Json]] = {
    "claude_code": claude_code(),
    "copilot": copilot(),
    "pi": pi(),
    "codex": codex(),
}


def played(program: Format, lines: Sequence[Json]) -> tuple[list[Conversation], list[Problem]]:
    data = [json.dumps(line).encode() for line in lines]
    found = list(read(program, numbered(data, "f")))
    traces = [one.trace for one in found if isinstance(one, FoundTrace)]
    problems = [one for one in found if isinstance(one, Problem)]
    return [(trace.calls, trace.messages) for trace in traces], problems


@pytest.mark.parametrize("program", SESSIONS)
@given(data=st.data())
def test_any_order_of_the_lines_gives_the_same_conversation(
    program: Format, data: st.DataObject
) -> None:
    lines = SESSIONS[program]
    in_order, none = played(program, lines)
    assert none == []
    assert len(in_order) == 1
    mixed, problems = played(program, data.draw(st.permutations(lines)))
    assert mixed == in_order
    assert {problem.kind for problem in problems} <= {"notice"}


@pytest.mark.parametrize("program", SESSIONS)
def test_what_was_put_in_order_is_said(program: Format) -> None:
    lines = SESSIONS[program]
    _, (problem,) = played(program, [lines[0], lines[2], lines[1], *lines[3:]])
    assert "in order" in problem.reason
    assert problem.kind == "notice"


def test_results_before_the_calls_of_their_tools_are_put_in_order_of_the_times() -> None:
    """Older files of Codex have no numbers."""
    call = {"type": "function_call", "call_id": "t1", "name": "shell"}
    output = {"type": "function_call_output", "call_id": "t1", "output": "ok"}
    usage = {"input_tokens": 9000, "output_tokens": 5}
    info = {"last_token_usage": usage, "total_token_usage": {"total_tokens": 9}}
    payloads = [
        ("response_item", {"type": "message", "role": "user", "content": "q"}),
        ("response_item", call),
        ("response_item", output),
        ("event_msg", {"type": "token_count", "info": info}),
    ]
    lines = [
        {"type": type, "payload": payload, "timestamp": 1e9 + n}
        for n, (type, payload) in enumerate(payloads)
    ]
    in_order, none = played("codex", lines)
    assert none == []
    mixed, (problem,) = played("codex", [lines[0], lines[2], lines[1], lines[3]])
    assert mixed == in_order
    assert str(problem) == "f: lines out of order: put in order of their times"


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdefgh")), max_size=12))
def test_no_line_is_lost_whatever_its_parent_is(links: list[tuple[str, str]]) -> None:
    order: LineOrder[int] = LineOrder()
    read_lines = [
        line for number, (id, parent) in enumerate(links) for line in order.add(id, parent, number)
    ]
    read_lines += order.rest()
    assert sorted(read_lines) == list(range(len(links)))


def test_lines_behind_a_missing_one_stay_in_order() -> None:
    """As in a file whose beginning was cut off."""
    order: LineOrder[str] = LineOrder()
    for id, parent in (("b", "a"), ("c", "b"), ("d", "c"), ("e", "b")):
        assert order.add(id, parent, id) == []
    assert list(order.rest()) == ["b", "c", "d", "e"]
    assert order.moved == 0


@pytest.mark.parametrize("program", ["claude_code", "copilot", "pi"])
def test_lines_after_a_missing_one_follow_the_line_before_it(program: Format) -> None:
    """Claude Code sometimes leaves out the last line of a reply."""
    lines = SESSIONS[program]
    ((calls, _),), _ = played(program, lines)
    ((cut, _),), (problem,) = played(program, [*lines[:4], *lines[5:]])
    assert [call.usage for call in cut] == [call.usage for call in calls]
    assert problem.kind == "notice"
    assert problem.reason.endswith("these follow the lines before them")
