"""Recorded answers of the real service, read without loss.

The recordings live beside the repository (see their README) and are never copied into it. They were
re-serialised with sorted keys, so they prove meaning, not bytes.
"""

from __future__ import annotations

import json
from typing import Any

from support.exchanges import Exchanges, Json

from anaphora import catalog
from anaphora.prompt import Call, Params, PromptIR
from anaphora.rendered import Plan
from anaphora.values import Message, Opaque, Text, Thinking, ToolCall, from_json, to_json
from anaphora.wire import anthropic

STOPS = {
    "end_turn": "end",
    "max_tokens": "length",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_calls",
    "pause_turn": "pause",
    "refusal": "refusal",
    "model_context_window_exceeded": "context_overflow",
}


every = Exchanges("anthropic")


def named(part: Any) -> dict[str, Any]:
    """The block that a part stands for, in Anthropic's words, from the part's fields alone."""
    block: dict[str, Any]
    match part:
        case Text():
            block = {"type": "text", "text": part.text}
        case ToolCall():
            block = {
                "type": "tool_use",
                "id": part.id,
                "name": part.name,
                "input": json.loads(part.arguments),
            }
        case Thinking(data=None):
            block = {"type": "thinking", "thinking": part.text, "signature": part.signature}
        case Thinking():
            block = {"type": "redacted_thinking", "data": part.data}
        case Opaque():
            block = json.loads(part.json)
            assert block["type"] == part.kind
        case _:
            raise AssertionError(f"no answer of Anthropic's holds a {type(part).__name__}")
    extras = getattr(part, "extras", None) or {}
    block.update(json.loads(extras.get("anthropic", "{}")))
    return block


@every.reply
def test_every_block_is_read(record: Json) -> None:
    body = record["response"].encode()
    reported, reply = json.loads(body), anthropic.read_reply(body)
    assert [named(part) for part in reply.message.parts] == reported["content"]
    known = {
        "text": Text,
        "tool_use": ToolCall,
        "thinking": Thinking,
        "redacted_thinking": Thinking,
    }
    for part, block in zip(reply.message.parts, reported["content"], strict=True):
        assert isinstance(part, known.get(block["type"], Opaque))


@every.reply
def test_reply_fields_are_read(record: Json) -> None:
    body = record["response"].encode()
    reported, reply = json.loads(body), anthropic.read_reply(body)
    assert (reply.id, reply.model, reply.message.role) == (
        reported["id"],
        reported["model"],
        "assistant",
    )
    assert reply.stop_reason == STOPS[reported["stop_reason"]]
    assert (reply.stop_reason_raw, reply.stop_sequence) == (
        reported["stop_reason"],
        reported["stop_sequence"],
    )
    rest = json.loads((reply.extras or {}).get("anthropic", "{}"))
    named_here = "id type role model content stop_reason stop_sequence usage".split()
    assert rest == {key: value for key, value in reported.items() if key not in named_here}


@every.reply
def test_usage_is_read_exactly(record: Json) -> None:
    body = record["response"].encode()
    reported, usage = json.loads(body)["usage"], anthropic.read_reply(body).usage
    assert usage.uncached == reported["input_tokens"]
    assert usage.read == reported["cache_read_input_tokens"]
    assert usage.written_total == reported["cache_creation_input_tokens"]
    assert usage.output == reported["output_tokens"]
    split = reported["cache_creation"] or {}
    for ttl in ("5m", "1h"):
        assert (usage.written or {}).get(ttl, 0) == split.get(f"ephemeral_{ttl}_input_tokens", 0)
    details = reported.get("output_tokens_details") or {}
    assert usage.reasoning == details.get("thinking_tokens")
    assert usage.raw is not None
    assert json.loads(usage.raw) == reported


@every.reply
def test_reply_round_trips_as_history(record: Json) -> None:
    """Law 9: replayed, live or from storage, it is the content that came."""
    body = record["response"].encode()
    reported, message = json.loads(body)["content"], anthropic.read_reply(body).message
    for answer in (message, from_json(to_json(message), Message)):
        call = Call(
            ir=PromptIR.chat([Message.user("u"), answer, Message.user("go on")]),
            model="claude-sonnet-4-5",
            params=Params(max_tokens=16),
        )
        rendered = anthropic.render(call, catalog.profile("anthropic", call.model))
        request = json.loads(anthropic.assemble(rendered, Plan()).body.join())
        assert request["messages"][1]["content"] == reported
        assert not rendered.notices
