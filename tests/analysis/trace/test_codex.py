"""Session files of Codex: items, and a count behind each answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anaphora.analysis.trace import detect, read
from anaphora.analysis.trace.format import Trace
from anaphora.analysis.trace.log_lines import FoundTrace, Problem, numbered

META = {"type": "session_meta", "payload": {"id": "c", "model_provider": "openai"}}
TURN = {"type": "turn_context", "payload": {"model": "gpt-5.5", "effort": "high"}}


def item(second: int, type: str = "message", **payload: Any) -> dict[str, Any]:
    return {
        "timestamp": f"2026-11-02T09:00:{second:02}.000Z",
        "type": "response_item",
        "payload": {"type": type, **payload},
    }


def count(second: int, input: int, cached: int = 0, total: int = 0, **more: int) -> dict[str, Any]:
    last = {"input_tokens": input, "cached_input_tokens": cached, "output_tokens": 7, **more}
    info = {"last_token_usage": last, "total_token_usage": {"total_tokens": total or second}}
    return {
        "timestamp": f"2026-11-02T09:00:{second:02}.000Z",
        "type": "event_msg",
        "payload": {"type": "token_count", "info": info},
    }


ASKED = item(0, role="user", content=[{"type": "input_text", "text": "q"}])
CALL = item(4, "function_call", name="shell", arguments="{}", call_id="1")
OUTPUT = item(6, "function_call_output", call_id="1", output="ok")
ANSWER = item(9, role="assistant", content=[{"type": "output_text", "text": "a"}])
THOUGHT = item(3, "reasoning", summary=[], encrypted_content="xx")
LOOP = [META, TURN, ASKED, THOUGHT, CALL, count(5, 9000), OUTPUT, ANSWER, count(10, 9300, 8960)]


def entries(*lines: dict[str, Any] | bytes) -> list[FoundTrace | Problem]:
    data = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines]
    return list(read("codex", numbered(data, "r.jsonl")))


def traces(*lines: dict[str, Any]) -> list[Trace]:
    result = entries(*lines)
    assert not [one for one in result if isinstance(one, Problem)]
    return [one.trace for one in result if isinstance(one, FoundTrace)]


def test_a_call_sent_the_messages_before_its_reply() -> None:
    (trace,) = traces(*LOOP)
    first, second = trace.calls
    assert (first.messages, second.messages) == (1, 4)
    assert (trace.provider, trace.model, trace.id) == ("openai", "gpt-5.5", "c#0")
    assert [message.role for message in trace.messages] == [
        "user",
        "assistant",
        "assistant",
        "tool",
        "assistant",
    ]
    assert first.t is not None
    assert second.t is not None
    assert (second.t - first.t, (second.t_end or 0) - second.t) == (6.0, 4.0)


def test_input_includes_reads_and_writes() -> None:
    (trace,) = traces(META, TURN, ASKED, ANSWER, count(5, 9000, 8000, cache_write_input_tokens=600))
    usage = trace.calls[0].usage
    assert usage is not None
    assert (usage.input, usage.cache_read, usage.cache_write_30m) == (400, 8000, 600)
    assert usage.total == 9000


def test_a_repeated_count_is_one_call() -> None:
    again = count(10, 9300, 8960)
    (trace,) = traces(*LOOP, again, again)
    assert len(trace.calls) == 2


def test_zero_counts_are_not_calls() -> None:
    """As after a compaction, or with only the limits in it."""
    empty = {"type": "event_msg", "payload": {"type": "token_count", "info": None}}
    (trace,) = traces(*LOOP, count(20, 0), empty)
    assert len(trace.calls) == 2


def test_a_compaction_begins_another_conversation() -> None:
    history = [{"type": "message", "role": "user", "content": "what was said"}]
    compacted = {"type": "compacted", "payload": {"message": "", "replacement_history": history}}
    before, after = traces(*LOOP, compacted, item(30, role="user"), ANSWER, count(40, 2000))
    assert (len(before.calls), len(after.calls)) == (2, 1)
    assert after.calls[0].messages == 2
    assert after.group == before.group == "c"
    assert [call.began_by for call in after.calls] == ["compaction"]


def test_another_model_is_recorded_on_the_call() -> None:
    turn = {"type": "turn_context", "payload": {"model": "gpt-5.4"}}
    (trace,) = traces(*LOOP, turn, item(30, role="user"), ANSWER, count(40, 9900))
    assert [call.model for call in trace.calls] == [None, None, "gpt-5.4"]


def test_impossible_counts_are_reported() -> None:
    result = entries(META, TURN, ASKED, count(5, 100, 200), count(6, 100, -1), b"{", ANSWER)
    assert [str(one) for one in result] == [
        "r.jsonl:4: 200 read and 0 written of 100 input tokens",
        "r.jsonl:5: usage.cached_input_tokens is negative: -1",
        "r.jsonl:6: Input data was truncated",
        "r.jsonl: no token counts",
    ]


def test_its_lines_are_recognised() -> None:
    assert {detect(one) for one in LOOP} == {"codex"}


@pytest.mark.parametrize("more, reasoning", [({"reasoning_output_tokens": 5}, 5), ({}, None)])
def test_hidden_reasoning_is_read(more: dict[str, int], reasoning: int | None) -> None:
    (trace,) = traces(META, TURN, ASKED, ANSWER, count(10, 9300, 8960, **more))
    usage = trace.calls[0].usage
    assert usage is not None
    assert usage.usage().reasoning == reasoning


def record(second: int, id: str, **usage: int) -> dict[str, Any]:
    return {
        "timestamp": f"2026-11-02T09:00:{second:02}.000Z",
        "type": "token_usage_record",
        "payload": {"response_id": id, "usage": {"input_tokens": 9000, **usage}},
    }


def test_a_record_of_usage_is_the_bill_and_the_count_behind_it_is_not() -> None:
    (trace,) = traces(META, TURN, ASKED, ANSWER, record(9, "r1", output_tokens=7), count(10, 9000))
    (call,) = trace.calls
    assert call.usage is not None
    assert (call.usage.input, call.usage.output) == (9000, 7)


def test_a_record_without_a_count_is_billed() -> None:
    (trace,) = traces(
        META, TURN, ASKED, ANSWER, record(9, "r1"), item(20, role="user"), record(30, "r2")
    )
    assert [call.messages for call in trace.calls] == [1, 3]


def test_a_fork_without_the_lines_before_it_says_so() -> None:
    """Version 0.166 names the file that has them."""
    base = {"thread_id": "c", "end_ordinal_exclusive": 24}
    fork = {"id": "d", "forked_from_id": "c", "history_base": base}
    meta = {"type": "session_meta", "payload": fork}
    (trace,) = traces(
        meta, TURN, ASKED, ANSWER, record(9, "r1"), item(20, role="user"), record(30, "r2")
    )
    assert [call.began_by for call in trace.calls] == ["fork", None]


def test_a_call_ends_before_its_tools_run() -> None:
    """The count follows the results of tools."""
    slow = item(40, "function_call_output", call_id="1", output="ok")
    (trace,) = traces(META, TURN, ASKED, CALL, slow, count(41, 9000))
    (call,) = trace.calls
    assert call.t is not None
    assert call.t_end is not None
    assert call.t_end - call.t == 4.0
