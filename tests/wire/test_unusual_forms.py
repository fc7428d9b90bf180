"""Forms that hosts and clients use now and then, held against the wires as recorded ones are."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from support.roundtrip import RecordedExchange, RoundTripResult
from support.roundtrip.rules import check
from support.tables import each_row

from anaphora import wire
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.values import Opaque, ReplyEnd, Usage

REQUESTS: dict[str, Any] = {
    "openai_chat": {"model": "gpt-4.1", "messages": [{"role": "user", "content": "hi"}]},
    "openai_responses": {"model": "gpt-5.6", "input": "hi"},
    "anthropic": {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
    },
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
}
CHAT = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
MESSAGE = {"role": "assistant", "content": "hi"}


def choice(message: Any, stop: str | None = "stop", **more: Any) -> dict[str, Any]:
    choices = [{"index": 0, "message": {**MESSAGE, **message}, "finish_reason": stop}]
    return {"id": "c", "created": 1, "model": "m", "choices": choices, "usage": CHAT, **more}


ANSWERS: dict[str, Any] = {
    "openai_chat": choice({}),
    "openai_responses": {"id": "r", "object": "response", "model": "m", "output": []},
    "anthropic": {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 2},
    },
    "gemini": {"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 3}},
}


def exchanged(
    name: str, *, request: Any = None, response: Any = None, status: int = 200, host: str = ""
) -> RoundTripResult:
    return check(
        RecordedExchange(
            id=name,
            wire=name,
            status=status,
            host=host,
            path="/v1beta/models/gemini-3-pro:generateContent" if name == "gemini" else "",
            request=json.dumps(request or REQUESTS[name]),
            response=json.dumps(response or ANSWERS[name]),
        )
    )


SILENT: list[dict[str, Any]] = [
    {"role": "assistant"},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "assistant", "content": None, "refusal": "no"},
    {"role": "assistant", "content": "a", "refusal": "no"},
]
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("openai_chat", {"parallel_tool_calls": False}),
    ("openai_chat", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ("openai_chat", {"prompt_cache_options": {}}),
    *(
        ("openai_chat", {"messages": [*REQUESTS["openai_chat"]["messages"], encoded]})
        for encoded in SILENT
    ),
    ("openai_responses", {"text": {}, "reasoning": {}}),
    ("openai_responses", {"reasoning": {"effort": None}}),
    ("openai_responses", {"prompt_cache_options": {"prewarm": False}}),
    ("openai_responses", {"input": [{"id": "msg_1"}, {"role": "user", "content": "hi"}]}),
    ("openai_responses", {"input": [{"type": None, "role": "user", "content": "hi"}]}),
    ("anthropic", {"metadata": {}, "output_config": {}}),
]


@each_row("name, fields", ASKED)
def test_rare_request_forms_round_trip(name: str, fields: dict[str, Any]) -> None:
    outcome = exchanged(name, request={**REQUESTS[name], **fields})
    assert outcome.good, outcome


def test_blank_system_prompt_is_dropped() -> None:
    messages = [{"role": "system", "content": ""}, *REQUESTS["openai_chat"]["messages"]]
    outcome = exchanged("openai_chat", request={**REQUESTS["openai_chat"], "messages": messages})
    assert outcome.good, outcome


@pytest.mark.parametrize(
    "host, fields",
    [
        ("api.groq.com", {"frequency_penalty": 0.5, "metadata": {"a": "b"}, "store": False}),
        ("api.mistral.ai", {"user": "u", "service_tier": "auto"}),
        ("api.cerebras.ai", {"verbosity": "low"}),
    ],
)
def test_unsupported_field_is_sent_back_to_its_host(host: str, fields: dict[str, Any]) -> None:
    request = {**REQUESTS["openai_chat"], **fields, "presence_penalty": None}
    outcome = exchanged("openai_chat", request=request, host=host)
    assert outcome.good, outcome
    assert not [notice for notice in outcome.notices if notice.code == "param_left_out"]


@pytest.mark.parametrize(
    "host, fields",
    [
        ("openrouter.ai", {"reasoning_effort": "low"}),
        ("openrouter.ai", {"reasoning_effort": "low", "reasoning": {"exclude": True}}),
        ("api.mistral.ai", {"seed": 4}),
        ("api.z.ai", {"user": "u"}),
    ],
)
def test_openai_parameter_is_encoded_for_the_host(host: str, fields: dict[str, Any]) -> None:
    outcome = exchanged("openai_chat", request={**REQUESTS["openai_chat"], **fields}, host=host)
    assert outcome.good, outcome
    assert "a parameter in OpenAI's form is in the host's" in outcome.overlooked


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
ANSWERED: list[tuple[str, dict[str, Any]]] = [
    ("openai_chat", choice({}, usage=None)),
    ("openai_chat", choice({}, None)),
    ("openai_chat", choice({}, id=None)),
    ("openai_chat", choice({"content": [{"type": "text", "text": t} for t in "ab"]})),
    ("openai_chat", choice({"content": []})),
    ("openai_chat", {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}),
    ("openai_responses", {**ANSWERS["openai_responses"], "output": [CALL]}),
    ("openai_responses", {"id": "r", "object": "response.compaction", "output": []}),
    ("gemini", {"candidates": [{"finishReason": "STOP"}]}),
    ("gemini", {"candidates": [], "promptFeedback": {"blockReason": "SAFETY"}}),
    ("gemini", {"candidates": [{"avgLogprobs": 1}], "promptFeedback": {"blockReason": "SAFETY"}}),
    ("gemini", {"usageMetadata": {"promptTokenCount": 3}, "responseId": "r"}),
]


@each_row("name, body", ANSWERED)
def test_rare_reply_forms_round_trip(name: str, body: dict[str, Any]) -> None:
    outcome = exchanged(name, response=body)
    assert outcome.good, outcome


def test_real_losses_are_reported() -> None:
    lost = choice({"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]})
    assert exchanged("openai_chat", response=lost).lost.endswith("function.arguments")
    body = {**REQUESTS["openai_chat"], "messages": [{"role": "user", "content": []}] * 2}
    assert exchanged("openai_chat", request=body).unparsed


@pytest.mark.parametrize("name", ["openai_chat", "gemini"])
def test_unreported_counts_are_not_zero(name: str) -> None:
    codec = wire.get(name)
    body = {**ANSWERS[name], "usage": None, "usageMetadata": None}
    again = codec.write_reply(codec.read_reply(json.dumps(body).encode()))
    assert codec.read_reply(again).usage == Usage()


def test_empty_assistant_message_keeps_its_place() -> None:
    messages = [*REQUESTS["openai_chat"]["messages"], {"role": "assistant", "content": None}]
    body = json.dumps({**REQUESTS["openai_chat"], "messages": messages}).encode()
    silent = wire.get("openai_chat").parse(body).ir.segments[0].messages[-1]
    assert silent.parts == (Opaque("openai_chat", "message", '{"content":null}'),)


def test_rejection_by_both_is_agreement() -> None:
    refused = {**REQUESTS["openai_chat"], "model": "o3", "temperature": 0.5}
    both = exchanged("openai_chat", request=refused, status=400, response={"error": "no"})
    assert both.good
    assert both.overlooked == {"requests that the provider refused are refused here too": 1}
    assert exchanged("openai_chat", request=refused).unparsed


def test_error_with_status_200_is_read() -> None:
    reported = {"error": {"code": 400, "message": "no"}}
    assert exchanged("openai_chat", response=reported, host="openrouter.ai").good


# ── Bytes that no client should send ────────────────────────────────────────────────────────────────

#: More digits than Python reads.
ENDLESS = "9" * 5000


@each_row("name", sorted(wire.names()))
def test_huge_number_is_kept_or_rejected(name: str) -> None:
    codec = wire.get(name)
    request = REQUESTS.get(wire.dialect_of(name).wire if name not in wire.WIRES else name)
    for field in ("max_tokens", "thinking", "reasoning", "seed", "random_seed"):
        body = json.dumps({**(request or REQUESTS["openai_chat"]), field: "@"})
        for encoded in (ENDLESS, f'{{"type":{ENDLESS}}}'):
            with contextlib.suppress(AnaphoraError):
                codec.parse(body.replace('"@"', encoded).encode())


def test_invalid_base64_names_its_path() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "ü"}
    content = [{"type": "image", "source": source}]
    body = {**REQUESTS["anthropic"], "messages": [{"role": "user", "content": content}]}
    with pytest.raises(InvalidRequest, match=r"content\[0\].source.data: not base64"):
        wire.get("anthropic").parse(json.dumps(body).encode())


# ── What a stream of Anthropic's tells late ──────────────────────────────────────────────────────


def events(*reported: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in reported)


def test_compaction_summary_and_final_fields_are_read() -> None:
    late = {"container": {"id": "c"}, "stop_details": {"type": "refusal"}}
    edits = {"applied_edits": [1]}
    block: dict[str, Any] = {"type": "compaction", "content": None}
    more = [
        {"type": "compaction_delta", "content": "so "},
        {"type": "compaction_delta", "content": "far", "encrypted_content": "E"},
        {"type": "signature_delta", "signature": "S"},
    ]
    body = events(
        {"type": "message_start", "message": ANSWERS["anthropic"]},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in more),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "compaction", "stop_sequence": None, **late},
            "usage": {"output_tokens": 4},
            "context_management": edits,
        },
        {"type": "message_stop"},
    )
    codec = wire.get("anthropic")
    reader, again, writer = codec.reader(), codec.reader(), codec.writer()
    reported = reader.feed(body) + reader.close()
    assert isinstance(reported[-1], ReplyEnd)
    reply = reported[-1].reply
    (part,) = reply.message.parts
    assert isinstance(part, Opaque)
    assert json.loads(part.json) == {
        "type": "compaction",
        "content": "so far",
        "encrypted_content": "E",
        "signature": "S",
    }
    assert reply.extras is not None
    assert json.loads(reply.extras["anthropic"]) == {**late, "context_management": edits}
    second = again.feed(b"".join(writer.write(event) for event in reported)) + again.close()
    assert isinstance(second[-1], ReplyEnd)
    assert second[-1].reply == reply
