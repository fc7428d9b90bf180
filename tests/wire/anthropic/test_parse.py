"""Requests of the Anthropic wire read back: unknown fields, markers and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.laws.anthropic import CASE
from support.tables import each_row

from anaphora.errors import InvalidRequest
from anaphora.prompt import Reasoning
from anaphora.values import Opaque, ProviderTool, SegmentRole
from anaphora.wire import anthropic
from anaphora.wire.cutting import cut

REQUEST = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 10,
    "system": "Be terse.",
    "tools": [
        {"name": "f", "input_schema": {"type": "object"}, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
    ],
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "future": [1]}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [
                        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                        {"type": "text", "text": "b"},
                    ],
                    "cache_control": {"type": "ephemeral", "ttl": "1h"},
                },
                {"type": "search_result", "source": "s", "title": "t", "content": []},
                {"type": "text", "text": "and?", "citations": {"enabled": True}},
            ],
        },
    ],
    "cache_control": {"type": "ephemeral"},
    "diagnostics": {"previous_message_id": None},
    "container": {"id": "c"},
    "thinking": {"type": "enabled", "budget_tokens": 2048, "future": True},
}


def test_unknown_fields_and_blocks_come_back_unchanged() -> None:
    call = anthropic.parse(json.dumps(REQUEST).encode())
    again = json.loads(CASE.encode(call))
    expected: dict[str, Any] = json.loads(json.dumps(REQUEST))
    expected["system"] = [{"type": "text", "text": "Be terse."}]
    expected["messages"][0]["content"] = [{"type": "text", "text": "hi"}]
    assert again == expected


def test_parse_reads_all_documented_fields() -> None:
    call = anthropic.parse(json.dumps(REQUEST).encode())
    assert isinstance(call.tools[1], ProviderTool)
    assert call.tools[1].name == "web_search"
    messages = call.ir.run(SegmentRole.CONVERSATION)
    assert [message.id for message in messages] == ["m0", "m1", "m2"]
    assert isinstance(messages[1].parts[0], Opaque)
    marks = [(mark.path, mark.ttl) for mark in call.ir.cache.marks if hasattr(mark, "path")]
    assert marks == [((0, 0), "5m"), ((0,), "1h")]
    assert call.ir.cache.automatic == "5m"
    assert call.ir.cache.diagnose
    assert call.params.reasoning == Reasoning("enabled", budget_tokens=2048)
    assert json.loads((call.extras or {})["anthropic"]) == {
        "container": {"id": "c"},
        "thinking": {"future": True},
    }


def test_split_keeps_key_order() -> None:
    one = b'{"max_tokens":1,"model":"m","messages":[{"role":"user","content":"x"}],"tools":[%b]}'
    a = cut(anthropic, one % b'{"name":"f","input_schema":{"type":"object","properties":{}}}')
    b = cut(anthropic, one % b'{"name":"f","input_schema":{"properties":{},"type":"object"}}')
    assert a.data() != b.data()


@each_row(
    "body, path",
    [
        (b"[]", "$"),
        (b"{}", "$.model"),
        (b'{"model":"m","max_tokens":1}', "$.messages"),
        (
            b'{"model":"m","max_tokens":1,"messages":[{"role":"king","content":"x"}]}',
            "$.messages[0].role",
        ),
        (
            b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text"}]}]}',
            "$.messages[0].content[0].text",
        ),
        (
            b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text",'
            b'"text":"x","cache_control":{"type":"ephemeral","ttl":"2h"}}]}]}',
            "$.messages[0].content[0].cache_control.ttl",
        ),
    ],
)
def test_invalid_request_names_its_field(body: bytes, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        anthropic.parse(body)
    assert caught.value.path == path


def test_nested_marker_keeps_field_order() -> None:
    block = '{"type":"text","text":"a"%s}'
    result = '{"type":"tool_result","tool_use_id":"t","content":[%s],"is_error":true}'
    request = '{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[%s]}]}'
    MARKER = ',"cache_control":{"type":"ephemeral"}'
    one, other = (
        cut(anthropic, (request % (result % (block % marker))).encode()) for marker in ("", MARKER)
    )
    assert one.data() == other.data()
    (mark,) = other.marks
    assert mark.splice is not None
    assert other.chunk(mark.chunk).data[mark.splice :].startswith(b'}],"is_error":true}')


def test_messages_are_numbered_in_a_long_request() -> None:
    given = [
        {"role": "assistant" if index % 2 else "user", "content": f"text {index}"}
        for index in range(300)
    ]
    body = json.dumps({"model": "m", "max_tokens": 1, "messages": given}).encode()
    read = anthropic.parse(body).ir.run(SegmentRole.CONVERSATION)
    assert [message.id for message in read] == [f"m{index}" for index in range(300)]
    assert [(message.role, message.text) for message in read] == [
        (message["role"], message["content"]) for message in given
    ]
