"""What holds on every wire alike: bad bytes, foreign fields, exact envelopes, moving context."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tables import each_row

from anaphora import cache, catalog, wire
from anaphora.cache.plan import plan_once
from anaphora.errors import AnaphoraError, InvalidRequest
from anaphora.prompt import Call, Continuation, Params, PromptBlock, PromptIR, Segment
from anaphora.rendered import Rendered
from anaphora.values import Conversation, Message, ReplyFail, SegmentRole, Tool, ToolCall

MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai_chat": "gpt-5.6",
    "openai_responses": "gpt-5.6",
    "gemini": "gemini-2.5-flash",
    "bedrock": "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
}
every_wire = each_row("name", sorted(MODELS))


def call(name: str, ir: PromptIR | None = None, **fields: Any) -> Call:
    params = fields.pop("params", Params(max_tokens=9))
    return Call(
        ir=ir or PromptIR.chat([Message.user("hi")]), model=MODELS[name], params=params, **fields
    )


def render(name: str, made: Call, previous: Rendered | None = None) -> Rendered:
    profile = catalog.profile(wire.PROVIDERS[name], made.model)
    return wire.get(name).render(made, profile, previous)


def body(name: str, **more: Any) -> bytes:
    if name == "gemini":
        return json.dumps({"contents": [{"role": "user", "parts": []}], **more}).encode()
    if name == "bedrock":
        content = [{"text": "x"}]
        return json.dumps({"messages": [{"role": "user", "content": content}], **more}).encode()
    encoded: dict[str, Any] = {"model": "m", "max_tokens": 5}
    encoded["input" if name == "openai_responses" else "messages"] = [
        {"role": "user", "content": "x"}
    ]
    return json.dumps({**encoded, **more}).encode()


@every_wire
def test_a_value_that_is_not_utf8_is_an_invalid_request(name: str) -> None:
    broken = body(name, unheard_of="@").replace(b"@", b"\xff")
    with pytest.raises(InvalidRequest, match="UTF-8"):
        wire.get(name).parse(broken)


@every_wire
def test_deeply_nested_json_is_rejected(name: str) -> None:
    deep, codec = "[" * 100_000 + "]" * 100_000, wire.get(name)
    request = body(name)[:-1] + b',"unheard_of":' + deep.encode() + b"}"
    for read in (codec.parse, codec.read_reply):
        with pytest.raises(AnaphoraError):
            read(request)
    assert isinstance(codec.read_error(400, {}, request), AnaphoraError)
    reader = codec.reader()
    events = reader.feed(b'data: {"type":"x","y":' + deep.encode() + b"}\n\n") + reader.close()
    assert isinstance(events[-1], ReplyFail)


def test_deeply_nested_arguments_are_sent_as_text() -> None:
    """The model wrote them; they must not kill the next turn."""
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    conversation = [Message.user("hi"), Message.assistant(ToolCall("c", "f", deep))]
    rendered = render("anthropic", call("anthropic", PromptIR.chat(conversation)))
    assert [notice.code for notice in rendered.notices] == ["arguments_not_an_object"]


@every_wire
def test_dynamic_context_behind_the_conversation_is_never_certified(name: str) -> None:
    """`dynamic_position="tail"` moves it there so that the history stays cacheable."""
    conversation = Conversation()
    previous: Rendered | None = None
    for turn in range(4):
        conversation = conversation.append(Message.user(f"question {turn}"))
        ir = PromptIR(
            system_blocks=(PromptBlock.cached_long("identity", "x"),),
            segments=(
                Segment(SegmentRole.CONVERSATION, conversation),
                Segment.of(SegmentRole.DYNAMIC_CONTEXT, Message.user("a summary")),
            ),
            dynamic_position="tail",
        )
        rendered = render(name, call(name, ir), previous)
        assert rendered.cacheable == len(rendered) - 1
        if previous is not None:
            assert cache.fingerprint(rendered).extends(cache.fingerprint(previous))
        plan = plan_once(
            rendered, catalog.rules(wire.PROVIDERS[name], MODELS[name]), reuse_expected=True
        )
        marked = {rendered.chunk(mark.chunk).role for mark in plan.marks}
        if rendered.markers:  # where there are none, the provider caches by itself
            assert SegmentRole.CONVERSATION in marked
        assert SegmentRole.DYNAMIC_CONTEXT not in marked
        previous = rendered
        conversation = conversation.append(Message.assistant(f"answer {turn}"))


@every_wire
def test_envelope_is_reused_only_for_equal_bytes(name: str) -> None:
    one, other = (
        call(name, params=Params(max_tokens=9, metadata=metadata, user="u"))
        for metadata in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})
    )
    warm = render(name, other, render(name, one))
    assert warm.envelope.tail == render(name, other).envelope.tail
    whole, floating = (
        call(name, params=Params(max_tokens=9, temperature=number)) for number in (1, 1.0)
    )
    warm = render(name, floating, render(name, whole))
    assert warm.envelope.tail == render(name, floating).envelope.tail


@every_wire
def test_foreign_fields_give_notices(name: str) -> None:
    extras = {"somewhere_else": '{"logit_bias":{},"top_a":1}'}
    made = call(name, tools=(Tool("f", extras={"somewhere_else": '{"x":1}'}),), extras=extras)
    reported = [str(n) for n in render(name, made).notices if n.code == "foreign_fields"]
    assert len(reported) == 2
    assert "logit_bias, top_a of somewhere_else" in reported[0]


@pytest.mark.parametrize("name", ["anthropic", "openai_chat", "gemini", "bedrock"])
def test_unsupported_continuation_gives_notice(name: str) -> None:
    requested = b'{"model":"gpt-5.6","input":"hi","previous_response_id":"r","max_output_tokens":9}'
    parsed = wire.get("openai_responses").parse(requested)
    assert parsed.ir.continuation == Continuation("r")
    made = Call(ir=parsed.ir, model=MODELS[name], params=parsed.params)
    assert "continuation_left_out" in [notice.code for notice in render(name, made).notices]


def test_a_part_that_begins_twice_is_a_failure() -> None:
    reader = wire.get("anthropic").reader()
    start = (
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}'
    )
    events = reader.feed(start + b"\n\n" + start + b"\n\n")
    assert isinstance(events[-1], ReplyFail)
    assert "begins twice" in events[-1].message


@each_row(
    "name, tier",
    [
        ("anthropic", "flex"),
        ("openai_chat", "standard_only"),
        ("openai_responses", "standard_only"),
        ("gemini", "standard_only"),
        ("bedrock", "standard_only"),
    ],
)
def test_law_6_a_tier_of_another_provider_does_not_leak(name: str, tier: str) -> None:
    rendered = render(name, call(name, params=Params(max_tokens=9, service_tier=tier)))
    assert tier.encode() not in rendered.envelope.tail
    assert [notice.path for notice in rendered.notices] == ["params.service_tier"]
