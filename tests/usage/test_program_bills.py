"""The quick readers of bills and the readers of conversations see the same bills."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.session_bills import (
    billed,
    bills_in,
    continued,
    in_conversations,
    shared_names,
    shared_session,
)
from support.session_samples import CANARY, SAMPLES, claude, codex_count, event, gemini, lines_of

from anaphora.analysis.trace.log_lines import Problem
from anaphora.analysis.trace.programs import ProgramName
from anaphora.usage.places import session_files
from anaphora.usage.programs import READERS, bills
from anaphora.usage.records import CallBill

LINE_PROGRAMS: tuple[ProgramName, ...] = ("claude_code", "codex", "copilot")
FILES = [(program, name) for program in LINE_PROGRAMS for name in shared_names(program)]
CHAT = b'{"sessionId":"g","projectHash":"h","messages":[%s]}' % b",".join(
    msgspec.json.encode(gemini(second, str(second))) for second in (1, 2)
)
PI = Path(__file__).parents[1] / "analysis" / "trace" / "sessions" / "pi"


def read(program: ProgramName, lines: list[bytes]) -> list[CallBill | Problem]:
    return [*bills(READERS[program](), lines, "file")]


def calls(name: str) -> list[CallBill]:
    found = read(*lines_of(name))
    assert not [one for one in found if isinstance(one, Problem)]
    return [one for one in found if isinstance(one, CallBill)]


@pytest.mark.parametrize(("program", "name"), FILES)
def test_same_bills_as_the_conversations(program: ProgramName, name: str) -> None:
    lines = shared_session(program, name)
    expected = in_conversations(program, lines)
    assert billed(read(program, lines)) == expected
    cuts = sorted(random.Random(name).choices(range(len(lines)), k=40))
    assert billed(continued(program, lines, cuts)) == expected


@pytest.mark.parametrize("file", sorted(PI.glob("*.jsonl")), ids=lambda file: file.stem[-8:])
def test_same_bills_of_pi(file: Path) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    expected = in_conversations("pi", lines)
    assert expected
    assert billed(continued("pi", lines, range(len(lines)))) == expected


@pytest.mark.parametrize("name", SAMPLES)
def test_same_bills_of_samples_read_line_by_line(name: str) -> None:
    program, lines = lines_of(name)
    expected = in_conversations(program, lines)
    assert len(expected) >= (1 if "fork" in name else 2)
    assert billed(read(program, lines)) == expected
    assert billed(continued(program, lines, range(len(lines)))) == expected


def test_replies_of_claude_code() -> None:
    found = calls("claude_code")
    assert [one.output for one in found] == [1, 40, 5, 5, 5, 5, 2]
    assert len({one.key for one in found}) == 5
    assert [one.tier for one in found] == ["", "", "", "fast", "", "priority", ""]
    assert [one.line for one in found if one.subagent] == [4]
    assert {(one.session, one.project) for one in found} == {("s", "/work")}
    assert {(one.written_5m, one.written_1h) for one in found} == {(100, 200)}


def test_advisors_and_compaction_of_claude_code_are_billed() -> None:
    """The usage of a reply includes only iterations that are messages."""
    message = {"type": "message", "input_tokens": 10, "output_tokens": 5}
    advisor = {"type": "advisor_message", "model": "claude-opus-4-6", "input_tokens": 1000}
    split = {"ephemeral_1h_input_tokens": 30}
    compaction = {"type": "compaction", "cache_creation_input_tokens": 50, "cache_creation": split}
    line = claude(1, "m1", usage={"iterations": [message, advisor, compaction]})
    data = msgspec.json.encode(line) + b"\n"
    reply, *others = (one for one in read("claude_code", [data]) if isinstance(one, CallBill))
    assert (reply.model, reply.read) == ("claude-sonnet-4-5", 2000)
    assert [(one.model, one.input, one.written_1h, one.output) for one in others] == [
        ("claude-opus-4-6", 1000, 0, 0),
        ("claude-sonnet-4-5", 50, 30, 0),
    ]
    assert len({one.key for one in (reply, *others)}) == 3
    assert [*read("claude_code", [data])] == [reply, *others]


def test_progress_of_a_subagent_repeats_its_reply() -> None:
    reply = claude(1, "m1")
    data = {"type": "agent_progress", "message": reply}
    progress = {"type": "progress", "sessionId": "main", "cwd": "/work", "data": data}
    first, again = read(
        "claude_code", [msgspec.json.encode(one) + b"\n" for one in (reply, progress)]
    )
    assert isinstance(first, CallBill)
    assert isinstance(again, CallBill)
    assert (again.key, again.input, again.output) == (first.key, first.input, first.output)
    assert (again.session, again.subagent) == ("main", True)


def test_models_of_codex_and_forks() -> None:
    assert [one.model for one in calls("codex")] == ["gpt-5.5", "gpt-5.5", "gpt-5.4", "gpt-5.4"]
    recorded = calls("codex, with records")
    assert [(one.read, one.written_30m, one.uncached) for one in recorded] == [(128, 256, 516)] * 2
    (forked,) = calls("codex, a fork")
    assert forked.copied
    assert forked.untimed


def test_service_tiers_of_codex() -> None:
    def settings(tier: str | None) -> dict[str, object]:
        applied = {"type": "thread_settings_applied", "thread_settings": {"service_tier": tier}}
        return {"timestamp": "2026-11-02T09:00:00.000Z", "type": "event_msg", "payload": applied}

    events = [settings("fast"), codex_count(1, 900, 1), settings(None), codex_count(2, 900, 2)]
    lines = [msgspec.json.encode(one) + b"\n" for one in events]
    found = [*continued("codex", lines, range(len(lines)))]
    assert [one.tier for one in found if isinstance(one, CallBill)] == ["fast", ""]


def test_projects_and_subagents() -> None:
    for name in ("codex", "copilot", "pi", "opencode"):
        assert {one.project for one in calls(name)} == {"/work"}, name
    assert [one.subagent for one in calls("copilot")] == [False, True, False, False]
    assert all(one.subagent for one in calls("opencode"))


@pytest.mark.parametrize("name", ["session-1.jsonl", "session-1.json", "s/subagent.jsonl"])
def test_project_of_gemini_cli_is_beside_its_chats(name: str, tmp_path: Path) -> None:
    file = tmp_path / "tmp" / "work" / "chats" / name
    file.parent.mkdir(parents=True)
    (tmp_path / "tmp" / "work" / ".project_root").write_text("/home/me/work\n")
    lines = lines_of("gemini_cli")[1]
    file.write_bytes(lines[0] + lines[-1] if name.endswith("l") else CHAT)
    (found,) = session_files((file,), {}, tmp_path, [])
    calls = [one for one in bills_in(found) if isinstance(one, CallBill)]
    assert [one.project for one in calls] == ["/home/me/work"] * 2


def test_sums_of_copilot_are_divided_among_the_replies() -> None:
    """Versions before 1.0.100 wrote no other counts."""
    usage = {"inputTokens": 1001, "outputTokens": 31, "cacheReadTokens": 500, "cacheWriteTokens": 0}
    metrics = {"gpt-5.4": {"requests": {"count": 2}, "usage": usage}}
    more = {name: 2 * tokens for name, tokens in usage.items()}
    later = {"gpt-5.4": {"requests": {"count": 3}, "usage": more}}
    reply = {"content": CANARY, "model": "gpt-5.4"}
    events = [
        event(0, "session.start", {"sessionId": "o"}),
        event(1, "assistant.message", {**reply, "messageId": "1"}),
        event(2, "assistant.message", {**reply, "messageId": "2"}),
        event(3, "session.shutdown", {"modelMetrics": metrics}),
        event(4, "assistant.message", {**reply, "messageId": "3", "outputTokens": 31}),
        event(5, "session.shutdown", {"modelMetrics": later}),
    ]
    lines = [msgspec.json.encode(one) + b"\n" for one in events]
    found = [one for one in read("copilot", lines) if isinstance(one, CallBill)]
    assert [(one.input, one.read, one.output) for one in found] == [
        (501, 250, 16),
        (500, 250, 15),
        (0, 0, 31),
        (1001, 500, 31),
    ]
    assert [one.partial for one in found] == [False, False, True, False]
    assert len({one.key for one in found}) == 3
    assert [found[3].key] == [*in_conversations("copilot", lines)]
    assert [*continued("copilot", lines, range(len(lines)))] == found


@pytest.mark.parametrize("name", SAMPLES)
def test_no_text_is_kept(name: str) -> None:
    program, lines = lines_of(name)
    reader = READERS[program]()
    found = [*bills(reader, lines, "file")]
    kept = msgspec.msgpack.encode([found, reader.known])
    assert CANARY.encode() not in kept


@given(st.sampled_from([*SAMPLES]), st.data())
def test_any_bytes_in_a_line_are_at_most_a_problem_of_that_line(
    name: str, data: st.DataObject
) -> None:
    program, lines = lines_of(name)
    index = data.draw(st.integers(0, len(lines) - 1))
    line = lines[index]
    begin, end = sorted(data.draw(st.lists(st.integers(0, len(line) - 1), min_size=2, max_size=2)))
    lines[index] = line[:begin] + data.draw(st.binary(max_size=8)).replace(b"\n", b"") + line[end:]
    problems = [one for one in read(program, lines) if isinstance(one, Problem)]
    assert {one.place for one in problems} <= {f"file:{index + 1}"}
    assert not [one for one in problems if CANARY in one.reason]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_line_with_a_bill_that_is_cut_off_is_named(name: str) -> None:
    program, lines = lines_of(name)
    with_bill = {one.line for one in calls(name)}
    for number in with_bill:
        line = lines[number - 1]
        for end in range(1, len(line) - 1, 7):
            cut = [*lines[: number - 1], line[:end], *lines[number:]]
            problems = [one.place for one in read(program, cut) if isinstance(one, Problem)]
            assert problems == [f"file:{number}"], line[:end]


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": -1},
        {"input_tokens": "9"},
        {"input_tokens": 10**30},
        {"output_tokens": True},
        [],
    ],
)
def test_impossible_counts_are_named(usage: object) -> None:
    line = msgspec.json.encode({"type": "assistant", "message": {"usage": usage}})
    (problem,) = read("claude_code", [b"\n", line + b"\n"])
    assert isinstance(problem, Problem)
    assert problem.place == "file:2"


def test_times_that_are_none_are_unknown() -> None:
    for stamp in (1e300, -5, "yesterday", None, ""):
        message = {"id": "m", "usage": {"input_tokens": 3}}
        fields = {"type": "assistant", "timestamp": stamp, "message": message}
        (call,) = read("claude_code", [msgspec.json.encode(fields) + b"\n"])
        assert isinstance(call, CallBill)
        assert call.at is None
