"""Request logs: field names of loggers, conversations, usage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.tables import each_row

from anaphora.analysis.trace.format import Trace
from anaphora.analysis.trace.log_lines import Problem, numbered
from anaphora.analysis.trace.predict import Predictor
from anaphora.traffic.log_traces import read
from anaphora.traffic.request_log import recognises

Json = dict[str, Any]

MARK = {"cache_control": {"type": "ephemeral"}}
SYSTEM = "Be careful. " * 2000


def anthropic(*texts: str, marked: bool = True) -> Json:
    blocks: list[Json] = [{"type": "text", "text": text} for text in texts]
    if marked:
        blocks[-1] |= MARK
    messages = [
        {"role": "user" if at % 2 == 0 else "assistant", "content": [block]}
        for at, block in enumerate(blocks)
    ]
    system = [{"type": "text", "text": SYSTEM}]
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "system": system,
        "messages": messages,
    }


def answered(read: int, written: int) -> Json:
    return {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "a"}],
        "stop_reason": "end_turn",
        "usage": {
            "input_tokens": 3,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "output_tokens": 9,
        },
    }


CHAT: Json = {"model": "gpt-4.1", "messages": [{"role": "user", "content": "hi " * 3000}]}
CHOICES: Json = {
    "id": "c",
    "object": "chat.completion",
    "model": "gpt-4.1",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}
    ],
    "usage": {
        "prompt_tokens": 3008,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 1024},
    },
}


def entries(*lines: Json) -> Iterator[Any]:
    return read(numbered((json.dumps(one).encode() for one in lines), "log"))


def traces(*lines: Json) -> list[Trace]:
    found = list(entries(*lines))
    assert not [one for one in found if isinstance(one, Problem)], found
    return [one.trace for one in found]


def test_continuing_request_joins_its_conversation() -> None:
    first, second = anthropic("q"), anthropic("q", "a", "r")
    (trace,) = traces(
        {"request": first, "response": answered(0, 6000), "time": 100},
        {"request": second, "response": answered(6000, 20), "time": 130},
    )
    assert [call.at for call in trace.calls] == [100, 130]
    assert [call.breakpoints for call in trace.calls] == [((1, "5m"),), ((3, "5m"),)]
    assert [call.outcome.read for call in Predictor().play([trace])] == [0, 6000]


def test_changed_prefix_starts_a_conversation() -> None:
    one, two = traces(
        {"request": anthropic("q"), "response": answered(0, 6000)},
        {"request": anthropic("other"), "response": answered(0, 6000)},
    )
    assert (len(one.calls), len(two.calls)) == (1, 1)
    assert one.group == two.group


def test_request_without_markers_has_no_breakpoints() -> None:
    lines = [{"request": anthropic("q", marked=False), "response": answered(0, 0)}] * 2
    (trace,) = traces(*lines)
    assert [call.breakpoints for call in trace.calls] == [(), ()]
    assert [call.outcome.read for call in Predictor().play([trace])] == [0, 0]


def test_explicit_mode_caches_at_breakpoints_only() -> None:
    first = {**CHAT, "model": "gpt-6.1-sol"}
    second = {**first, "messages": [*first["messages"], {"role": "user", "content": "r"}]}
    usage = {"prompt_tokens": 3008, "prompt_tokens_details": {"cached_tokens": 0}}
    for options, reads in (({}, True), ({"prompt_cache_options": {"mode": "explicit"}}, False)):
        (trace,) = traces(
            *[{"request": {**one, **options}, "response": {**CHOICES, "usage": usage}, "time": at}
              for at, one in enumerate((first, second))]
        )  # fmt: skip
        assert [bool(call.outcome.read) for call in Predictor().play([trace])] == [False, reads]


WAYS: list[Json] = [
    {"request": CHAT, "response": CHOICES},
    {"request_body": json.dumps(CHAT), "response_body": json.dumps(CHOICES)},
    {"req": {"url": "https://api.openai.com/v1/chat/completions", "body": CHAT}, "resp": {"body": CHOICES}},
    {"request": {"method": "POST", "postData": {"text": json.dumps(CHAT)}}, "response": {"content": {"text": json.dumps(CHOICES)}}},
    {"request": CHAT, "response": CHOICES, "wire": "openai_chat", "host": "api.openai.com"},
    {"request": CHAT, "response": CHOICES, "provider": "openai", "path": "/v1/chat/completions"},
]  # fmt: skip


@each_row("line", WAYS)
def test_field_names_of_loggers(line: Json) -> None:
    assert recognises(line)
    (trace,) = traces(line)
    usage = trace.calls[0].usage
    assert usage is not None
    assert (trace.provider, trace.model) == ("openai", "gpt-4.1")
    assert (usage.cache_read, usage.total) == (1024, 3008)


@each_row(
    "times, began, ended",
    [
        ({"timestamp": "2023-11-14T22:13:20Z"}, 1700000000, None),
        ({"start_time": 1700000000, "end_time": 1700000004}, 1700000000, 1700000004),
        ({"ts": 1700000000000, "duration_ms": 2500}, 1700000000, 1700000002.5),
        ({"t": 1700000000, "dur": 2}, 1700000000, 1700000002),
        ({}, None, None),
    ],
)
def test_time_fields_of_loggers(times: Json, began: float | None, ended: float | None) -> None:
    (trace,) = traces({"request": CHAT, "response": CHOICES, **times})
    assert (trace.calls[0].t, trace.calls[0].t_end) == (began, ended)


def test_streams_are_read() -> None:
    usage = {"input_tokens": 3, "cache_read_input_tokens": 50, "cache_creation_input_tokens": 7}
    message = {**answered(0, 0), "content": [], "usage": {**usage, "output_tokens": 1}}
    events: list[Json] = [
        {"type": "message_start", "message": message},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 5},
        },
        {"type": "message_stop"},
    ]
    stream = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
    (trace,) = traces({"request": anthropic("q"), "response": stream})
    counted = trace.calls[0].usage
    assert counted is not None
    assert (counted.cache_read, counted.written, counted.input, counted.output) == (50, 7, 3, 5)


def test_host_names_the_provider() -> None:
    request = {"model": "deepseek-v4-pro", "messages": CHAT["messages"]}
    counts = {
        "prompt_tokens": 300,
        "completion_tokens": 1,
        "prompt_cache_hit_tokens": 256,
        "prompt_cache_miss_tokens": 44,
    }
    line = {
        "request": request,
        "response": {**CHOICES, "usage": counts},
        "host": "api.deepseek.com",
    }
    (trace,) = traces(line)
    usage = trace.calls[0].usage
    assert usage is not None
    assert (trace.provider, usage.cache_read) == ("deepseek", 256)


def test_rules_depend_on_the_wire() -> None:
    """Qwen takes markers on chat completions, and its plain rules know none."""
    text = {"type": "text", "text": "hi " * 3000, **MARK}
    request = {"model": "qwen3-max", "messages": [{"role": "user", "content": [text]}]}
    line = {"request": request, "response": CHOICES, "provider": "alibaba"}
    (trace,) = traces(line)
    assert (trace.provider, trace.wire) == ("alibaba", "openai_chat")
    (call,) = Predictor().play([trace])
    assert call.outcome.written.keys() == {"5m"}


def test_tools_and_results_keep_their_roles() -> None:
    request = anthropic("q")
    request["tools"] = [{"name": "look", "input_schema": {"type": "object"}, **MARK}]
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "ok"}
    request["messages"] += [
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, use],
        },
        {"role": "user", "content": [result]},
    ]
    (trace,) = traces({"request": request, "response": answered(0, 6000)})
    assert [message.role for message in trace.messages] == [
        "system",
        "user",
        "assistant",
        "assistant",
        "tool",
    ]
    assert trace.calls[0].breakpoints == (("tools", 0, "5m"), (1, "5m"))
    assert trace.tools is not None


BAD: list[tuple[Json, str]] = [
    ({"request": CHAT}, "no response in it"),
    ({"request": CHAT, "response": CHOICES, "wire": "telex"}, "no wire 'telex'"),
    ({"request": {"prompt": "hi"}, "response": CHOICES}, "$.model: is missing"),
    ({"request": {"prompt": "hi"}, "response": {}}, "the wire of the request is unknown"),
    ({"request": CHAT, "response": {**CHOICES, "usage": None}}, "reports no usage"),
    ({"request": {**CHAT, "messages": 7}, "response": CHOICES}, ""),
    ({"request": CHAT, "response": "data: {\n\n"}, ""),
]


@each_row("line, reason", BAD)
def test_unreadable_lines_are_named(line: Json, reason: str) -> None:
    good = {"request": CHAT, "response": CHOICES}
    problem, source = entries(good, line)
    assert isinstance(problem, Problem)
    assert problem.place == "log:2"
    assert reason in problem.reason
    assert not problem.harmless
    assert len(source.trace.calls) == 1


def test_failed_calls_are_harmless() -> None:
    error = {"error": {"message": "slow down", "type": "rate_limit"}}
    (problem,) = entries({"request": CHAT, "response": error, "status": 429})
    assert (problem.reason, problem.harmless) == ("answered with 429: not billed", True)


@pytest.mark.parametrize(
    "request_, response, details, reasoning",
    [
        (CHAT, CHOICES, {"completion_tokens_details": {"reasoning_tokens": 0}}, 0),
        (CHAT, CHOICES, {"completion_tokens_details": {"reasoning_tokens": 1}}, 1),
        (CHAT, CHOICES, {}, None),
        (anthropic("q"), answered(0, 9), {"output_tokens_details": {"thinking_tokens": 4}}, 4),
    ],
)
def test_hidden_reasoning_is_read(
    request_: Json, response: Json, details: Json, reasoning: int | None
) -> None:
    line = {"request": request_, "response": {**response, "usage": response["usage"] | details}}
    (trace,) = traces(line)
    usage = trace.calls[0].usage
    assert usage is not None
    assert usage.reasoning == reasoning
