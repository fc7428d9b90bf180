"""Single answers, read without losing anything. The answers are files beside this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.replies.anthropic import minimal
from support.tables import each_row

from anaphora import catalog
from anaphora.prompt import Call, Params, PromptIR
from anaphora.rendered import Plan
from anaphora.values import (
    Message,
    Opaque,
    Reply,
    Text,
    Thinking,
    ToolCall,
    Usage,
    from_json,
    to_json,
)
from anaphora.wire import anthropic

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = sorted(file.stem for file in FIXTURES.glob("*.json"))


def body(name: str) -> bytes:
    return (FIXTURES / f"{name}.json").read_bytes()


def read(name: str) -> Reply:
    return anthropic.read_reply(body(name))


def test_text() -> None:
    reply = read("text")
    assert reply.message == Message.assistant('Grüße, "world" 🙂\n', id="msg_text")
    assert (reply.id, reply.model) == ("msg_text", "claude-sonnet-4-5-20250929")
    assert (reply.stop_reason, reply.stop_reason_raw) == ("end", "end_turn")
    assert reply.text == 'Grüße, "world" 🙂\n'
    assert reply.extras is None


def test_arguments_are_kept_as_the_model_wrote_them() -> None:
    """Spacing, key order, the form of numbers: a signature may depend on any of it."""
    search, listing = read("tool_use").tool_calls
    assert search == ToolCall(
        "toolu_1", "search", '{"query" : "caché",  "limit": 10.0, "deep":{"z":1,"a":[ ]}}'
    )
    assert listing == ToolCall(
        "toolu_2", "list", "{}", {"anthropic": '{"caller":{"type": "direct"}}'}
    )


def test_thinking_with_its_signature_and_redacted() -> None:
    assert read("thinking").message.parts == (
        Thinking("First, …", "EqQBCkYIBx==", provider="anthropic"),
        Thinking(data="EmwKAhgBEgy", provider="anthropic"),
        Thinking("", "c2ln", provider="anthropic", extras={"anthropic": '{"novel":true}'}),
        Text("So."),
    )


def test_unknown_blocks_are_kept_whole() -> None:
    use, result, text = read("server_tool").message.parts
    assert use == Opaque(
        "anthropic",
        "server_tool_use",
        '{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search",'
        '"input":{"query":"prompt caching"}}',
    )
    assert isinstance(result, Opaque)
    assert result.kind == "web_search_tool_result"
    assert isinstance(text, Text)
    assert text.extras is not None
    assert '"cited_text":"It  is"' in text.extras["anthropic"]


@pytest.mark.parametrize(
    "name, extras",
    [
        ("server_tool", '{"container":{"id":"container_1","expires_at":"2026-11-14T00:00:00Z"}}'),
        ("refusal", '{"stop_details":{"type":"refusal","category":"cyber","explanation":null}}'),
    ],
)
def test_unknown_reply_fields_are_kept(name: str, extras: str) -> None:
    assert read(name).extras == {"anthropic": extras}


# ── Usage ────────────────────────────────────────────────────────────────────────────────────────


@each_row(
    "name, usage, total_input",
    [
        ("text", Usage(uncached=12, output=7), 12),
        ("tool_use", Usage(uncached=3, read=0, written={}, output=41), 3),
        ("thinking", Usage(uncached=5, output=90, reasoning=80), 5),
        (
            "cache_split",
            Usage(uncached=3, read=2000, written={"1h": 500, "5m": 200}, output=1),
            2703,
        ),
        ("cache_unsplit", Usage(uncached=3, read=2000, written={"unsplit": 700}, output=1), 2703),
    ],
)
def test_usage_is_a_partition(name: str, usage: Usage, total_input: int) -> None:
    """Law 7: input = uncached + read + written, and an hour's write is told apart."""
    reported = read(name).usage
    assert reported == Usage(
        uncached=usage.uncached,
        read=usage.read,
        written=usage.written,
        output=usage.output,
        reasoning=usage.reasoning,
        raw=reported.raw,
    )
    assert reported.input == total_input
    assert reported.raw is not None
    assert json.loads(reported.raw) == json.loads(body(name))["usage"]


@each_row(
    "usage, expected",
    [
        (..., Usage()),
        ({}, Usage(raw="{}")),
        ({"input_tokens": 0}, Usage(uncached=0, raw='{"input_tokens": 0}')),
        ({"cache_read_input_tokens": None}, Usage(raw='{"cache_read_input_tokens": null}')),
        # Something was written, of which the split tells a part.
        (
            {"cache_creation_input_tokens": 9, "cache_creation": {"ephemeral_1h_input_tokens": 4}},
            Usage(
                written={"1h": 4, "unsplit": 5},
                raw='{"cache_creation_input_tokens": 9,'
                ' "cache_creation": {"ephemeral_1h_input_tokens": 4}}',
            ),
        ),
    ],
)
def test_unreported_usage_is_not_zero(usage: Any, expected: Usage) -> None:
    reported = anthropic.read_reply(minimal(usage=usage)).usage
    assert reported == expected


def test_a_known_zero_is_known() -> None:
    reported = anthropic.read_reply(minimal(usage={"cache_creation_input_tokens": 0})).usage
    assert reported.written_total == 0
    assert anthropic.read_reply(minimal(usage={})).usage.written_total is None


# ── Why it stopped ───────────────────────────────────────────────────────────────────────────────


def test_stop_sequence() -> None:
    assert read("stop_sequence").stop_sequence == "END"
    assert read("text").stop_sequence is None


# ── Malformed ────────────────────────────────────────────────────────────────────────────────────


# ── And back out ─────────────────────────────────────────────────────────────────────────────────


def replayed(message: Message) -> bytes:
    """The request in which the answer is history."""
    call = Call(
        ir=PromptIR.chat([Message.user("u"), message, Message.user("go on")]),
        model="claude-sonnet-4-5",
        params=Params(max_tokens=16),
    )
    rendered = anthropic.render(call, catalog.profile("anthropic", "claude-sonnet-4-5"))
    assert rendered.notices == ()
    return anthropic.assemble(rendered, Plan()).body.join()


WITH_CONTENT = [name for name in NAMES if json.loads(body(name))["content"]]


@each_row("name", WITH_CONTENT)
def test_reply_is_sent_back_unchanged(name: str) -> None:
    """Law 9: the same blocks, nothing lost and nothing added."""
    request = json.loads(replayed(read(name).message))
    assert request["messages"][1] == {
        "role": "assistant",
        "content": json.loads(body(name))["content"],
    }


@each_row("name", WITH_CONTENT)
def test_stored_reply_is_sent_back_like_live_one(name: str) -> None:
    """Law 9: byte for byte, after a round trip through a file."""
    message = read(name).message
    assert replayed(from_json(to_json(message), Message)) == replayed(message)


def test_inputs_and_citations_round_trip_bytes() -> None:
    again = replayed(read("tool_use").message)
    assert '"input":{"query" : "caché",  "limit": 10.0, "deep":{"z":1,"a":[ ]}}'.encode() in again
    assert b'"cited_text":"It  is"' in replayed(read("server_tool").message)


def test_a_reply_survives_storage() -> None:
    for name in NAMES:
        assert from_json(to_json(read(name)), Reply) == read(name)
