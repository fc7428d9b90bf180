"""One answer counts once, however a session is copied: resumed, forked, cut off while it streamed.
The file that begins first keeps it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anaphora.analysis.trace import Format, read
from anaphora.analysis.trace.answers import AnswerIndex
from anaphora.analysis.trace.format import Trace
from anaphora.analysis.trace.log_lines import FoundTrace, TraceEntry, numbered

Json = dict[str, Any]
Lines = list[Json]

# ── A session of so many turns in the files of each program, and a copy of its first turns ───────


def claude_code(turns: int, session: str, copied: int = 0, *, uuids: str = "") -> Lines:
    """Each answer is on two lines; the second has its whole output."""
    lines: Lines = [
        {"type": "queue-operation", "sessionId": session, "timestamp": 1e9 + 100 * copied}
    ]
    parent = None
    for turn in range(turns):
        question = {"type": "user", "uuid": f"{uuids}u{turn}", "message": {"content": f"q{turn}"}}
        lines.append({**question, "parentUuid": parent, "timestamp": 1e9 + 100 * turn})
        parent = f"{uuids}u{turn}"
        for part, output in enumerate((1, 50 + turn)):
            usage = {"input_tokens": 9, "cache_read_input_tokens": 5000 + turn}
            message: Json = {"id": f"msg_{turn}", "content": [{"type": "text", "text": f"{part}"}]}
            message |= {"model": "claude-sonnet-4-5", "usage": {**usage, "output_tokens": output}}
            own = {"uuid": f"{uuids}a{turn}{part}", "parentUuid": parent, "message": message}
            lines.append({"type": "assistant", **own, "timestamp": 1e9 + 100 * turn + 10 + part})
            parent = f"{uuids}a{turn}{part}"
    return [{**line, "sessionId": session} for line in lines]


def codex(turns: int, session: str, copied: int = 0) -> Lines:
    """A fork writes the lines again, at the time of the fork."""
    forked = {"forked_from_id": "first"} if copied else {}
    meta = {"id": session, "model_provider": "openai", **forked}
    began = 1e9 + 100 * copied
    lines: Lines = [{"type": "session_meta", "timestamp": began, "payload": meta}]
    lines.append({"type": "turn_context", "timestamp": began, "payload": {"model": "gpt-5.5"}})
    for turn in range(turns):
        at = began if turn < copied else 1e9 + 100 * turn
        for role, text in (("user", f"q{turn}"), ("assistant", "Understood.")):
            item = {"type": "message", "role": role, "content": [{"text": text}]}
            lines.append({"type": "response_item", "timestamp": at, "payload": item})
        last = {"input_tokens": 9000 + turn, "cached_input_tokens": 8000, "output_tokens": 5}
        info = {"last_token_usage": last, "total_token_usage": {"total_tokens": 9005 * (turn + 1)}}
        payload = {"type": "token_count", "info": info}
        lines.append({"type": "event_msg", "timestamp": at, "payload": payload})
    return lines


def pi(turns: int, session: str, copied: int = 0) -> Lines:
    began = 1e9 + 100 * copied
    lines: Lines = [{"type": "session", "id": session, "timestamp": began, "cwd": "/"}]
    parent = None
    for turn in range(turns):
        usage = {"input": 5, "cacheRead": 5000 + turn, "output": 9}
        question = {"role": "user", "content": f"q{turn}"}
        answer: Json = {"role": "assistant", "provider": "anthropic", "model": "claude-sonnet-4-5"}
        answer |= {"content": [{"type": "text", "text": "Understood."}], "usage": usage}
        for id, message in ((f"u{turn}", question), (f"a{turn}", answer)):
            line = {"type": "message", "id": id, "parentId": parent, "message": message}
            lines.append({**line, "timestamp": 1e9 + 100 * turn})
            parent = id
    return lines


def opencode(turns: int, session: str, copied: int = 0) -> Lines:
    """A fork keeps the times, and gives other ids."""
    messages: Lines = []
    for turn in range(turns):
        time = {"created": (1e9 + 100 * turn) * 1000, "completed": (1e9 + 100 * turn + 4) * 1000}
        tokens = {"input": 5, "output": 9, "cache": {"read": 5000 + turn, "write": 7}}
        for role in ("user", "assistant"):
            info = {"id": f"{session} {turn} {role}", "role": role, "time": time, "tokens": tokens}
            info |= {"providerID": "anthropic", "modelID": "claude-sonnet-4-5"}
            messages.append({"info": info, "parts": [{"type": "text", "text": f"t{turn}"}]})
    created = {"created": (1e9 + 100 * copied) * 1000}
    return [{"info": {"id": session, "time": created}, "messages": messages}]


def gemini_cli(turns: int, session: str, copied: int = 0) -> Lines:
    lines: Lines = [{"sessionId": session, "projectHash": "h", "timestamp": 1e9 + 100 * copied}]
    for turn in range(turns):
        at = {"timestamp": 1e9 + 100 * turn}
        lines.append({"id": f"u{turn}", "type": "user", "content": f"q{turn}", **at})
        tokens = {"input": 9000 + turn, "output": 5, "cached": 8000}
        answer = {"type": "gemini", "model": "gemini-2.5-pro", "tokens": tokens, "content": "a"}
        lines.append({"id": f"a{turn}", **answer, **at})
    return lines


def copilot(turns: int, session: str, copied: int = 0) -> Lines:
    events: list[tuple[float, str, Json]] = [
        (1e9 + 100 * copied, "session.start", {"sessionId": session})
    ]
    for turn in range(turns):
        usage: Json = {"inputTokens": 9000 + turn, "cacheReadTokens": 8000, "outputTokens": 5}
        usage |= {"apiCallId": f"c{turn}", "model": "claude-sonnet-4-5"}
        at = 1e9 + 100 * turn
        events.append((at, "user.message", {"content": f"q{turn}"}))
        events.append((at + 5, "session.usage_record", {"usage": usage}))
        events.append((at + 5, "assistant.message", {"content": "a", "apiCallId": f"c{turn}"}))
    return [
        {"type": type, "data": data, "id": f"e{n}", "parentId": f"e{n - 1}" if n else None}
        | {"timestamp": at}
        for n, (at, type, data) in enumerate(events)
    ]


SESSIONS: dict[Format, Callable[..., Lines]] = {
    "claude_code": claude_code,
    "codex": codex,
    "gemini_cli": gemini_cli,
    "opencode": opencode,
    "copilot": copilot,
    "pi": pi,
}


def entries(program: Format, lines: Iterable[Json], file: str) -> list[TraceEntry]:
    return list(read(program, numbered([json.dumps(line).encode() for line in lines], file)))


def once(program: Format, files: Mapping[str, Sequence[Json]]) -> dict[str, list[Trace]]:
    """The conversations of each file, when they are read together."""
    index = AnswerIndex()
    found = {file: entries(program, lines, file) for file, lines in files.items()}
    for file, some in found.items():
        index.add_all(file, some)
    return {
        file: [one.trace for one in index.once(file, some) if isinstance(one, FoundTrace)]
        for file, some in found.items()
    }


def bills(files: dict[str, list[Trace]]) -> list[tuple[int, int | None]]:
    usages = [call.usage for some in files.values() for one in some for call in one.calls]
    return sorted((one.total, one.output) for one in usages if one is not None)


@pytest.mark.parametrize("program", SESSIONS)
@given(data=st.data())
def test_any_split_into_resumed_copies_gives_the_same_bills(
    program: Format, data: st.DataObject
) -> None:
    make = SESSIONS[program]
    cuts = sorted(data.draw(st.sets(st.integers(1, 6), min_size=1)))
    files = {"0": make(cuts[0], "s0")}
    for number, (before, end) in enumerate(pairwise(cuts), 1):
        files[str(number)] = make(end, f"s{number}", before)
    order = data.draw(st.permutations([*files]))
    found = once(program, {file: files[file] for file in order})
    assert bills(found) == bills(once(program, {"whole": make(cuts[-1], "s")}))
    # The first file keeps what it has, and each copy only what is new; the messages stay.
    for number, (before, end) in enumerate(pairwise([0, *cuts])):
        (trace,) = found[str(number)]
        assert len(trace.calls) == end - before
        assert len(trace.messages) == 2 * end
        assert [call.began_by for call in trace.calls] == [
            "resume" if number and not index else None for index in range(end - before)
        ]


@pytest.mark.parametrize("program", SESSIONS)
def test_the_same_file_twice_counts_once(program: Format) -> None:
    lines = SESSIONS[program](3, "s")
    found = once(program, {"one": lines, "two": lines})
    assert [len(found[file]) for file in ("one", "two")] == [1, 0]


def test_a_copy_that_went_another_way_is_a_fork() -> None:
    first, new = claude_code(4, "s"), claude_code(1, "t", uuids="new ")
    question, answer = new[1], new[3]
    question |= {"parentUuid": "a11", "timestamp": 1e9 + 900}
    answer |= {"parentUuid": "new u0", "timestamp": 1e9 + 910}
    answer["message"] |= {"id": "msg_new"}
    copied = claude_code(2, "t", 2)
    found = once("claude_code", {"first": first, "fork": [*copied, question, answer]})
    assert [len(one.calls) for one in found["first"]] == [4]
    assert [call.began_by for one in found["fork"] for call in one.calls] == ["fork"]


@given(cut=st.integers(0, 12), whole_first=st.booleans())
def test_the_last_usage_of_an_answer_counts_wherever_it_was_cut_off(
    cut: int, whole_first: bool
) -> None:
    """A session may be resumed while an answer is written."""
    whole = claude_code(4, "whole", 3)
    cut_off = [*claude_code(4, "cut")][:cut]
    files = {"whole": whole, "cut": cut_off} if whole_first else {"cut": cut_off, "whole": whole}
    assert bills(once("claude_code", files)) == bills(once("claude_code", {"f": whole}))


def test_a_fork_counts_once_although_the_clock_was_set_back_before_it() -> None:
    """Codex gives the lines of a fork new times."""
    fork = [{**line, "timestamp": line["timestamp"] - 5000} for line in codex(4, "t", 3)]
    files = {"first": codex(3, "first"), "fork": fork}
    whole = bills(once("codex", {"whole": codex(4, "s")}))
    assert bills(once("codex", files)) == whole
    assert bills(once("codex", dict(reversed(files.items())))) == whole


def test_answers_of_different_sessions_that_are_alike_are_counted_apart() -> None:
    """The same question and counts a second later; Codex gives such answers no ids."""
    first, second = codex(1, "s"), codex(1, "t")
    later = [{**line, "timestamp": line["timestamp"] + 1} for line in second]
    found = once("codex", {"one": first, "two": later})
    assert [len(some) for some in found.values()] == [1, 1]


def test_a_copy_in_the_same_file_counts_once() -> None:
    lines = claude_code(3, "s")
    longer = claude_code(4, "s", uuids="copy ")
    found = once("claude_code", {"f": [*lines, *longer]})
    assert bills(found) == bills(once("claude_code", {"f": longer}))
    assert [[call.began_by for call in one.calls] for one in found["f"]] == [[None] * 3, ["resume"]]


def test_lines_that_are_there_twice_are_read_once() -> None:
    lines = claude_code(3, "s")
    *problems, found = entries("claude_code", [*lines, *lines[1:]], "f")
    assert list(map(str, problems)) == ["f: 9 lines repeated in the same file: read once"]
    (same,) = entries("claude_code", lines, "f")
    assert found == same
