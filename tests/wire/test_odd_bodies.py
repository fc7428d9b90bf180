"""Bodies of unusual shape that hosts and clients really send: what is read from them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from anaphora import catalog, errors, wire
from anaphora.rendered import Plan, Rendered
from anaphora.values import ReplyEnd, ReplyFail


def chat(message: Any = ..., stop: str = "stop", *, usage: Any = None) -> bytes:
    choice: dict[str, Any] = {"index": 0, "finish_reason": stop}
    if message is not ...:
        choice["message"] = message
    body = {"id": "c", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    return json.dumps(body).encode()


def test_filtered_choice_without_a_message_is_a_refusal() -> None:
    reply = wire.get("openai_chat").read_reply(
        chat(stop="content_filter", usage={"prompt_tokens": 12, "completion_tokens": 0})
    )
    assert (reply.message.parts, reply.stop_reason) == ((), "refusal")
    assert (reply.usage.input, reply.usage.output) == (12, 0)


def test_choice_without_a_message_is_malformed_otherwise() -> None:
    with pytest.raises(errors.Parse):
        wire.get("openai_chat").read_reply(chat(stop="stop"))


@pytest.mark.parametrize(
    ("usage", "read"),
    [
        ({"total_tokens": 632, "prompt_audio_seconds": 30}, (384, 248, None)),
        ({"total_tokens": 257, "prompt_audio_seconds": 30}, (9, 248, None)),
        ({"prompt_audio_seconds": 30}, (9, 248, None)),
        ({"total_tokens": 632}, (9, 623, 375)),  # reasoning that is in the sum alone
    ],
)
def test_tokens_of_audio_are_input(
    usage: dict[str, int], read: tuple[int, int, int | None]
) -> None:
    counts = {"prompt_tokens": 9, "completion_tokens": 248, **usage}
    body = chat({"content": "ok"}, usage=counts)
    codec = wire.get("openai_chat")
    reply = codec.read_reply(body)
    assert (reply.usage.input, reply.usage.output, reply.usage.reasoning) == read
    assert codec.read_reply(codec.write_reply(reply)).usage == reply.usage


def test_block_reason_of_gemini_may_be_a_number() -> None:
    body = b'{"promptFeedback":{"blockReason":4},"usageMetadata":{"promptTokenCount":4}}'
    reply = wire.get("gemini").read_reply(body)
    assert (reply.stop_reason, reply.stop_reason_raw) == ("refusal", "4")


def test_stream_of_gemini_may_end_with_a_number() -> None:
    chunk = {"candidates": [{"content": {"parts": [{"text": "ok"}]}, "finishReason": 2}]}
    reader = wire.get("gemini").reader()
    last = [*reader.feed(b"data: " + json.dumps(chunk).encode() + b"\n\n"), *reader.close()][-1]
    assert isinstance(last, ReplyEnd)
    assert (last.reply.stop_reason, last.reply.stop_reason_raw) == ("length", "2")


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("topK", "top_k"),
        ("maxOutputTokens", "max_tokens"),
        ("candidateCount", "n"),
        ("seed", "seed"),
    ],
)
def test_whole_numbers_of_gemini_may_be_floats(field: str, name: str) -> None:
    path = "/v1beta/models/gemini-2.5-pro:generateContent"
    for value, read in ((50.0, 50), (50, 50), (50.5, None)):
        body = {"contents": [{"parts": [{"text": "hi"}]}], "generationConfig": {field: value}}
        params = wire.get("gemini").parse(json.dumps(body).encode(), path).params
        found = getattr(params, name)
        assert found == read
        assert isinstance(found, int | None)


CHUNK = {
    "id": "c1",
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": None}],
}


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("line", "kind", "message", "status"),
    [
        ('{"code":500,"message":"no shift","type":"server_error"}', "Overloaded", "no shift", 500),
        (
            '{"code":400,"message":"no","type":"invalid_request_error"}',
            "RequestRejected",
            "no",
            400,
        ),
        ("out of memory", "Overloaded", "out of memory", None),
    ],
)
def test_error_line_ends_a_stream(
    line: str, kind: str, message: str, status: int | None, size: int
) -> None:
    data = f"data: {json.dumps(CHUNK)}\n\nerror: {line}\n\n".encode()
    for name in ("openai_chat", "llamacpp"):
        reader = wire.get(name).reader()
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        events = [event for piece in pieces for event in reader.feed(piece)] + reader.close()
        last = events[-1]
        assert isinstance(last, ReplyFail)
        assert (last.error, last.message, last.status) == (kind, message, status)
        assert last.partial is not None
        assert last.partial.message.text == "Hel"


NESTED = [
    (
        {"message": "Provider returned error", "metadata": {"raw": '{"error":{"message":"In"}}'}},
        "Provider returned error: In",
    ),
    ({"message": "Failed", "metadata": {"raw": '{"message":"In"}'}}, "Failed: In"),
    ({"message": "Failed", "metadata": {"raw": "plain text"}}, "Failed: plain text"),
    ({"message": "Failed", "metadata": {"raw": {"error": "In"}}}, "Failed: In"),
    ({"message": '{"error":{"message":"In"}}'}, '{"error":{"message":"In"}}'),
    ({"message": "In: that is all", "metadata": {"raw": '{"error":"In"}'}}, "In: that is all"),
    ({"message": "Failed", "metadata": {"raw": ""}}, "Failed"),
    ({"message": "Failed", "metadata": [1]}, "Failed"),
    ({"metadata": {"raw": '{"error":{"message":"In"}}'}}, "In"),
]


@pytest.mark.parametrize(("error", "message"), NESTED)
def test_message_holds_that_of_the_error_inside(error: Any, message: str) -> None:
    body = json.dumps({"error": error}).encode()
    assert str(wire.get("openai_chat").read_error(400, {}, body)) == message


def test_overflow_inside_an_error_is_recognised() -> None:
    raw = '{"error":{"message":"prompt is too long: 210000 tokens > 200000 maximum"}}'
    body = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}}
    error = wire.get("openrouter").read_error(400, {}, json.dumps(body).encode())
    assert type(error) is errors.ContextOverflow


# ── System messages of Chat on other wires ───────────────────────────────────────────────────────

MARKER = {"type": "ephemeral"}
MODELS = {"anthropic": "claude-sonnet-4-5", "gemini": "gemini-2.5-flash"}


def translated(origin: str, target: str, messages: list[Any]) -> tuple[Rendered, dict[str, Any]]:
    body = {"model": "m", "max_tokens": 50, "messages": messages}
    call = wire.get(origin).parse(json.dumps(body).encode())
    call = msgspec.structs.replace(call, model=MODELS[target])
    call = wire.host_marks(call, origin, target)
    profile = catalog.profile(wire.provider_of(target), MODELS[target])
    rendered = wire.get(target).render(call, profile)
    request = wire.get(target).assemble(rendered, Plan(marks=rendered.marks))
    return rendered, json.loads(request.body.join())


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize("origin", ["openai_chat", "openai", "openrouter"])
def test_system_message_with_a_name_is_the_system_prompt(origin: str) -> None:
    messages = [{"role": "system", "name": "rules", "content": "RULES"}, USER]
    rendered, body = translated(origin, "anthropic", messages)
    assert [block["text"] for block in body["system"]] == ["RULES"]
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert ["name" in notice.message for notice in rendered.notices] == [True]
    rendered, body = translated(origin, "gemini", messages)
    assert body["systemInstruction"]["parts"] == [{"text": "RULES"}]
    assert ["name" in notice.message for notice in rendered.notices] == [True]


def test_system_message_of_blanks_stays_a_message() -> None:
    call = wire.get("openai_chat").parse(
        json.dumps(
            {"model": "m", "messages": [{"role": "system", "name": "n", "content": " "}, USER]}
        ).encode()
    )
    assert call.ir.system_blocks == ()


@pytest.mark.parametrize("origin", ["openai_chat", "openrouter"])
@pytest.mark.parametrize("ttl", [{}, {"ttl": "5m"}, {"ttl": "1h"}])
def test_markers_of_messages_and_parts_are_kept(origin: str, ttl: dict[str, str]) -> None:
    marker = {**MARKER, **ttl}
    sent = MARKER if ttl.get("ttl") != "1h" else marker
    part = {"type": "text", "text": "RULES", "cache_control": marker}
    for system in (
        {"role": "system", "content": [part]},
        {"role": "system", "content": "RULES", "cache_control": marker},
        {"role": "system", "name": "n", "content": "RULES", "cache_control": marker},
    ):
        _, body = translated(origin, "anthropic", [system, USER])
        assert [block.get("cache_control") for block in body["system"]] == [sent]
        rendered, body = translated(origin, "gemini", [system, USER])
        assert body["systemInstruction"]["parts"] == [{"text": "RULES"}]
        assert "mark_left_out" in [notice.code for notice in rendered.notices]
    user = {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    _, body = translated(origin, "anthropic", [{**user, "cache_control": marker}])
    assert [part.get("cache_control") for part in body["messages"][0]["content"]] == [None, sent]


def test_marker_of_a_message_is_on_its_last_text() -> None:
    texts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    system = {"role": "system", "content": texts, "cache_control": MARKER}
    _, body = translated("openai_chat", "anthropic", [system, USER])
    assert [block.get("cache_control") for block in body["system"]] == [None, MARKER]


ROUTED = {"gateway": {"routing": {"finalProvider": "anthropic"}, "cost": "0.0001"}}


def test_facts_of_vercel_stay_in_the_message_of_the_reply_and_are_not_sent_back() -> None:
    codec, usage = wire.get("vercel"), {"prompt_tokens": 12, "completion_tokens": 1}
    message = {"role": "assistant", "content": "ok", "provider_metadata": ROUTED}
    body = json.loads(chat(message, usage={**usage, "total_tokens": 13}))
    reply = codec.read_reply(json.dumps(body).encode())
    written = json.loads(codec.write_reply(reply))
    assert written["choices"][0]["message"] == {**message, "refusal": None}
    assert {**written, "choices": []} == {**body, "object": "chat.completion", "choices": []}
    assert (len(reply.message.parts), reply.notices) == (1, ())


def test_facts_of_vercel_stay_in_the_delta_of_a_stream() -> None:
    codec = wire.get("vercel")
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas = ({"role": "assistant", "content": "ok"}, {"provider_metadata": ROUTED})
    chunks = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": stop}]}
        for delta, stop in zip(deltas, (None, "stop"), strict=True)
    ]
    data = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)
    reader, writer = codec.reader(), codec.writer()
    events = reader.feed(data + b"data: [DONE]\n\n")
    lines = b"".join(map(writer.write, events)).decode().splitlines()
    again = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert again[-1]["choices"][0]["delta"] == {"provider_metadata": ROUTED}
    assert isinstance(events[-1], ReplyEnd)
    assert len(events[-1].reply.message.parts) == 1
