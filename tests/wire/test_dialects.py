"""Dialects: what a row changes about a wire, in both directions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tables import each_row

from anaphora import catalog, errors, wire
from anaphora.catalog import Dialect
from anaphora.catalog.dialect_rows import decode_dialects
from anaphora.errors import InvalidCatalog, InvalidRequest, Upstream
from anaphora.prompt import (
    Call,
    Params,
    PartMark,
    PromptBlock,
    PromptCachePlan,
    PromptIR,
    Reasoning,
    ToolChoice,
)
from anaphora.rendered import Plan, Rendered
from anaphora.values import (
    Event,
    Message,
    Reply,
    ReplyEnd,
    ReplyFail,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
)
from anaphora.wire.cutting import cut

HEAD = """
[[dialect]]
provider = "openai"
wire = "openai_chat"
source = "this test"
date = 2026-11-15
base_url = "https://api.example.com"
"""


def row(text: str = "", wire_name: str = "openai_chat") -> Dialect:
    return decode_dialects(HEAD.replace("openai_chat", wire_name) + text).rows[0]


def codec_of_dialect(text: str = "", wire_name: str = "openai_chat") -> wire.Wire:
    return wire.codec_for(row(text, wire_name))


def call(**fields: Any) -> Call:
    cache = fields.pop("cache", PromptCachePlan())
    messages = fields.pop("messages", [Message.user("hi")])
    system = fields.pop("system", ())
    ir = PromptIR.chat(messages, cache=cache, system=system)
    fields.setdefault("model", "gpt-4.1")
    return Call(ir=ir, **fields)


def render(codec: wire.Wire, made: Call, previous: Rendered | None = None) -> Rendered:
    return codec.render(made, catalog.profile("openai", made.model), previous)


def sent(codec: wire.Wire, rendered: Rendered) -> Any:
    plan = Plan(marks=rendered.marks, automatic=rendered.automatic)
    return json.loads(codec.assemble(rendered, plan).body.join())


def body(codec: wire.Wire, made: Call) -> Any:
    return sent(codec, render(codec, made))


# ── Parameters ───────────────────────────────────────────────────────────────────────────────────

WORDS: list[tuple[str, Params, dict[str, Any]]] = [
    ('seed = "random_seed"', Params(seed=7), {"random_seed": 7}),
    ('top_k = "top_k"', Params(top_k=4), {"top_k": 4}),
    (
        'tool_choice = { at = "tool_choice", values = { required = "any" } }',
        Params(tool_choice=ToolChoice("required")),
        {"tool_choice": "any"},
    ),
    (
        '"reasoning.mode" = { at = "thinking.type", values = { adaptive = "auto" } }',
        Params(reasoning=Reasoning("adaptive")),
        {"thinking": {"type": "auto"}},
    ),
    (
        '"reasoning.mode" = { at = "enable_thinking", values = { enabled = true, disabled = false } }',
        Params(reasoning=Reasoning("disabled")),
        {"enable_thinking": False},
    ),
    (
        '"reasoning.effort" = "reasoning.effort"\n"reasoning.budget_tokens" = "reasoning.max_tokens"',
        Params(reasoning=Reasoning(effort="low", budget_tokens=2048)),
        {"reasoning": {"effort": "low", "max_tokens": 2048}},
    ),
    ('stop = "stop_sequences"', Params(stop=("END",)), {"stop_sequences": ["END"]}),
    ('user = "end_user.id"', Params(user="u"), {"end_user": {"id": "u"}}),
]


@each_row("text, params, fields", WORDS, ids=[row[0][:30] for row in WORDS])
def test_parameter_in_dialect_field_round_trips(
    text: str, params: Params, fields: dict[str, Any]
) -> None:
    codec = codec_of_dialect("[dialect.fields]\n" + text)
    encoded = body(codec, call(params=params))
    assert {name: encoded[name] for name in encoded if name not in ("model", "messages")} == fields
    received = codec.parse(json.dumps(encoded).encode())
    assert received.params == params
    assert received.extras is None


def test_unsupported_parameter_gives_notice_and_is_not_sent() -> None:
    codec = codec_of_dialect('[dialect.fields]\nuser = false\n"cache.key" = false')
    made = call(params=Params(user="u"), cache=PromptCachePlan(key="k"))
    rendered = render(codec, made)
    assert set(sent(codec, rendered)) == {"model", "messages"}
    assert [(n.code, n.path) for n in rendered.notices] == [
        ("param_left_out", "params.user"),
        ("cache_option_left_out", "cache.key"),
    ]


def test_unknown_value_is_kept_as_sent() -> None:
    codec = codec_of_dialect('[dialect.fields]\n"reasoning.mode" = "thinking.type"')
    requested = {
        "model": "gpt-4.1",
        "messages": [{"role": "user", "content": "x"}],
        "thinking": {"type": "wild", "more": 1.50},
    }
    received = codec.parse(json.dumps(requested).encode())
    assert received.params.reasoning is None
    assert body(codec, received) == requested


def test_fields_beside_known_value_round_trip() -> None:
    codec = codec_of_dialect('[dialect.fields]\n"reasoning.mode" = "thinking.type"')
    requested = {"thinking": {"type": "enabled", "clear": False}, "other": [1]}
    message = {"role": "user", "content": "x"}
    whole = {"model": "gpt-4.1", "messages": [message], **requested}
    received = codec.parse(json.dumps(whole).encode())
    assert received.params.reasoning == Reasoning("enabled")
    assert body(codec, received) == whole


def test_field_set_twice_is_an_error() -> None:
    codec = codec_of_dialect('[dialect.fields]\n"reasoning.mode" = "thinking.type"')
    twice = call(
        params=Params(reasoning=Reasoning("enabled")),
        extras={"openai_chat": '{"thinking":{"type":"disabled"}}'},
    )
    with pytest.raises(InvalidRequest, match=r"extras\.openai_chat\.thinking\.type"):
        render(codec, twice)


def test_a_header_follows_the_call_even_when_the_envelope_stays() -> None:
    codec = codec_of_dialect('[dialect.fields]\n"cache.key" = { header = "x-conversation" }')
    first = render(codec, call(cache=PromptCachePlan(key="one")))
    second = render(codec, call(cache=PromptCachePlan(key="two")), first)
    third = render(codec, call(cache=PromptCachePlan()), second)
    headers = [dict(made.envelope.headers).get("x-conversation") for made in (first, second, third)]
    assert headers == ["one", "two", None]
    cache_params = [
        dict(made.envelope.cache_params).get("cache_key") for made in (first, second, third)
    ]
    assert cache_params == [b'"one"', b'"two"', None]


def test_cache_params_have_rule_names_in_every_dialect() -> None:
    codec = codec_of_dialect('[dialect.fields]\n"reasoning.mode" = "thinking.type"')
    rendered = render(codec, call(params=Params(reasoning=Reasoning("enabled"))))
    assert dict(rendered.envelope.cache_params)["thinking"] == b'"enabled"'


def test_dialect_drops_unsupported_fields() -> None:
    codec = codec_of_dialect('omitted = ["stream_options"]')
    encoded = body(codec, call(params=Params(stream=True)))
    assert encoded["stream"] is True
    assert "stream_options" not in encoded


def test_path_and_headers_come_from_the_row() -> None:
    codec = codec_of_dialect('path = "/openai/v1/chat/completions"\nheaders = { x-title = "t" }')
    rendered = render(codec, call())
    request = codec.assemble(rendered, Plan())
    assert request.path == "/openai/v1/chat/completions"
    assert ("x-title", "t") in request.headers
    again = render(codec, call(), rendered)
    assert (again.envelope.path, again.envelope.headers) == (request.path, request.headers)


def test_the_next_turn_renders_only_what_is_new() -> None:
    codec = codec_of_dialect('[dialect.fields]\n"reasoning.mode" = "thinking.type"')
    conversation = PromptIR.chat([Message.user("a")]).segments[0].messages
    params = Params(reasoning=Reasoning("enabled"))
    one = Call(ir=PromptIR.chat(conversation), model="gpt-4.1", params=params)
    first = render(codec, one)
    longer = conversation.append(Message.assistant("b")).append(Message.user("c"))
    two = Call(ir=PromptIR.chat(longer), model="gpt-4.1", params=params)
    second = render(codec, two, first)
    assert second.runs[0].log is first.runs[0].log
    assert second.data().startswith(first.cacheable_data())
    assert sent(codec, second) == body(codec, two)


# ── Markers ──────────────────────────────────────────────────────────────────────────────────────

EPHEMERAL = "[dialect.markers.5m.cache_control]\ntype = 'ephemeral'\n"


def test_provider_marker_round_trips() -> None:
    codec = codec_of_dialect(EPHEMERAL)
    plan = PromptCachePlan(marks=(PartMark("m1", (0,)),))
    conversation = [Message.user("a", id="m0"), Message.user("b", id="m1")]
    block = PromptBlock("s", "Be terse.")
    made = call(messages=conversation, cache=plan, system=(block,))
    rendered = render(codec, made)
    assert rendered.notices == ()
    encoded = sent(codec, rendered)
    assert encoded["messages"][2]["content"][0]["cache_control"] == {"type": "ephemeral"}
    received = codec.parse(json.dumps(encoded).encode())
    assert received.ir.cache.marks == (PartMark("m1", (0,)),)
    assert sent(codec, render(codec, received)) == encoded
    chunks = cut(codec, json.dumps(encoded).encode())
    assert [mark.ttl for mark in chunks.marks] == ["5m"]
    assert b"cache_control" not in chunks.data()


def test_unsupported_ttl_becomes_longest_with_notice() -> None:
    codec = codec_of_dialect(EPHEMERAL)
    plan = PromptCachePlan(marks=(PartMark("m0", (0,), "1h"),))
    rendered = render(codec, call(messages=[Message.user("a", id="m0")], cache=plan))
    assert [mark.ttl for mark in rendered.marks] == ["5m"]
    assert [notice.code for notice in rendered.notices] == ["ttl_changed"]


def test_marker_in_other_form_is_kept() -> None:
    codec = codec_of_dialect(EPHEMERAL)
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "9m"}}
    requested = {"model": "gpt-4.1", "messages": [{"role": "user", "content": [part]}]}
    received = codec.parse(json.dumps(requested).encode())
    assert received.ir.cache.marks == ()
    assert body(codec, received) == requested


@pytest.mark.parametrize("name, model", [("openai_chat", "gpt-5.6"), ("anthropic", "m")])
def test_mark_without_marker_support_gives_notice(name: str, model: str) -> None:
    codec = codec_of_dialect("markers = {}", name)
    plan = PromptCachePlan(marks=(PartMark("m0", (0,)),), automatic="5m")
    made = call(
        messages=[Message.user("a", id="m0")], cache=plan, model=model, params=Params(max_tokens=5)
    )
    rendered = codec.render(made, catalog.profile("openai", model))
    assert "mark_left_out" in [notice.code for notice in rendered.notices]
    assert "cache" not in json.dumps(sent(codec, rendered))


# ── Reasoning that has to come back ──────────────────────────────────────────────────────────────

TOOLS = (Tool("look"),)


def loop(*encoded: Any) -> list[Message]:
    return [
        Message.user("a"),
        Message.assistant(*encoded, ToolCall("c", "look", "{}")),
        Message(role="tool", parts=(ToolResult("c", "r"),)),
    ]


def test_deepseek_gets_its_reasoning_back_in_tool_loops() -> None:
    """CASES and PROVIDERS: a call without its reasoning_content is refused."""
    codec = wire.get("deepseek")
    answer = {
        "id": "r",
        "model": "deepseek-chat",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": "",
                    "reasoning_content": "I should look.",
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "function": {"name": "look", "arguments": "{}"},
                        }
                    ],
                },
            }
        ],
    }
    reply = codec.read_reply(json.dumps(answer).encode())
    conversation = [
        Message.user("a"),
        reply.message,
        Message(role="tool", parts=(ToolResult("c", "r"),)),
    ]
    made = call(messages=conversation, tools=TOOLS, model="deepseek-chat")
    rendered = codec.render(made, catalog.profile("deepseek", made.model))
    assert sent(codec, rendered)["messages"][1]["reasoning_content"] == "I should look."
    assert rendered.notices == ()


def test_missing_required_reasoning_is_sent_empty_with_notice() -> None:
    """A fallback in the middle of a tool loop: the calls were made by another model."""
    codec = wire.get("deepseek")
    made = call(messages=loop(Text("ok")), tools=TOOLS, model="deepseek-chat")
    rendered = codec.render(made, catalog.profile("deepseek", made.model))
    assert sent(codec, rendered)["messages"][1]["reasoning_content"] == ""
    assert [notice.code for notice in rendered.notices] == ["reasoning_missing"]


# ── Counts and reasons to stop ───────────────────────────────────────────────────────────────────

COUNTS = """
stops = { tired = "length" }
[dialect.usage]
read = ["cache.hits"]
uncached = ["cache.misses"]
written = ["cache.stored"]
written_ttl = "1h"
"""


def answer(**more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "hello"}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return (
        {"id": "r", "object": "chat.completion", "created": 1, "model": "m"}
        | {"choices": [choice]}
        | more
    )


def test_counts_in_dialect_fields_round_trip() -> None:
    codec = codec_of_dialect(COUNTS)
    reported = {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "total_tokens": 12,
        "cache": {"hits": 6, "stored": 3},
    }
    usage = codec.read_reply(json.dumps(answer(usage=reported)).encode()).usage
    assert (usage.uncached, usage.read, usage.written) == (1, 6, {"1h": 3})
    reply = Reply(
        id="r",
        model="m",
        message=Message(role="assistant", parts=(Text("hello"),)),
        stop_reason="end",
        usage=Usage(uncached=1, read=6, written={"1h": 3}, output=2),
    )
    written = json.loads(codec.write_reply(reply))["usage"]
    assert written["cache"] == {"hits": 6, "misses": 1, "stored": 3}
    again = codec.read_reply(codec.write_reply(reply)).usage
    assert (again.uncached, again.read, again.written_total) == (1, 6, 3)


def test_dialect_stop_reason_is_mapped() -> None:
    made = answer()
    made["choices"][0]["finish_reason"] = "tired"
    reply = codec_of_dialect(COUNTS).read_reply(json.dumps(made).encode())
    assert (reply.stop_reason, reply.stop_reason_raw) == ("length", "tired")


def events(codec: wire.Wire, data: bytes, size: int = 7) -> list[Event]:
    reader = codec.reader()
    found = []
    for at in range(0, len(data), size):
        found += reader.feed(data[at : at + size])
    return [*found, *reader.close()]


def test_stream_is_decoded_like_reply() -> None:
    codec = codec_of_dialect(COUNTS)
    chunk = {"id": "r", "model": "m", "choices": [{"index": 0, "delta": {"content": "hello"}}]}
    last: dict[str, Any] = {"id": "r", "model": "m"}
    last["choices"] = [{"index": 0, "delta": {}, "finish_reason": "tired"}]
    last["usage"] = {"prompt_tokens": 10, "completion_tokens": 2, "cache": {"hits": 6}}
    data = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in (chunk, last))
    end = events(codec, data + b"data: [DONE]\n\n")[-1]
    assert isinstance(end, ReplyEnd)
    assert (end.reply.stop_reason, end.reply.usage.read, end.reply.usage.uncached) == (
        "length",
        6,
        4,
    )
    writer = codec.writer()
    written = b"".join(writer.write(event) for event in events(codec, data + b"data: [DONE]\n\n"))
    assert b'"hits":6' in written
    again = events(codec, written)[-1]
    assert isinstance(again, ReplyEnd)
    assert again.reply.usage.read == 6


# ── Errors with a good status ────────────────────────────────────────────────────────────────────

ENVELOPE = """
[dialect.errors]
at = "base_resp"
code = "status_code"
message = "status_msg"
fine = ["0"]
status = 200
kinds = { 1002 = "rate_limit", 1004 = "auth", 1008 = "quota" }
"""


def enveloped(code: int, message: str) -> bytes:
    reported = {"status_code": code, "status_msg": message}
    return json.dumps({"id": "r", "choices": None, "base_resp": reported}).encode()


@pytest.mark.parametrize(
    "code, kind",
    [
        (1002, errors.RateLimited),
        (1004, errors.Unauthenticated),
        (1008, errors.QuotaExhausted),
        (4711, errors.Overloaded),
    ],
)
def test_error_in_reply_with_status_200(code: int, kind: type[Upstream]) -> None:
    codec = codec_of_dialect(ENVELOPE)
    with pytest.raises(kind) as raised:
        codec.read_reply(enveloped(code, "no"))
    assert (raised.value.code, str(raised.value)) == (str(code), "no")
    end = events(codec, enveloped(code, "no"))[-1]
    assert isinstance(end, ReplyFail)
    assert (end.error, end.code) == (kind.__name__, str(code))


def test_success_code_is_no_error() -> None:
    codec = codec_of_dialect(ENVELOPE)
    made = answer(base_resp={"status_code": 0, "status_msg": ""})
    assert codec.read_reply(json.dumps(made).encode()).text == "hello"


def test_whole_reply_instead_of_stream() -> None:
    end = events(codec_of_dialect(ENVELOPE), json.dumps(answer()).encode())[-1]
    assert isinstance(end, ReplyEnd)
    assert end.reply.text == "hello"


def test_error_in_the_middle_of_a_stream() -> None:
    codec = codec_of_dialect(ENVELOPE)
    chunk = {"id": "r", "model": "m", "choices": [{"index": 0, "delta": {"content": "hel"}}]}
    last: dict[str, Any] = {"id": "r", "model": "m"}
    last["choices"] = [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    last["base_resp"] = {"status_code": 1002, "status_msg": "slow down"}
    data = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in (chunk, last))
    end = events(codec, data + b"data: [DONE]\n\n")[-1]
    assert isinstance(end, ReplyFail)
    assert end.error == "RateLimited"
    assert end.partial is not None
    assert end.partial.text == "hel"


def test_an_error_is_written_the_way_it_is_read() -> None:
    codec = codec_of_dialect(ENVELOPE)
    status, _, data = codec.write_error(errors.RateLimited("slow", status=429))
    assert (status, json.loads(data)) == (
        200,
        {"base_resp": {"status_code": 1002, "status_msg": "slow"}},
    )
    with pytest.raises(errors.RateLimited):
        codec.read_reply(data)


def test_provider_codes_in_standard_error_field() -> None:
    codec = codec_of_dialect('[dialect.errors]\nkinds = { 1113 = "quota" }')
    reported = {"error": {"code": "1113", "message": "no balance"}}
    error = codec.read_error(429, {"x-request-id": "q"}, json.dumps(reported).encode())
    assert type(error) is errors.QuotaExhausted
    assert (error.status, error.code, error.request_id) == (429, "1113", "q")
    other = {"error": {"code": "rate_limit_exceeded", "message": "slow"}}
    error = codec.read_error(429, {"retry-after": "3"}, json.dumps(other).encode())
    assert type(error) is errors.RateLimited
    assert error.retry_after == 3


# ── Names ────────────────────────────────────────────────────────────────────────────────────────


def test_names_resolve_to_wires_and_dialects() -> None:
    assert wire.get("openai_chat") is not None
    assert repr(wire.get("deepseek")) == "<openai_chat of deepseek>"
    assert repr(wire.get("deepseek/anthropic")) == "<anthropic of deepseek>"
    assert wire.provider_of("deepseek/anthropic") == "deepseek"
    assert wire.provider_of("openai_chat") == "openai"


@pytest.mark.parametrize(
    "name, reported",
    [("nobody", "neither a wire"), ("deepseek/gemini", "does not support 'gemini'")],
)
def test_unknown_name_error_lists_known_names(name: str, reported: str) -> None:
    with pytest.raises(InvalidRequest, match=reported):
        wire.get(name)


def test_row_for_unknown_wire_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="no wire 'telegraph'"):
        codec_of_dialect("", "telegraph")


def test_a_place_is_a_field_or_a_header() -> None:
    with pytest.raises(InvalidCatalog, match="either `at` or `header`"):
        row("[dialect.fields]\nuser = { values = { a = 1 } }")


def test_codes_that_are_texts_stay_texts() -> None:
    codec = codec_of_dialect('[dialect.errors]\ntexts = true\nkinds = { 1113 = "quota" }')
    _, _, data = codec.write_error(errors.QuotaExhausted("no balance", status=429))
    assert json.loads(data)["error"]["code"] == "1113"


def test_an_error_in_a_list_of_one_is_read() -> None:
    reported = [{"error": {"code": 429, "message": "slow", "status": "RESOURCE_EXHAUSTED"}}]
    error = wire.get("google/openai_chat").read_error(429, {}, json.dumps(reported).encode())
    assert type(error) is errors.RateLimited
    assert str(error) == "slow"


def test_router_cache_writes_have_no_openai_ttl() -> None:
    reported = {
        "prompt_tokens": 10,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 5},
    }
    usage = wire.get("openrouter").read_reply(json.dumps(answer(usage=reported)).encode()).usage
    assert (usage.uncached, usage.read, usage.written) == (3, 2, {"unsplit": 5})
